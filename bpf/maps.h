/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The maps that the programs and the agent share. Addresses have 16 bytes; an IPv4 address is
 * its IPv4-mapped IPv6 address (::ffff:a.b.c.d). Ports and other numbers are in host byte order,
 * except where it says otherwise. Every structure
 * has its padding spelled out, because keys are compared byte by byte. The agent's side is
 * internal/edge/bpf; what the values mean is decided in internal/core/policy. */
#pragma once

#include "kernel.h"

struct address {
	__u32 words[4]; /* network byte order */
};

/* Bits of the packet mark. */
enum mark {
	/* Set by from_pod, cleared by the rule around forward: a packet of a pod without a verdict. */
	MARK_PENDING = 0x1000,
	/* Behind forward: it has been allowed. In front of forward it has another meaning, which
	 * saves a bit: the rule before the match sets it on packets that conntrack counts as replies
	 * ("ct direction reply"). */
	MARK_JUDGED = 0x0800,
};

enum direction {
	INGRESS = 0,
	EGRESS = 1,
};

/* tl_links: ifindex of a pod's host end -> endpoint. HASH, written by the agent. */
/* tl_addresses: address of a pod of this node -> endpoint. HASH, written by the agent. */

/* tl_endpoints: endpoint ID -> the set in force. ARRAY, mmapable: the agent switches an endpoint
 * from one set to the next by a single store of eight bytes. The value 0 is no endpoint: drop. */
struct endpoint {
	__u32 set;   /* enum set_number */
	__u32 flags; /* unused, 0 */
};

enum set_number {
	SET_NONE = 0,    /* no endpoint */
	SET_OPEN = 1,    /* no policy selects the pod: all may pass, and connections have no entries */
	SET_PENDING = 2, /* its policies are not known yet: nothing may pass */
	SET_FIRST = 16,  /* the first number of a compiled set, which is a key of tl_sets */
};

/* tl_sets: the compiled policies that select an endpoint. A set never changes: another content
 * has another number. HASH, written by the agent. */
struct set {
	__u32 scope;    /* of the classes of addresses */
	__u32 ports;    /* of the classes of ports */
	__u8 isolated;  /* bit 1 << direction */
	__u8 ranges;    /* 1: tl_port_ranges has entries of these ports */
	__u8 prefixes;  /* 1: tl_prefixes has entries of this scope */
	__u8 pad;
};

/* tl_classes: address -> class. HASH. An address of no entry is looked up in tl_prefixes. */
struct class_key {
	__u32 scope;
	struct address address;
};

/* tl_prefixes: the prefixes of a scope -> class, disjoint by the longest match. LPM_TRIE. */
struct prefix_key {
	__u32 prefixlen; /* 32 bits of the scope, then of the address: 32 + 96 + n for IPv4 */
	__u32 scope;     /* network byte order, as tries compare from the first byte on */
	struct address address;
};

/* tl_ports: a port -> class of ports. HASH. A port of no entry is looked up in
 * tl_port_ranges; one of neither has class 0, which is also that of protocols without ports. */
struct port_key {
	__u32 ports;
	__u8 protocol; /* IPPROTO_TCP, UDP or SCTP */
	__u8 pad;
	__u16 port;
};

/* tl_port_ranges: LPM_TRIE; the port in network byte order. Protocol entries match all ports. */
struct port_range_key {
	__u32 prefixlen; /* 32 bits of ports, 8 of the protocol, 8 of padding, then of the port */
	__u32 ports;     /* network byte order */
	__u8 protocol;
	__u8 pad;
	__u16 port;      /* network byte order */
};

/* tl_rows: the verdicts of a set for a class of addresses: bit n of page p is port class
 * 64 * p + n, 1 to allow. HASH of __u64. Without a row of the class and this page, that of class
 * 0 and this page applies; without both, the packet is denied. So a class that allows less than
 * class 0 on a page needs a row there, also if it is 0. */
struct row_key {
	__u32 set;
	__u32 class;
	__u16 page;
	__u8 direction;
	__u8 pad;
};

/* tl_state: one entry. ARRAY, mmapable, written by the agent. */
struct state {
	__u32 epoch; /* grows with every change of an address's class, and before an endpoint's number
	              * is given again: connections are judged again */
	__u32 log;   /* flow log: 0 off, 1 denies, n > 1 also one of n accepted connections */
};

/* tl_connections: LRU_HASH, written by the programs. One entry for each pod of this node that
 * takes part in a connection. */
struct connection_key {
	struct address pod, peer;
	__u16 pod_port;  /* of ICMP: the identifier, in both */
	__u16 peer_port;
	__u8 protocol;
	__u8 pad[3];
};

/* A verdict, which is replaced as a whole, and how far the connection is, which is written in
 * place: an element that the kernel has reused for another connection meanwhile may get it. So
 * nothing of it decides more than how long the entry is valid. */
struct connection {
	__u32 set;      /* by which it was judged last */
	__u32 epoch;
	__u16 endpoint; /* that had the pod's address */
	__u8 opened;    /* direction of the packet that opened it */
	__u8 revoked;   /* 1, of TCP and SCTP: a change of policy has ended it; only a new opening replaces it */
	__u8 state;     /* in place: enum connection_state */
	__u8 flags;     /* in place: FIN seen from 1 << direction */
	__u16 pad;
	__u32 seen;     /* in place: ticks of CLOCK_MONOTONIC */
};

/* Ticks are 2^30 ns, a little more than a second. */
#define TICK_SHIFT 30

enum connection_state {
	OPENING = 1,     /* packets of one direction */
	ESTABLISHED = 2, /* of both */
	CLOSING = 3,     /* RST, or FIN of both directions */
};

/* tl_flows: RINGBUF of struct flow: denies, and a sample of first accepts. */
struct flow {
	__u64 time; /* ns of CLOCK_MONOTONIC */
	struct address source, destination;
	__u16 source_port, destination_port; /* of ICMP: type and code */
	__u16 endpoint; /* the one that judged; 0: neither address is one of this node */
	__u8 protocol;
	__u8 direction; /* of the endpoint that judged */
	__u8 verdict;   /* 1: allowed */
	__u8 reason;    /* enum reason */
	__u16 length;   /* bytes of the packet, at most 65535 */
	__u32 set;
	__u32 class;
	__u32 port_class;
	__u32 lost;     /* records before this one that the rate limit or a full buffer withheld, on this processor */
	__u32 pad;
};

enum reason {
	BY_POLICY = 0,
	MALFORMED = 1,
	NOT_READY = 2,  /* SET_PENDING, or no endpoint */
	FRAGMENT = 3,
	UNRELATED = 4,  /* an ICMP error or reply of no live connection */
	ICMP_TYPE = 5,  /* ICMP that is never forwarded: redirects, neighbour discovery, … */
	REASONS,
};

/* tl_counts: PERCPU_HASH of __u64: connections judged, by what decided them. A packet that is
 * denied counts each time, since it leaves no connection. */
struct count_key {
	__u32 set;
	__u32 class;
	__u32 port_class;
	__u8 direction;
	__u8 verdict;
	__u16 pad;
};

/* tl_drops: PERCPU_ARRAY of __u64 by enum reason: packets. */

/* tl_limit: PERCPU_ARRAY, one entry: the rate limit of tl_flows. Written by the programs. */
struct limit {
	__u64 refilled; /* ns of CLOCK_MONOTONIC */
	__u32 tokens;
	__u32 lost;
};

#define MAP(name, T, K, V, N, F)     \
	struct {                     \
		__uint(type, T);     \
		__type(key, K);      \
		__type(value, V);    \
		__uint(max_entries, N); \
		__uint(map_flags, F); \
	} name SEC(".maps")

/* The sizes are defaults: the agent sets them as configured. */
MAP(tl_links, MAP_HASH, __u32, __u32, 4096, NO_PREALLOC);
MAP(tl_addresses, MAP_HASH, struct address, __u32, 8192, NO_PREALLOC);
MAP(tl_endpoints, MAP_ARRAY, __u32, struct endpoint, 16384, MMAPABLE);
MAP(tl_sets, MAP_HASH, __u32, struct set, 8192, NO_PREALLOC);
MAP(tl_classes, MAP_HASH, struct class_key, __u32, 262144, NO_PREALLOC);
MAP(tl_prefixes, MAP_LPM_TRIE, struct prefix_key, __u32, 262144, NO_PREALLOC);
MAP(tl_ports, MAP_HASH, struct port_key, __u32, 65536, NO_PREALLOC);
MAP(tl_port_ranges, MAP_LPM_TRIE, struct port_range_key, __u32, 65536, NO_PREALLOC);
MAP(tl_rows, MAP_HASH, struct row_key, __u64, 262144, NO_PREALLOC);
MAP(tl_state, MAP_ARRAY, __u32, struct state, 1, MMAPABLE);
MAP(tl_connections, MAP_LRU_HASH, struct connection_key, struct connection, 131072, 0);
MAP(tl_counts, MAP_PERCPU_HASH, struct count_key, __u64, 16384, NO_PREALLOC);
MAP(tl_drops, MAP_PERCPU_ARRAY, __u32, __u64, REASONS, 0);
MAP(tl_limit, MAP_PERCPU_ARRAY, __u32, struct limit, 1, 0);

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 1 << 18);
} tl_flows SEC(".maps");
