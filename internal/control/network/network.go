// Package network makes the node's links, addresses, routes, rules, neighbours and
// nftables agree with the state.
//
// It reads endpoints, interfaces and node. It alone writes devices and drift. It drives
// edge/link and edge/nft. The desired state is derived by core/hostnet and core/ruleset
// (desired.go); a pass compares it with the actual state, repairs, and reports drift.
// The kernel work of single ADDs and DELs is in control/cni.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Config is the part of the configuration that matters here.
type Config struct {
	MTU           int // bytes, of interfaces
	ExternalCIDRs []netip.Prefix
	PodMetadata   bool
	// Ruleset has the settings of the packet filter; desiredFilter adds what follows
	// from the state.
	Ruleset ruleset.Config
	// Version identifies the agent's version and settings, which decide what is desired.
	Version string
}

// Events creates Kubernetes events of the node; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
}

// Deps is what the controller works with.
type Deps struct {
	Log      *slog.Logger
	State    *state.Store
	Owned    state.Owned
	Links    *link.Host
	Filter   *nft.Firewall
	Events   Events
	Registry prometheus.Registerer
	Drift    *prometheus.CounterVec // by place
	// Before runs at the start of a pass, and Compared after a full one that succeeded.
	Before   func(ctx context.Context) error
	Compared func(ctx context.Context) error
	// Missing requests that the backend checks whether its interfaces are attached.
	Missing func(why string)
	// Report requests a report of the node.
	Report func()
}

// Places that are compared, as logs, metrics and the drift table name them.
const (
	inLinks  = "link"
	inFilter = "nftables"
)

// maxBackoff is the longest pause after a failed pass or watch, so that a difference is
// repaired within seconds of the moment at which it can be.
const maxBackoff = 5 * time.Second

// Controller compares and repairs. Its methods may be called from any goroutine.
type Controller struct {
	Config
	Deps
	// Loop is the loop that compares.
	Loop   *loop.Loop
	passes prometheus.Histogram

	mu     sync.Mutex
	places map[string]*drift.Tracker
}

// New returns the controller. It registers its metrics.
func New(c Config, d Deps) *Controller {
	n := &Controller{Config: c, Deps: d, places: map[string]*drift.Tracker{inLinks: {}, inFilter: {}}}
	n.passes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "trunkline_kernel_pass_seconds", Help: "Time to compare and repair links, routes, rules and nftables.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	})
	d.Registry.MustRegister(n.passes)
	n.Loop = loop.New(n.pass)
	n.Loop.MinInterval, n.Loop.Every, n.Loop.MaxBackoff = 100*time.Millisecond, 45*time.Second, maxBackoff
	return n
}

// Start runs the first pass. It fails when the primary interface has no link.
func (n *Controller) Start(ctx context.Context) error {
	if err := n.findDevices(ctx); err != nil {
		return err
	}
	n.expectLeft()
	_, err := n.pass(ctx, true)
	return err
}

// pass compares and repairs everything once. Reading the kernel takes a few milliseconds.
func (n *Controller) pass(ctx context.Context, full bool) (next time.Time, err error) {
	began := time.Now()
	before := n.Before(ctx)
	next, linkErr := n.applyLinks(ctx)
	filterNext, filterErr := n.applyFilter(ctx)
	n.passes.Observe(time.Since(began).Seconds())
	if !filterNext.IsZero() && (next.IsZero() || filterNext.Before(next)) {
		next = filterNext
	}
	if linkErr != nil {
		n.Missing("the node's links differ from the ledger")
	}
	err = errors.Join(before, linkErr, filterErr)
	if full && err == nil {
		err = errors.Join(n.agree(began), n.Compared(ctx))
	}
	return next, err
}

// RestoreFilter restores the packet filter as a whole.
func (n *Controller) RestoreFilter(ctx context.Context) error {
	_, err := n.applyFilter(ctx)
	return err
}

// SetUp configures an interface's link, routes and rules. It waits up to 30 s for the
// link: the device appears some time after EC2 says that it is attached.
func (n *Controller) SetUp(ctx context.Context, e ipam.ENI) error {
	if err := n.findDevice(ctx, e); err != nil {
		return err
	}
	_, err := n.applyLinks(ctx)
	return err
}

// Watch requests a pass at each change that the kernel reports, until ctx ends. A watch
// that breaks is restarted with a full pass, because changes may have been missed.
func (n *Controller) Watch(ctx context.Context, what string, watch func(context.Context, func(string)) error) error {
	again := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		n.Loop.MarkFull()
		err := watch(ctx, func(why string) {
			n.Log.Debug("kernel changed", "watch", what, "why", why)
			n.Loop.Mark()
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the watch ended")
		}
		return time.Time{}, err
	})
	again.MaxBackoff = maxBackoff
	again.Report = func(err error, pause time.Duration) {
		n.Log.Warn("kernel watch broke, will be restarted", "watch", what, "error", err, "pause", pause)
	}
	return again.Run(ctx)
}

// applyLinks makes links, addresses, routes, rules and neighbours agree with the
// state and reports drift. next is when to compare again without an
// event; zero: no need.
func (n *Controller) applyLinks(ctx context.Context) (next time.Time, err error) {
	if err := n.renameDevices(ctx); err != nil {
		return time.Time{}, err
	}
	list, err := n.Links.Apply(ctx, n.desiredLinks)
	return n.reportDrift(inLinks, list), err
}

// applyFilter is applyLinks for nftables.
func (n *Controller) applyFilter(ctx context.Context) (next time.Time, err error) {
	list, err := n.Filter.Apply(ctx, n.desiredFilter)
	return n.reportDrift(inFilter, list), err
}

// reportDrift records what a comparison found, and reports drift.
func (n *Controller) reportDrift(place string, list []hostnet.Drift) (next time.Time) {
	n.mu.Lock()
	tracker := n.places[place]
	found := tracker.Note(list, time.Now())
	current := tracker.Current()
	n.mu.Unlock()
	n.publish(place, current)
	for _, what := range found.Own {
		n.Log.Debug("applied", "where", place, "what", what)
	}
	if len(found.Repaired) > 0 {
		n.changed(place, found.Repaired, fmt.Sprintf("Another program changed the node's network, and the change was repaired: %s. "+
			"If it happens again, look for another program on the node that manages routes, rules or nftables.", drift.Summary(found.Repaired)))
	}
	if len(found.Standing) > 0 {
		n.Report()
		n.changed(place, found.Standing, fmt.Sprintf("The node's network differs from the desired state and the agent cannot repair it: %s. "+
			"A pod that lost its interface gets a new one when it is deleted and created again.", drift.Summary(found.Standing)))
		if place == inLinks {
			n.Missing("a link is missing")
		}
	}
	return found.Next
}

// changed reports drift: one log line and one count per difference, one event for all.
func (n *Controller) changed(place string, list []string, message string) {
	for _, what := range list {
		n.Log.Warn("the node's network was changed externally", "where", place, "what", what)
	}
	n.Drift.WithLabelValues(place).Add(float64(len(list)))
	n.Events.NodeWarning("NetworkDrift", message)
}

// publish replaces the rows of a place in the drift table.
func (n *Controller) publish(place string, what []string) {
	state.Replace(n.State, n.Owned.Drift, func(d state.Drift) bool { return d.Place == place }, slices.Collect(func(yield func(state.Drift) bool) {
		for _, w := range what {
			if !yield(state.Drift{Place: place, What: w}) {
				return
			}
		}
	}))
}

// agree records a full comparison that began at a time and succeeded. If the record is
// lost in a crash, external changes before the next comparison are repaired but not
// reported.
func (n *Controller) agree(began time.Time) error {
	_, err := n.State.Update(func(tx *state.Tx) error {
		tx.Agree(state.Agreement{At: began, By: n.Version})
		return nil
	})
	return err
}

// expectLeft gives the link edge what an earlier agent left in the kernel, so that
// external changes since are reported and not only repaired. It has only what was
// complete when a comparison of the same version, settings and boot began: anything
// later may be interrupted work.
func (n *Controller) expectLeft() {
	agreed := n.State.Agreed
	if agreed.By != n.Version {
		return
	}
	complete := func(since time.Time) bool { return since.Add(time.Second).Before(agreed.At) }
	states := []hostnet.State{hostnet.ForNode(Families(), n.ExternalCIDRs)}
	view, _ := n.State.View(time.Now())
	settled := map[vpc.ENIID]bool{}
	for _, e := range view.ENIs {
		if want, ok := n.interfaceState(e.ENI); ok && e.Phase == ipam.Ready && complete(e.Since) {
			settled[e.ID] = true
			states = append(states, want)
		}
	}
	for _, e := range n.State.Endpoints() {
		if e.Stage == endpoint.Ready && complete(e.Since) && settled[e.Attachment.Interface] {
			states = append(states, hostnet.ForEndpoint(routed(e, view)))
		}
	}
	n.Links.Expect(hostnet.Join(states...))
}
