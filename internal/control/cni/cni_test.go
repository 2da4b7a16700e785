package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// ledger is a backend that gives out the addresses of a store's ledger.
type ledger struct {
	state           *state.Store
	explain, refuse error
}

func (ledger) Assign(tx *state.Tx, e endpoint.Endpoint, now time.Time) (Grant, error) {
	lease, rows, err := tx.Ledger().Assign(ipam.HolderOf(e), now)
	if err != nil {
		return Grant{}, err
	}
	tx.Record(rows...)
	return Grant{endpoint.AddressesOf(lease.Addr), endpoint.Attachment{Kind: endpoint.Secondary, Interface: lease.ENI, Table: hostnet.TableMain}}, nil
}

func (ledger) Adopt(tx *state.Tx, e endpoint.Endpoint, now time.Time) (endpoint.Attachment, error) {
	_, rows, err := tx.Ledger().Adopt(ipam.HolderOf(e), e.Addresses.Primary(), now)
	tx.Record(rows...)
	// No other backend has this kind: only Adopt can have given it to an endpoint.
	return endpoint.Attachment{Kind: endpoint.Branch, Table: e.Attachment.Table}, err
}

func (ledger) Free(tx *state.Tx, e endpoint.Endpoint, why Reason, now time.Time) {
	switch why {
	case NeverWired:
		tx.Record(tx.Ledger().Return(e.ID, now)...)
	case LinkGone:
		tx.Record(tx.Ledger().Release(e.ID, now)...)
	case Removed:
		tx.Ledger().Unclaim(e.ID)
	}
}

func (l ledger) Renewed(pod endpoint.Pod) {
	if l.state == nil {
		return
	}
	_, _ = l.state.Update(func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Renewed(pod, time.Now())...)
		return nil
	})
}
func (l ledger) Explain() error { return l.explain }
func (l ledger) Status() error  { return l.refuse }
func (ledger) Demanded()        {}
func (ledger) Doubted(string)   {}

// wires notes what is done to links, which are never there.
type wires struct {
	mu      sync.Mutex
	done    []string
	present []link.Wired
	fail    map[string]error
	trash   chan struct{}
}

func (w *wires) note(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, what)
	return w.fail[what]
}

func (w *wires) Wire(context.Context, *os.File, endpoint.Endpoint) (index int, err error) {
	return 0, w.note("wire")
}
func (w *wires) Up(context.Context, endpoint.Endpoint, int) error { return w.note("up") }
func (w *wires) Unwire(context.Context, endpoint.Endpoint) (bool, error) {
	return false, w.note("unwire")
}
func (w *wires) Pods(context.Context) ([]link.Wired, error)             { return w.present, nil }
func (w *wires) Read(context.Context, ...string) (hostnet.State, error) { return hostnet.State{}, nil }
func (w *wires) Discarded() <-chan struct{}                             { return w.trash }
func (w *wires) Put(context.Context, ...ruleset.Element) error          { return w.note("put") }
func (w *wires) Remove(context.Context, ...ruleset.Element) error       { return w.note("remove") }
func (w *wires) DeleteDiscarded(context.Context, func() int, func(link.Wired)) error {
	return w.note("delete")
}

// reported is every event, one a line.
type reported struct{ events []string }

func (r *reported) PodWarning(ref kube.PodRef, uid, reason, message string) {
	r.events = append(r.events, fmt.Sprintf("pod %s %s %s: %s", ref, uid, reason, message))
}

func (r *reported) NodeWarning(reason, message string) {
	r.events = append(r.events, fmt.Sprintf("node %s: %s", reason, message))
}

// harness is a controller without an API server. The node's snapshot on disk has one pod,
// default/known with uid u1.
type harness struct {
	*Controller
	wires  *wires
	events *reported
	server *kubetest.Server

	mu     sync.Mutex
	locked map[endpoint.ID]bool
	ended  []string // locks: the stage of the endpoint, and whether the work succeeded
}

// lock notes which endpoints are locked: a second lock of one would never be granted.
func (h *harness) lock(_ context.Context, e endpoint.Endpoint) (func(endpoint.Endpoint, error), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.locked[e.ID] {
		return nil, fmt.Errorf("endpoint %d is locked already", e.ID)
	}
	h.locked[e.ID] = true
	return func(e endpoint.Endpoint, err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.locked, e.ID)
		h.ended = append(h.ended, fmt.Sprint(e.Stage, " ", err == nil))
	}, nil
}

func newHarness(t *testing.T, components ...Component) *harness {
	t.Helper()
	h := &harness{wires: &wires{trash: make(chan struct{}, 1), fail: map[string]error{}}, events: &reported{}, server: kubetest.New(t), locked: map[endpoint.ID]bool{}}
	h.server.SetDown(true)
	client, err := kube.FromREST(h.server.REST())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "cluster.json")
	known := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "known"}, UID: "u1", Labels: map[string]string{"app": "web"}}
	if err := kube.SaveSnapshot(snapshot, kube.Snapshot{Pods: []kube.Pod{known}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := statetest.Open(t, filepath.Join(dir, "journal"))
	statetest.Observe(t, s)
	h.Controller = New(Config{NodeName: "n1", SpoolDirs: []string{filepath.Join(dir, "spool"), filepath.Join(dir, "run", "spool")}, LinkPrefix: "eni", MTU: 9001, StaleAfter: 10 * time.Minute}, Deps{
		Log: log, State: s, Owned: s.CNITables(), Backend: ledger{state: s}, Links: h.wires, Filter: h.wires, Events: h.events, Components: components,
		Pods:     kube.NewCluster(kube.Options{Client: client, NodeName: "n1", SnapshotPath: snapshot, Log: log}),
		Registry: prometheus.NewRegistry(), CompareKernel: func() {}, Lock: h.lock,
		RestoreFilter: func(context.Context) error { return nil },
		Route:         func(e endpoint.Endpoint) endpoint.Endpoint { return e },
	})
	return h
}

func addOf(name, uid string) *addition {
	return &addition{leave: func() {}, request: &cnirpc.Request{
		ContainerID: "c1", IfName: "eth0",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid,
	}}
}

// on is the addition at a harness.
func (a *addition) on(h *harness) *addition {
	a.c = h.Controller
	return a
}

func (h *harness) call(t *testing.T, req *cnirpc.Request) (json.RawMessage, *cnirpc.Error) {
	t.Helper()
	return h.answered(t.Context(), req, selfNetns(t))
}

// answered is the answer to a call that has ended.
func (h *harness) answered(ctx context.Context, req *cnirpc.Request, netns *os.File) (result json.RawMessage, failure *cnirpc.Error) {
	h.Handle(ctx, req, netns, func(r json.RawMessage, f *cnirpc.Error) { result, failure = r, f })
	return result, failure
}

// selfNetns is the test's own network namespace, until it ends.
func selfNetns(t *testing.T) *os.File {
	t.Helper()
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Close() })
	return netns
}

func request(command, pod string) *cnirpc.Request {
	return &cnirpc.Request{
		Command: command, ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"1.0.0","name":"trunkline"}`),
		Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod,
	}
}

func TestAnADDAndItsDELTakeTheirStepsInOrder(t *testing.T) {
	h := newHarness(t)
	answer, failure := h.call(t, request("ADD", "known"))
	if failure != nil {
		t.Fatal(failure)
	}
	e, ok := h.State.Endpoint(endpoint.Key{ContainerID: "c1", IfName: "eth0"})
	if !ok || e.Stage != endpoint.Ready || e.Pod.UID != "u1" || !strings.Contains(string(answer), e.Addresses.IPv4.String()) || !strings.Contains(string(answer), e.PodMAC.String()) {
		t.Errorf("endpoint %+v, answer %s", e, answer)
	}
	if _, failure := h.call(t, request("DEL", "known")); failure != nil {
		t.Fatal(failure)
	}
	if got := strings.Join(h.wires.done, " "); got != "wire put up remove unwire" {
		t.Errorf("steps %q", got)
	}
	if got := strings.Join(h.ended, ", "); got != "ready true, removing true" {
		t.Errorf("locks ended with %q", got)
	}
	if left := h.State.Endpoints(); len(left) > 0 {
		t.Errorf("left %+v", left)
	}
	if view, _ := h.State.View(time.Now()); view.ENIs[0].Count(ipam.Cooling) != 1 {
		t.Errorf("addresses %v, want one in its cool-down", view.ENIs[0].Addresses)
	}
}

// The runtime repeats an ADD for a container that is wired: the pod keeps its address.
func TestARepeatedADDKeepsTheEndpoint(t *testing.T) {
	h := newHarness(t)
	key := endpoint.Key{ContainerID: "c1", IfName: "eth0"}
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	first, _ := h.State.Endpoint(key)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	second, _ := h.State.Endpoint(key)
	if second.ID != first.ID || second.Addresses != first.Addresses || second.Generation <= first.Generation || len(h.State.Endpoints()) != 1 {
		t.Errorf("first %+v, second %+v", first, second)
	}
}

// Another CNI wired the pod before, and the node has no other address.
func TestAnADDThatWaitsEndsTheEarlierSandboxOfItsPod(t *testing.T) {
	h := newHarness(t)
	earlier := ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "known", UID: "u1"}), Made: time.Now()}
	statetest.Update(t, h.State, func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{netip.MustParseAddr("10.0.0.7"): earlier, netip.MustParseAddr("10.0.0.8"): earlier}, true, time.Now())...)
		return nil
	})
	a := addOf("known", "u1").on(h)
	if err := a.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := a.attach(ctx); !errors.Is(err, ipam.ErrNoAddress) {
		t.Errorf("ADD: %v, want %v", err, ipam.ErrNoAddress)
	}
	var table strings.Builder
	if err := h.State.DB.Snapshot().Print(&table, "addresses"); err != nil || strings.Count(table.String(), string(ipam.Cooling)) != 2 {
		t.Errorf("%v, the table has\n%s\nwant two addresses in their cool-down", err, &table)
	}
}

func TestAFailedADDLeavesNothing(t *testing.T) {
	for _, step := range []string{"wire", "put", "up"} {
		t.Run(step, func(t *testing.T) {
			h := newHarness(t)
			h.wires.fail[step] = errors.New("no")
			if _, failure := h.call(t, request("ADD", "known")); failure == nil {
				t.Fatal("it succeeded")
			}
			if left := h.State.Endpoints(); len(left) > 0 || h.wires.done[len(h.wires.done)-1] != "unwire" {
				t.Errorf("left %+v after %v", left, h.wires.done)
			}
			if len(h.events.events) != 1 {
				t.Errorf("events %q", h.events.events)
			}
			if got := strings.Join(h.ended, ", "); got != "wiring false, removing true" && (step != "up" || got != "ready false, removing true") {
				t.Errorf("locks ended with %q", got)
			}
		})
	}
}

// Restoring the filter may succeed without the elements of an endpoint that is locked.
func TestAnADDFailsWithoutItsElementsInThePacketFilter(t *testing.T) {
	h := newHarness(t)
	h.wires.fail["put"] = nft.ErrNoTable
	if _, failure := h.call(t, request("ADD", "known")); failure == nil {
		t.Error("it succeeded")
	}
	if got := strings.Join(h.wires.done, " "); got != "wire put put remove unwire" {
		t.Errorf("steps %q", got)
	}
}

// The runtime gives up, or a DEL comes, while the endpoint is being written.
func TestAnAddressThatIsGivenBackLeavesNoEndpoint(t *testing.T) {
	h := newHarness(t)
	if err := h.State.Close(); err != nil {
		t.Fatal(err)
	}
	if _, failure := h.call(t, request("ADD", "known")); failure == nil {
		t.Fatal("it was written")
	}
	if left := h.State.Endpoints(); len(left) > 0 {
		t.Errorf("%+v: its address is free for others, and a DEL would remove their rules", left)
	}
	if view, leases := h.State.View(time.Now()); len(leases) > 0 || view.ENIs[0].Count(ipam.Free) != 2 {
		t.Errorf("leases %v, addresses %v", leases, view.ENIs[0].Addresses)
	}
}

func TestAnADDRemovesTheOlderSandboxOfItsPod(t *testing.T) {
	h := newHarness(t)
	old := statetest.Ready(t, h.State, "known") // the container "known"
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	if got := strings.Join(h.wires.done, " "); got != "remove unwire wire put up" {
		t.Errorf("steps %q", got)
	}
	if _, there := h.State.Endpoint(old.Key); there {
		t.Error("the older endpoint is still there")
	}
}

func TestAnEndpointIsReleasedWhenItsLinkIsGone(t *testing.T) {
	h := newHarness(t)
	one := statetest.Remove(t, h.State, statetest.Ready(t, h.State, "one"))
	wired := func(e endpoint.Endpoint) link.Wired {
		return link.Wired{Alias: hostnet.AliasOf(e), Link: e.Link}
	}
	h.wires.present = []link.Wired{wired(one)}
	if err := h.ReleaseGone(t.Context()); err != nil || len(h.State.Endpoints()) != 1 {
		t.Errorf("released while its link is there: %v", err)
	}
	h.wires.present = []link.Wired{{Half: true, Link: "eni9"}}
	if err := h.ReleaseGone(t.Context()); err != nil || len(h.State.Endpoints()) != 1 {
		t.Errorf("released while a half-made link may be its own: %v", err)
	}
	h.wires.present = nil
	two := statetest.Ready(t, h.State, "two")
	if err := h.ReleaseGone(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := h.State.Endpoints(); len(left) != 1 || left[0] != two {
		t.Errorf("left %+v, want only the one that is in use", left)
	}
	(reaper{h.Controller}).linkGone(wired(two))
	if len(h.State.Endpoints()) != 1 {
		t.Error("an endpoint in use was released because a link of its name went")
	}
}

// The journal was lost: links are all there is.
func TestLinksWithoutEndpointsAreAdopted(t *testing.T) {
	h := newHarness(t)
	web := endpoint.LinkName("eni", "default", "known")
	link1 := func(container, name, addr string, dying bool) link.Wired {
		return link.Wired{
			Alias: hostnet.Alias{Key: endpoint.Key{ContainerID: container, IfName: "eth0"}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}},
			Link:  name, Table: hostnet.TableMain, Dying: dying,
		}
	}
	h.wires.present = []link.Wired{
		link1("a", web, "10.0.0.7", false), link1("b", "enib", "10.0.0.8", true),
		link1("c", "enic", "10.0.0.7", false), link1("d", "enid", "10.0.9.9", false),
		link1("f", endpoint.LinkName(endpoint.StrictLinkPrefix, "default", "known"), "10.0.9.10", false), // on a branch
		{Half: true, Link: "enie"},
	}
	for range 2 { // the second time changes nothing
		if err := h.AdoptLinks(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range h.State.Endpoints() {
		got = append(got, fmt.Sprint(e.Key.ContainerID, " ", e.Name(), " ", e.Stage, " ", e.Addresses.IPv4, " ", e.Attachment.Kind))
	}
	want := "a default/known ready 10.0.0.7 branch; b container/b removing 10.0.0.8 branch; d container/d ready 10.0.9.9 branch; f default/known ready 10.0.9.10 branch"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("endpoints %s\nwant      %s", s, want)
	}
}

// The journal was lost, and the API server does not answer yet.
func TestAnAdoptedEndpointGetsItsPodOnceItIsKnown(t *testing.T) {
	h := newHarness(t)
	pods := &cluster{pods: map[string]bool{}, watched: map[string]bool{"web": true}}
	h.Pods = &cluster{}
	wired := func(container, name, addr string, dying bool) link.Wired {
		return link.Wired{
			Alias: hostnet.Alias{Key: endpoint.Key{ContainerID: container, IfName: "eth0"}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}},
			Link:  name, Table: hostnet.TableMain, Dying: dying,
		}
	}
	web := endpoint.LinkName("eni", "default", "web")
	h.wires.present = []link.Wired{wired("a", web, "10.0.0.7", false), wired("b", endpoint.LinkName("eni", "default", "other"), "10.0.0.8", false), wired("c", "enic", "10.0.0.9", true)}
	if err := h.AdoptLinks(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := func() (list []string) {
		for _, e := range h.State.Endpoints() {
			list = append(list, fmt.Sprint(e.Name(), " ", e.Pod.UID, " ", e.Generation))
		}
		return list
	}
	before := names()
	h.Pods = pods
	for range 2 { // the second time changes nothing
		if err := (collector{h.Controller}).identify(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(), append([]string{"default/web web 3"}, before[1:]...); !slices.Equal(got, want) {
		t.Errorf("endpoints %q, want %q; before %q", got, want, before)
	}
}

func TestPodsAreReadFromTheRuntimesArguments(t *testing.T) {
	pod, err := podOf("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u=1")
	if err != nil || pod != (endpoint.Pod{Namespace: "shop", Name: "web-1", UID: "u=1"}) {
		t.Errorf("%+v, %v", pod, err)
	}
	if pod, err := podOf(""); err != nil || pod != (endpoint.Pod{}) {
		t.Errorf("%+v, %v of no arguments", pod, err)
	}
}
