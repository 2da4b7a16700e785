//go:build netns

package fabric

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// onLink adds a guest's on-link IPv6 route, as a router advertisement does.
func (w *world) onLink(id vpc.ENIID, subnet string) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		w.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(subnet)), Scope: netlink.SCOPE_LINK}))
	})
}

func TestGuestsOfOneSubnetFindEachOtherByNeighbourDiscovery(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.0.11", "fd10::11")
	w.at("eni-b").Prefixes = prefixes("fd10::5:0:0:0/80")
	w.apply()
	w.assign("eni-b", "fd10::5:0:0:7")
	w.onLink("eni-a", "fd10::/64")
	w.onLink("eni-b", "fd10::/64")
	for _, to := range []string{"fd10::11", "fd10::5:0:0:7", "fd10::1"} { // an address, one of a prefix, the gateway
		w.must(ping(a, "fd10::10", to, replyTimeout))
	}
	if err := ping(a, "fd10::10", "fd10::99", silence); err == nil {
		t.Error("an unallocated address replied")
	}
	w.eventually("the guest gives up asking for it", func() bool { return w.neighbour6(a, "fd10::99") == netlink.NUD_FAILED })
	if w.neighbour6(a, "fd10::11")&(netlink.NUD_REACHABLE|netlink.NUD_DELAY|netlink.NUD_STALE|netlink.NUD_PROBE) == 0 {
		t.Errorf("neighbour state of an allocated one: %#x", w.neighbour6(a, "fd10::11"))
	}

	// A solicitation from a spoofed address gets no reply.
	w.assign("eni-a", "fd10::bad")
	w.forget6("eni-a")
	if err := ping(a, "fd10::bad", "fd10::11", silence); err == nil {
		t.Error("the spoofed solicitation got a reply")
	}

	// A removed address gets no reply.
	w.at("eni-b").Prefixes = nil
	w.apply()
	w.forget6("eni-a")
	if err := ping(a, "fd10::10", "fd10::5:0:0:7", silence); err == nil {
		t.Error("a removed address replied")
	}
	w.eventually("the guest gives up asking for what left", func() bool { return w.neighbour6(a, "fd10::5:0:0:7") == netlink.NUD_FAILED })
}

func TestAnAddressOfAnotherPortIsADuplicate(t *testing.T) {
	w := newWorld(t)
	w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.0.11", "fd10::11")
	state := func(address string) int {
		flags := 0
		w.guests["eni-a"].Do(t, func() {
			l, err := netlink.LinkByName("eth0")
			w.must(err)
			found, err := netlink.AddrList(l, unix.AF_INET6)
			w.must(err)
			for _, a := range found {
				if a.IP.Equal(net.ParseIP(address)) {
					flags = a.Flags
				}
			}
		})
		return flags
	}
	w.guests["eni-a"].Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		w.must(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("1"), 0))
		w.must(netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(full(netip.MustParseAddr("fd10::11")))}))
	})
	w.eventually("the duplicate is found", func() bool { return state("fd10::11")&unix.IFA_F_DADFAILED != 0 })
}

// entries6 are the IPv6 neighbours of the calling thread's namespace.
func (w *world) entries6() []netlink.Neigh {
	entries, err := netlink.NeighList(0, unix.AF_INET6)
	w.must(err)
	return entries
}

// neighbour6 is the state of the guest's entry for an address.
func (w *world) neighbour6(in *testns.NS, a string) (state int) {
	in.Do(w.t, func() {
		for _, e := range w.entries6() {
			if e.IP.Equal(net.ParseIP(a)) {
				state = e.State
			}
		}
	})
	return state
}

// forget6 empties the guest's table of IPv6 neighbours.
func (w *world) forget6(id vpc.ENIID) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		for _, e := range w.entries6() {
			_ = netlink.NeighDel(&e) // it may expire by itself
		}
	})
}
