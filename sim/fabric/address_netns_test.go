//go:build netns

package fabric

import (
	"net/netip"
	"testing"
)

func TestASecondaryAddressWorksOnceTheStateHasIt(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	b.serveUDP("10.0.0.11:7000")
	a.assign("10.0.0.20")
	a.silent("10.0.0.20", "10.0.0.11:7000") // in the guest, not in the state
	w.at("eni-a").Addresses = addrs("10.0.0.10", "10.0.0.20")
	w.apply()
	if got := netip.MustParseAddrPort(a.reaches("10.0.0.20", "10.0.0.11:7000")).Addr(); got != addrs("10.0.0.20")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	w.must(b.ping("", "10.0.0.20", replyTimeout))
}

func TestADelegatedPrefixLeadsToItsPortAsAWhole(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	b.serveUDP("10.0.16.11:7000")
	w.at("eni-a").Prefixes = prefixes("10.0.2.32/28")
	w.apply()
	for _, inside := range []string{"10.0.2.32", "10.0.2.39", "10.0.2.47"} {
		a.assign(inside)
		a.reaches(inside, "10.0.16.11:7000")
		w.must(b.ping("", inside, replyTimeout))
	}
	a.assign("10.0.2.48")
	a.silent("10.0.2.48", "10.0.16.11:7000")
}

func TestAnAddressMovesToAnotherPortWithoutNewARPByItsPeers(t *testing.T) {
	w := newWorld(t)
	peer := w.plug("eni-p", "10.0.0.5")
	a, b := w.plug("eni-a", "10.0.0.10", "10.0.0.20"), w.plug("eni-b", "10.0.0.11")
	a.serveTCP("10.0.0.20:7000")
	old, err := peer.connect("10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer old.Close()
	w.must(echo(old, "before", replyTimeout))

	w.at("eni-a").Addresses = addrs("10.0.0.10")
	w.at("eni-b").Addresses = addrs("10.0.0.11", "10.0.0.20")
	w.apply()
	b.assign("10.0.0.20")
	b.serveTCP("10.0.0.20:7000")
	fresh, err := peer.connect("10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer fresh.Close()
	w.must(echo(fresh, "new owner", replyTimeout))
	if n := w.drops("eni-p").Stale; n != 0 {
		t.Errorf("%d packets counted as stale before the old flow sent one", n)
	}
	if err := echo(old, "after", silence); err == nil {
		t.Error("the flow to the previous port goes on")
	}
	if w.drops("eni-p").Stale == 0 { // else the new owner resets it, which is no proof
		t.Error("the fabric passed a packet of the flow to the previous port, want it dropped as stale")
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
			w.plug("eni-a", "10.0.0.10", "10.0.0.20").serveTCP("10.0.0.20:7000")
			c, err := peer.connect("10.0.0.20:7000", replyTimeout)
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
	a := w.plug("eni-a", "10.0.0.10", "10.0.0.20")
	a.serveTCP("10.0.0.20:7000")
	a.serveTCP("10.0.0.10:7000")
	moved, err := peer.connect("10.0.0.20:7000", replyTimeout)
	w.must(err)
	defer moved.Close()
	stayed, err := peer.connect("10.0.0.10:7000", replyTimeout)
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
	b.serveUDP("[fd10:0:0:1::b]:7000")
	if got := netip.MustParseAddrPort(a.reaches("fd10::a", "[fd10:0:0:1::b]:7000")).Addr(); got != addrs("fd10::a")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	w.must(a.ping("", "fd10:0:0:1::b", replyTimeout))
	if err := a.ping("", "fd10:0:0:1::c", silence); err == nil {
		t.Error("an unallocated address replied")
	}
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the packet to an unallocated address was not counted")
	}

	w.at("eni-b").Prefixes = prefixes("fd10:0:0:1:5::/80")
	w.apply()
	b.assign("fd10:0:0:1:5::7")
	w.must(a.ping("", "fd10:0:0:1:5::7", replyTimeout))

	a.assign("fd10::bad")
	a.silent("fd10::bad", "[fd10:0:0:1::b]:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the foreign source address was not counted")
	}
}
