/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Connections, and the decision about a packet on one side of it: at the endpoint that sends or
 * at the one that receives it. decide changes nothing; commit stores what it found, once both
 * sides have decided. */
#pragma once

#include "maps.h"
#include "parse.h"
#include "verdict.h"

/* How long an entry without packets is valid, in seconds. */
enum timeout {
	TIMEOUT_TCP_OPENING = 60,
	TIMEOUT_TCP_ESTABLISHED = 2 * 60 * 60,
	TIMEOUT_TCP_CLOSING = 30,
	TIMEOUT_REVOKED = 5 * 60, /* more than the pauses between retransmissions, 120 s */
	TIMEOUT_UDP_OPENING = 30,
	TIMEOUT_UDP_ESTABLISHED = 180,
	TIMEOUT_ICMP = 30,
	TIMEOUT_OTHER = 600,
};

enum operation {
	KEEP = 0,
	REFRESH = 1, /* write in place when it was seen and how far it is */
	STORE = 2,
	DELETE = 3,
};

struct side {
	struct connection_key key;
	struct connection connection;
	struct answer answer;
	__u32 set;
	__u16 endpoint;
	__u8 direction;
	__u8 verdict;
	__u8 reason;
	__u8 operation;
	__u8 judged; /* 1: as a new connection, and not by an entry */
	__u8 pad;
} __attribute__((aligned(8)));

/* The set in force at an endpoint. The agent stores all eight bytes at once. */
inlined __u32 in_force(__u32 endpoint)
{
	__u64 *value = map_lookup(&tl_endpoints, &endpoint);

	return value ? (__u32) * (volatile __u64 *)value : SET_NONE;
}

/* The endpoint of this node that has an address; 0: none has. */
inlined __u16 endpoint_of(const struct address *a)
{
	__u32 *id = map_lookup(&tl_addresses, a);

	return id ? *id : 0;
}

/* When it is: the values that change while packets pass, read once for each. */
struct moment {
	__u32 ticks;
	__u32 epoch;
	__u32 log;
	__u32 pad;
};

inlined __u32 coarse_ticks(void)
{
	return ktime_get_coarse_ns() >> TICK_SHIFT;
}

inlined void now(struct moment *m)
{
	__u32 zero = 0;
	struct state *state = map_lookup(&tl_state, &zero);

	m->ticks = coarse_ticks();
	m->epoch = state ? state->epoch : 0;
	m->log = state ? state->log : 0;
}

/* TCP and SCTP: packets that open a connection differ from others. */
inlined int has_opening(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_SCTP;
}

/* As many ticks as take at least this time. */
inlined __u32 ticks(__u64 seconds)
{
	return (seconds * 1000000000 >> TICK_SHIFT) + 1;
}

inlined __u32 timeout_of(__u8 protocol, const struct connection *c)
{
	__u8 state = c->state;

	if (c->revoked)
		return TIMEOUT_REVOKED;
	if (has_opening(protocol)) {
		if (state == ESTABLISHED)
			return TIMEOUT_TCP_ESTABLISHED;
		return state == CLOSING ? TIMEOUT_TCP_CLOSING : TIMEOUT_TCP_OPENING;
	}
	if (protocol == IPPROTO_UDP)
		return state == ESTABLISHED ? TIMEOUT_UDP_ESTABLISHED : TIMEOUT_UDP_OPENING;
	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return TIMEOUT_ICMP;
	return TIMEOUT_OTHER;
}

inlined int stamped(const struct side *s, const struct moment *m)
{
	return s->connection.set == s->set && s->connection.epoch == m->epoch;
}

inlined void stamp(struct side *s, const struct moment *m)
{
	s->connection.set = s->set;
	s->connection.epoch = m->epoch;
	s->operation = STORE;
}

/* Judges the connection as opened in a direction: its destination is then the pod or the peer. */
inlined int opened(struct side *s, __u8 direction)
{
	struct question q = {
		.peer = s->key.peer,
		.set = s->set,
		.port = direction == INGRESS ? s->key.pod_port : s->key.peer_port,
		.protocol = s->key.protocol,
		.direction = direction,
	};
	return verdict(&q, &s->answer);
}

inlined int allow(struct side *s)
{
	s->verdict = 1;
	return 1;
}

inlined int deny(struct side *s, __u8 reason)
{
	s->verdict = 0;
	s->reason = reason;
	return 0;
}

inlined void refresh(struct side *s)
{
	if (s->operation == KEEP)
		s->operation = REFRESH;
}

/* The state after a packet of a direction. */
inlined void advance(struct side *s, const struct packet *p)
{
	struct connection *c = &s->connection;
	__u8 flags = c->flags, state = c->state;

	if (p->flags & FINISHES)
		flags |= 1 << (s->direction & 1);
	if (p->flags & ABORTS || flags == 3)
		state = CLOSING;
	else if (state == OPENING && s->direction != c->opened)
		state = ESTABLISHED;
	if (flags != c->flags || state != c->state) {
		c->flags = flags;
		c->state = state;
		refresh(s);
	}
}

inlined void seen(struct side *s, const struct moment *m)
{
	if (s->connection.seen == m->ticks)
		return;
	s->connection.seen = m->ticks;
	refresh(s);
}

/* Decides by an entry. A revoked one is judged with each packet: what allows it again changes
 * neither the set nor the epoch if it is the class of the peer. */
inlined int continued(struct side *s, const struct packet *p, const struct moment *m)
{
	int before = stamped(s, m);

	if (!before || s->connection.revoked) {
		int allowed = opened(s, s->connection.opened);
		if (!before || allowed)
			stamp(s, m);
		if (!allowed && !has_opening(s->key.protocol)) {
			s->operation = DELETE;
			return deny(s, BY_POLICY);
		}
		s->connection.revoked = !allowed;
	}
	if (s->connection.revoked) {
		seen(s, m);
		return deny(s, BY_POLICY);
	}
	if (p->kind != ERROR) {
		advance(s, p);
		seen(s, m);
	}
	return allow(s);
}

inlined int create(struct side *s, const struct moment *m, __u8 direction)
{
	s->connection.opened = direction;
	s->connection.state = direction == s->direction ? OPENING : ESTABLISHED;
	s->connection.flags = 0;
	s->connection.revoked = 0;
	s->connection.pad = 0;
	s->connection.endpoint = s->endpoint;
	s->connection.seen = m->ticks;
	stamp(s, m);
	return allow(s);
}

/* Either end of UDP between equal ports may open it, as DNS, NTP and IKE do. Otherwise what conntrack counts as a
 * reply is judged as one only. Were it also judged as a packet that opens a flow of its sender, a flow that a
 * policy has ended would go on with the next packet of the pod that was its destination, if that pod may send. */
inlined int either_opens(const struct side *s, const struct packet *p)
{
	return p->kind == ANY && s->key.protocol == IPPROTO_UDP && s->key.pod_port == s->key.peer_port;
}

/* Decides without an entry. One of an allowed connection can be missing after its eviction, or
 * because the endpoint had no policies when it opened. Then conntrack says who opened it: for UDP, the
 * end that sent first since the flow last paused for longer than conntrack's timeout. */
inlined int first(struct side *s, const struct packet *p, const struct moment *m)
{
	__u8 reverse = s->direction == INGRESS ? EGRESS : INGRESS;

	s->judged = 1;
	if (p->kind == ERROR || (p->kind == REPLIES && !(p->flags & REPLY))) {
		s->judged = 0;
		return isolated(s->set, s->direction) ? deny(s, UNRELATED) : allow(s);
	}
	if (p->flags & REPLY && p->kind != OPENS) {
		if (opened(s, reverse))
			return create(s, m, reverse);
		if (!either_opens(s, p))
			return deny(s, p->kind == REPLIES ? UNRELATED : BY_POLICY);
	}
	return opened(s, s->direction) ? create(s, m, s->direction) : deny(s, BY_POLICY);
}

/* Whether a packet that opens a connection replaces the entry: its port is used again. */
inlined int reopens(const struct side *s)
{
	const struct connection *c = &s->connection;

	return c->opened != s->direction || c->state == CLOSING || c->revoked;
}

/* Decides about a packet at one endpoint, in one direction, by the set in force there. connections
 * 0: as if there were no entries and the packet opened a connection. */
called int decide(struct side *s, const struct packet *p, const struct moment *m, int connections)
{
	struct connection *c;

	if (s->set == SET_OPEN)
		return allow(s);
	if (s->set < SET_FIRST)
		return deny(s, NOT_READY);
	s->key.protocol = p->protocol;
	if (s->direction == INGRESS) {
		s->key.pod = p->destination;
		s->key.peer = p->peer;
		s->key.pod_port = p->destination_port;
		s->key.peer_port = p->source_port;
	} else {
		s->key.pod = p->source;
		s->key.peer = p->destination;
		s->key.pod_port = p->source_port;
		s->key.peer_port = p->destination_port;
		if (p->kind == ERROR && !same_address(&p->peer, &p->source))
			return deny(s, UNRELATED); /* its cause was not sent to this endpoint */
	}
	if (!connections) {
		s->judged = 1;
		return opened(s, s->direction) ? allow(s) : deny(s, BY_POLICY);
	}
	c = map_lookup(&tl_connections, &s->key);
	if (c && c->endpoint == s->endpoint) {
		s->connection = *c;
		if (m->ticks - s->connection.seen < ticks(timeout_of(s->key.protocol, &s->connection)) &&
		    !(p->kind == OPENS && reopens(s)))
			return continued(s, p, m);
	}
	return first(s, p, m);
}

inlined void commit(struct side *s)
{
	struct connection *c;

	switch (s->operation) {
	case REFRESH:
		c = map_lookup(&tl_connections, &s->key);
		if (c) {
			c->state = s->connection.state;
			c->flags = s->connection.flags;
			c->seen = s->connection.seen;
		}
		break;
	case STORE:
		map_update(&tl_connections, &s->key, &s->connection, 0);
		break;
	case DELETE:
		map_delete(&tl_connections, &s->key);
		break;
	}
}
