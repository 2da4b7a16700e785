//go:build netns

package bpf

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

func endpointID(n int) endpoint.ID { return endpoint.ID(n) }

// allowing writes a set that isolates both directions and allows UDP and TCP of a port, and ICMP if
// icmp is set, from and to the peers.
func (w *world) allowing(number uint32, port int, icmp bool, directions []Direction, peers ...netip.Addr) {
	w.t.Helper()
	w.set(number, Ingress, Egress)
	for _, p := range []uint8{protoTCP, protoUDP} {
		must(w.t, w.Maps.Ports.Put(PortKey{Ports: number, Protocol: p, Port: uint16(port)}, 1))
		must(w.t, w.Maps.PortRanges.Put(PortRangeKeyOf(number, p, 0, 0), 2)) // the others
	}
	for _, a := range peers {
		must(w.t, w.Maps.Classes.Put(ClassKey{number, AddressOf(a)}, 1))
	}
	classes := []uint32{1}
	if icmp {
		classes = append(classes, 0)
	}
	for _, d := range directions {
		w.row(number, d, 1, classes...)
	}
}

func TestRealPacketsFollowTheSetInForce(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, SetPending), n.pod(2, SetPending)
	b.serve(t, 80)
	b.serve(t, 81)
	n.allowing(16, 80, true, []Direction{Egress}, b.v4, b.v6)
	n.allowing(17, 80, true, []Direction{Ingress}, a.v4, a.v6)
	n.set(18, Ingress, Egress)
	for _, tc := range []struct {
		what         string
		setA, setB   uint32
		want, want81 bool
	}{
		{"while the policies of both are not known", SetPending, SetPending, false, false},
		{"while the policies of the client are not known", SetPending, SetOpen, false, false},
		{"while the policies of the server are not known", SetOpen, SetPending, false, false},
		{"without policies", SetOpen, SetOpen, true, true},
		{"with policies that deny all at the server", SetOpen, 18, false, false},
		{"with policies that deny all at the client", 18, SetOpen, false, false},
		{"with one port allowed at both", 16, 17, true, false},
		{"with one port allowed at the client", 16, SetOpen, true, false},
		{"with a set that does not exist", SetOpen, 99, false, false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			n.State.SetInForce(1, tc.setA)
			n.State.SetInForce(2, tc.setB)
			for _, to := range []netip.Addr{b.v4, b.v6} {
				a.reaches(t, to, 80, tc.want)
				a.reaches(t, to, 81, tc.want81)
			}
			timeout := silence
			if tc.want {
				timeout = arrival
			}
			c, err := a.dial(t, "tcp", netip.AddrPortFrom(b.v4, 80), timeout)
			if err == nil != tc.want {
				t.Fatalf("TCP connects: %v, want %v", err, tc.want)
			}
			if err == nil && !exchange(t, c, 1000, arrival) {
				t.Error("TCP carries no data")
			}
			if got := a.ping(t, b.v4, timeout); got != tc.want {
				t.Errorf("ping is answered: %v, want %v", got, tc.want)
			}
		})
	}
}

// ping sends an echo request and reports whether it is answered in time.
func (h host) ping(t testing.TB, to netip.Addr, timeout time.Duration) (answered bool) {
	t.Helper()
	h.ns.Do(t, func() {
		c, err := net.ListenPacket("ip4:icmp", h.v4.String())
		must(t, err)
		defer c.Close()
		request := icmp(8, 0, 7).bytes
		sum := ^uint16(0x0800 + 7 + 1)
		request[2], request[3] = byte(sum>>8), byte(sum)
		_, err = c.WriteTo(request, &net.IPAddr{IP: to.AsSlice()})
		must(t, err)
		must(t, c.SetReadDeadline(time.Now().Add(timeout)))
		b := make([]byte, 1500)
		for {
			size, _, err := c.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			must(t, err)
			if size >= 8 && b[0] == 0 {
				answered = true
				return
			}
		}
	})
	return answered
}

func TestALiveFlowEndsWithItsPolicyAndResumesWithIt(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, SetOpen), n.pod(2, 17)
	b.serve(t, 80)
	n.allowing(17, 80, false, []Direction{Ingress}, a.v4)
	n.set(18, Ingress)
	c, err := a.dial(t, "tcp", netip.AddrPortFrom(b.v4, 80), arrival)
	must(t, err)
	if !exchange(t, c, 100, arrival) {
		t.Fatal("no data before the change")
	}
	n.State.SetInForce(2, 18)
	if exchange(t, c, 100, silence) {
		t.Error("data passes although the policy was revoked")
	}
	n.State.SetInForce(2, 17)
	if !exchange(t, c, 100, arrival) {
		t.Error("no data after the policy was restored")
	}
}

// Connections of endpoints without policies have no entries, so conntrack decides who opened them.
func TestAFirstPolicyEndsDeniedFlowsAndKeepsAllowedOnes(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, SetOpen), n.pod(2, SetOpen)
	b.serve(t, 80)
	b.serve(t, 81)
	n.set(17, Ingress) // egress stays open, which must not hold the denied connection
	must(t, n.Maps.Classes.Put(ClassKey{17, AddressOf(a.v4)}, 1))
	must(t, n.Maps.Ports.Put(PortKey{Ports: 17, Protocol: protoTCP, Port: 80}, 1))
	n.row(17, Ingress, 1, 1)
	allowed, err := a.dial(t, "tcp", netip.AddrPortFrom(b.v4, 80), arrival)
	must(t, err)
	denied, err := a.dial(t, "tcp", netip.AddrPortFrom(b.v4, 81), arrival)
	must(t, err)
	if !exchange(t, allowed, 100, arrival) || !exchange(t, denied, 100, arrival) {
		t.Fatal("no data without policies")
	}
	n.State.SetInForce(2, 17)
	if !exchange(t, allowed, 100, arrival) {
		t.Error("the allowed connection has ended")
	}
	if exchange(t, denied, 100, silence) {
		t.Error("the denied connection goes on")
	}
	// The client is isolated too, by a policy that allows nothing it opened, but the server's reply
	// to it is a packet of the direction that is open.
	n.set(19, Egress)
	n.State.SetInForce(1, 19)
	if exchange(t, allowed, 100, silence) {
		t.Error("a connection that the client may not open goes on")
	}
}

func TestFragmentsAreJudgedWhole(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, SetOpen), n.pod(2, 17)
	b.serve(t, 80)
	b.serve(t, 81)
	n.allowing(17, 80, false, []Direction{Ingress}, a.v4, a.v6)
	for port, want := range map[uint16]bool{80: true, 81: false} {
		for _, to := range []netip.Addr{b.v4, b.v6} {
			c, err := a.dial(t, "udp", netip.AddrPortFrom(to, port), arrival)
			must(t, err)
			timeout := silence
			if want {
				timeout = arrival
			}
			if got := exchange(t, c, 5000, timeout); got != want {
				t.Errorf("5000 bytes to %s port %d arrive: %v, want %v", to, port, got, want)
			}
		}
	}
}

func TestTheNodeReachesItsPodsAndTheyAreClosedWithoutRules(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, SetOpen), n.pod(2, 18)
	n.set(18, Ingress, Egress)
	outside := n.host(9, "outside", 0)
	b.serve(t, 80)
	a.serve(t, 80)
	outside.serve(t, 80)
	prober := host{ns: n.ns}
	prober.reaches(t, b.v4, 80, true)
	prober.reaches(t, b.v6, 80, true)
	n.State.SetInForce(2, SetPending)
	prober.reaches(t, b.v4, 80, false)
	n.State.SetInForce(2, SetOpen)

	must(t, n.AttachGuard(outside.link))
	a.reaches(t, outside.v4, 80, true)
	outside.reaches(t, a.v4, 80, true)
	a.reaches(t, b.v4, 80, true)
	n.nft.DelTable(n.table)
	must(t, n.nft.Flush())
	for _, to := range []netip.Addr{outside.v4, outside.v6, b.v4, b.v6} {
		a.reaches(t, to, 80, false)
	}
	outside.reaches(t, a.v4, 80, false)
	prober.reaches(t, a.v4, 80, true)
	n.judgeForwarded()
	a.reaches(t, outside.v4, 80, true)
	outside.reaches(t, a.v4, 80, true)
	if attached, err := n.Attached(); err != nil || attached[outside.link] != (Attachment{Guard: true}) || attached[a.link] != (Attachment{Pod: true}) || len(attached) != 3 {
		t.Errorf("attached: %+v, %v", attached, err)
	}
}

func TestAnErrorReachesThePodThatCausedIt(t *testing.T) {
	n := newNode(t)
	a, b := n.pod(1, 16), n.pod(2, SetOpen)
	n.allowing(16, 80, false, []Direction{Egress}, b.v4)
	c, err := a.dial(t, "udp", netip.AddrPortFrom(b.v4, 80), arrival) // no server
	must(t, err)
	_, err = c.Write([]byte("?"))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(arrival)))
	if _, err := c.Read(make([]byte, 10)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("port unreachable is not reported: %v", err)
	}
}
