package nftables

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestExpressionsReadLikeNFT(t *testing.T) {
	for want, e := range map[string]Expr{
		`iifname != "lo"`:                                   Ne(Iifname, Ifname("lo")),
		"iifgroup 7":                                        Eq(Iifgroup, Native(7)),
		"meta nfproto ipv6":                                 Eq(NFProto, NFProtoIPv6()),
		"meta l4proto 99":                                   Eq(L4Proto, Proto(99)),
		"ip saddr 10.0.0.0/8":                               In(IPSaddr, netip.MustParsePrefix("10.1.2.3/8")),
		"ip saddr 10.0.0.1":                                 In(IPSaddr, netip.MustParsePrefix("10.0.0.1/32")),
		"ip6 daddr fe80::/10":                               In(IP6Daddr, netip.MustParsePrefix("fe80::/10")),
		"ip saddr & 0.0.0.255 == 0.0.0.1":                   Match{Operand: Operand{IPSaddr, v4("0.0.0.255")}, Value: v4("0.0.0.1")},
		"ip saddr & 255.0.0.0 == 10.0.0.1":                  Match{Operand: Bits(IPSaddr, 8), Value: address(1)}, // never matches, and is no prefix
		"th dport 80-90":                                    Between(ThDport, Port(80), Port(90)),
		"ct state established,related":                      AnyBits(CtState, CtEstablished|CtRelated),
		"ct state invalid,0x40":                             AnyBits(CtState, CtInvalid|0x40),
		"ct mark & 0x00000080 == 0x00000080":                AllBits(CtMark, 0x80),
		"meta mark & 0x00000003 != 0x00000000":              AnyBits(MetaMark, 3),
		"ct direction reply":                                Eq(CtDirection, CtReply()),
		"fib daddr . mark oif missing":                      Routed(false),
		"fib daddr . mark oif exists":                       Routed(true),
		"fib daddr . iif type local":                        Eq(FibDaddrIifType, Local()),
		"iifname . ether saddr . ip saddr != @s":            Lookup{Key: KeyOf(Iifname, EtherSaddr, IPSaddr), Set: "s", Not: true},
		"ip saddr & 255.255.255.240 vmap @m":                VerdictMap{Key{Bits(IPSaddr, 28)}, "m"},
		"meta mark set oifname map @m":                      SetFromMap{MetaMark, KeyOf(Oifname), "m"},
		"ct mark set ct mark | 0x00000080":                  SetBits{Field: CtMark, Bits: 0x80},
		"meta mark set meta mark & 0xffffefff | 0x00002000": SetBits{MetaMark, 0x2000, 0x1000},
		"snat ip6 to fd00::1 random":                        SNAT{To: netip.MustParseAddr("fd00::1"), Random: true},
		"dnat ip to 10.0.0.1":                               DNAT{To: netip.MustParseAddr("10.0.0.1")},
		"reject with icmpx admin-prohibited":                Reject{AdminProhibited},
		"jump next":                                         Verdict{Jump, "next"},
		"# unknown: socket":                                 Unknown{"socket"},
		"ip saddr 0x0a":                                     Eq(IPSaddr, "\n"), // not an address
	} {
		if got := e.String(); got != want {
			t.Errorf("%#v prints %q, want %q", e, got, want)
		}
	}
}

// v4 is an IPv4 address.
func v4(s string) Data { return Addr(netip.MustParseAddr(s)) }

func TestRangesReadAsPrefixesWhereTheyAre(t *testing.T) {
	for _, c := range []struct {
		first, last Data
		types       []Type
		want        string
	}{
		{v4("10.0.0.0"), v4("10.255.255.255"), []Type{TypeIPv4}, "10.0.0.0/8"},
		{v4("10.0.0.1"), v4("10.0.0.1"), []Type{TypeIPv4}, "10.0.0.1/32"},
		{v4("10.0.0.1"), v4("10.0.0.2"), []Type{TypeIPv4}, "10.0.0.1-10.0.0.2"},
		{v4("0.0.0.0"), v4("255.255.255.255"), []Type{TypeIPv4}, "0.0.0.0/0"},
		{Port(80), Port(90), []Type{TypePort}, "80-90"},
		{Concat(v4("10.0.0.0"), Port(80)), Concat(v4("10.0.255.255"), Port(80)), []Type{TypeIPv4, TypePort}, "10.0.0.0/16 . 80"},
		{"short", v4("10.0.0.1"), []Type{TypeIPv4}, "0x73686f7274-0x0a000001"},
	} {
		if got := rangeText(c.first, c.last, c.types); got != c.want {
			t.Errorf("%q to %q prints %s, want %s", c.first, c.last, got, c.want)
		}
	}
}

func TestAConcatenationSplitsIntoItsParts(t *testing.T) {
	d := Concat(Ifname("eth0"), Ether([6]byte{2, 0, 0, 0, 0, 1}), address(7), Port(80))
	if len(d) != 16+8+4+4 {
		t.Errorf("it has %d bytes", len(d))
	}
	parts, ok := d.split(TypeIfname, TypeEther, TypeIPv4, TypePort)
	if !ok || fmt.Sprint(parts) != fmt.Sprint([]Data{Ifname("eth0"), Ether([6]byte{2, 0, 0, 0, 0, 1}), address(7), Port(80)}) {
		t.Errorf("split into %q, %v", parts, ok)
	}
	if _, ok := d.split(TypeIfname, TypeEther); ok {
		t.Error("it splits into fewer parts")
	}
}
