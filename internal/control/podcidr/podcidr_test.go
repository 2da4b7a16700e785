package podcidr

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

const coolDown = 30 * time.Second

// cluster is what the API server says of a node, once it answered.
type cluster struct {
	synced bool
	node   kube.Node
	pods   []kube.Pod
}

func (c *cluster) Synced() bool            { return c.synced }
func (c *cluster) Node() (kube.Node, bool) { return c.node, c.node.Name != "" }
func (c *cluster) Pods() []kube.Pod        { return c.pods }

// harness is a controller on node n1, with a count of what it called.
type harness struct {
	*Controller
	cluster *cluster
	routes  []hostnet.Route // of the node, by eth0 with the address 192.0.2.7

	woken, changed, compared, found int
}

func newHarness(s *state.Store, podCIDRs ...string) *harness {
	h := &harness{cluster: &cluster{synced: true, node: kube.Node{Name: "n1"}}}
	for _, p := range podCIDRs {
		h.cluster.node.PodCIDRs = append(h.cluster.node.PodCIDRs, netip.MustParsePrefix(p))
	}
	h.routes = []hostnet.Route{{Table: hostnet.TableMain, To: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0"}}
	h.Controller = New(Config{NodeName: "n1", CoolDown: coolDown}, Deps{
		Log: slog.New(slog.DiscardHandler), State: s, Owned: s.BackendTables(), Cluster: h.cluster,
		Links: func(context.Context, ...string) (hostnet.State, error) {
			return hostnet.State{
				Links: []hostnet.Link{{Name: "eth0", MAC: vpc.MAC{2, 0, 0, 0, 0, 7}}}, Routes: h.routes,
				Addresses: []hostnet.Address{{Link: "eth0", Prefix: netip.MustParsePrefix("192.0.2.7/24")}},
			}, nil
		},
		FindDevice: func(_ context.Context, e ipam.ENI) error {
			h.found++
			state.Set(s, s.NetworkTables().Devices, state.Device{MAC: e.MAC, Link: "eth0"})
			return nil
		},
		Wake: func() { h.woken++ }, Report: func() { h.changed++ }, CompareKernel: func() { h.compared++ },
	})
	return h
}

// add attaches the pod default/NAME and completes its ADD, as control/cni does.
func (h *harness) add(name string, now time.Time) (e endpoint.Endpoint, err error) {
	_, err = h.State.Update(func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		e = endpoint.New(id, endpoint.Key{ContainerID: name, IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: name}, "trunkline", now, now)
		grant, err := h.Assign(tx, e, now)
		if err != nil {
			return err
		}
		if e, err = e.Attach(endpoint.Wire{Addresses: grant.Addresses, Attachment: grant.Attachment, Link: "eni" + name, MTU: 1500}, now); err != nil {
			return err
		}
		if e, err = e.Complete(now); err != nil {
			return err
		}
		return tx.Put(e)
	})
	return e, err
}

// del accepts an endpoint's DEL.
func (h *harness) del(e endpoint.Endpoint, now time.Time) (endpoint.Endpoint, error) {
	_, err := h.State.Update(func(tx *state.Tx) (err error) {
		if e, err = e.Remove(now); err != nil {
			return err
		}
		h.Free(tx, e, cni.Removed, now)
		return tx.Put(e)
	})
	return e, err
}

// gone notes that an endpoint's link is gone.
func (h *harness) gone(e endpoint.Endpoint, now time.Time) error {
	_, err := h.State.Update(func(tx *state.Tx) error {
		h.Free(tx, e, cni.LinkGone, now)
		tx.Delete(e.ID)
		return nil
	})
	return err
}

func open(t *testing.T) (s *state.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "journal")
	return statetest.Open(t, dir), dir
}

func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAnEndpointGetsARoutedAddressOfTheNodesRangeAndKeepsIt(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "fd00::/64", "10.244.1.0/24")
	now := time.Now()
	e := must[endpoint.Endpoint](t)(h.add("one", now))
	want := endpoint.Attachment{Kind: endpoint.Routed, Table: hostnet.TableMain}
	if e.Addresses.IPv4.String() != "10.244.1.2" || e.Addresses.IPv6.IsValid() || e.Attachment != want {
		t.Errorf("%+v", e)
	}
	_, err := s.Update(func(tx *state.Tx) error {
		again, err := h.Assign(tx, e, now)
		if err == nil && again.Addresses != e.Addresses {
			t.Errorf("a repeated ADD gets %v", again)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnAddressIsQuarantinedThenCoolsDownThenIsFreeAlsoAcrossRestarts(t *testing.T) {
	s, dir := open(t)
	h := newHarness(s, "10.244.1.4/30") // one address
	now := time.Now()
	e := must[endpoint.Endpoint](t)(h.add("one", now))
	e = must[endpoint.Endpoint](t)(h.del(e, now))
	if _, err := h.add("two", now.Add(time.Hour)); !errors.Is(err, ipam.ErrNodeFull) {
		t.Errorf("while the link may exist: %v, want ErrNodeFull", err)
	}
	if err := h.gone(e, now); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h = newHarness(statetest.Open(t, dir), "10.244.1.4/30")
	if _, err := h.add("two", now.Add(coolDown-time.Second)); !errors.Is(err, ipam.ErrAllCooling) {
		t.Errorf("in the cool-down: %v, want ErrAllCooling", err)
	}
	if next, err := h.pass(t.Context(), now.Add(time.Second)); err != nil || next.Sub(now).Round(time.Second) != coolDown || h.woken != 0 {
		t.Errorf("next pass %v after %v (%v), %d wake-ups: want the end of the cool-down", next, now, err, h.woken)
	}
	if _, err := h.pass(t.Context(), now.Add(coolDown)); err != nil || h.woken != 1 || len(h.State.CoolDowns()) != 0 {
		t.Errorf("after the cool-down: %v, %d wake-ups, left %v", err, h.woken, h.State.CoolDowns())
	}
	if _, err := h.add("two", now.Add(coolDown)); err != nil {
		t.Errorf("after the cool-down: %v", err)
	}
}

func TestAnAddressIsReusedAsLateAsPossibleAlsoAfterARestart(t *testing.T) {
	s, dir := open(t)
	h := newHarness(s, "10.244.1.0/24")
	now := time.Now()
	first := must[endpoint.Endpoint](t)(h.add("one", now))
	if err := h.gone(must[endpoint.Endpoint](t)(h.del(first, now)), now); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h = newHarness(statetest.Open(t, dir), "10.244.1.0/24")
	if e := must[endpoint.Endpoint](t)(h.add("two", now.Add(time.Hour))); e.Addresses.IPv4.String() != "10.244.1.3" {
		t.Errorf("%s after %s", e.Addresses.IPv4, first.Addresses.IPv4)
	}
}

func TestWithoutARangeTheBackendSaysWhyAndServesWhatRuns(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s)
	h.cluster.node, h.cluster.synced = kube.Node{}, false
	for _, step := range []struct {
		learn func()
		want  string
	}{
		{func() {}, "has not returned Node n1"},
		{func() { h.cluster.node.Name = "n1" }, "Node n1 has no spec.podCIDR: set --allocate-node-cidrs"},
		{func() { h.cluster.node.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00::/64")} }, "IPv6"},
	} {
		step.learn()
		_, err := h.add("one", time.Now())
		for _, err := range []error{err, h.Explain(), h.Status()} {
			if !errors.Is(err, ipam.ErrNoAddress) || !strings.Contains(err.Error(), step.want) {
				t.Errorf("%v, want %q", err, step.want)
			}
		}
	}
	adopted := endpoint.Adopt(1, endpoint.Key{ContainerID: "c", IfName: "eth0"}, endpoint.Pod{}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr("10.9.0.7")), Link: "eni1", Attachment: endpoint.Attachment{Table: hostnet.TableMain},
	}, false, time.Now())
	statetest.Update(t, s, func(tx *state.Tx) error {
		var err error
		if adopted.Attachment, err = h.Adopt(tx, adopted, time.Now()); err != nil {
			return err
		}
		return tx.Put(adopted)
	})
	if got, want := s.Endpoints()[0].Attachment, (endpoint.Attachment{Kind: endpoint.Routed, Table: hostnet.TableMain}); got != want {
		t.Errorf("adopted with %+v, want %+v", got, want)
	}
	h.cluster.node.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	if err := errors.Join(h.Explain(), h.Status()); err != nil {
		t.Error(err)
	}
}

func TestAddressedWaitsForTheRangeAndThePodsOfTheNode(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s)
	h.cluster.synced = false
	addressed := func() bool {
		if _, err := h.pass(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-h.Addressed():
			return true
		default:
			return false
		}
	}
	if addressed() {
		t.Error("without a range")
	}
	h.cluster.node.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	if addressed() {
		t.Error("while pods of another CNI may have any address")
	}
	h.cluster.synced = true
	if !addressed() || h.woken == 0 {
		t.Errorf("not with a range and the node's pods; %d wake-ups", h.woken)
	}
	before := h.changed
	if addressed(); h.changed != before {
		t.Error("a pass without a change was reported")
	}
}

// Pods that flannel or kindnet wired before have addresses of the same range.
func TestAddressesOfAnotherCNIsPodsAreNotAssignedWhileThosePodsExist(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "10.244.1.0/29") // .2 to .6
	pod := func(name, addr string) kube.Pod {
		return kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	h.cluster.pods = []kube.Pod{pod("old", "10.244.1.2"), pod("older", "10.244.1.4")}
	h.cluster.pods = append(h.cluster.pods, kube.Pod{HostNetwork: true, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.3")}})
	pass := func() {
		t.Helper()
		if _, err := h.pass(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	one := must[endpoint.Endpoint](t)(h.add("one", time.Now()))
	two := must[endpoint.Endpoint](t)(h.add("two", time.Now()))
	if one.Addresses.IPv4.String() != "10.244.1.3" || two.Addresses.IPv4.String() != "10.244.1.5" {
		t.Errorf("%s and %s", one.Addresses.IPv4, two.Addresses.IPv4)
	}
	if p := h.Pool(time.Now()); p.Foreign != 2 || p.Free != 1 {
		t.Errorf("pool %s", p)
	}
	// The API server shows the address of a pod of ours after its link is gone.
	h.cluster.pods = []kube.Pod{pod("one", "10.244.1.3"), pod("old", "10.244.1.2")}
	long := time.Now().Add(-time.Hour)
	if err := h.gone(must[endpoint.Endpoint](t)(h.del(one, long)), long); err != nil {
		t.Fatal(err)
	}
	pass()
	if p := h.Pool(time.Now()); p.Foreign != 1 || p.Free != 3 {
		t.Errorf("pool %s, want only the pod that another CNI wired", p)
	}
}

func TestAfterAJournalLossNoAddressIsAssignedBeforeItsCoolDown(t *testing.T) {
	s, dir := open(t)
	h := newHarness(s, "10.244.1.0/24")
	if h.HasRecord() {
		t.Error("an empty state has a record")
	}
	if err := h.AssumeLost(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h = newHarness(statetest.Open(t, dir), "10.244.1.0/24")
	if _, err := h.add("one", time.Now()); !errors.Is(err, ipam.ErrAllCooling) {
		t.Errorf("%v, want ErrAllCooling", err)
	}
	if p := h.Pool(time.Now()); !h.HasRecord() || p.Free != 0 || p.Cooling != p.Total {
		t.Errorf("pool %s", p)
	}
	if _, err := h.add("one", time.Now().Add(coolDown+time.Second)); err != nil {
		t.Errorf("after the cool-down: %v", err)
	}
}

func TestAClockThatWasSetBackDoesNotProlongACoolDown(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "10.244.1.0/24")
	now := time.Now()
	e := must[endpoint.Endpoint](t)(h.add("one", now))
	if err := h.gone(must[endpoint.Endpoint](t)(h.del(e, now)), now); err != nil {
		t.Fatal(err)
	}
	back := now.Add(-time.Hour)
	if next, err := h.pass(t.Context(), back); err != nil || next.After(back.Add(coolDown)) {
		t.Errorf("next free at %v, %v; now it is %v", next, err, back)
	}
}

func TestTheNodesRowFollowsTheDefaultRouteAndThePodCIDR(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s)
	routes := h.routes
	h.routes = nil
	if err := h.ReadNode(t.Context()); !errors.Is(err, hostnet.ErrNoDefaultRoute) {
		t.Errorf("without a default route: %v", err)
	}
	h.routes = routes
	for _, podCIDR := range []netip.Prefix{{}, netip.MustParsePrefix("10.244.1.0/24")} {
		h.cluster.node.PodCIDRs = []netip.Prefix{podCIDR}
		before := h.compared
		for range 2 { // the second time changes nothing
			if err := h.ReadNode(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		row := s.Node()
		if row.Instance != "" || row.PrimaryMAC != (vpc.MAC{2, 0, 0, 0, 0, 7}) || row.PrimaryIP.String() != "192.0.2.7" || row.PodCIDR != podCIDR || podCIDR.IsValid() != slices.Contains(row.Ranges, podCIDR) {
			t.Errorf("row %+v, want the interface of the default route and %s", row, podCIDR)
		}
		if h.compared != before+1 || h.found != 1 {
			t.Errorf("%d comparisons of the kernel, %d searches for the link", h.compared-before, h.found)
		}
	}
}

func TestThePoolsRowCountsWhatTheNodeHas(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "10.244.1.0/24")
	now := time.Now()
	one := must[endpoint.Endpoint](t)(h.add("one", now))
	two := must[endpoint.Endpoint](t)(h.add("two", now))
	must[endpoint.Endpoint](t)(h.add("three", now))
	if err := h.gone(must[endpoint.Endpoint](t)(h.del(one, now)), now); err != nil {
		t.Fatal(err)
	}
	must[endpoint.Endpoint](t)(h.del(two, now))
	for _, container := range []string{"a", "b", "c", "d"} {
		state.Set(s, s.CNITables().Waiting, state.Waiting{Key: endpoint.Key{ContainerID: container, IfName: "eth0"}, Since: now})
	}
	must[time.Time](t)(h.pass(t.Context(), now))
	d := s.Pool().Decision
	if n := d.Numbers; n.Assigned != 1 || n.Quarantined != 1 || n.Cooling != 1 || n.Free != 250 || n.Capacity != 253 || n.Attainable != 252 || n.Demand != 4 {
		t.Errorf("%+v", n)
	}
	if c := d.Condition; !c.CanAdd || c.Reason != ipam.Reason(podcidr.ReasonServing) || !strings.Contains(c.Message, "10.244.1.0/24") {
		t.Errorf("%+v", c)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "10.244.1.0/24")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	h.Demanded()
	h.Doubted("a test")
	<-h.Addressed()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An address that is over and not swept yet is assigned like a free one.
func TestACoolDownThatIsOverHoldsNothing(t *testing.T) {
	s, _ := open(t)
	h := newHarness(s, "10.244.1.4/30")
	now := time.Now()
	statetest.Update(t, s, func(tx *state.Tx) error {
		tx.Cool(podcidr.Cool(netip.MustParseAddr("10.244.1.6"), now.Add(-coolDown), coolDown))
		return nil
	})
	if _, err := h.add("one", now); err != nil || len(s.CoolDowns()) != 0 {
		t.Errorf("%v, left %v", err, s.CoolDowns())
	}
}
