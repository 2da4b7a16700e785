//go:build netns

package bpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// knownWorld has a pod that may connect to any address.
func knownWorld(t *testing.T) (w *world, pod, pod6 netip.Addr) {
	w = newWorld(t)
	pod, pod6 = addr("10.0.0.2"), addr("fd00::2")
	w.set(16, Ingress, Egress)
	w.row(16, Egress, 0, 0)
	w.endpoint(1, 16, pod, pod6)
	return w, pod, pod6
}

// The rules about instance metadata are behind the programs of known connections.
func TestConnectionsToInstanceMetadataAreNotKnown(t *testing.T) {
	w, pod, pod6 := knownWorld(t)
	for _, tc := range []struct {
		from, to netip.Addr
		known    int
	}{
		{pod, addr("192.0.2.1"), 1},
		{pod6, addr("2001:db8::1"), 1},
		{pod, vpc.MetadataV4, 0},
		{pod6, vpc.MetadataV6, 0},
	} {
		clear(w.knew)
		if !w.forward(ip(tc.from, tc.to, tcp(4000, 80, syn))) || !w.forward(ip(tc.from, tc.to, tcp(4000, 80, ack))) {
			t.Errorf("a connection to %s is denied", tc.to)
		}
		if got := w.knew[knownOut]; got != tc.known {
			t.Errorf("of a connection to %s, %d packets are known, want %d", tc.to, got, tc.known)
		}
	}
}

// An entry names its endpoint. So connections are judged again before the number of an endpoint is
// given to a pod with another address.
func TestAnEntryOfAnEarlierEndpointIsNotInForceAfterANewEpoch(t *testing.T) {
	w, pod, _ := knownWorld(t)
	w.set(17, Ingress, Egress) // allows nothing
	out := addr("192.0.2.1")
	passes := func() bool { return w.forward(ip(pod, out, tcp(4000, 80, ack))) }
	if !w.forward(ip(pod, out, tcp(4000, 80, syn))) || !passes() {
		t.Fatal("the connection is denied")
	}
	w.endpoint(2, 17, pod)
	w.endpoint(1, 16, addr("10.0.0.3"))
	if !passes() {
		t.Error("the entry is not used without a new epoch: this test shows nothing")
	}
	w.State.NextEpoch()
	if passes() {
		t.Error("a connection is allowed by the policies of another pod")
	}
}

// A packet that the parser does not accept is not of a known connection, although its header is at
// the usual place: the pod may read another one.
func TestAMalformedPacketOfAKnownConnectionIsDropped(t *testing.T) {
	w, pod, pod6 := knownWorld(t)
	out, out6 := addr("192.0.2.1"), addr("2001:db8::1")
	set := func(packet []byte, at int, value byte) []byte { packet[at] = value; return packet }
	data := make([]byte, 12)
	good, good6 := func() []byte { return ip(pod, out, tcp(4000, 80, ack)) }, func() []byte { return ip(pod6, out6, tcp(4000, 80, ack)) }
	datagram, datagram6 := func() []byte { return ip(pod, out, udp(4000, 53, data...)) }, func() []byte { return ip(pod6, out6, udp(4000, 53, data...)) }
	for _, known := range [][]byte{good(), good6(), datagram(), datagram6()} {
		w.forward(known)
		if clear(w.knew); !w.forward(known) || w.knew[knownOut] != 1 {
			t.Fatalf("%x is not known", known)
		}
	}
	for name, packet := range map[string][]byte{
		"options like TCP's header":                 ip4(pod, out, tcp(4000, 81, 0), tcp(4000, 80, ack).bytes, 0),
		"a length beyond the packet":                set(good(), 3, 41),
		"a length within TCP's header":              set(good(), 3, 39),
		"a length within the network header":        set(good(), 3, 19),
		"a first fragment":                          set(good(), 6, 0x20),
		"a later fragment":                          set(good(), 7, 1),
		"TCP's header beyond the packet":            set(good(), 32, 6<<4),
		"TCP's header too short":                    set(good(), 32, 4<<4),
		"no flags":                                  set(good(), 33, 0),
		"SYN with FIN":                              set(good(), 33, syn|fin|ack),
		"SYN with RST":                              set(good(), 33, syn|rst),
		"a datagram beyond the packet":              set(datagram(), 25, 21),
		"a datagram without its header":             set(datagram(), 25, 7),
		"IPv6: a length beyond the packet":          set(good6(), 5, 21),
		"IPv6: a length within TCP's header":        set(good6(), 5, 19),
		"IPv6: TCP's header beyond the packet":      set(good6(), 52, 6<<4),
		"IPv6: a datagram beyond the packet":        set(datagram6(), 45, 21),
		"IPv6 with the addresses of a known IPv4's": ip6(netip.AddrFrom16(pod.As16()), netip.AddrFrom16(out.As16()), protoTCP, tcp(4000, 80, ack).bytes),
	} {
		if _, why := modelParse(packet); why != Malformed && why != Fragment {
			t.Errorf("%s: the model says %s", name, why)
		}
		if w.run(knownOut, ether(packet), &context{}) == 1 || w.forward(packet) {
			t.Errorf("%s: allowed", name)
		}
	}
}

func TestAKnownConnectionIsRefreshed(t *testing.T) {
	w, pod, _ := knownWorld(t)
	out := addr("192.0.2.1")
	w.forward(ip(pod, out, tcp(4000, 80, syn)))
	later(20 * time.Second)(w)
	for range 2 {
		if clear(w.knew); !w.forward(ip(pod, out, tcp(4000, 80, ack))) || w.knew[knownOut] != 1 {
			t.Fatal("the connection is not known")
		}
		later(20 * time.Second)(w)
	}
}
