// Package network makes the node's links, addresses, routes, rules, neighbours and
// nftables agree with the state.
//
// It reads endpoints, interfaces and node. It alone writes devices and drift. It drives
// edge/link and edge/nft. What the kernel should hold is derived in core/hostnet and
// core/ruleset; a pass compares all of it with what is there, repairs, and reports what
// others changed. Work of single ADDs and DELs is control/cni's.
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
	// Ruleset has the settings of the packet filter; what follows from the state is
	// filled in.
	Ruleset ruleset.Config
	// Version names the agent's version and settings: they decide what is wired.
	Version string
}

// Events is where people are informed; *kube.Events is one.
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
	// Missing has the backend check that an interface is still attached.
	Missing func(why string)
	// Report asks for a report of the node, soon.
	Report func()
}

// Places that are compared, for people and metrics.
const (
	inLinks  = "link"
	inFilter = "nftables"
)

// maxBackoff is the longest pause after what failed on the node itself: a difference is
// repaired within seconds, also when it could not be for a while.
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

// Start brings the kernel into agreement for the first time. It fails when the primary
// interface has no link.
func (n *Controller) Start(ctx context.Context) error {
	if err := n.findDevices(ctx); err != nil {
		return err
	}
	n.expectLeft()
	_, err := n.pass(ctx, true)
	return err
}

// pass compares everything once: reading it costs a few milliseconds.
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
		n.Missing("the node's links are not as the ledger says")
	}
	err = errors.Join(before, linkErr, filterErr)
	if full && err == nil {
		err = errors.Join(n.agree(began), n.Compared(ctx))
	}
	return next, err
}

// RestoreFilter puts the packet filter back as a whole.
func (n *Controller) RestoreFilter(ctx context.Context) error {
	_, err := n.applyFilter(ctx)
	return err
}

// SetUp puts an interface's link, routes and rules in place. It waits up to 30 s for the
// link: the device appears some time after EC2 says that it is attached.
func (n *Controller) SetUp(ctx context.Context, e ipam.ENI) error {
	if err := n.findDevice(ctx, e); err != nil {
		return err
	}
	_, err := n.applyLinks(ctx)
	return err
}

// Watch listens to the kernel's reports of changes until ctx ends. A watch that breaks
// is started again, and everything is compared, for something may have been missed.
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
		n.Log.Warn("kernel watch broke, will be started again", "watch", what, "error", err, "pause", pause)
	}
	return again.Run(ctx)
}

// applyLinks makes links, addresses, routes, rules and neighbours agree with the
// state and reports drift. next is when to compare again although nothing happens;
// zero: no need.
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

// reportDrift takes what a comparison found and reports what others changed.
func (n *Controller) reportDrift(place string, list []hostnet.Drift) (next time.Time) {
	n.mu.Lock()
	tracker := n.places[place]
	found := tracker.Note(list, time.Now())
	current := tracker.Current()
	n.mu.Unlock()
	n.publish(place, current)
	for _, what := range found.Own {
		n.Log.Debug("put in place", "where", place, "what", what)
	}
	if len(found.Repaired) > 0 {
		n.changed(place, found.Repaired, fmt.Sprintf("Another program changed the node's network, and it has been put right: %s. "+
			"If it happens again, look for another program on the node that manages routes, rules or nftables.", drift.Summary(found.Repaired)))
	}
	if len(found.Standing) > 0 {
		n.Report()
		n.changed(place, found.Standing, fmt.Sprintf("The node's network is not as it should be and cannot be put right from here: %s. "+
			"A pod whose interface is gone gets a new one when it is deleted and made again.", drift.Summary(found.Standing)))
		if place == inLinks {
			n.Missing("a link is not there")
		}
	}
	return found.Next
}

// changed reports drift: each in the log and the counter, all in one event.
func (n *Controller) changed(place string, list []string, message string) {
	for _, what := range list {
		n.Log.Warn("the node's network was changed from outside", "where", place, "what", what)
	}
	n.Drift.WithLabelValues(place).Add(float64(len(list)))
	n.Events.NodeWarning("NetworkDrift", message)
}

// publish writes the rows of a place in the drift table.
func (n *Controller) publish(place string, what []string) {
	state.Replace(n.State, n.Owned.Drift, func(d state.Drift) bool { return d.Place == place }, slices.Collect(func(yield func(state.Drift) bool) {
		for _, w := range what {
			if !yield(state.Drift{Place: place, What: w}) {
				return
			}
		}
	}))
}

// agree records a full comparison that began at a time and succeeded. Lost in a crash,
// what is damaged before the next one is repaired and not reported.
func (n *Controller) agree(began time.Time) error {
	_, err := n.State.Update(func(tx *state.Tx) error {
		tx.Agree(state.Agreement{At: began, By: n.Version})
		return nil
	})
	return err
}

// expectLeft tells the link edge what an earlier agent left in the kernel, so that
// damage done since is reported and not only repaired. Only what was complete when a
// comparison of the same version, settings and boot began counts: the rest may be work
// that was cut short.
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
