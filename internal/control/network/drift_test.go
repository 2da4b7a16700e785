package network

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// rig is a started controller.
type rig struct {
	*Controller
	t    *testing.T
	seen *calls
	k    *kernel
}

func start(t *testing.T) *rig {
	t.Helper()
	n, seen := newController(t)
	g := &rig{n, t, seen, seen.kernel}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *rig) mustPass() (next time.Time) {
	g.t.Helper()
	next, err := g.pass(g.t.Context(), true)
	if err != nil {
		g.t.Fatal(err)
	}
	return next
}

// add does what an ADD does, up to its last step.
func (g *rig) add(name string) (e endpoint.Endpoint, finish func()) {
	g.t.Helper()
	e = statetest.Wiring(g.t, g.State, name, name)
	end, err := g.Lock(g.t.Context(), e)
	if err != nil {
		g.t.Fatal(err)
	}
	g.k.wire(e)
	g.k.nft(e, true)
	return e, func() {
		statetest.Update(g.t, g.State, func(tx *state.Tx) (err error) {
			if e, err = e.Complete(time.Now()); err != nil {
				return err
			}
			return tx.Put(e)
		})
		g.k.wire(e)
		end(e, nil)
	}
}

// pod is a pod that was added.
func (g *rig) pod(name string) endpoint.Endpoint {
	g.t.Helper()
	e, finish := g.add(name)
	finish()
	e.Stage = endpoint.Ready
	return e
}

// del does what a DEL does.
func (g *rig) del(e endpoint.Endpoint) {
	g.t.Helper()
	end, err := g.Lock(g.t.Context(), e)
	if err != nil {
		g.t.Fatal(err)
	}
	gone := statetest.Remove(g.t, g.State, e)
	g.k.nft(e, false)
	g.k.unwire(e)
	end(gone, nil)
}

// check compares what the controller has reported so far.
func (g *rig) check(where string, table []string, events, counted, reports int) {
	g.t.Helper()
	if got := g.State.Drift(); !slices.Equal(got, table) {
		g.t.Errorf("%s: the drift table has %q, want %q", where, got, table)
	}
	total := 0
	for _, place := range []string{inLinks, inFilter} {
		var counter dto.Metric
		if err := g.Drift.WithLabelValues(place).Write(&counter); err != nil {
			g.t.Fatal(err)
		}
		total += int(counter.GetCounter().GetValue())
	}
	if len(g.seen.events) != events || total != counted || g.seen.reports != reports {
		g.t.Errorf("%s: events %q, counted %d, %d reports; want %d events, %d counted, %d reports", where, g.seen.events, total, g.seen.reports, events, counted, reports)
	}
}

func TestARepairedChangeIsAnEventAndNoRow(t *testing.T) {
	g := start(t)
	web := g.pod("web")
	g.check("a new pod", nil, 0, 0, 0)
	want := hostnet.ForEndpoint(web)
	g.k.remove(want.Rules[0].Key(), want.Routes[0].Key())
	g.k.nft(web, false)
	if next := g.mustPass(); !next.IsZero() || len(g.seen.missing) > 0 {
		t.Errorf("next pass %v, requests %q: want none, all is repaired", next, g.seen.missing)
	}
	g.check("after the pass", nil, 2, 5, 0) // a rule, a route, and elements of three sets
	all := strings.Join(g.seen.events, "\n")
	for _, what := range []string{want.Rules[0].String() + ": is missing (repaired)", want.Routes[0].String(), "set pods4 of table trunkline: lacked 1 elements (repaired)"} {
		if !strings.Contains(all, what) {
			t.Errorf("events %q, want %q", all, what)
		}
	}
	g.mustPass()
	g.check("the next pass", nil, 2, 5, 0)
}

func TestDriftThatCannotBeRepairedIsARowUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		web := g.pod("web")
		link := hostnet.ForEndpoint(web).Links[0]
		gone := []string{link.String() + ": is gone"}
		g.k.remove(link.Key())
		began := time.Now()
		for time.Since(began) < drift.Standing {
			g.check("at first", nil, 0, 0, 0)
			next := g.mustPass()
			if next.IsZero() {
				t.Fatal("no further pass")
			}
			time.Sleep(time.Until(next))
		}
		for range 2 {
			g.mustPass()
			g.check("once it stands", gone, 1, 1, 1)
		}
		if len(g.seen.missing) != 1 {
			t.Errorf("requests to the backend %q, want one: the interface may be detached", g.seen.missing)
		}
		g.del(web)
		g.mustPass()
		g.check("once it has ended", nil, 1, 1, 1)
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}

func TestALinkThatIsGoneShortlyBeforeItsDELIsNotReported(t *testing.T) {
	g := start(t)
	web := g.pod("web")
	g.k.remove(hostnet.ForEndpoint(web).Links[0].Key())
	g.mustPass()
	g.del(web)
	g.mustPass()
	g.check("after the DEL", nil, 0, 0, 0)
}

func TestAPlaceReplacesItsOwnRowsOnly(t *testing.T) {
	n, _ := newController(t)
	n.publish(inLinks, []string{"link a", "link b"})
	n.publish(inFilter, []string{"set c"})
	if found := n.publish(inLinks, []string{"link b", "link d"}); !slices.Equal(found, []string{"link d"}) {
		t.Errorf("new rows %q", found)
	}
	if got := n.State.Drift(); !slices.Equal(got, []string{"link b", "link d", "set c"}) {
		t.Errorf("rows %q", got)
	}
	n.publish(inLinks, nil)
	n.publish(inFilter, nil)
	if got := n.State.Drift(); len(got) > 0 {
		t.Errorf("rows %q after both places are clean", got)
	}
}

// Each operation runs while a pass reads one place; the pass and the next one report
// nothing.
func TestOperationsDuringAPassAreNoDrift(t *testing.T) {
	for name, work := range map[string]func(g *rig, web endpoint.Endpoint) (then func()){
		"an ADD":            func(g *rig, _ endpoint.Endpoint) func() { g.pod("db"); return nil },
		"an ADD begins":     func(g *rig, _ endpoint.Endpoint) func() { _, finish := g.add("db"); return finish },
		"a DEL":             func(g *rig, web endpoint.Endpoint) func() { g.del(web); return nil },
		"a DEL and an ADD":  func(g *rig, web endpoint.Endpoint) func() { g.del(web); g.pod("db"); return nil },
		"a repeated ADD":    func(g *rig, web endpoint.Endpoint) func() { return g.again(web) },
		"an interface":      func(g *rig, _ endpoint.Endpoint) func() { g.attach(); return nil },
		"a device's rename": func(g *rig, _ endpoint.Endpoint) func() { g.k.remove("link eth0"); g.k.put(renamed()); return nil },
	} {
		for _, when := range []string{"links", "nftables"} {
			t.Run(name+" while the pass reads "+when, func(t *testing.T) {
				g := start(t)
				web := g.pod("web")
				g.mustPass()
				var then func()
				g.k.during = func(call string) {
					if call == when {
						g.k.during = nil
						then = work(g, web)
					}
				}
				g.mustPass()
				g.mustPass()
				if then != nil {
					then()
				}
				g.mustPass()
				g.mustPass()
				g.check("in the end", nil, 0, 0, 0)
				g.converged()
			})
		}
	}
}

// again is an ADD that the runtime repeats: the link goes down and up again.
func (g *rig) again(e endpoint.Endpoint) (finish func()) {
	end, err := g.Lock(g.t.Context(), e)
	if err != nil {
		g.t.Fatal(err)
	}
	held := e
	held.Stage = endpoint.Wiring
	g.k.unwire(e)
	g.k.wire(held)
	return func() { g.k.wire(e); end(e, nil) }
}

func renamed() hostnet.Link {
	return hostnet.Link{Name: "ens5", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, MTU: 9001, Admin: hostnet.AdminUp}
}

// attach attaches eni-2 at device 1.
func (g *rig) attach() {
	g.t.Helper()
	g.k.put(hostnet.Link{Name: "eth1", MAC: enterSecond(g.t, g.Controller), MTU: 9001})
}

// enterSecond enters eni-2 at device 1, with the link eth1, and returns its MAC.
func enterSecond(t *testing.T, n *Controller) vpc.MAC {
	t.Helper()
	mac := vpc.MAC{2, 0, 0, 0, 0, 2}
	statetest.Update(t, n.State, func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe([]ipam.Observed{statetest.First(), {
			ENI: ipam.ENI{
				ID: "eni-2", Type: vpc.TypeInterface, MAC: mac, Subnet: "subnet-1", Device: 1,
				SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"), PrimaryIP: netip.MustParseAddr("10.0.0.5"),
			},
			Attached: true,
		}}, time.Now())
		tx.Record(rows...)
		return nil
	})
	state.Set(n.State, n.Owned.Devices, state.Device{MAC: mac, ENI: "eni-2", Link: "eth1"})
	return mac
}

// converged checks that the kernel is as desired.
func (g *rig) converged() {
	g.t.Helper()
	var want []hostnet.State
	for p := range g.Owned.Links.All(g.State.DB.Snapshot()) {
		want = append(want, p.State)
	}
	if ops := hostnet.Diff(hostnet.Join(want...), g.k.state); len(ops) > 0 {
		g.t.Errorf("the kernel differs: %v", ops)
	}
	if got, want := g.k.rules.String(), g.desiredFilter().String(); len(got) != len(want) {
		g.t.Errorf("nftables are\n%s\nwant\n%s", got, want)
	}
}

func TestExternalChangesDuringTheSetUpOfAnInterfaceAreReported(t *testing.T) {
	g := start(t)
	rule := hostnet.ForEndpoint(g.pod("web")).Rules[0]
	g.mustPass()
	g.attach()
	g.k.put(hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.99/24")}) // by the operating system
	g.k.during = func(string) { g.k.during = nil; g.k.remove(rule.Key()) }
	g.mustPass() // the kernel had been read
	g.check("while the interface is set up", nil, 0, 0, 0)
	g.mustPass()
	g.check("the next pass", nil, 1, 1, 0)
	if !strings.Contains(g.seen.events[0], rule.String()) {
		t.Errorf("events %q, want %q", g.seen.events, rule)
	}
	g.k.put(hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.98/24")})
	g.mustPass()
	g.check("an address that is added later", nil, 2, 2, 0)
	g.converged()
}

func TestObjectsThatNothingWantsAreReportedAndDeleted(t *testing.T) {
	g := start(t)
	stray := hostnet.Rule{Family: vpc.IPv4, Priority: hostnet.RuleToPod, To: netip.MustParsePrefix("10.0.0.77/32"), Table: hostnet.TableMain, Protocol: hostnet.RouteProtocol}
	g.k.put(stray)
	g.mustPass()
	g.check("a rule of ours", nil, 1, 1, 0)
	stray.Protocol = 3
	g.k.put(stray)
	g.mustPass()
	g.check("a rule of another program", nil, 1, 1, 0)
	if len(g.k.state.Rules) != 2 { // and rule 1024
		t.Errorf("rules %v", g.k.state.Rules)
	}
}

func TestWhatAFailedOperationLeavesIsNoDrift(t *testing.T) {
	t.Run("of an ADD", func(t *testing.T) {
		g := start(t)
		e := statetest.Wiring(g.t, g.State, "web", "web")
		end, err := g.Lock(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		g.k.put(hostnet.ForEndpoint(e).Rules[0])
		end(e, errors.New("stopped"))
		statetest.Remove(t, g.State, e)
		g.mustPass()
		g.mustPass()
		g.check("after its removal", nil, 0, 0, 0)
		g.converged()
	})
	t.Run("of a DEL", func(t *testing.T) {
		g := start(t)
		e := g.pod("web")
		g.mustPass()
		end, err := g.Lock(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		gone := statetest.Remove(t, g.State, e)
		g.k.remove(hostnet.ForEndpoint(e).Routes[0].Key())
		end(gone, errors.New("stopped"))
		g.mustPass()
		g.mustPass()
		g.check("after its removal", nil, 0, 0, 0)
		g.converged()
	})
}

func TestWhatAFailedOperationLeavesOfAnEndpointThatStaysIsNoDrift(t *testing.T) {
	g := start(t)
	e := g.pod("web")
	g.mustPass()
	end, err := g.Lock(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	g.k.remove(hostnet.ForEndpoint(e).Routes[0].Key())
	e.Stage = endpoint.Removing
	end(e, errors.New("the journal refused it"))
	g.mustPass()
	g.check("after the repair", nil, 0, 0, 0)
	g.converged()
}

// A change while no agent runs is reported by the next one, for each part that it wants as
// the last one did.
func TestChangesWhileNoAgentRunsAreReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	s, seen := statetest.Open(t, dir), &calls{kernel: newKernel()}
	statetest.Observe(t, s)
	g := &rig{over(t, s, seen), t, seen, seen.kernel}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	web, db := g.pod("web"), g.pod("db")
	g.mustPass() // records what is there
	restart := func(change func(*Controller)) {
		t.Helper()
		if err := g.State.Close(); err != nil {
			t.Fatal(err)
		}
		s := statetest.Open(t, dir)
		g.Controller = over(t, s, seen)
		change(g.Controller)
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.converged()
	}
	restart(func(*Controller) {})
	g.check("nothing has changed", nil, 0, 0, 0)

	restart(func(*Controller) { g.k.remove(hostnet.ForEndpoint(web).Rules[0].Key()); g.k.nft(db, false) })
	if all := strings.Join(g.seen.events, "\n"); len(g.seen.events) != 2 || !strings.Contains(all, "rule 512: from all to 10.0.0.7/32") || !strings.Contains(all, "set pods4") {
		t.Errorf("events %q, want the rule and the element", g.seen.events)
	}
	events := len(g.seen.events)
	restart(func(n *Controller) { n.MTU = 1500; g.k.remove(hostnet.ForEndpoint(web).Rules[0].Key()) })
	if got := g.seen.events[events:]; len(got) != 1 || !strings.Contains(got[0], "rule 512: from all to 10.0.0.7/32") || strings.Contains(got[0], "mtu") {
		t.Errorf("with another MTU of interfaces: events %q, want the rule", got)
	}
	events = len(g.seen.events)
	restart(func(*Controller) { g.k.unwire(web); statetest.Remove(t, g.State, web) })
	if got := g.seen.events[events:]; len(got) > 0 {
		t.Errorf("an endpoint that is being removed: events %q", got)
	}
}

func TestWatchesExpectWhatIsLeftInTheKernel(t *testing.T) {
	g := start(t)
	e, finish := g.add("web")
	ready := e
	ready.Stage = endpoint.Ready
	want := hostnet.ForEndpoint(ready)
	if o := g.Object(want.Rules[0].Key()); o != nil || !g.Busy(e.Link) {
		t.Errorf("during the ADD: %v, busy %v", o, g.Busy(e.Link))
	}
	finish()
	for _, o := range want.Objects() {
		if got := g.Object(o.Key()); got != o {
			t.Errorf("%s: expected is %v", o, got)
		}
	}
	if g.Busy(e.Link) || g.Named(e.HostMAC) != e.Link || g.Named(vpc.MAC{9}) != "" {
		t.Errorf("busy %v, the name of its MAC is %q", g.Busy(e.Link), g.Named(e.HostMAC))
	}
	g.del(ready)
	if o := g.Object(want.Rules[0].Key()); o != nil || g.Named(e.HostMAC) != "" {
		t.Errorf("after the DEL: %v", o)
	}
}

// The kernel's event of the rename is ignored once the new name is desired.
func TestARenameDuringARepairIsComparedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		web := g.pod("web")
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = g.Loop.Run(ctx) })
		synctest.Wait() // the first pass has ended
		g.k.remove(hostnet.ForEndpoint(web).Rules[0].Key())
		g.k.during = func(string) {
			g.k.during = nil
			g.k.remove("link eth0")
			g.k.put(renamed())
		}
		g.Loop.Mark()
		time.Sleep(5 * time.Second)
		if name := g.Named(renamed().MAC); name != renamed().Name || g.Object(renamed().Key()) == nil {
			t.Errorf("the interface is desired as %s, and has not been compared under this name", name)
		}
		cancel()
		done.Wait()
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}
