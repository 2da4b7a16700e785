//go:build netns

package bpf

import (
	"net/netip"
	"testing"
)

func TestAVerdictIsLookedUpByClasses(t *testing.T) {
	w := newWorld(t)
	pod, exact, inside, outside, pod6, inside6 := addr("10.0.0.2"), addr("10.0.0.9"), addr("10.1.0.1"), addr("192.0.2.1"), addr("fd00::2"), addr("fd01::1")
	w.set(16, Ingress)
	w.endpoint(1, 16, pod, pod6)
	must(t, w.Maps.Classes.PutAll([]ClassKey{{16, AddressOf(exact)}, {17, AddressOf(outside)}}, []uint32{1, 1}))
	for prefix, class := range map[string]uint32{"10.0.0.0/8": 2, "10.1.0.0/16": 3, "fd01::/16": 3} {
		must(t, w.Maps.Prefixes.Put(PrefixKeyOf(16, netip.MustParsePrefix(prefix)), class))
	}
	must(t, w.Maps.Ports.Put(PortKey{Ports: 16, Protocol: protoTCP, Port: 80}, 1))
	must(t, w.Maps.PortRanges.Put(PortRangeKeyOf(16, protoTCP, 80, 9), 2)) // 0 to 127
	must(t, w.Maps.PortRanges.Put(PortRangeKeyOf(16, protoTCP, 8080, 16), 70))
	must(t, w.Maps.PortRanges.Put(PortRangeKeyOf(16, protoUDP, 0, 0), 3))
	w.row(16, Ingress, 0, 3)        // all peers: UDP
	w.row(16, Ingress, 1, 1)        // the address: port 80
	w.row(16, Ingress, 2, 2)        // 10/8: the ports to 127
	w.row(16, Ingress, 3, 0, 2, 70) // 10.1/16 also 8080, on another page, and protocols without ports
	for _, tc := range []struct {
		what string
		from netip.Addr
		l    layer
		want Judgement
	}{
		{"a port of a class", exact, tcp(9, 80, syn), Judgement{Allowed: true, Class: 1, PortClass: 1}},
		{"another port", exact, tcp(9, 81, syn), Judgement{Class: 1, PortClass: 2}},
		{"a row of the class, not that of all", exact, udp(9, 53), Judgement{Class: 1, PortClass: 3}},
		{"a class of another scope", outside, tcp(9, 80, syn), Judgement{PortClass: 1}},
		{"the row of all", outside, udp(9, 53), Judgement{Allowed: true, PortClass: 3}},
		{"the longest prefix", inside, tcp(9, 81, syn), Judgement{Allowed: true, Class: 3, PortClass: 2}},
		{"an IPv6 prefix", inside6, tcp(9, 81, syn), Judgement{Allowed: true, Class: 3, PortClass: 2}},
		{"a shorter prefix", addr("10.200.0.1"), tcp(9, 22, syn), Judgement{Allowed: true, Class: 2, PortClass: 2}},
		{"a port before a range that it is in", addr("10.200.0.1"), tcp(9, 80, syn), Judgement{Class: 2, PortClass: 1}},
		{"another page", inside, tcp(9, 8080, syn), Judgement{Allowed: true, Class: 3, PortClass: 70}},
		{"a page that the class has not, nor all", exact, tcp(9, 8080, syn), Judgement{Class: 1, PortClass: 70}},
		{"a protocol without ports", inside, other(47), Judgement{Allowed: true, Class: 3}},
		{"the same port of another protocol", exact, sctp(9, 80, 1), Judgement{Class: 1}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			to := pod
			if tc.from.Is6() {
				to = pod6
			}
			tc.want.Set, tc.want.New = 16, true
			got, err := w.Judge(Question{Endpoint: 1, Direction: Ingress, Packet: ether(ip(tc.from, to, tc.l))})
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
	// A class without rows has those of all.
	must(t, w.Maps.Classes.Put(ClassKey{16, AddressOf(exact)}, 9))
	if !w.forward(ip(exact, pod, udp(9, 53))) || w.forward(ip(exact, pod, tcp(9, 80, syn))) {
		t.Error("a class without rows is not judged by those of all")
	}
}
