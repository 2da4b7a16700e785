/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The short way of most packets: they belong to a connection of which the ends have an entry that
 * is in force. Everything else is left to the parser and to decide. What passes here they would
 * allow too, and leave the same entries. */
#pragma once

#include "connection.h"

/* A packet of TCP or UDP that does not open a connection of TCP, as its sender or its receiver has
 * it. */
struct continuing {
	struct connection_key key;
	__u32 flags; /* enum packet_flags */
};

#define TCP_SIZE 20

/* Reads the transport header, of which length bytes belong to the packet. */
inlined int read_transport(const __u8 *l4, __u32 length, __u8 direction, struct continuing *p)
{
	__u16 source, destination;
	__u32 size;
	__u8 flags;

	p->flags = 0;
	if (p->key.protocol == IPPROTO_TCP) {
		size = (l4[12] >> 4) * 4;
		flags = l4[13];
		if (size < TCP_SIZE || size > length || !(flags & (TCP_ACK | TCP_RST)))
			return 0;
		if (flags & TCP_SYN && flags & (TCP_FIN | TCP_RST))
			return 0;
		if (flags & TCP_FIN)
			p->flags |= FINISHES;
		if (flags & TCP_RST)
			p->flags |= ABORTS;
	} else if (p->key.protocol == IPPROTO_UDP) {
		size = l4[4] << 8 | l4[5];
		if (size < 8 || size > length)
			return 0;
	} else {
		return 0;
	}
	source = l4[0] << 8 | l4[1];
	destination = l4[2] << 8 | l4[3];
	p->key.pod_port = direction == EGRESS ? source : destination;
	p->key.peer_port = direction == EGRESS ? destination : source;
	return 1;
}

/* Reads a packet without options or extension headers, of which at least TCP_SIZE bytes follow
 * the network header. Instance metadata (169.254.0.0/16, fd00:ec2::/32) has rules of its own,
 * behind this program. */
inlined int read(struct __sk_buff *skb, __u8 direction, struct continuing *p)
{
	struct address *source = direction == EGRESS ? &p->key.pod : &p->key.peer;
	struct address *destination = direction == EGRESS ? &p->key.peer : &p->key.pod;
	struct {
		struct ipv4 ip;
		__u8 l4[TCP_SIZE];
	} v4;
	struct {
		struct ipv6 ip;
		__u8 l4[TCP_SIZE];
	} v6;
	__u32 length;

	if (!load(skb, 0, &v4, sizeof(v4)))
		return 0;
	p->key.pad[0] = p->key.pad[1] = p->key.pad[2] = 0;
	if (v4.ip.version_ihl == 0x45) {
		length = swap16(v4.ip.length);
		if (length < IPV4_SIZE || length > skb->len || v4.ip.fragment & swap16(0x3fff))
			return 0;
		if ((v4.ip.destination & swap32(0xffff0000)) == swap32(0xa9fe0000))
			return 0;
		p->key.protocol = v4.ip.protocol;
		mapped(source, v4.ip.source);
		mapped(destination, v4.ip.destination);
		return read_transport(v4.l4, length - IPV4_SIZE, direction, p);
	}
	if (v4.ip.version_ihl >> 4 != 6 || !load(skb, 0, &v6, sizeof(v6)))
		return 0;
	length = swap16(v6.ip.length);
	if (length + IPV6_SIZE > skb->len || is_mapped(&v6.ip.destination))
		return 0; /* no entry has a source of one family and a destination of the other */
	if (v6.ip.destination.words[0] == swap32(0xfd000ec2))
		return 0;
	p->key.protocol = v6.ip.next;
	*source = v6.ip.source;
	*destination = v6.ip.destination;
	return read_transport(v6.l4, length, direction, p);
}

/* The shortest time for which an entry without packets is valid. */
#define SHORTEST_TIMEOUT 30

/* The entry of an end, if it is in force and not about to expire; NULL if not. */
inlined struct connection *entry_of(const struct connection_key *key, __u32 now, __u32 epoch)
{
	struct connection *c = map_lookup(&tl_connections, key);

	if (!c || c->epoch != epoch || c->revoked || c->set != in_force(c->endpoint))
		return NULL;
	return now - c->seen < ticks(SHORTEST_TIMEOUT) ? c : NULL;
}

/* Writes what the packet changes of the entry, as advance and seen do. */
inlined void note(struct connection *c, const struct continuing *p, __u8 direction, __u32 now)
{
	__u8 flags = c->flags, state = c->state;

	if (p->flags & FINISHES)
		flags |= 1 << direction;
	if (p->flags & ABORTS || flags == 3)
		state = CLOSING;
	else if (state == OPENING && direction != c->opened)
		state = ESTABLISHED;
	if (flags != c->flags)
		c->flags = flags;
	if (state != c->state)
		c->state = state;
	if (now != c->seen)
		c->seen = now;
}

/* Whether the sender (EGRESS) or the receiver has an entry that allows the packet. */
inlined int known_at(struct __sk_buff *skb, __u8 direction)
{
	struct state *state = map_lookup(&tl_state, &(__u32){0});
	__u32 now = coarse_ticks();
	struct connection *c;
	struct continuing p;

	if (!state || !read(skb, direction, &p))
		return 0;
	c = entry_of(&p.key, now, state->epoch);
	if (!c)
		return 0;
	note(c, &p, direction, now);
	return 1;
}

/* Whether both have one. */
inlined int known_at_both(struct __sk_buff *skb)
{
	struct state *state = map_lookup(&tl_state, &(__u32){0});
	struct connection *sender, *receiver;
	__u32 now = coarse_ticks();
	struct connection_key key;
	struct continuing p;

	if (!state || !read(skb, EGRESS, &p))
		return 0;
	key = p.key;
	key.pod = p.key.peer;
	key.peer = p.key.pod;
	key.pod_port = p.key.peer_port;
	key.peer_port = p.key.pod_port;
	sender = entry_of(&p.key, now, state->epoch);
	receiver = entry_of(&key, now, state->epoch);
	if (!sender || !receiver)
		return 0;
	note(sender, &p, EGRESS, now);
	note(receiver, &p, INGRESS, now);
	return 1;
}
