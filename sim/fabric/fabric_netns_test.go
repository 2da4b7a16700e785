//go:build netns

package fabric

import (
	"testing"

	"github.com/vishvananda/netlink"
)

func TestTwoPortsOfOneSubnetReachEachOtherByARP(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	w.serveUDP(b.Name, "10.0.0.11:7000")
	if got := w.reaches(a, "10.0.0.10", "10.0.0.11:7000"); got[:9] != "10.0.0.10" {
		t.Errorf("the receiver saw %s, want the sender's own address", got)
	}
	w.must(ping(a, "", "10.0.0.11", patience))
}

func TestPortsOfTwoSubnetsReachEachOtherByTheGateway(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.must(ping(a, "", "10.0.16.11", patience))
	w.must(ping(b, "", "10.0.0.10", patience))
}

func TestTheGatewayAnswersPings(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::a")
	w.must(ping(a, "", "10.0.0.1", patience))
	w.must(ping(a, "fd10::a", "fd10::1", patience))
	w.state.Services = []Service{{Address: addrs("198.51.100.2")[0], TCP: []uint16{80}}}
	w.apply()
	if err := ping(a, "", "198.51.100.2", silence); err == nil {
		t.Error("the fabric answered a ping to an address that is no gateway")
	}
}

func TestAnUnallocatedAddressIsNotAnsweredFor(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10")
	w.plug("eni-b", "10.0.0.11")
	w.must(ping(a, "", "10.0.0.11", patience)) // control: an allocated one is answered
	if err := ping(a, "", "10.0.0.99", silence); err == nil {
		t.Fatal("an unallocated address answered a ping")
	}
	w.eventually("the guest gives up asking for the unallocated address", func() bool {
		return w.neighbourState(a, "10.0.0.99") == netlink.NUD_FAILED
	})
	if got := w.neighbourState(a, "10.0.0.11"); got&(netlink.NUD_REACHABLE|netlink.NUD_DELAY|netlink.NUD_STALE) == 0 {
		t.Errorf("neighbour state of the allocated address is %#x, want it resolved", got)
	}
}
