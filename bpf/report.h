/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the agent learns of the decisions: counters and the flow log. */
#pragma once

#include "connection.h"

/* The rate limit of the flow log, for each processor. */
#define FLOWS_PER_SECOND 1000
#define FLOWS_BURST 1000

inlined void count_drop(__u32 reason)
{
	__u64 *packets = map_lookup(&tl_drops, &reason);
	if (packets)
		(*packets)++;
}

inlined void count(const struct side *s)
{
	struct count_key key = {
		.set = s->set,
		.class = s->answer.class,
		.port_class = s->answer.port_class,
		.direction = s->direction,
		.verdict = s->verdict,
	};
	__u64 one = 1, *connections = map_lookup(&tl_counts, &key);

	if (connections)
		(*connections)++;
	else
		map_update(&tl_counts, &key, &one, 0);
}

/* Takes a token; returns the limit of this processor, NULL if there is no token. */
inlined struct limit *take(__u64 ns)
{
	__u32 zero = 0;
	struct limit *l = map_lookup(&tl_limit, &zero);
	__u64 tokens;

	if (!l)
		return NULL;
	tokens = l->tokens + (ns - l->refilled) * FLOWS_PER_SECOND / 1000000000;
	if (tokens > l->tokens || l->refilled == 0) {
		l->tokens = l->refilled == 0 || tokens > FLOWS_BURST ? FLOWS_BURST : tokens;
		l->refilled = ns;
	}
	if (l->tokens == 0) {
		l->lost++;
		return NULL;
	}
	l->tokens--;
	return l;
}

/* A function of its own, so that BTF describes struct flow. */
called int fill(struct flow *f, const struct packet *p, const struct side *s, __u64 ns)
{
	f->time = ns;
	f->source = p->source;
	f->destination = p->destination;
	f->source_port = p->logged[0];
	f->destination_port = p->logged[1];
	f->endpoint = s->endpoint;
	f->protocol = p->kind != ERROR ? p->protocol : p->version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	f->direction = s->direction;
	f->verdict = s->verdict;
	f->reason = s->reason;
	f->length = p->length > 0xffff ? 0xffff : p->length;
	f->set = s->set;
	f->class = s->answer.class;
	f->port_class = s->answer.port_class;
	f->pad = 0;
	return 0;
}

called int record(const struct packet *p, const struct side *s)
{
	__u64 ns = ktime_get_ns();
	struct limit *l = take(ns);
	struct flow *f;

	if (!l)
		return 0;
	f = ringbuf_reserve(&tl_flows, sizeof(*f), 0);
	if (!f) {
		l->lost++;
		return 0;
	}
	fill(f, p, s, ns);
	f->lost = l->lost;
	l->lost = 0;
	ringbuf_submit(f, 0);
	return 0;
}

inlined void denied(const struct packet *p, const struct side *s, const struct moment *m)
{
	count_drop(s->reason);
	if (s->judged)
		count(s);
	if (m->log)
		record(p, s);
}

inlined void allowed(const struct packet *p, const struct side *s, const struct moment *m)
{
	if (!s->judged)
		return;
	count(s);
	if (m->log > 1 && get_prandom_u32() % m->log == 0)
		record(p, s);
}
