// Package policy keeps the network policies of the cluster in force on the node.
//
// It decides when policies are enforced at all: while the cluster has any. It reads the tables
// endpoints and devices, and writes none. It drives edge/bpf: it feeds the engine of core/policy
// with policies, namespaces and pods of edge/kube and with the node's endpoints, writes what the
// engine returns to the kernel's maps, and attaches the programs to links, of which it reads the
// indexes by edge/link. control/network adds the chain of nftables that gives verdicts for it
// (core/ruleset).
//
// As a component of control/cni it answers an ADD only once the policies that
// select the pod are in force; the pod's link is down until then. app/agent runs its loop.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Objects are what policies are judged on; *kube.PolicyObjects is one.
type Objects interface {
	// Known reports whether the policies and namespaces of the cluster are known.
	Known() bool
	// Synced reports whether they are those of the API server, and not of a copy.
	Synced() bool
	// Copied reports whether a copy on disk had them, and the pods of the cluster.
	Copied() bool
	// Any reports whether the cluster has a policy, as far as that is known.
	Any() bool
	// Take returns what changed since the last call.
	Take() kube.PolicyChanges
	// Again has the next Take return all that is known.
	Again()
}

// Pods are the pods of the node; *kube.Cluster is one.
type Pods interface {
	Pods() []kube.Pod
}

// Events creates Kubernetes events; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
	PodWarning(ref kube.PodRef, uid, reason, message string)
	// PolicyWarning is called on each node with a pod that the policy selects.
	PolicyWarning(ref policy.Ref, uid, reason, message string)
}

// Deps is what the controller works with.
type Deps struct {
	Log     *slog.Logger
	State   *state.Store
	Objects Objects
	Pods    Pods
	Events  Events
	// Open opens the programs and their maps. It is called when the first policy comes.
	Open func() (*bpf.Datapath, error)
	// InForce returns the pin of the program that judges, without opening it; empty without one.
	InForce func() (string, error)
	// Clear removes what an earlier agent left of them: programs at links, and pins. It may be repeated.
	Clear func() error
	Links Links
	// Judge has packets judged by programs, or by none, and returns once that is in force.
	Judge func(ctx context.Context, by ruleset.Programs) error
	// Spared reports whether a pod may start although the node cannot enforce what the cluster has, because
	// none of it would be for that pod. nil: none may.
	Spared func(pod kube.Pod) bool
	// Report requests a report of the node: what is enforced has changed.
	Report   func()
	Registry prometheus.Registerer
	// Drift counts links from which another program removed the programs.
	Drift prometheus.Counter
}

// Links are the links of the node; *link.Host is one.
type Links interface {
	Pods(ctx context.Context) ([]link.Wired, error)
	// AddClsact adds the qdisc of programs to a link, if it has none.
	AddClsact(ctx context.Context, index int) error
	// Index is that of the link with a name; 0 if there is none.
	Index(name string) (int, error)
}

// Controller enforces. Its methods may be called from any goroutine.
type Controller struct {
	Deps
	// Loop is the loop that feeds the engine.
	Loop    *loop.Loop
	metrics metrics
	listing *listing

	mu       sync.Mutex // held while the engine's changes are written
	engine   *policy.Engine
	datapath *bpf.Datapath             // nil while the cluster has no policies
	wired    map[endpoint.ID]placement // endpoints that the engine knows
	ended    map[endpoint.ID]bool      // numbers of earlier ones, since connections were judged again
	problem  problem
	admitted map[policy.PodRef]admission // by ADDs that are not ready yet
	faults   *faults
	// elsewhere are pods of other nodes with the name of one that this node still has.
	elsewhere map[policy.PodRef]policy.Pod
	flows     *flowLog
	on        enforcing
}

// enforcing is whether policies are enforced.
type enforcing struct {
	atomic.Bool
	turned chan struct{} // capacity 1: it changed
	// orphaned: the programs of an earlier agent are at links, and Adopt could not open them. The
	// controller's mutex guards it.
	orphaned bool
	// called: the chain of nftables calls programs. The controller's mutex guards it.
	called bool
}

// placement is where an endpoint is in the kernel.
type placement struct {
	endpoint endpoint.Endpoint
	link     int // index of its link; 0 if that does not exist yet
}

// admission is a pod as an ADD read it.
type admission struct {
	pod kube.Pod
	at  time.Time
}

// fullEvery is how often the places of endpoints and the counts are compared without a change.
const fullEvery = 30 * time.Second

// New returns the controller. It registers its metrics.
func New(d Deps) *Controller {
	c := &Controller{
		Deps: d, metrics: newMetrics(d.Registry), listing: newListing(d.Objects), wired: map[endpoint.ID]placement{}, ended: map[endpoint.ID]bool{},
		admitted: map[policy.PodRef]admission{}, faults: newFaults(), elsewhere: map[policy.PodRef]policy.Pod{}, on: enforcing{turned: make(chan struct{}, 1)},
	}
	c.Judge = func(ctx context.Context, by ruleset.Programs) error {
		err := d.Judge(ctx, by)
		if err == nil {
			c.on.called = by.Forward != ""
		}
		return err
	}
	c.flows = &flowLog{log: d.Log, name: NewViews(c).name, followers: map[*follower]struct{}{}}
	c.Loop = loop.New(c.pass)
	c.Loop.MinInterval, c.Loop.Every, c.Loop.MaxBackoff = 10*time.Millisecond, fullEvery, 15*time.Second
	return c
}

// pass makes the node enforce the policies as they are known.
func (c *Controller) pass(ctx context.Context, full bool) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { reportOdd(c, time.Now()) }()
	if full {
		forgetAdmitted(c, time.Now())
	}
	complete := c.listing.complete()
	if !c.on.Load() && (full || c.Objects.Any()) {
		if err := prepareDevices(ctx, c.Deps); err != nil {
			c.Log.Warn("the node's interfaces are not prepared for network policies, retrying", "error", err)
		}
	}
	if !c.Objects.Any() {
		if !c.Objects.Synced() {
			return time.Time{}, nil // what an earlier agent left goes on enforcing
		}
		c.Objects.Take() // turnOn asks for all again
		c.metrics.forget()
		c.faults = newFaults()
		return time.Time{}, endEnforcement(ctx, c)
	}
	if !c.on.Load() {
		if !complete {
			return c.listing.next(), nil // a pass follows
		}
		return time.Time{}, c.turnOn(ctx)
	}
	err := errors.Join(c.feed(), c.commit())
	switch {
	case err != nil && !c.on.Load():
		c.Log.Warn("policies were not written, and all are compiled again", "error", err)
		return time.Time{}, c.turnOn(ctx)
	case err != nil:
		return time.Time{}, err
	}
	if !full && !c.faults.due(time.Now()) {
		return c.faults.next, nil
	}
	err = compare(ctx, c, full)
	return c.faults.next, err
}

// endEnforcement turns enforcement off. If that fails, policies that follow are compiled with all objects.
func endEnforcement(ctx context.Context, c *Controller) error {
	err := c.turnOff(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(c.problem.note(c.Deps, fmt.Errorf("deleted network policies are still enforced: %w", err)), reset(c))
}

// Watch requests a pass after each change of an endpoint, until ctx ends. Without policies it
// watches nothing. It also deletes expired connections.
func (c *Controller) Watch(ctx context.Context) error {
	var collecting sync.WaitGroup
	defer collecting.Wait()
	collecting.Go(func() { collectUntil(ctx, c) })
	for {
		var endpoints <-chan struct{}
		if c.on.Load() {
			endpoints = state.EndpointsChanged(c.State)
			c.Loop.Mark() // what changed before
		}
		select {
		case <-ctx.Done():
			return nil
		case <-endpoints:
		case <-c.on.turned:
		}
	}
}

// turn notes whether policies are enforced.
func (c *Controller) turn(on bool) {
	if c.on.Swap(on) != on {
		select {
		case c.on.turned <- struct{}{}:
		default:
		}
		c.Report()
	}
}

// Problem is why policies are not enforced although the cluster has some; empty if they are.
func (c *Controller) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.problem)
}

// Enforcing reports whether policies are enforced.
func (c *Controller) Enforcing() bool { return c.on.Load() }

// Close releases what the programs' maps hold in this process. The programs go on enforcing.
func (c *Controller) Close() error {
	defer c.flows.wait() // without the lock
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.datapath == nil {
		return nil
	}
	if err := errors.Join(c.flows.stop(), c.datapath.Close()); err != nil {
		return fmt.Errorf("close policy programs: %w", err)
	}
	return nil
}
