package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// nm-cloud-setup and amazon-ec2-net-utils configure the addresses of pods on an interface's
// link, each time again.
func TestAnAddressThatIsConfiguredAgainEachTimeIsLeftThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		g.attach()
		g.mustPass()
		theirs := hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.98/24")}
		there := func() bool {
			return slices.ContainsFunc(g.k.state.Addresses, func(a hostnet.Address) bool { return a.Key() == theirs.Key() })
		}
		deleted := 0
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Second) {
			if !there() {
				g.k.put(theirs)
			}
			if g.mustPass(); !there() {
				deleted++
			}
		}
		if deleted != 2 {
			t.Errorf("deleted %d times in an hour, want 2", deleted)
		}
		standing := g.State.Drift()
		if len(standing) != 1 || !strings.Contains(standing[0], "10.0.0.98 on eth1") || !strings.Contains(standing[0], "systemctl disable --now nm-cloud-setup.timer") {
			t.Errorf("the drift table has %q, want the address and which program to turn off", standing)
		}
		if most := deleted + 3; len(g.seen.events) > most { // of each repair, and of the contest
			t.Errorf("%d events of %d deletions: %q", len(g.seen.events), deleted, g.seen.events[len(g.seen.events)-3:])
		}

		g.k.remove(theirs.Key()) // the program was turned off, and an operator deleted the address
		next := g.mustPass()
		if next.IsZero() || time.Until(next) > time.Hour {
			t.Errorf("the next pass is at %s, want an hour after the last deletion", next)
		}
		time.Sleep(time.Until(next))
		g.mustPass()
		if left := g.State.Drift(); len(left) > 0 {
			t.Errorf("the drift table has %q after the program was turned off", left)
		}
		g.converged()
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}

// While one address is contested, another one that was configured by mistake is deleted.
func TestAContestIsAboutOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		g.attach()
		g.mustPass()
		contested := hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.98/24")}
		other := hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.99/24")}
		for range 3 {
			g.k.put(contested)
			g.mustPass()
		}
		g.k.put(contested, other)
		g.mustPass()
		if got := g.k.state.Addresses; !slices.Contains(got, contested) || slices.Contains(got, other) {
			t.Errorf("the kernel has %v, want %s and not %s", got, contested, other)
		}
		if err := g.State.Close(); err != nil {
			t.Error(err)
		}
	})
}

// systemd-networkd makes the kernel's route to the subnet of a secondary interface again, for
// example when it renews the lease of the interface's address.
func TestARouteThatIsMadeAgainEachTimeIsDeletedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		g.attach()
		g.mustPass()
		subnet := hostnet.Route{
			Table: hostnet.TableMain, To: netip.MustParsePrefix("10.0.0.0/24"), Link: "eth1", Scope: hostnet.ScopeLink, Protocol: hostnet.ProtocolKernel,
		}
		deleted := 0
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Second) {
			if !slices.Contains(g.k.state.Routes, subnet) {
				g.k.put(subnet)
			}
			if g.mustPass(); !slices.Contains(g.k.state.Routes, subnet) {
				deleted++
			}
		}
		if deleted < 5 || deleted > 12 {
			t.Errorf("deleted %d times in an hour, want 5 to 12", deleted)
		}
		if got := g.State.Drift(); len(got) != 1 || !strings.Contains(got[0], "route to 10.0.0.0/24 by eth1") {
			t.Errorf("the drift table has %q, want the route", got)
		}
		// A lease is renewed after half an hour: the route is deleted at once.
		g.k.remove(subnet.Key())
		time.Sleep(30 * time.Minute)
		g.mustPass()
		g.k.put(subnet)
		if g.mustPass(); slices.Contains(g.k.state.Routes, subnet) {
			t.Error("after a pause of half an hour the route is left")
		}
		if err := g.State.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A rule without a priority precedes ours. nm-cloud-setup and others make one for each address of
// an interface, and make it again.
func TestARuleThatTakesPacketsOfAPodIsDeletedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		web := g.pod("web")
		g.mustPass()
		pod := netip.PrefixFrom(web.Addresses.List()[0], 32)
		theirs := hostnet.Rule{Family: vpc.IPv4, Priority: 511, From: pod, Table: 77}
		unrelated := hostnet.Rule{Family: vpc.IPv4, Priority: 510, From: netip.MustParsePrefix("192.0.2.1/32"), Table: 77}
		g.k.put(unrelated)
		there := func() bool { return slices.Contains(g.k.state.Rules, theirs) }
		deleted := 0
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Second) {
			if !there() {
				g.k.put(theirs)
			}
			if g.mustPass(); !there() {
				deleted++
			}
		}
		if deleted < 6 || deleted > 12 {
			t.Errorf("deleted %d times in an hour, want 6 to 12", deleted)
		}
		if standing := g.State.Drift(); len(standing) != 1 || !strings.Contains(standing[0], "from "+pod.String()) || !strings.Contains(standing[0], "turn that program off") {
			t.Errorf("the drift table has %q, want the rule", standing)
		}
		if !slices.ContainsFunc(g.seen.events, func(e string) bool { return strings.Contains(e, "rule 511: from "+pod.String()) }) {
			t.Errorf("events %q: none has the rule", g.seen.events)
		}
		if !slices.Contains(g.k.state.Rules, unrelated) {
			t.Error("a rule of another address was deleted")
		}
		g.k.remove(theirs.Key()) // the program was turned off
		for next := g.mustPass(); !next.IsZero(); next = g.mustPass() {
			time.Sleep(time.Until(next))
		}
		if left := g.State.Drift(); len(left) > 0 {
			t.Errorf("the drift table has %q after the program was turned off", left)
		}
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}
