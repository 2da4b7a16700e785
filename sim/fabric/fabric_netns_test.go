//go:build netns

package fabric

import (
	"testing"

	"github.com/vishvananda/netlink"
)

func TestTwoPortsOfOneSubnetReachEachOtherByARP(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	b.serveUDP("10.0.0.11:7000")
	if got := a.reaches("10.0.0.10", "10.0.0.11:7000"); got[:9] != "10.0.0.10" {
		t.Errorf("the receiver saw %s, want the sender's own address", got)
	}
	w.must(a.ping("", "10.0.0.11", replyTimeout))
}

func TestPortsOfTwoSubnetsReachEachOtherByTheGateway(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.must(a.ping("", "10.0.16.11", replyTimeout))
	w.must(b.ping("", "10.0.0.10", replyTimeout))
}

func TestTheGatewayAnswersPings(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::a")
	w.must(a.ping("", "10.0.0.1", replyTimeout))
	w.must(a.ping("fd10::a", "fd10::1", replyTimeout))
	w.state.Services = []Service{{Address: addrs("198.51.100.2")[0], TCP: []uint16{80}}}
	w.apply()
	if err := a.ping("", "198.51.100.2", silence); err == nil {
		t.Error("the fabric replied to a ping of an address that is no gateway")
	}
}

func TestAnUnallocatedAddressGetsNoARPReply(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10")
	w.plug("eni-b", "10.0.0.11")
	w.must(a.ping("", "10.0.0.11", replyTimeout)) // control: an allocated address replies
	if err := a.ping("", "10.0.0.99", silence); err == nil {
		t.Fatal("an unallocated address replied to a ping")
	}
	w.eventually("the guest gives up asking for the unallocated address", func() bool {
		return a.neighbour("10.0.0.99") == netlink.NUD_FAILED
	})
	if got := a.neighbour("10.0.0.11"); got&(netlink.NUD_REACHABLE|netlink.NUD_DELAY|netlink.NUD_STALE) == 0 {
		t.Errorf("neighbour state of the allocated address is %#x, want it resolved", got)
	}
}
