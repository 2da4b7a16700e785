/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The parser of packets. It is strict: what it does not understand is dropped, for a field that
 * the program and the pod read differently is a way past the policy. */
#pragma once

#include "kernel.h"
#include "maps.h"

/* What a packet may do to connections. */
enum kind {
	ANY = 0,       /* open one, or continue one: UDP and protocols without ports */
	OPENS = 1,     /* TCP SYN, SCTP INIT, ICMP requests */
	CONTINUES = 2, /* all else of TCP and SCTP */
	REPLIES = 3,   /* ICMP replies */
	ERROR = 4,     /* ICMP errors: ports and protocol are of the packet that caused it, reversed */
};

enum packet_flags {
	FINISHES = 1, /* TCP FIN */
	ABORTS = 2,   /* TCP RST, SCTP ABORT and SHUTDOWN COMPLETE */
	REPLY = 4,    /* conntrack: opposite to the packet that opened the connection */
};

struct packet {
	struct address source, destination;
	struct address peer; /* of the destination: the source, and of ERROR the destination of its cause */
	__u16 source_port;   /* of ICMP requests and replies the identifier, in both */
	__u16 destination_port;
	__u16 logged[2]; /* ports, or of ICMP type and code */
	__u32 length;
	__u8 protocol;
	__u8 kind;
	__u8 flags;
	__u8 version; /* 4 or 6 */
} __attribute__((aligned(8)));

/* The ports of ICMP of other types. They differ, so that the key of a packet in one direction is
 * never that of one in the other direction: such packets have no replies. */
#define NO_PORT_SOURCE 0
#define NO_PORT_DESTINATION 0xffff

#define MAX_EXTENSIONS 8
#define IPV4_SIZE 20
#define IPV6_SIZE 40
#define L4_OF_ERROR 8 /* bytes of the transport header that an ICMP error contains, RFC 792 */

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 length, id, fragment;
	__u8 ttl, protocol;
	__u16 checksum;
	__u32 source, destination;
};

struct ipv6 {
	__u8 version;
	__u8 flow[3];
	__u16 length;
	__u8 next, hops;
	struct address source, destination;
};

inlined int load(struct __sk_buff *skb, __u32 offset, void *to, __u32 size)
{
	return skb_load_bytes(skb, offset, to, size) == 0;
}

inlined void mapped(struct address *a, __u32 ipv4)
{
	__u32 *words = (__u32 *)a;
	words[0] = 0;
	words[1] = 0;
	words[2] = swap32(0xffff);
	words[3] = ipv4;
}

inlined int is_mapped(const struct address *a)
{
	const __u32 *words = (const __u32 *)a;
	return words[0] == 0 && words[1] == 0 && words[2] == swap32(0xffff);
}

inlined int same_address(const struct address *a, const struct address *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* Writes a structure over itself, by a number that the verifier does not know. It follows every
 * path with all that it knows of the stack, and joins paths that know the same: behind this they
 * know nothing of the structure. Without it forward takes ten times as long to load. */
inlined void settle(void *structure, __u32 size, __u64 number)
{
	volatile __u64 *words = structure;
	__u64 same = number;

	asm volatile("" : "+r"(same)); /* the compiler does not know that it is the same */
	for (__u32 n = 0; n < size / 8; n++)
		words[n] = words[n] ^ number ^ same;
}

/* A network header and what follows it. */
struct headers {
	struct address source, destination;
	__u32 offset; /* of the transport header */
	__u32 end;    /* of the packet */
	__u8 protocol;
	__u8 version;
	__u8 fragment; /* 1: the first, 2: another */
	__u8 pad[5];
} __attribute__((aligned(8)));

/* Walks the extension headers of IPv6 from h->offset on. */
called int walk(struct __sk_buff *skb, struct headers *h)
{
	__u32 offset = h->offset, size;
	__u8 next = h->protocol;
	__u8 head[4];
#pragma clang loop unroll(disable)
	for (int n = 0; n <= MAX_EXTENSIONS; n++) {
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT && next != IPPROTO_AH) {
			h->protocol = next;
			h->offset = offset;
			return 1;
		}
		if (n == MAX_EXTENSIONS || (next == IPPROTO_HOPOPTS && n > 0))
			return 0;
		if (offset + 8 > h->end || !load(skb, offset, head, sizeof(head)))
			return 0;
		size = (head[1] + 1) * 8;
		if (next == IPPROTO_FRAGMENT) {
			size = 8;
			if (head[2] || head[3] & 0xf8)
				h->fragment = 2;
			else if (head[3] & 1)
				h->fragment = 1;
		} else if (next == IPPROTO_AH) {
			size = (head[1] + 2) * 4;
			if (size < 12)
				return 0;
		} else if (next == IPPROTO_ROUTING && (head[2] == 0 || head[3] != 0)) {
			return 0; /* type 0, or the destination is not the last one */
		}
		offset += size;
		if (offset > h->end)
			return 0;
		if (h->fragment == 2) {
			h->protocol = head[0];
			h->offset = offset;
			return 1;
		}
		next = head[0];
	}
	return 0;
}

/* Parses the network header at an offset. The packet ends at h->end or, if the header says so,
 * earlier; of the cause of an ICMP error there may be less than its header says. */
called int network(struct __sk_buff *skb, __u32 at, struct headers *h, int cause)
{
	__u32 length, size;
	__u8 version;

	if (!load(skb, at, &version, 1))
		return 0;
	h->version = version >> 4;
	h->fragment = 0;
	if (h->version == 4) {
		struct ipv4 ip;
		if (!load(skb, at, &ip, IPV4_SIZE))
			return 0;
		size = (ip.version_ihl & 0xf) * 4;
		length = swap16(ip.length);
		if (length == 0 && h->end - at > 0xffff)
			length = h->end - at; /* segmentation offload of more than 64 KiB */
		if (size < IPV4_SIZE || length < size)
			return 0;
		if (ip.fragment & swap16(0x1fff))
			h->fragment = 2;
		else if (ip.fragment & swap16(0x2000))
			h->fragment = 1;
		h->protocol = ip.protocol;
		mapped(&h->source, ip.source);
		mapped(&h->destination, ip.destination);
	} else if (h->version == 6) {
		struct ipv6 ip;
		if (!load(skb, at, &ip, IPV6_SIZE))
			return 0;
		size = IPV6_SIZE;
		length = size + swap16(ip.length);
		if (length == size && h->end - at > 0xffff)
			length = h->end - at;
		h->protocol = ip.next;
		h->source = ip.source;
		h->destination = ip.destination;
		if (is_mapped(&h->source) || is_mapped(&h->destination))
			return 0; /* IPv6 packets never have IPv4's addresses */
	} else {
		return 0;
	}
	if (at + length > h->end && !cause)
		return 0;
	if (at + length < h->end)
		h->end = at + length;
	h->offset = at + size;
	if (h->offset > h->end)
		return 0;
	if (h->version == 6 && !walk(skb, h))
		return 0;
	settle(h, sizeof(*h), h->end);
	return 1;
}

inlined int parse_tcp(struct __sk_buff *skb, const struct headers *h, struct packet *p)
{
	__u8 tcp[14];
	__u32 size;
	__u8 flags;

	if (!load(skb, h->offset, tcp, sizeof(tcp)))
		return MALFORMED;
	size = (tcp[12] >> 4) * 4;
	flags = tcp[13];
	if (size < 20 || h->offset + size > h->end)
		return MALFORMED;
	if ((flags & TCP_SYN && flags & (TCP_FIN | TCP_RST)) || !(flags & (TCP_SYN | TCP_RST | TCP_ACK)))
		return MALFORMED;
	p->source_port = tcp[0] << 8 | tcp[1];
	p->destination_port = tcp[2] << 8 | tcp[3];
	p->kind = (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? OPENS : CONTINUES;
	if (flags & TCP_FIN)
		p->flags |= FINISHES;
	if (flags & TCP_RST)
		p->flags |= ABORTS;
	return BY_POLICY;
}

inlined int parse_udp(struct __sk_buff *skb, const struct headers *h, struct packet *p)
{
	__u16 udp[4];

	if (h->offset + sizeof(udp) > h->end || !load(skb, h->offset, udp, sizeof(udp)))
		return MALFORMED;
	if (swap16(udp[2]) < sizeof(udp) || h->offset + swap16(udp[2]) > h->end)
		return MALFORMED;
	p->source_port = swap16(udp[0]);
	p->destination_port = swap16(udp[1]);
	return BY_POLICY;
}

inlined int parse_sctp(struct __sk_buff *skb, const struct headers *h, struct packet *p)
{
	__u8 sctp[16]; /* common header, header of the first chunk */

	if (h->offset + sizeof(sctp) > h->end || !load(skb, h->offset, sctp, sizeof(sctp)))
		return MALFORMED;
	p->source_port = sctp[0] << 8 | sctp[1];
	p->destination_port = sctp[2] << 8 | sctp[3];
	p->kind = sctp[12] == SCTP_INIT ? OPENS : CONTINUES;
	if (sctp[12] == SCTP_ABORT || sctp[12] == SCTP_SHUTDOWN_COMPLETE)
		p->flags |= ABORTS;
	return BY_POLICY;
}

/* What a type of ICMP or ICMPv6 may do; -1: it is never forwarded. */
inlined int icmp_kind(__u8 version, __u8 type)
{
	if (version == 4) {
		switch (type) {
		case 8:  /* echo */
		case 13: /* timestamp */
		case 42: /* extended echo */
			return OPENS;
		case 0:
		case 14:
		case 43:
			return REPLIES;
		case 3:  /* destination unreachable, fragmentation needed */
		case 11: /* time exceeded */
		case 12: /* parameter problem */
			return ERROR;
		case 4:  /* source quench, obsolete */
		case 5:  /* redirect */
		case 9:  /* router advertisement */
		case 10: /* router solicitation */
			return -1;
		}
		return ANY;
	}
	if (type == 128 || type == 160)
		return OPENS;
	if (type == 129 || type == 161)
		return REPLIES;
	if (type >= 1 && type <= 4)
		return ERROR;
	/* multicast listeners, neighbour discovery with redirect, and the like */
	if ((type >= 130 && type <= 137) || type == 141 || type == 142 || type == 143 || (type >= 148 && type <= 153))
		return -1;
	return ANY;
}

/* Parses the packet that caused an ICMP error, and stores its ports reversed. */
called int parse_cause(struct __sk_buff *skb, const struct headers *outer, struct packet *p)
{
	struct headers h = {.end = outer->end};
	__u8 l4[L4_OF_ERROR];
	int kind;

	if (!network(skb, outer->offset + 8, &h, 1) || h.version != p->version || h.fragment == 2)
		return UNRELATED;
	if (!same_address(&h.source, &p->destination))
		return UNRELATED; /* an error goes to the source of its cause */
	p->peer = h.destination;
	p->protocol = h.protocol;
	if (h.offset + sizeof(l4) > h.end || !load(skb, h.offset, l4, sizeof(l4)))
		return UNRELATED;
	if (h.protocol == IPPROTO_TCP || h.protocol == IPPROTO_UDP || h.protocol == IPPROTO_SCTP) {
		p->source_port = l4[2] << 8 | l4[3];
		p->destination_port = l4[0] << 8 | l4[1];
	} else if (h.protocol == (h.version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		kind = icmp_kind(h.version, l4[0]);
		if (kind != OPENS && kind != REPLIES)
			return UNRELATED;
		p->source_port = p->destination_port = l4[4] << 8 | l4[5];
	}
	return BY_POLICY;
}

inlined int parse_icmp(struct __sk_buff *skb, const struct headers *h, struct packet *p)
{
	__u8 icmp[8];
	int kind;

	if (h->offset + sizeof(icmp) > h->end || !load(skb, h->offset, icmp, sizeof(icmp)))
		return MALFORMED;
	p->logged[0] = icmp[0];
	p->logged[1] = icmp[1];
	kind = icmp_kind(h->version, icmp[0]);
	if (kind < 0)
		return ICMP_TYPE;
	p->kind = kind;
	if (kind == ERROR)
		return parse_cause(skb, h, p);
	if (kind == ANY) {
		p->source_port = NO_PORT_SOURCE;
		p->destination_port = NO_PORT_DESTINATION;
	} else {
		p->source_port = p->destination_port = icmp[4] << 8 | icmp[5];
	}
	return BY_POLICY;
}

/* Parses the packet with its network header at base into *p, which is zero. It returns the
 * reason to drop it, BY_POLICY if there is none. */
called int parse(struct __sk_buff *skb, __u32 base, struct packet *p)
{
	struct headers h = {.end = skb->len};
	int reason = BY_POLICY;

	if (!network(skb, base, &h, 0))
		return MALFORMED;
	p->source = h.source;
	p->destination = h.destination;
	p->peer = h.source;
	p->protocol = h.protocol;
	p->version = h.version;
	p->length = h.end - base;
	if (h.fragment)
		return FRAGMENT;
	if (h.protocol == (h.version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return parse_icmp(skb, &h, p);
	if (h.protocol == IPPROTO_TCP)
		reason = parse_tcp(skb, &h, p);
	else if (h.protocol == IPPROTO_UDP)
		reason = parse_udp(skb, &h, p);
	else if (h.protocol == IPPROTO_SCTP)
		reason = parse_sctp(skb, &h, p);
	p->logged[0] = p->source_port;
	p->logged[1] = p->destination_port;
	return reason;
}
