/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The verdict about a connection that opens: a function of the maps that the agent writes. */
#pragma once

#include "maps.h"

struct question {
	struct address peer;
	__u32 set;
	__u16 port; /* the destination port */
	__u8 protocol;
	__u8 direction;
};

struct answer {
	__u32 class;
	__u32 port_class;
};

inlined __u32 class_of(const struct set *set, const struct address *peer)
{
	struct class_key key = {.scope = set->scope, .address = *peer};
	struct prefix_key prefix = {.prefixlen = 32 + 128, .scope = swap32(set->scope), .address = *peer};
	__u32 *class = map_lookup(&tl_classes, &key);

	if (!class && set->prefixes)
		class = map_lookup(&tl_prefixes, &prefix);
	return class ? *class : 0;
}

inlined __u32 port_class_of(const struct set *set, __u8 protocol, __u16 port)
{
	struct port_key key = {.ports = set->ports, .protocol = protocol, .port = port};
	struct port_range_key range = {.prefixlen = 64, .ports = swap32(set->ports), .protocol = protocol, .port = swap16(port)};
	__u32 *class;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP)
		return 0;
	class = map_lookup(&tl_ports, &key);
	if (!class && set->ranges)
		class = map_lookup(&tl_port_ranges, &range);
	return class ? *class : 0;
}

/* Returns 1 to allow, 0 to deny, and the classes by which it was decided. */
called int verdict(const struct question *q, struct answer *a)
{
	struct row_key key = {.set = q->set, .direction = q->direction};
	struct set *set = map_lookup(&tl_sets, &q->set);
	__u64 *row;

	a->class = 0;
	a->port_class = 0;
	if (!set)
		return 0;
	if (!(set->isolated & (1 << (q->direction & 1))))
		return 1;
	a->class = class_of(set, &q->peer);
	a->port_class = port_class_of(set, q->protocol, q->port);
	key.class = a->class;
	key.page = a->port_class >> 6;
	row = map_lookup(&tl_rows, &key);
	if (!row && key.class) {
		key.class = 0;
		row = map_lookup(&tl_rows, &key);
	}
	return row && *row >> (a->port_class & 63) & 1;
}

inlined int isolated(__u32 number, __u8 direction)
{
	struct set *set = map_lookup(&tl_sets, &number);
	return !set || set->isolated & (1 << (direction & 1));
}
