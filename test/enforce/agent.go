// Package enforce has nodes on a real kernel, with pods under the network policies of an API
// server, and proves with packets that the policies are enforced: from a pod's first packet,
// while they change, while the agent is killed or replaced, and for malformed packets.
//
// An Agent runs control/policy with edge/bpf, edge/link and edge/nft as an agent does, in this
// process or in another one. A Node has pods in network namespaces of its own. It touches only
// what it creates. test/conformance sends the connections of cyclonus's cases between such pods.
//
// With TRUNKLINE_SUITES=full the samples are as large as `make suites` has them.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	control "github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	corepolicy "github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// Spec is where an agent runs. It can be given to another process.
type Spec struct {
	Netns   string     // path of the node's namespace
	BPFFS   string     // directory of the bpffs
	Journal string     // directory of the journal
	API     string     // URL of the API server
	Address netip.Addr // of the node
	Pods    []kube.Pod // of the node
	// Snapshot is the file of the copy of the API server's objects; empty: none is kept.
	Snapshot string
	// Connections is the size of the programs' table of connections.
	Connections uint32
	// Object is the file of compiled programs in place of the agent's own; empty for these.
	Object string
	// Off is an agent with `network-policy: off`: links have no qdisc for programs, and no controller
	// runs.
	Off bool
}

// OtherObject has the agent's own programs in other instructions; see bpf/compile.
const OtherObject = "../../internal/edge/bpf/testdata/other.o"

// Dir is the directory of the pins below the bpffs.
const Dir = "tl-test"

// Agent is what of an agent enforces policies.
type Agent struct {
	*control.Controller
	Store  *state.Store
	Host   *link.Host
	Filter *nft.Firewall

	spec    Spec
	netns   *os.File
	objects *observed
	stop    func()
	once    sync.Once // of the end

	mu       sync.Mutex
	pods     []kube.Pod
	judged   ruleset.Programs // by what packets are judged; see judge
	datapath *bpf.Datapath
}

// Start starts an agent, which adopts what an earlier one left in the kernel.
func Start(ctx context.Context, spec Spec) (*Agent, error) {
	a := &Agent{spec: spec, pods: spec.Pods}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	client, err := kube.FromREST(&rest.Config{Host: spec.API})
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	log := slog.New(slog.DiscardHandler)
	a.objects = &observed{PolicyObjects: kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: spec.Snapshot, Log: log, Changed: func() { a.Loop.Mark() }})}
	a.Controller = control.New(control.Deps{
		Log: log, State: a.Store, Objects: a.objects, Pods: a, Events: a, Links: a.Host, Judge: a.judge, Report: func() {}, Registry: prometheus.NewRegistry(), Open: a.openDatapath,
	})
	if _, err := os.Stat(filepath.Join(spec.BPFFS, Dir)); err == nil {
		err = a.Adopt(ctx)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	if err := a.Restore(ctx); err != nil { // the first comparison of nftables
		return nil, errors.Join(err, a.close())
	}
	a.run()
	return a, nil
}

// open opens what the controller works with.
func (a *Agent) open(ctx context.Context) (err error) {
	if a.netns, err = os.Open(a.spec.Netns); err != nil {
		return err
	}
	if a.Host, err = link.Open(a.netns); err != nil {
		return err
	}
	if !a.spec.Off { // as app/agent does
		a.Host.PrepareFilters()
	}
	if a.Filter, err = nft.Open(a.netns, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	a.Store, err = state.Open(ctx, state.Options{
		Dir: a.spec.Journal, BootID: "this one", Settings: ipam.DefaultConfig().Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: slog.New(slog.DiscardHandler),
	})
	return err
}

// run runs the loops until stop.
func (a *Agent) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	loops := []func(context.Context) error{a.objects.Run, a.Loop.Run, a.Watch}
	if a.spec.Off {
		loops = nil
	}
	for _, run := range loops {
		done.Go(func() { _ = run(ctx) })
	}
	a.stop = func() { cancel(); done.Wait() }
}

// Stop ends the agent. What it put into the kernel stays.
func (a *Agent) Stop() error {
	a.stop()
	return errors.Join(a.Close(), a.close())
}

func (a *Agent) close() error {
	var errs []error
	if a.Store != nil {
		errs = append(errs, a.Store.Close())
	}
	if a.Filter != nil {
		errs = append(errs, a.Filter.Close())
	}
	if a.Host != nil {
		errs = append(errs, a.Host.Close())
	}
	if a.netns != nil {
		errs = append(errs, a.netns.Close())
	}
	return errors.Join(errs...)
}

func (a *Agent) openDatapath() (*bpf.Datapath, error) {
	var object []byte
	if a.spec.Object != "" {
		var err error
		if object, err = os.ReadFile(a.spec.Object); err != nil {
			return nil, err
		}
	}
	d, _, err := bpf.Open(bpf.Options{
		BPFFS: a.spec.BPFFS, Dir: Dir, Netns: a.netns, Log: slog.New(slog.DiscardHandler), Sizes: map[string]uint32{"tl_connections": a.spec.Connections}, Object: object,
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.datapath = d
	return d, err
}

// Datapath is what the controller opened last; nil if it has opened none.
func (a *Agent) Datapath() *bpf.Datapath {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.datapath
}

// judge is control/network's Judge.
func (a *Agent) judge(ctx context.Context, by ruleset.Programs) error {
	a.mu.Lock()
	a.judged = by
	a.mu.Unlock()
	return a.Restore(ctx)
}

// Restore makes the rules of nftables be what the agent wants, as control/network does after
// another program has changed them.
func (a *Agent) Restore(ctx context.Context) error {
	a.mu.Lock()
	by := a.judged
	a.mu.Unlock()
	return a.Filter.Apply(ctx, func() ruleset.Ruleset { return a.spec.Rules(by, a.Store.Endpoints()) })
}

// Rules are the rules of nftables of a node on which programs judge packets.
func (s Spec) Rules(by ruleset.Programs, endpoints []endpoint.Endpoint) ruleset.Ruleset {
	c := ruleset.Config{PrimaryLink: "eth0", PrimaryIPv4: s.Address, VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Policy: by}
	for _, e := range endpoints {
		if e.Wired() {
			c.Pods = append(c.Pods, ruleset.PodOf(e, false))
		}
	}
	return ruleset.Compile(c)
}

// Pods implements control/policy.Pods.
func (a *Agent) Pods() []kube.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods
}

// SetPods replaces the pods of the node.
func (a *Agent) SetPods(pods []kube.Pod) {
	a.mu.Lock()
	a.pods = pods
	a.mu.Unlock()
	a.Loop.Mark()
}

// NodeWarning implements control/policy.Events.
func (a *Agent) NodeWarning(reason, message string) {
	fmt.Fprintf(os.Stderr, "event %s: %s\n", reason, message)
}

// PodWarning implements control/policy.Events.
func (a *Agent) PodWarning(ref kube.PodRef, _, reason, message string) {
	a.NodeWarning(reason, ref.String()+": "+message)
}

// PolicyWarning implements control/policy.Events.
func (a *Agent) PolicyWarning(ref corepolicy.Ref, _, reason, message string) {
	a.NodeWarning(reason, ref.String()+": "+message)
}

// observed notes what of the API server's objects the controller has taken.
type observed struct {
	*kube.PolicyObjects

	mu    sync.Mutex
	taken Taken
	hook  func(kube.PolicyChanges)
}

// Taken are the numbers of the newest objects called barrier that the controller has taken.
type Taken struct{ Policy, Namespace, Pod int64 }

// Take implements control/policy.Objects.
func (o *observed) Take() kube.PolicyChanges {
	changes := o.PolicyObjects.Take()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken.note(changes)
	if o.hook != nil {
		o.hook(changes)
	}
	return changes
}

// Observe has f called with what the controller takes, before it writes that.
func (a *Agent) Observe(f func(kube.PolicyChanges)) {
	a.objects.mu.Lock()
	defer a.objects.mu.Unlock()
	a.objects.hook = f
}

// UntilTaken waits until the controller has taken the barriers, and has written what it took with
// them.
func (a *Agent) UntilTaken(ctx context.Context, n int64) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		a.objects.mu.Lock()
		taken := a.objects.taken
		a.objects.mu.Unlock()
		if min(taken.Policy, taken.Namespace, taken.Pod) >= n {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("policies up to %d: the controller has taken %+v: %w", n, taken, ctx.Err())
		case <-tick.C:
		}
	}
	if why := a.Problem(); why != "" { // waits for the pass
		return fmt.Errorf("policies are not enforced: %s", why)
	}
	return nil
}
