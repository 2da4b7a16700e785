//go:build netns

package bpf

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

const (
	pass = -1 // TC_ACT_UNSPEC
	drop = 2  // TC_ACT_SHOT

	link = 1 // the loopback of the test's namespace, which test runs have as their device
)

func solicitation(hops byte, kind byte) []byte {
	p := ip(addr("fe80::2"), addr("ff02::1:ff00:1"), icmp6(kind, 0, 0, make([]byte, 16)...))
	p[7] = hops
	return ether(p)
}

func TestProgramsAtLinksFailClosed(t *testing.T) {
	w := newWorld(t)
	must(t, w.Maps.Links.Put(link, 7))
	packet := ether(ip(addr("10.0.0.1"), addr("10.0.0.2"), tcp(1, 80, syn)))
	const pending, judged, foreign = hostnet.MarkPending, hostnet.MarkJudged, 0x80
	for _, tc := range []struct {
		what     string
		program  string
		set      uint32
		frame    []byte
		ingress  uint32 // interface
		mark     uint32
		want     int32
		wantMark uint32
	}{
		{"a packet of a pod without an endpoint is dropped", fromPod, SetNone, packet, 0, 0, drop, 0},
		{"a packet of a pod that waits for its policies is dropped", fromPod, SetPending, packet, 0, 0, drop, 0},
		{"ARP of a pod that waits passes", fromPod, SetPending, arp(), 0, 0, pass, pending},
		{"a neighbour solicitation of a pod that waits passes", fromPod, SetPending, solicitation(255, 135), 0, 0, pass, pending},
		{"a router advertisement of a pod that waits is dropped", fromPod, SetPending, solicitation(255, 134), 0, 0, drop, 0},
		{"a forwarded neighbour solicitation is dropped", fromPod, SetPending, solicitation(64, 135), 0, 0, drop, 0},
		{"a packet of a pod waits for its verdict", fromPod, SetOpen, packet, 0, foreign, pass, foreign | pending},
		{"a mark that says judged is cleared", fromPod, SetFirst, packet, 0, judged, pass, pending},
		{"a number below the first set is no set", fromPod, SetFirst - 1, packet, 0, 0, drop, 0},
		{"a probe of the node passes", toPod, SetFirst, packet, 0, 0, pass, 0},
		{"a probe of a node process with a mark passes", toPod, SetOpen, packet, 0, pending, pass, pending},
		{"a probe to a pod that waits is dropped", toPod, SetPending, packet, 0, 0, drop, 0},
		{"ARP of the node to a pod that waits passes", toPod, SetPending, arp(), 0, 0, pass, 0},
		{"a neighbour solicitation of the node to a pod that waits passes", toPod, SetNone, solicitation(255, 135), 0, 0, pass, 0},
		{"a neighbour solicitation of another link is dropped", toPod, SetPending, solicitation(255, 135), 9, 0, drop, 0},
		{"a forwarded packet that is not judged is dropped", toPod, SetOpen, packet, 9, 0, drop, 0},
		{"a forwarded packet that is judged passes", toPod, SetFirst, packet, 9, judged | foreign, pass, judged | foreign},
		{"a forwarded packet that waits is dropped", toPod, SetFirst, packet, 9, judged | pending, drop, judged | pending},
		{"a judged packet to a pod that waits is dropped", toPod, SetPending, packet, 9, judged, drop, judged},
		{"a packet that waits does not leave the node", guard, SetNone, packet, 9, pending, drop, pending},
		{"a judged packet leaves the node", guard, SetNone, packet, 9, judged, pass, judged},
		{"a packet of the node leaves it", guard, SetNone, packet, 0, foreign, pass, foreign},
	} {
		t.Run(tc.what, func(t *testing.T) {
			w.State.SetInForce(7, tc.set)
			before, err := w.Drops()
			must(t, err)
			c := context{Mark: tc.mark, IngressIfindex: tc.ingress, Ifindex: link}
			if got := w.run(tc.program, tc.frame, &c); got != tc.want || c.Mark != tc.wantMark {
				t.Errorf("%d with mark %#x, want %d with %#x", got, c.Mark, tc.want, tc.wantMark)
			}
			after, err := w.Drops()
			must(t, err)
			if dropped := after[NotReady] - before[NotReady]; dropped != 0 != (tc.want == drop) {
				t.Errorf("%d drops are counted", dropped)
			}
		})
	}
}

// The kernel reports an unknown hop-by-hop option to the packet's source before netfilter checks that.
func TestHopByHopOptionsOfAForgedSourceAreDropped(t *testing.T) {
	w := newWorld(t)
	own, other, foreign := addr("2001:db8::1"), addr("2001:db8::2"), addr("2001:db8::3")
	w.endpoint(7, SetOpen, own)
	w.endpoint(8, SetOpen, other)
	must(t, w.Maps.Links.Put(link, 7))
	for source, want := range map[netip.Addr]int32{own: pass, other: drop, foreign: drop} {
		p := ip6(source, foreign, 0, append([]byte{protoUDP, 0, 1, 4, 0, 0, 0, 0}, udp(1, 53).bytes...))
		if got := w.run(fromPod, ether(p), &context{Ifindex: link}); got != want {
			t.Errorf("from %s: %d, want %d", source, got, want)
		}
	}
}

// The kernel removes a tag without a VLAN before the program, and a second one behind it.
func TestAFrameWithATagBehindTheFirstIsDropped(t *testing.T) {
	w := newWorld(t)
	pod := addr("10.0.0.1")
	w.endpoint(7, SetOpen, pod)
	must(t, w.Maps.Links.Put(link, 7))
	frame := ether(ip(pod, addr("10.0.0.2"), udp(1, 53)))
	for _, kind := range []int{0x8100, 0x88a8} {
		before, err := w.Drops()
		must(t, err)
		if got := w.run(fromPod, join(frame[:12], be16(kind), be16(0), frame[12:]), &context{Ifindex: link}); got != drop {
			t.Errorf("%#x: %d, want it dropped", kind, got)
		}
		after, err := w.Drops()
		must(t, err)
		if n := after[Malformed] - before[Malformed]; n != 1 {
			t.Errorf("%#x: %d drops are counted", kind, n)
		}
	}
}

func TestALinkWithoutAnEndpointIsClosed(t *testing.T) {
	w := newWorld(t)
	w.State.SetInForce(0, SetOpen) // as if the endpoint of an absent entry
	for program, want := range map[string]int32{fromPod: drop, toPod: drop, guard: pass} {
		if got := w.run(program, ether(ip(addr("10.0.0.1"), addr("10.0.0.2"), udp(1, 53))), &context{Ifindex: link}); got != want {
			t.Errorf("%s: %d, want %d", program, got, want)
		}
	}
}

// The agent may remove an endpoint between from_pod, which knows it by its link, and forward, which
// knows it by its address: the packet is not judged by the other end alone.
func TestAPacketOfAPodThatEndsMeanwhileIsDropped(t *testing.T) {
	w := newWorld(t)
	a, b, out := addr("10.0.0.1"), addr("10.0.0.2"), addr("192.0.2.1")
	w.endpoint(1, SetOpen, a)
	for _, tc := range []struct {
		what    string
		from    netip.Addr
		pending bool
		want    bool
	}{
		{"of a pod without an endpoint", b, true, false},
		{"of another node", out, false, true},
	} {
		for _, reply := range []bool{false, true} {
			if got := w.forwardMarked(ip(tc.from, a, tcp(40000, 80, syn)), reply, tc.pending); got != tc.want {
				t.Errorf("%s, reply %v: allowed %v, want %v", tc.what, reply, got, tc.want)
			}
		}
	}
}

func TestForwardAllowsWhatBothSidesAllow(t *testing.T) {
	w := newWorld(t)
	a, b, out := addr("10.0.0.1"), addr("10.0.0.2"), addr("192.0.2.1")
	w.set(16, Ingress, Egress)
	w.set(17, Ingress)
	must(t, w.Maps.Classes.Put(ClassKey{17, AddressOf(a)}, 1))
	must(t, w.Maps.Ports.Put(PortKey{Ports: 17, Protocol: protoTCP, Port: 80}, 3))
	w.row(17, Ingress, 1, 3)
	w.endpoint(1, SetOpen, a)
	w.endpoint(2, 17, b)
	for _, tc := range []struct {
		what     string
		from, to netip.Addr
		port     int
		want     bool
		pending  bool // it came by a pod's link
	}{
		{"an allowed peer and port", a, b, 80, true, false},
		{"another port", a, b, 81, false, false},
		{"another peer", out, b, 80, false, false},
		{"a direction without policies", b, out, 443, true, false},
		{"an endpoint without policies", a, out, 443, true, false},
		{"neither is an endpoint", out, addr("192.0.2.2"), 443, false, false},
		{"an endpoint to itself", b, b, 81, true, true},
		{"the address of the pod from outside", b, b, 80, false, false},
		{"the address of a pod without policies from outside", a, a, 80, false, false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			for _, reply := range []bool{false, true} {
				if got := w.forwardMarked(ip(tc.from, tc.to, tcp(40000, tc.port, syn)), reply, tc.pending); got != tc.want {
					t.Errorf("reply %v: allowed %v, want %v", reply, got, tc.want)
				}
			}
		})
	}
}
