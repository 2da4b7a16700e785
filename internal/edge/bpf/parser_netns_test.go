//go:build netns

package bpf

import (
	"bytes"
	"net/netip"
	"testing"
)

// parsed runs a packet at an endpoint that allows all, so that only the parser can deny it.
func (w *world) parsed(packet []byte) Judgement {
	w.t.Helper()
	j, err := w.Judge(Question{Endpoint: 1, Direction: Ingress, Connections: true, Packet: ether(packet)})
	must(w.t, err)
	return j
}

func TestTheParserIsStrict(t *testing.T) {
	w := newWorld(t)
	a, b, c := addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")
	a6, b6 := addr("fd00::1"), addr("fd00::2")
	w.set(16, Ingress)
	w.row(16, Ingress, 0, 0)
	w.endpoint(1, 16, b, b6)
	web := tcp(40000, 80, syn)
	edit := func(p []byte, at int, value byte) []byte { p = bytes.Clone(p); p[at] = value; return p }
	options := []byte{1, 1, 1, 1, 1, 1, 1, 0}
	nothing := make([]byte, 6)
	chain := func(n int) []byte { // n extension headers in front of TCP
		var all []byte
		for range n - 1 {
			all = append(all, 60, 0, 1, 4, 0, 0, 0, 0)
		}
		return join(all, []byte{protoTCP, 0, 1, 4, 0, 0, 0, 0}, web.bytes)
	}
	for _, tc := range []struct {
		what   string
		packet []byte
		want   Reason
	}{
		{"a TCP packet", ip(a, b, web), ByPolicy},
		{"an empty packet", nil, Malformed},
		{"one byte", []byte{0x45}, Malformed},
		{"version 5", edit(ip(a, b, web), 0, 0x55), Malformed},
		{"IPv4 with options", ip4(a, b, web, options, 0), ByPolicy},
		{"IPv4 with the most options", ip4(a, b, web, make([]byte, 40), 0), ByPolicy},
		{"a header length below 5", edit(ip(a, b, web), 0, 0x44), Malformed},
		{"a header length behind the end", edit(ip(a, b, web), 0, 0x4f), Malformed},
		{"a total length behind the end", edit(ip(a, b, web), 3, 41), Malformed},
		{"a total length below the header's", edit(ip(a, b, web), 3, 19), Malformed},
		{"a total length that cuts TCP", edit(ip(a, b, web), 3, 39), Malformed},
		{"bytes behind the total length", append(ip(a, b, web), 1, 2, 3), ByPolicy},
		{"no transport header", ip4(a, b, layer{protoTCP, nil}, nil, 0), Malformed},
		{"a TCP header length below 5", ip(a, b, layer{protoTCP, edit(web.bytes, 12, 0x40)}), Malformed},
		{"a TCP header length behind the end", ip(a, b, layer{protoTCP, edit(web.bytes, 12, 0x60)}), Malformed},
		{"TCP without flags", ip(a, b, tcp(1, 80, 0)), Malformed},
		{"TCP with SYN and FIN", ip(a, b, tcp(1, 80, syn|fin)), Malformed},
		{"TCP with SYN and RST", ip(a, b, tcp(1, 80, syn|rst)), Malformed},
		{"TCP with FIN alone", ip(a, b, tcp(1, 80, fin)), Malformed},
		{"a UDP datagram", ip(a, b, udp(1, 53)), ByPolicy},
		{"7 bytes of UDP", ip(a, b, layer{protoUDP, udp(1, 53).bytes[:7]}), Malformed},
		{"a UDP length below 8", ip(a, b, layer{protoUDP, edit(udp(1, 53).bytes, 5, 7)}), Malformed},
		{"a UDP length behind the end", ip(a, b, layer{protoUDP, edit(udp(1, 53).bytes, 5, 9)}), Malformed},
		{"an SCTP INIT", ip(a, b, sctp(1, 2, 1)), ByPolicy},
		{"SCTP without a chunk", ip(a, b, layer{protoSCTP, sctp(1, 2, 1).bytes[:12]}), Malformed},
		{"a protocol without ports", ip(a, b, layer{47, nil}), ByPolicy},
		{"7 bytes of ICMP", ip(a, b, layer{protoICMP, icmp(8, 0, 1).bytes[:7]}), Malformed},
		{"a first fragment", ip4(a, b, web, nil, 0x2000), Fragment},
		{"a last fragment", ip4(a, b, web, nil, 1), Fragment},
		{"do not fragment", ip4(a, b, web, nil, 0x4000), ByPolicy},

		{"an IPv6 packet", ip(a6, b6, web), ByPolicy},
		{"39 bytes of IPv6", ip(a6, b6, web)[:39], Malformed},
		{"a payload length behind the end", edit(ip(a6, b6, web), 5, 21), Malformed},
		{"a payload length that cuts TCP", edit(ip(a6, b6, web), 5, 19), Malformed},
		{"IPv6 from a mapped IPv4 address", ip6(netip.AddrFrom16(a.As16()), b6, protoTCP, web.bytes), Malformed},
		{"IPv6 to a mapped IPv4 address", ip6(a6, netip.AddrFrom16(b.As16()), protoTCP, web.bytes), Malformed},
		{"hop-by-hop options twice", ip6(a6, b6, 0, join([]byte{0, 0}, nothing, []byte{protoTCP, 0}, nothing, web.bytes)), Malformed},
		{"hop-by-hop options in front of TCP", ip6(a6, b6, 0, join([]byte{protoTCP, 0}, nothing, web.bytes)), ByPolicy},
		{"hop-by-hop options that are not first", ip6(a6, b6, 60, join([]byte{0, 0}, nothing, []byte{protoTCP, 0}, nothing, web.bytes)), Malformed},
		{"options longer than the packet", ip6(a6, b6, 0, join([]byte{protoTCP, 9}, nothing, web.bytes)), Malformed},
		{"options of 16 bytes", ip6(a6, b6, 60, join([]byte{protoTCP, 1}, nothing, make([]byte, 8), web.bytes)), ByPolicy},
		{"8 extension headers", ip6(a6, b6, 60, chain(8)), ByPolicy},
		{"9 extension headers", ip6(a6, b6, 60, chain(9)), Malformed},
		{"a routing header of type 0", ip6(a6, b6, 43, join([]byte{protoTCP, 0, 0, 0}, make([]byte, 4), web.bytes)), Malformed},
		{"a routing header with segments left", ip6(a6, b6, 43, join([]byte{protoTCP, 0, 4, 1}, make([]byte, 4), web.bytes)), Malformed},
		{"a routing header without segments left", ip6(a6, b6, 43, join([]byte{protoTCP, 0, 4, 0}, make([]byte, 4), web.bytes)), ByPolicy},
		{"an authentication header", ip6(a6, b6, 51, join([]byte{protoTCP, 1}, make([]byte, 10), web.bytes)), ByPolicy},
		{"an authentication header below 12 bytes", ip6(a6, b6, 51, join([]byte{protoTCP, 0}, make([]byte, 6), web.bytes)), Malformed},
		{"an atomic fragment", ip6(a6, b6, 44, join([]byte{protoTCP, 0, 0, 0}, make([]byte, 4), web.bytes)), ByPolicy},
		{"a first fragment of IPv6", ip6(a6, b6, 44, join([]byte{protoTCP, 0, 0, 1}, make([]byte, 4), web.bytes)), Fragment},
		{"another fragment of IPv6", ip6(a6, b6, 44, join([]byte{protoTCP, 0, 0, 8}, make([]byte, 4), web.bytes)), Fragment},
		{"a fragment behind destination options", ip6(a6, b6, 60, join([]byte{44, 0}, nothing, []byte{protoTCP, 0, 0, 9}, make([]byte, 4), web.bytes)), Fragment},
		{"encrypted", ip6(a6, b6, 50, make([]byte, 20)), ByPolicy},
		{"no next header", ip6(a6, b6, 59, nil), ByPolicy},
		{"a cut extension header", ip6(a6, b6, 60, []byte{protoTCP, 0, 0}), Malformed},
		{"ICMP's number in IPv6", ip6(a6, b6, protoICMP, nil), ByPolicy},
		{"ICMPv6's number in IPv4", ip4(a, b, layer{protoICMPv6, nil}, nil, 0), ByPolicy},

		{"an echo request", ip(a, b, icmp(8, 0, 1)), ByPolicy},
		{"a redirect", ip(a, b, icmp(5, 0, 1)), ICMPType},
		{"a router advertisement", ip(a, b, icmp(9, 0, 1)), ICMPType},
		{"an IPv6 redirect", ip(a6, b6, icmp6(137, 0, 1)), ICMPType},
		{"a neighbour solicitation", ip(a6, b6, icmp6(135, 0, 1)), ICMPType},
		{"a report of multicast listeners", ip(a6, b6, icmp6(143, 0, 1)), ICMPType},
		{"a reply without a request", ip(a, b, icmp(0, 0, 1)), Unrelated},
		{"an error without its cause", ip(a, b, icmp(3, 0, 0)), Unrelated},
		{"an error about no connection", ip(a, b, causes(3, 3, ip(b, a, udp(53, 1)))), Unrelated},
		{"an error about a packet of another address", ip(a, b, causes(3, 3, ip(c, a, udp(53, 1)))), Unrelated},
		{"an error about an IPv6 packet in IPv4", ip(a, b, icmp(3, 3, 0, ip(b6, a6, udp(53, 1))...)), Unrelated},
		{"an error about an error", ip(a, b, causes(3, 3, ip(b, a, causes(3, 3, ip(a, b, udp(1, 2)))))), Unrelated},
		{"an error about a later fragment", ip(a, b, causes(3, 3, ip4(b, a, udp(53, 1), nil, 1))), Unrelated},
		{"an error with 7 bytes of transport", ip(a, b, causes(3, 3, ip(b, a, layer{protoUDP, udp(53, 1).bytes[:7]}))), Unrelated},
	} {
		t.Run(tc.what, func(t *testing.T) {
			if got := w.parsed(tc.packet); got.Reason != tc.want || got.Allowed != (tc.want == ByPolicy) {
				t.Errorf("allowed %v, %v; want %v", got.Allowed, got.Reason, tc.want)
			}
			if got := w.forward(tc.packet); got != (tc.want == ByPolicy) {
				t.Errorf("forward allows it: %v", got)
			}
			if _, why := modelParse(tc.packet); why != tc.want && tc.want != Unrelated {
				t.Errorf("the model: %v, want %v", why, tc.want)
			}
			w.forget()
		})
	}
}

// A port must be read behind options and extensions, not where it is without them.
func TestThePortIsReadBehindOptions(t *testing.T) {
	w := newWorld(t)
	a, b, a6, b6 := addr("10.0.0.1"), addr("10.0.0.2"), addr("fd00::1"), addr("fd00::2")
	w.set(16, Ingress)
	must(t, w.Maps.Ports.Put(PortKey{Ports: 16, Protocol: protoTCP, Port: 80}, 1))
	w.row(16, Ingress, 0, 1)
	w.endpoint(1, 16, b, b6)
	allowed, other := tcp(40000, 80, syn), tcp(40000, 22, syn)
	// What a parser without options reads as ports: 80.
	decoy := []byte{1, 1, 0, 80, 1, 1, 0, 80}
	for packet, want := range map[string]bool{
		string(ip4(a, b, allowed, nil, 0)):   true,
		string(ip4(a, b, other, nil, 0)):     false,
		string(ip4(a, b, allowed, decoy, 0)): true,
		string(ip4(a, b, other, decoy, 0)):   false,
		string(ip6(a6, b6, 60, join([]byte{protoTCP, 0, 0, 80}, make([]byte, 4), allowed.bytes))):  true,
		string(ip6(a6, b6, 60, join([]byte{protoTCP, 0, 0, 80}, make([]byte, 4), other.bytes))):    false,
		string(ip6(a6, b6, 44, join([]byte{protoTCP, 0, 0, 0}, []byte{0, 1, 0, 80}, other.bytes))): false,
	} {
		if got := w.forward([]byte(packet)); got != want {
			t.Errorf("%x: allowed %v, want %v", packet, got, want)
		}
	}
}

// FuzzTheParser compares forward and the model on any bytes. An endpoint that is isolated in both
// directions and has no rows is never reached, except by what the model allows: nothing.
func FuzzTheParser(f *testing.F) {
	d, _, err := Open(options(bpffs(f)))
	must(f, err)
	f.Cleanup(func() { must(f, d.Close()) })
	w := worldOf(d, f)
	a, b, a6, b6 := addr("10.0.0.1"), addr("10.0.0.2"), addr("fd00::1"), addr("fd00::2")
	w.set(16, Ingress, Egress)
	w.endpoint(1, 16, b, b6)
	w.endpoint(2, SetOpen, a, a6)
	for _, l := range []layer{tcp(1, 80, syn), tcp(1, 80, ack), udp(1, 53), sctp(1, 2, 1), icmp(8, 0, 1), icmp(0, 0, 1), causes(3, 3, ip(b, a, udp(53, 1))), other(47)} {
		f.Add(ip(a, b, l), false)
		f.Add(ip(a6, b6, l), true)
		f.Add(ip4(b, a, l, []byte{1, 1, 1, 1}, 0x2000), true)
		f.Add(ip6(b6, a6, 0, join([]byte{l.protocol, 0}, make([]byte, 6), l.bytes)), false)
	}
	f.Fuzz(func(t *testing.T, packet []byte, reply bool) {
		w := worldOf(d, t)
		if len(packet) == 0 || len(packet) > 1500 {
			return
		}
		p, why := modelParse(packet)
		if got := w.forward(packet, reply); got {
			isolated := p.from == AddressOf(b) || p.to == AddressOf(b) || p.from == AddressOf(b6) || p.to == AddressOf(b6)
			if why != ByPolicy || isolated && p.from != p.to {
				t.Errorf("%x is allowed (%v)", packet, why)
			}
		}
		j, err := w.Judge(Question{Endpoint: 1, Direction: Ingress, Connections: true, Reply: reply, Packet: ether(packet)})
		must(t, err)
		if j.Allowed || why != ByPolicy && j.Reason != why {
			t.Errorf("%x is judged %+v, the model says %v", packet, j, why)
		}
	})
}
