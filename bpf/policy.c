// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The programs that enforce network policy on a node.
 *
 *   pod ─ host veth: from_pod ─ nftables FORWARD: known_out, forward ─ other link: guard
 *                               nftables FORWARD: known_in, forward ─ host veth: to_pod ─ pod
 *
 * forward has the verdict; known_out, known_in and known_local answer in its place for most packets
 * of connections that it has allowed. They run where a packet has its real addresses, behind DNAT
 * and before SNAT, and with fragments reassembled. The others run at tc and drop what these have
 * not allowed, so that a node without its nftables rules is closed. */
#include "kernel.h"
#include "maps.h"
#include "parse.h"
#include "verdict.h"
#include "connection.h"
#include "known.h"
#include "report.h"

char license_of_programs[] SEC("license") = "Dual MIT/GPL";

#define ND_SOLICITATION 135
#define ND_ADVERTISEMENT 136

/* The set in force at a pod's host end; SET_NONE if it has no endpoint. */
inlined __u32 set_at(__u32 ifindex)
{
	__u32 *id = map_lookup(&tl_links, &ifindex);

	return id ? in_force(*id) : SET_NONE;
}

/* ARP, and IPv6 neighbour solicitations and advertisements: what a link needs before it has
 * connections. Neither is ever forwarded. */
inlined int resolves(struct __sk_buff *skb)
{
	struct ipv6 ip;
	__u8 type;

	if (skb->protocol == swap16(ETH_P_ARP))
		return 1;
	if (skb->protocol != swap16(ETH_P_IPV6) || !load(skb, ETH_HLEN, &ip, IPV6_SIZE) ||
	    !load(skb, ETH_HLEN + IPV6_SIZE, &type, 1))
		return 0;
	return ip.next == IPPROTO_ICMPV6 && ip.hops == 255 && (type == ND_SOLICITATION || type == ND_ADVERTISEMENT);
}

inlined int drop_not_ready(void)
{
	count_drop(NOT_READY);
	return TC_ACT_SHOT;
}

inlined int is_ready(__u32 set)
{
	return set == SET_OPEN || set >= SET_FIRST;
}

/* An IPv6 packet with hop-by-hop options and a source that is not the pod's. The kernel parses these
 * options before netfilter (ip6_rcv) and reports an unknown one to the source, which nftables checks
 * too late: the report is a packet of the node, and allowed. */
inlined int forges_reports(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, *id;
	struct ipv6 ip;

	if (skb->protocol != swap16(ETH_P_IPV6) || !load(skb, ETH_HLEN, &ip, IPV6_SIZE) || ip.next != IPPROTO_HOPOPTS)
		return 0;
	id = map_lookup(&tl_links, &ifindex);
	return !id || endpoint_of(&ip.source) != *id;
}

/* A frame with a second VLAN tag: the kernel has removed the first one. If that had VLAN ID 0, the kernel removes
 * the second tag too, but only after this program, which then has not seen the packet's own protocol. No packet of
 * a pod is forwarded with a tag. */
inlined int is_tagged(struct __sk_buff *skb)
{
	return skb->protocol == swap16(ETH_P_8021Q) || skb->protocol == swap16(ETH_P_8021AD);
}

/* Ingress of a pod's host veth. */
SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	if (!is_ready(set_at(skb->ifindex)) && !resolves(skb))
		return drop_not_ready();
	if (is_tagged(skb) || forges_reports(skb)) {
		count_drop(MALFORMED);
		return TC_ACT_SHOT;
	}
	skb->mark = (skb->mark & ~MARK_JUDGED) | MARK_PENDING;
	return TC_ACT_UNSPEC;
}

/* Egress of a pod's host veth. A packet without an ingress interface originates on this node:
 * probes and other traffic of the node itself is allowed. */
SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	int local = skb->ingress_ifindex == 0;

	if (!is_ready(set_at(skb->ifindex))) {
		if (local && resolves(skb))
			return TC_ACT_UNSPEC;
		return drop_not_ready();
	}
	if (local || (skb->mark & (MARK_PENDING | MARK_JUDGED)) == MARK_JUDGED)
		return TC_ACT_UNSPEC;
	return drop_not_ready();
}

/* Egress of the node's other links. */
SEC("tc")
int guard(struct __sk_buff *skb)
{
	return skb->mark & MARK_PENDING ? drop_not_ready() : TC_ACT_UNSPEC;
}

/* Called by rules of nftables for packets that pods send by other links, that they receive from such,
 * and that they send to each other: 1 to allow, 0 to call forward. */
SEC("socket")
int known_out(struct __sk_buff *skb)
{
	return known_at(skb, EGRESS);
}

SEC("socket")
int known_in(struct __sk_buff *skb)
{
	return known_at(skb, INGRESS);
}

SEC("socket")
int known_local(struct __sk_buff *skb)
{
	return known_at_both(skb);
}

/* Called by rules of nftables for packets to and from pods that the programs above do not know: 1
 * to allow, 0 to drop. */
SEC("socket")
int forward(struct __sk_buff *skb)
{
	struct packet p = {};
	struct side from = {.set = SET_OPEN, .direction = EGRESS}, to = {.set = SET_OPEN, .direction = INGRESS};
	struct moment m = {};

	now(&m);
	from.reason = parse(skb, 0, &p);
	settle(&p, sizeof(p), skb->len);
	if (skb->mark & MARK_JUDGED)
		p.flags |= REPLY;
	from.endpoint = endpoint_of(&p.source);
	to.endpoint = endpoint_of(&p.destination);
	if (from.endpoint)
		from.set = in_force(from.endpoint);
	if (to.endpoint)
		to.set = in_force(to.endpoint);
	if (from.reason == BY_POLICY && from.endpoint == to.endpoint) {
		/* A pod to itself, by way of a service: with the mark of its link, as what comes from
		 * outside has a forged source. kube-proxy adds its own bit and leaves the others. */
		if (from.endpoint && skb->mark & MARK_PENDING)
			return 1;
		from.reason = NOT_READY;
		from.set = SET_NONE;
	}
	/* from_pod saw the sender's endpoint, which has ended since: the other end alone cannot say
	 * whether the packet may be sent. */
	if (from.reason == BY_POLICY && !from.endpoint && skb->mark & MARK_PENDING) {
		from.reason = NOT_READY;
		from.set = SET_NONE;
	}
	if (from.reason != BY_POLICY) {
		to.reason = from.reason;
		denied(&p, from.endpoint || !to.endpoint ? &from : &to, &m);
		return 0;
	}
	if (from.set == SET_OPEN && to.set == SET_OPEN)
		return 1;
	if (!decide(&from, &p, &m, 1)) {
		commit(&from);
		denied(&p, &from, &m);
		return 0;
	}
	settle(&from, sizeof(from), m.ticks);
	if (!decide(&to, &p, &m, 1)) {
		commit(&to);
		denied(&p, &to, &m);
		return 0;
	}
	settle(&to, sizeof(to), m.ticks);
	commit(&from);
	allowed(&p, &from, &m);
	commit(&to);
	allowed(&p, &to, &m);
	return 1;
}

/* Run by the agent only, on a packet with an Ethernet header: what one endpoint decides, without
 * side effects. Of cb: 0 the endpoint, 1 the direction, 2 whether connections count. It returns
 * the verdict and sets cb: 0 the set, 1 the class, 2 the port class, 3 the reason, 4 whether it
 * was judged as a new connection. */
SEC("tc")
int judge(struct __sk_buff *skb)
{
	struct packet p = {};
	struct side s = {};
	struct moment m = {};
	int allowed = 0;

	now(&m);
	s.endpoint = skb->cb[0];
	s.direction = skb->cb[1] & 1;
	s.set = in_force(s.endpoint);
	s.reason = parse(skb, ETH_HLEN, &p);
	settle(&p, sizeof(p), skb->len);
	if (skb->mark & MARK_JUDGED)
		p.flags |= REPLY;
	if (s.reason == BY_POLICY)
		allowed = decide(&s, &p, &m, skb->cb[2] & 1);
	skb->cb[0] = s.set;
	skb->cb[1] = s.answer.class;
	skb->cb[2] = s.answer.port_class;
	skb->cb[3] = s.reason;
	skb->cb[4] = s.judged;
	return allowed;
}
