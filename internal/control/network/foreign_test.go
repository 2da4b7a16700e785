package network

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// claimed has a pod of another CNI hold an address of the ledger.
func claimed(t *testing.T, s *state.Store) netip.Addr {
	t.Helper()
	view, _ := s.View(time.Now())
	for _, a := range view.ENIs[0].Addresses {
		if a.State != ipam.Free {
			continue
		}
		_, err := s.Update(func(tx *state.Tx) error {
			claim := ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "u"})}
			tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{a.Addr: claim}, true, time.Now())...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return a.Addr
	}
	t.Fatal("no address is free")
	return netip.Addr{}
}

// claimedInPrefix has a pod of another CNI use an address of a prefix that EC2 delegated to an
// interface: the ledger has no row for it.
func claimedInPrefix(t *testing.T, s *state.Store) netip.Addr {
	t.Helper()
	seen := statetest.First()
	addr := seen.ENI.SubnetCIDR.Addr()
	for range 200 {
		addr = addr.Next()
	}
	prefix := netip.PrefixFrom(addr, 28).Masked()
	seen.ENI.Prefixes = ipam.PrefixesOf([]netip.Prefix{prefix})
	_, err := s.Update(func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe([]ipam.Observed{seen}, time.Now())
		tx.Record(rows...)
		claim := ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "u"})}
		tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{addr: claim}, true, time.Now())...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// claimedAnywhere are the ways in which a pod of another CNI has its address.
func claimedAnywhere() map[string]func(*testing.T, *state.Store) netip.Addr {
	return map[string]func(*testing.T, *state.Store) netip.Addr{"a secondary address": claimed, "an address of a prefix": claimedInPrefix}
}

// release ends the claims of pods of another CNI.
func release(t *testing.T, s *state.Store) {
	t.Helper()
	_, err := s.Update(func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Claim(nil, true, time.Now())...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nodeHas has nm-cloud-setup configure an address of the ledger on the primary link.
func nodeHas(t *testing.T, s *state.Store) {
	t.Helper()
	view, _ := s.View(time.Now())
	addr := view.ENIs[0].Addresses[0].Addr
	statetest.Update(t, s, func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{addr: {Holder: ipam.NodeHolder("ens5")}}, true, time.Now())...)
		return nil
	})
}

func TestForeignWiredPodsMayReachInstanceMetadataWherePodsMay(t *testing.T) {
	for name, claim := range claimedAnywhere() {
		t.Run(name, func(t *testing.T) { mayReachMetadata(t, claim) })
	}
}

func mayReachMetadata(t *testing.T, claim func(*testing.T, *state.Store) netip.Addr) {
	n, _ := newController(t)
	hasDevice(n, "eth0")
	address := claim(t, n.State)
	has := func() bool {
		t.Helper()
		if err := n.derive(); err != nil {
			t.Fatal(err)
		}
		desired := false
		for p := range n.Owned.Filter.All(n.State.DB.Snapshot()) {
			desired = desired || slices.Contains(p.Elements, ruleset.MetadataElement(address))
		}
		whole := slices.Contains(n.desiredFilter().Tables[0].Set(ruleset.MetadataElement(address).Set).Elements, ruleset.MetadataElement(address).Element)
		if whole != desired {
			t.Errorf("of the rows %v, as a whole %v", desired, whole)
		}
		return whole
	}
	if has() {
		t.Error("it may, although pods may not")
	}
	n.PodMetadata = true
	if !has() {
		t.Error("it may not, although pods may")
	}
}

// Rules of a pod that another CNI wired go with it, and the SNAT of AWS's daemon with the last
// such pod. Neither a route to a DNS server by the primary link nor an address that the node
// itself has is a pod. While that daemon may run, nothing of it is touched.
func TestWhatAWSsDaemonLeftGoesWithItsPods(t *testing.T) {
	for name, claim := range claimedAnywhere() {
		t.Run(name, func(t *testing.T) { leftoversGo(t, claim) })
	}
}

func leftoversGo(t *testing.T, claim func(*testing.T, *state.Store) netip.Addr) {
	g := start(t)
	address := claim(t, g.State)
	rule := hostnet.Rule{Family: vpc.IPv4, Priority: hostnet.RuleFromPod, From: netip.PrefixFrom(address, 32), Table: 7}
	g.k.state.Rules = append(g.k.state.Rules, rule)
	g.k.leftByAWS = []string{"chain AWS-SNAT-CHAIN-0"}
	left := func() (rules, chains bool) {
		t.Helper()
		g.mustPass()
		return slices.Contains(g.k.state.Rules, rule), len(g.k.leftByAWS) > 0
	}
	if rules, chains := left(); !rules || !chains {
		t.Errorf("while its pod runs: rules %v, chains %v are left", rules, chains)
	}
	release(t, g.State)
	nodeHas(t, g.State)
	g.k.put(hostnet.Route{ // as dhclient's scripts make it
		Table: hostnet.TableMain, To: netip.MustParsePrefix("10.0.0.99/32"), Link: "eth0", Scope: hostnet.ScopeLink, Protocol: hostnet.ProtocolBoot,
	})
	g.OtherAgent = func() bool { return true }
	if rules, chains := left(); !rules || !chains {
		t.Errorf("while AWS's daemon may run: rules %v, chains %v are left", rules, chains)
	}
	g.OtherAgent = func() bool { return false }
	if rules, chains := left(); rules || chains {
		t.Errorf("after its pod has ended: rules %v, chains %v are left", rules, chains)
	}
	g.check("what AWS's daemon left", nil, 0, 0, 0) // it is no drift
}

// The hostPorts of a pod that AWS's plugin wired go with it, also while others of its pods run.
func TestHostPortsOfAPodThatAnotherCNIWiredGoWithIt(t *testing.T) {
	g := start(t)
	runs := claimed(t, g.State)
	view, _ := g.State.View(time.Now())
	ended := view.ENIs[0].Addresses[0].Addr
	if ended == runs {
		ended = view.ENIs[0].Addresses[1].Addr
	}
	wired, elsewhere := netip.MustParseAddr("10.0.0.99"), netip.MustParseAddr("192.168.0.7")
	g.k.put(hostnet.Link{Name: "eniwired"}, hostnet.Route{
		Table: hostnet.TableMain, To: netip.PrefixFrom(wired, 32), Link: "eniwired", Scope: hostnet.ScopeLink, Protocol: hostnet.ProtocolBoot,
	})
	for _, a := range []netip.Addr{runs, ended, wired, elsewhere} {
		g.k.hostPorts = append(g.k.hostPorts, nft.HostPorts{Pod: a})
	}
	left := func() (pods []netip.Addr) {
		g.mustPass()
		for _, h := range g.k.hostPorts {
			pods = append(pods, h.Pod)
		}
		return pods
	}
	g.OtherAgent = func() bool { return true }
	if got := left(); len(got) != 4 {
		t.Errorf("while AWS's daemon may run: %v are left", got)
	}
	g.OtherAgent = func() bool { return false }
	if got, want := left(), []netip.Addr{runs, wired, elsewhere}; !slices.Equal(got, want) {
		t.Errorf("%v are left, want %v", got, want)
	}
}

// AWS's daemon comes back to a node that had nothing of it left, and goes again.
func TestWhatAWSsDaemonMakesLaterGoesToo(t *testing.T) {
	chain := []string{"chain AWS-SNAT-CHAIN-0"}
	g := start(t) // by a pass that finds nothing
	g.OtherAgent = func() bool { return true }
	g.k.leftByAWS = slices.Clone(chain)
	g.mustPass()
	g.OtherAgent = func() bool { return false }
	if g.mustPass(); len(g.k.leftByAWS) > 0 {
		t.Errorf("%v are left after the daemon", g.k.leftByAWS)
	}

	// A pod that AWS's plugin has wired meanwhile, and that no claim is known of.
	wired := hostnet.Route{
		Table: hostnet.TableMain, To: netip.MustParsePrefix("10.0.0.99/32"), Link: "eniwired", Scope: hostnet.ScopeLink, Protocol: hostnet.ProtocolBoot,
	}
	g.k.put(hostnet.Link{Name: "eniwired"}, wired)
	g.k.leftByAWS = slices.Clone(chain)
	g.k.hostPorts = []nft.HostPorts{{Pod: wired.To.Addr()}}
	if g.mustPass(); len(g.k.leftByAWS) == 0 || len(g.k.hostPorts) == 0 {
		t.Errorf("%v and %v are left while the pod runs", g.k.leftByAWS, g.k.hostPorts)
	}
	g.k.state.Routes = slices.DeleteFunc(g.k.state.Routes, func(r hostnet.Route) bool { return r == wired })
	if g.mustPass(); len(g.k.leftByAWS) > 0 || len(g.k.hostPorts) > 0 {
		t.Errorf("%v and %v are left after the pod", g.k.leftByAWS, g.k.hostPorts)
	}
}

// Chains of AWS's daemon in iptables-legacy are needed by its pods, and left after them.
func TestChainsInIptablesLegacyThatStayAreReportedOnceNoPodNeedsThem(t *testing.T) {
	for name, claim := range claimedAnywhere() {
		t.Run(name, func(t *testing.T) {
			g := start(t)
			g.k.legacy, g.k.legacyErr = []string{"AWS-SNAT-CHAIN-0 in table nat"}, errors.New("the lock is held")
			reported := func() bool {
				t.Helper()
				g.mustPass()
				chains, why, err := g.LegacyAWS()
				if err != nil {
					t.Fatal(err)
				}
				if len(chains) > 0 && !errors.Is(why, g.k.legacyErr) {
					t.Errorf("%q with the reason %v, want %v", chains, why, g.k.legacyErr)
				}
				return len(chains) > 0
			}
			claim(t, g.State)
			if reported() {
				t.Error("while a pod of AWS's plugin runs")
			}
			release(t, g.State)
			wired := hostnet.Route{
				Table: hostnet.TableMain, To: netip.MustParsePrefix("10.0.0.99/32"), Link: "eniwired", Scope: hostnet.ScopeLink, Protocol: hostnet.ProtocolBoot,
			}
			g.k.put(hostnet.Link{Name: "eniwired"}, wired)
			if reported() {
				t.Error("while a pod of AWS's plugin runs that no claim is known of")
			}
			g.k.state.Routes = slices.DeleteFunc(g.k.state.Routes, func(r hostnet.Route) bool { return r == wired })
			g.OtherAgent = func() bool { return true }
			if reported() {
				t.Error("while AWS's daemon may run")
			}
			g.OtherAgent = func() bool { return false }
			if !reported() {
				t.Error("not reported after its pods have ended")
			}
			g.OtherAgent = func() bool { return true }
			if reported() {
				t.Error("while AWS's daemon may run again")
			}
		})
	}
}

// Chains that were made after the removal of everything, as by an operator's script.
func TestChainsInIptablesLegacyThatNoRemovalHasTriedAreRemovedByTheNextPass(t *testing.T) {
	g := start(t)
	g.mustPass() // finds nothing
	g.k.legacy = []string{"AWS-SNAT-CHAIN-0 in table nat"}
	if g.mustPass(); len(g.k.legacy) != 1 {
		t.Fatal("the pass has looked for chains though the node is clean")
	}
	if chains, why, err := g.LegacyAWS(); len(chains) > 0 || why != nil || err != nil {
		t.Errorf("reported before a removal has failed: %q, %v, %v", chains, why, err)
	}
	if g.mustPass(); len(g.k.legacy) > 0 {
		t.Errorf("%q are left", g.k.legacy)
	}
}
