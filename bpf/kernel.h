/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the programs use of the kernel's interface: types, helpers and numbers, as in
 * include/uapi/linux/{bpf,pkt_cls,in,icmp,icmpv6}.h. Nothing else of a kernel's headers is
 * needed, so that the object is the same wherever it is built. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define NULL ((void *)0)
#define SEC(name) __attribute__((section(name), used))
#define inlined static inline __attribute__((always_inline))
#define called static __attribute__((noinline))

/* Maps are described by their types: __uint as the length of an array, __type by a pointer. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

enum map_type {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_HASH = 5,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_LPM_TRIE = 11,
	MAP_RINGBUF = 27,
};

#define NO_PREALLOC (1u << 0)
#define MMAPABLE (1u << 10)

/* The first fields of the context of programs that run on packets. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol; /* network byte order */
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static __u64 (*const ktime_get_ns)(void) = (void *)5;
static __u32 (*const get_prandom_u32)(void) = (void *)7;
static long (*const skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)26;
static void *(*const ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *data, __u64 flags) = (void *)132;
/* Some milliseconds late, and much cheaper than ktime_get_ns. Since Linux 5.11: the loader puts
 * ktime_get_ns in its place on kernels that do not have it. */
static __u64 (*const ktime_get_coarse_ns)(void) = (void *)160;

#define swap16(x) __builtin_bswap16(x)
#define swap32(x) __builtin_bswap32(x)

/* Of a direct-action classifier. UNSPEC continues with the next filter, so that those of
 * other programs on the link run too, and at the end the packet passes. */
#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT 2

#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define ETH_HLEN 14

enum protocol {
	IPPROTO_HOPOPTS = 0,
	IPPROTO_ICMP = 1,
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IPPROTO_ROUTING = 43,
	IPPROTO_FRAGMENT = 44,
	IPPROTO_AH = 51,
	IPPROTO_ICMPV6 = 58,
	IPPROTO_DSTOPTS = 60,
	IPPROTO_SCTP = 132,
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN_COMPLETE = 14,
};
