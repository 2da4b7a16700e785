//go:build netns

package fabric

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/vishvananda/netlink"
)

// assign adds an address in the guest, but not to the state.
func (w *world) assign(id vpc.ENIID, a string) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		l, err := netlink.LinkByName(w.at(id).Device)
		w.must(err)
		w.addAddress(l, netip.MustParseAddr(a))
	})
}

func TestASecondaryAddressWorksOnceTheStateHasIt(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	w.serveUDP(b.Name, "10.0.0.11:7000")
	w.assign("eni-a", "10.0.0.20")
	w.silent(a, "10.0.0.20", "10.0.0.11:7000") // in the guest, not in the state
	w.at("eni-a").Addresses = addrs("10.0.0.10", "10.0.0.20")
	w.apply()
	if got := netip.MustParseAddrPort(w.reaches(a, "10.0.0.20", "10.0.0.11:7000")).Addr(); got != addrs("10.0.0.20")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	w.must(ping(b, "", "10.0.0.20", replyTimeout))
}

func TestADelegatedPrefixLeadsToItsPortAsAWhole(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.serveUDP(b.Name, "10.0.16.11:7000")
	w.at("eni-a").Prefixes = prefixes("10.0.2.32/28")
	w.apply()
	for _, inside := range []string{"10.0.2.32", "10.0.2.39", "10.0.2.47"} {
		w.assign("eni-a", inside)
		w.reaches(a, inside, "10.0.16.11:7000")
		w.must(ping(b, "", inside, replyTimeout))
	}
	w.assign("eni-a", "10.0.2.48")
	w.silent(a, "10.0.2.48", "10.0.16.11:7000")
}

func TestAnAddressMovesToAnotherPortWithoutNewARPByItsPeers(t *testing.T) {
	w := newWorld(t)
	peer := w.plug("eni-p", "10.0.0.5")
	w.plug("eni-a", "10.0.0.10", "10.0.0.20")
	w.plug("eni-b", "10.0.0.11")
	w.serveTCP(w.guests["eni-a"].Name, "10.0.0.20:7000")
	old, err := connect(peer, "10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer old.Close()
	w.must(echo(old, "before", replyTimeout))

	w.at("eni-a").Addresses = addrs("10.0.0.10")
	w.at("eni-b").Addresses = addrs("10.0.0.11", "10.0.0.20")
	w.apply()
	w.assign("eni-b", "10.0.0.20")
	w.serveTCP(w.guests["eni-b"].Name, "10.0.0.20:7000")
	fresh, err := connect(peer, "10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer fresh.Close()
	w.must(echo(fresh, "new owner", replyTimeout))
	if err := echo(old, "after", silence); err == nil {
		t.Error("the flow to the previous port was not ended")
	}
}

func TestRemovingAndAddingAnAddressEndsItsFlows(t *testing.T) {
	for _, try := range []struct {
		name   string
		leaves bool
	}{{"it stays (control)", false}, {"it leaves", true}} {
		t.Run(try.name, func(t *testing.T) {
			w := newWorld(t)
			peer := w.plug("eni-p", "10.0.0.5")
			w.plug("eni-a", "10.0.0.10", "10.0.0.20")
			w.serveTCP(w.guests["eni-a"].Name, "10.0.0.20:7000")
			c, err := connect(peer, "10.0.0.20:7000", replyTimeout)
			w.must(err)
			defer c.Close()
			w.must(echo(c, "before", replyTimeout))
			if try.leaves {
				w.at("eni-a").Addresses = addrs("10.0.0.10")
			}
			w.apply()
			w.at("eni-a").Addresses = addrs("10.0.0.10", "10.0.0.20")
			w.apply()
			wait := replyTimeout
			if try.leaves {
				wait = silence
			}
			if err := echo(c, "after", wait); (err != nil) != try.leaves {
				t.Errorf("echo over the old connection: %v", err)
			}
			if stale := w.drops("eni-p").Stale; (stale > 0) != try.leaves {
				t.Errorf("%d packets counted as stale", stale)
			}
		})
	}
}

func TestAReopenedFabricEndsTheFlowsOfAddressesThatMovedSince(t *testing.T) {
	w := newWorld(t)
	peer := w.plug("eni-p", "10.0.0.5")
	w.plug("eni-a", "10.0.0.10", "10.0.0.20")
	w.serveTCP(w.guests["eni-a"].Name, "10.0.0.20:7000")
	w.serveTCP(w.guests["eni-a"].Name, "10.0.0.10:7000")
	moved, err := connect(peer, "10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer moved.Close()
	stayed, err := connect(peer, "10.0.0.10:7000", replyTimeout)
	w.must(err)
	defer stayed.Close()

	w.must(w.fabric.Close())
	next, err := Open(w.fabric.Name(), Options{Internet: w.fabric.InternetName()})
	w.must(err)
	t.Cleanup(func() { _ = next.Close() })
	w.at("eni-a").Addresses = addrs("10.0.0.10")
	w.must(next.Apply(t.Context(), w.state))
	w.must(echo(stayed, "went on", replyTimeout))
	w.at("eni-a").Addresses = addrs("10.0.0.10", "10.0.0.20")
	w.must(next.Apply(t.Context(), w.state))
	w.must(echo(stayed, "still", replyTimeout))
	if err := echo(moved, "ended", silence); err == nil {
		t.Error("the flow of a removed address was not ended")
	}
}

func TestTwoPortsTalkIPv6AndUnallocatedAddressesAreUnreachable(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10", "fd10::a"), w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::b")
	w.serveUDP(b.Name, "[fd10:0:0:1::b]:7000")
	if got := netip.MustParseAddrPort(w.reaches(a, "fd10::a", "[fd10:0:0:1::b]:7000")).Addr(); got != addrs("fd10::a")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	w.must(ping(a, "", "fd10:0:0:1::b", replyTimeout))
	if err := ping(a, "", "fd10:0:0:1::c", silence); err == nil {
		t.Error("an unallocated address replied")
	}
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the packet to an unallocated address was not counted")
	}

	w.at("eni-b").Prefixes = prefixes("fd10:0:0:1:5::/80")
	w.apply()
	w.assign("eni-b", "fd10:0:0:1:5::7")
	w.must(ping(a, "", "fd10:0:0:1:5::7", replyTimeout))

	w.assign("eni-a", "fd10::bad")
	w.silent(a, "fd10::bad", "[fd10:0:0:1::b]:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the foreign source address was not counted")
	}
}
