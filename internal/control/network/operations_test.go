package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/vlan"
)

// attached makes an endpoint that has its address again, as an ADD that is repeated does.
func (g *rig) attached(web endpoint.Endpoint) (e endpoint.Endpoint) {
	g.t.Helper()
	statetest.Update(g.t, g.State, func(tx *state.Tx) (err error) {
		e = endpoint.New(web.ID, web.Key, web.Pod, "trunkline", time.Now(), time.Now())
		e.Generation = web.Generation
		e, err = e.Attach(endpoint.Wire{Addresses: web.Addresses, Attachment: web.Attachment, Link: web.Link, MTU: web.MTU}, time.Now())
		if err != nil {
			return err
		}
		return tx.Put(e)
	})
	return e
}

// An endpoint that waits for its link to be up wants no route.
func TestWhatAnEndpointNoLongerWantsIsNoDrift(t *testing.T) {
	g := start(t)
	web := g.pod("web")
	g.mustPass()
	g.attached(web)
	g.mustPass()
	g.check("an ADD that is repeated", nil, 0, 0, 0)
	g.converged()
}

func TestTheRouteOfALockedEndpointIsNotDeleted(t *testing.T) {
	g := start(t)
	web := g.pod("web")
	g.mustPass()
	e := g.attached(web)
	end, err := g.Lock(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	g.mustPass()
	g.check("during an ADD that is repeated", nil, 0, 0, 0)
	if len(g.k.state.Routes) != 1 {
		t.Errorf("routes %v", g.k.state.Routes)
	}
	end(web, nil)
}

// refusing is a firewall that refuses changes.
type refusing struct {
	firewall
	times *int
}

func (f refusing) Apply(ctx context.Context, want func() ruleset.Ruleset) error {
	if *f.times > 0 {
		*f.times--
		return errors.New("device or resource busy")
	}
	return f.firewall.Apply(ctx, want)
}

// refusingFilter is a started rig with a packet filter that refuses the given number of changes.
func refusingFilter(t *testing.T) (g *rig, times *int) {
	t.Helper()
	s, seen := statetest.Open(t, t.TempDir()), &calls{kernel: newKernel()}
	statetest.Observe(t, s)
	times = new(int)
	g = &rig{withEdges(t, s, seen, seen.kernel, refusing{firewall{seen.kernel}, times}), t, seen, seen.kernel}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g, times
}

// An ADD must not go on without a packet filter: it restores the filter at once, or fails.
func TestTheFilterIsRestoredDuringABackOffOrItsADDFails(t *testing.T) {
	g, times := refusingFilter(t)
	g.k.rules, *times = ruleset.Ruleset{}, 3 // another program flushed it, and repairs fail
	if _, err := g.pass(t.Context(), true); err == nil {
		t.Fatal("the pass succeeded")
	}
	for range 2 {
		if err := g.RestoreFilter(t.Context()); err == nil {
			t.Error("RestoreFilter succeeded without a table")
		}
	}
	if err := g.RestoreFilter(t.Context()); err != nil || len(g.k.rules.Tables) == 0 {
		t.Errorf("RestoreFilter: %v, tables %v", err, g.k.rules.Tables)
	}
}

// withoutTrunk are the devices of branches while their trunk is gone.
type withoutTrunk struct{}

func (withoutTrunk) Apply(context.Context, string, []vlan.Branch) ([]string, error) {
	return nil, vlan.ErrNoTrunk
}

func TestAnInterfaceIsSetUpWhileBranchesLackTheirTrunk(t *testing.T) {
	g := start(t)
	g.Branches = withoutTrunk{}
	g.attach()
	if _, err := g.pass(t.Context(), true); !errors.Is(err, vlan.ErrNoTrunk) {
		t.Fatalf("the pass: %v, want %v", err, vlan.ErrNoTrunk)
	}
	view, _ := g.State.View(time.Now())
	i := slices.IndexFunc(view.ENIs, func(e ipam.ENIView) bool { return e.ID == "eni-2" })
	if err := g.SetUp(t.Context(), view.ENIs[i].ENI); err != nil {
		t.Error(err)
	}
	g.k.remove("link eth1")
	if err := g.SetUp(t.Context(), view.ENIs[i].ENI); err == nil {
		t.Error("an interface without its link is set up")
	}
}

func TestAnInterfaceThatIsAttachedAgainIsSetUpDuringABackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		g.attach()
		g.mustPass()
		g.k.remove("link eth1")
		for range 3 {
			time.Sleep(time.Until(g.mustPass()))
		}
		g.mustPass()
		g.k.put(hostnet.Link{Name: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, MTU: 9001})
		view, _ := g.State.View(time.Now())
		for _, e := range view.ENIs {
			if e.ID != "eni-2" {
				continue
			}
			if err := g.SetUp(t.Context(), e.ENI); err != nil {
				t.Error(err)
			}
		}
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}

// The rules of the pods on an interface name its route table, which follows from its device
// index.
func TestAnInterfaceThatIsAttachedAtAnotherIndexIsNoDrift(t *testing.T) {
	s, seen := statetest.Open(t, t.TempDir()), &calls{kernel: newKernel()}
	g := &rig{over(t, s, seen), t, seen, seen.kernel}
	now := time.Now()
	observe := func(device int, attached bool) {
		t.Helper()
		now = now.Add(time.Hour)
		second := secondAt(device)
		second.Attached = attached
		statetest.Update(t, g.State, func(tx *state.Tx) error {
			rows, _ := tx.Ledger().Observe([]ipam.Observed{statetest.First(), second}, now)
			tx.Record(rows...)
			return nil
		})
	}
	setUp := func() {
		t.Helper()
		statetest.Update(t, g.State, func(tx *state.Tx) error {
			rows, err := tx.Ledger().Begin(cloud.Action{ID: "tl-1", Kind: cloud.SetUp, ENI: "eni-2"}, now)
			tx.Record(rows...)
			if err != nil {
				return err
			}
			rows, err = tx.Ledger().Settle("tl-1", cloud.Outcome{}, now)
			tx.Record(rows...)
			return err
		})
	}
	device := hostnet.Link{Name: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, MTU: 9001}
	g.k.put(device)
	observe(1, true)
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	state.Set(g.State, g.Owned.Devices, state.Device{MAC: device.MAC, ENI: "eni-2", Link: device.Name})
	setUp()
	g.pod("a")
	g.pod("b")
	c := g.pod("c") // on eni-2
	g.mustPass()
	g.mustPass()
	rules := func() (tables []uint32) {
		for _, r := range g.k.state.Rules {
			if r.Priority == hostnet.RuleFromPod && r.From.Contains(c.Addresses.IPv4) {
				tables = append(tables, r.Table)
			}
		}
		return tables
	}
	if got := rules(); !slices.Equal(got, []uint32{2}) {
		t.Fatalf("rules by tables %v, want 2", got)
	}
	before := len(g.seen.events)
	observe(1, false) // detached by hand
	g.k.remove("link eth1")
	g.mustPass()
	observe(3, true)
	g.k.put(device)
	g.mustPass()
	setUp()
	g.mustPass()
	g.mustPass()
	if got := rules(); !slices.Equal(got, []uint32{4}) || len(g.seen.events) != before {
		t.Errorf("rules by tables %v, want 4; events %q, want none", got, g.seen.events[before:])
	}
}

// secondAt is eni-2 with one address, as EC2 shows it at a device index.
func secondAt(device int) ipam.Observed {
	return ipam.Observed{
		ENI: ipam.ENI{
			ID: "eni-2", Type: vpc.TypeInterface, MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, Subnet: "subnet-1", Device: device,
			SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"), PrimaryIP: netip.MustParseAddr("10.0.0.5"),
		},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.21")},
	}
}

func TestAnEndpointWithoutALinkLeavesThatOfAnEarlierSandboxAlone(t *testing.T) {
	g := start(t)
	g.pod("web")
	g.mustPass()
	neighbours := len(g.k.state.Neighbours)
	statetest.Wiring(t, g.State, "web", "web-2") // the link of the next sandbox has the same name
	g.mustPass()
	if len(g.k.state.Neighbours) != neighbours {
		t.Errorf("neighbours %v", g.k.state.Neighbours)
	}
	g.mustPass()
	g.check("the next pass", nil, 0, 0, 0)
}

// beforeRead calls a function before the kernel is read.
type beforeRead struct {
	*kernel
	call func()
}

func (b beforeRead) Read(ctx context.Context, sysctls ...string) (hostnet.State, error) {
	b.call()
	return b.kernel.Read(ctx, sysctls...)
}

// A pass deletes what an ADD left that was given back, while the pod's next sandbox gets a
// link of the same name and the same address.
func TestTheNextSandboxIsLeftAloneWhileWhatAnEarlierOneLeftIsDeleted(t *testing.T) {
	for reads := 1; reads <= 4; reads++ {
		g := start(t)
		first := statetest.Wiring(t, g.State, "web", "web")
		g.mustPass()
		statetest.Update(t, g.State, func(tx *state.Tx) error {
			tx.Record(tx.Ledger().Return(first.ID, time.Now())...)
			tx.Delete(first.ID)
			return nil
		})
		var second endpoint.Endpoint
		var end func(endpoint.Endpoint, error)
		n := 0
		g.Links = beforeRead{g.k, func() {
			if n++; n != reads {
				return
			}
			var err error
			second = statetest.Wiring(t, g.State, "web", "web-2")
			if end, err = g.Lock(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			g.k.wire(second)
			g.k.nft(second, true)
		}}
		g.mustPass()
		g.mustPass()
		if end == nil {
			t.Fatalf("the kernel was read %d times", n)
		}
		have := g.k.state.Objects()
		for _, o := range hostnet.ForEndpoint(second).Objects() {
			if !slices.ContainsFunc(have, func(h hostnet.Object) bool { return h.Key() == o.Key() }) {
				t.Errorf("wired before read %d: %s of a locked endpoint was deleted", reads, o)
			}
		}
		end(second, nil)
	}
}
