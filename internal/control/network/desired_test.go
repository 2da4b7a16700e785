package network

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// calls records what the controller reports.
type calls struct {
	kernel  *kernel
	events  []string
	missing []string // requests to the backend
	reports int
}

func (c *calls) NodeWarning(reason, message string) { c.events = append(c.events, reason+": "+message) }

// newController is a controller of a kernel in memory, over the state of a node with eni-1.
func newController(t *testing.T) (*Controller, *calls) {
	t.Helper()
	s, seen := statetest.Open(t, t.TempDir()), &calls{kernel: newKernel()}
	statetest.Observe(t, s)
	return over(t, s, seen), seen
}

// over is a controller of an earlier one's kernel.
func over(t *testing.T, s *state.Store, seen *calls) *Controller {
	t.Helper()
	return withEdges(t, s, seen, seen.kernel, firewall{seen.kernel})
}

// withEdges is a controller that drives the given edges.
func withEdges(t *testing.T, s *state.Store, seen *calls, links Links, filter Filter) *Controller {
	t.Helper()
	n, err := New(Config{MTU: 9001}, Deps{
		OtherAgent: func() bool { return false },
		Log:        slog.New(slog.DiscardHandler), State: s, Owned: s.NetworkTables(), Events: seen, Registry: prometheus.NewRegistry(),
		Drift:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drift"}, []string{"where"}),
		Missing: func(why string) { seen.missing = append(seen.missing, why) },
		Report:  func() { seen.reports++ },
		Links:   links, Filter: filter,
		Before: func(context.Context) error { return nil }, Compared: func(context.Context) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// interfaceNow is eni-1 as the ledger has it.
func interfaceNow(t *testing.T, s *state.Store) ipam.ENIView {
	t.Helper()
	view, _ := s.View(time.Now())
	if len(view.ENIs) != 1 {
		t.Fatalf("interfaces %+v, want eni-1", view.ENIs)
	}
	return view.ENIs[0]
}

// moved is the ledger as it is once eni-1 was attached again at device index 3.
func moved(t *testing.T, s *state.Store) ipam.View {
	t.Helper()
	view, _ := s.View(time.Now())
	view.ENIs[0].Device = 3
	return view
}

// hasDevice enters the link of eni-1 in the table.
func hasDevice(n *Controller, link string) {
	state.Set(n.State, n.Owned.Devices, state.Device{MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, ENI: "eni-1", Link: link})
}

func TestAnEndpointIsRoutedByTheInterfaceThatHoldsItsAddressNow(t *testing.T) {
	n, _ := newController(t)
	web := statetest.Ready(t, n.State, "web")
	if got := n.Route(web).Attachment; got.Interface != "eni-1" || got.Table != hostnet.TableMain {
		t.Errorf("on the primary interface: %+v, want eni-1 by the main table", got)
	}
	got := routed(web, moved(t, n.State))
	if want := (hostnet.ENI{Device: 3}).Table(); got.Attachment.Table != want {
		t.Errorf("at device 3: table %d, want %d", got.Attachment.Table, want)
	}
	got.Attachment.Table = web.Attachment.Table
	if got != web {
		t.Errorf("more than the route table changed: %+v, was %+v", got, web)
	}
	gone := statetest.Remove(t, n.State, web)
	if got := routed(gone, moved(t, n.State)).Attachment.Table; got != (hostnet.ENI{Device: 3}).Table() {
		t.Errorf("while it is removed: table %d, want that of device 3: its packets still leave by it", got)
	}
}

func TestAnEndpointWithoutALeaseKeepsTheTableOfItsADD(t *testing.T) {
	n, _ := newController(t)
	web := statetest.Ready(t, n.State, "web")
	view := moved(t, n.State)
	stranger := web
	stranger.ID++
	if got := routed(stranger, view); got != stranger {
		t.Errorf("no address of the ledger is its own, and it became %+v", got)
	}
	stranger.ID = 0 // the holder of an address of another CNI's pod has no ID either
	for i := range view.ENIs[0].Addresses {
		if a := &view.ENIs[0].Addresses[i]; a.State == ipam.Free {
			a.State, a.Holder = ipam.Assigned, ipam.ForeignHolder(web.Pod)
		}
	}
	if got := routed(stranger, view); got != stranger {
		t.Errorf("without an ID it became %+v", got)
	}
	view.ENIs[0].Phase = ipam.Detaching
	if got := routed(web, view); got != web {
		t.Errorf("its interface is being detached, and it became %+v", got)
	}
}

func TestOnlyAnAttachedInterfaceOfOursWithALinkHasAStateOfItsOwn(t *testing.T) {
	n, _ := newController(t)
	e := interfaceNow(t, n.State)
	if got, ok := n.interfaceState(e); ok {
		t.Errorf("without a known link: %s", got)
	}
	hasDevice(n, "eth7")
	e.Device = 2
	got, ok := n.interfaceState(e)
	if !ok || len(got.Links) != 1 || got.Links[0].Name != "eth7" || got.Links[0].MTU != 9001 {
		t.Fatalf("%v, %s: want the link eth7 with the configured MTU", ok, got)
	}
	if !slices.ContainsFunc(got.Addresses, func(a hostnet.Address) bool { return a.Prefix == netip.MustParsePrefix("10.0.0.4/24") }) {
		t.Errorf("addresses %v, want its primary one with the subnet's length", got.Addresses)
	}
	if !slices.ContainsFunc(got.Routes, func(r hostnet.Route) bool {
		return r.Table == (hostnet.ENI{Device: 2}).Table() && r.Via == netip.MustParseAddr("10.0.0.1")
	}) {
		t.Errorf("routes %v, want one by the subnet's router in its own table", got.Routes)
	}
	local := netip.MustParseAddr("10.0.0.7") // nm-cloud-setup put it on the link
	e.Addresses[0].State, e.Addresses[0].Holder = ipam.Assigned, ipam.NodeHolder("eth7")
	got, _ = n.interfaceState(e)
	if len(got.Leave) != 1 || got.Leave[0].Prefix.Addr() != local {
		t.Errorf("leaves %v, want %s", got.Leave, local)
	}
	for phase, want := range map[ipam.Phase]bool{
		ipam.Attaching: false, ipam.SettingUp: true, ipam.Ready: true, ipam.Detaching: false, ipam.Deleting: false,
	} {
		e.Phase = phase
		if _, ok := n.interfaceState(e); ok != want {
			t.Errorf("%s: %v, want %v", phase, ok, want)
		}
	}
	e.Phase, e.Unmanaged = ipam.Ready, true
	if got, ok := n.interfaceState(e); ok {
		t.Errorf("of an interface that is not ours: %s", got)
	}
}

// The desired state has the endpoints from the start of their wiring to their DEL.
func TestDesiredStateFollowsTheTables(t *testing.T) {
	n, _ := newController(t)
	hasDevice(n, "eth0")
	web, db := statetest.Wiring(t, n.State, "web", "web"), statetest.Ready(t, n.State, "db")
	all := func() (links []hostnet.Link) {
		if err := n.derive(); err != nil {
			t.Fatal(err)
		}
		for p := range n.Owned.Links.All(n.State.DB.Snapshot()) {
			links = append(links, p.State.Links...)
		}
		return links
	}
	links := func() (names []string) {
		for _, l := range all() {
			names = append(names, l.Name)
		}
		slices.Sort(names)
		return names
	}
	want := []string{"eth0", web.Link, db.Link}
	slices.Sort(want)
	if got := links(); !slices.Equal(got, want) {
		t.Errorf("links %q, want %q", got, want)
	}
	for _, l := range all() {
		if l.Name == web.Link && l.Admin == hostnet.AdminUp {
			t.Errorf("%s is up while its ADD is in flight", l.Name)
		}
	}
	statetest.Remove(t, n.State, db)
	if got := links(); slices.Contains(got, db.Link) || !slices.Contains(got, web.Link) {
		t.Errorf("after the DEL of db: links %q", got)
	}
	hasDevice(n, "ens5")
	if got := links(); !slices.Contains(got, "ens5") || slices.Contains(got, "eth0") {
		t.Errorf("after udev renamed the device: links %q", got)
	}
}

func TestTheDesiredFilterHasTheNodesFactsAndItsWiredPods(t *testing.T) {
	n, _ := newController(t)
	hasDevice(n, "eth0")
	state.Set(n.State, n.State.BackendTables().Node, state.Node{
		PrimaryMAC: vpc.MAC{2, 0, 0, 0, 0, 1}, PrimaryIP: netip.MustParseAddr("10.0.0.4"), Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	})
	n.Ruleset.ExcludeSNAT = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	web, db := statetest.Ready(t, n.State, "web"), statetest.Ready(t, n.State, "db")
	statetest.Remove(t, n.State, db)
	want := ruleset.Compile(ruleset.Config{
		PrimaryLink: "eth0", PrimaryIPv4: netip.MustParseAddr("10.0.0.4"), VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
		ExcludeSNAT: n.Ruleset.ExcludeSNAT, Pods: []ruleset.Pod{ruleset.PodOf(web, false)},
	}).String()
	if got := n.desiredFilter().String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(want, web.Link) || strings.Contains(want, db.Link) {
		t.Errorf("the ruleset does not distinguish the pods:\n%s", want)
	}
	n.desiredFilter()
	if len(n.Ruleset.Pods) > 0 {
		t.Errorf("deriving it changed the configuration: pods %v", n.Ruleset.Pods)
	}
}
