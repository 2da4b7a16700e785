// Package network makes the node's links, addresses, routes, rules, neighbours and
// nftables agree with the state.
//
// It reads the tables endpoints, interfaces, addresses and node. It alone writes devices,
// drift, and the desired state of the kernel: the tables links and nftables, a row for each
// owner (desired.go), with their statuses. It drives edge/link, edge/nft and edge/vlan. A comparison
// reads the kernel, repairs what differs from the rows and reports drift from their status
// (machinery/reconcile).
//
// It compares the kernel's settings too, which init wrote (settings.go). An address that
// another program configures again each time is left in place, and a route deleted less and
// less often (contested.go).
//
// It has the devices of branch interfaces made, by edge/vlan, and keeps the place of the local
// table's rule (branch.go).
//
// What AWS's plugin and daemon made for their pods is deleted once these have ended
// (foreign.go), and what no pod needs once the agent leaves the node (leave.go).
//
// app/agent runs the loop and the watches of the kernel. The kernel work of single ADDs and
// DELs is in control/cni, under a lock (lock.go). The backend has the links of interfaces
// found and set up (devices.go, SetUp).
package network

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/edge/vlan"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
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
}

// Branches makes the devices of branch interfaces; *vlan.Host is one.
type Branches interface {
	Apply(ctx context.Context, trunk string, want []vlan.Branch) (changed []string, err error)
}

// Events creates Kubernetes events of the node; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
}

// Links are the node's links, addresses, routes, rules and neighbours; *link.Host is one.
type Links interface {
	Read(ctx context.Context, sysctls ...string) (hostnet.State, error)
	Do(ctx context.Context, op hostnet.Op) error
	FindENI(ctx context.Context, mac vpc.MAC) (name string, err error)
	Names(ctx context.Context) (map[vpc.MAC]string, error)
	Settings(names ...string) ([]hostnet.Sysctl, error)
}

// Filter is our part of nftables; *nft.Firewall is one.
type Filter interface {
	Read(ctx context.Context) ([]*nftables.Table, error)
	Apply(ctx context.Context, want func() ruleset.Ruleset) error
	RemoveAWS(ctx context.Context) (removed []string, err error)
	LegacyAWS() (chains []string, why, err error)
	AWSHostPorts(ctx context.Context) ([]nft.HostPorts, error)
	RemoveHostPorts(ctx context.Context, list ...nft.HostPorts) (removed []string, err error)
}

// Deps is what the controller works with.
type Deps struct {
	Log      *slog.Logger
	State    *state.Store
	Owned    state.NetworkTables
	Links    Links
	Filter   Filter
	Branches Branches // nil: the node serves no branch interfaces
	Events   Events
	Registry prometheus.Registerer
	Drift    *prometheus.CounterVec // by place
	// Before runs at the start of a pass, and Compared after a full one that succeeded.
	Before   func(ctx context.Context) error
	Compared func(ctx context.Context) error
	// OtherAgent reports whether the daemon of another CNI may run on the node.
	OtherAgent func() bool
	// Missing requests that the backend checks whether its interfaces are attached.
	Missing func(why string)
	// Report requests a report of the node.
	Report func()
}

// Places that are compared, as logs, metrics and the drift table name them.
const (
	inLinks  = "link"
	inFilter = "nftables"
	inSysctl = "sysctl"
)

// maxBackoff is the longest pause after a failed pass or watch, so that a difference is
// repaired within seconds of the moment at which it can be.
const maxBackoff = 5 * time.Second

// maxRowBackoff is the longest pause between two attempts to repair one owner's part. A
// pod's link that is gone, for example, stays so until its DEL.
const maxRowBackoff = 15 * time.Second

// Controller compares and repairs. Its methods may be called from any goroutine.
type Controller struct {
	Config
	Deps
	// Loop is the loop that compares.
	Loop   *loop.Loop
	passes prometheus.Histogram

	turn    chan struct{} // capacity 1: serialises comparisons
	links   *place[hostnet.Part]
	filter  *place[ruleset.Part]
	theirs  contested       // of the comparison that runs
	agreed  state.Agreement // as journaled; of Start and the loop
	aws     leftByAWS
	policy  atomic.Pointer[ruleset.Programs] // nil: no policies are enforced
	started atomic.Bool                      // Start has begun the first comparison
	// notForwarding: new links do not route packets on by themselves; of Start and the loop.
	notForwarding bool

	mu   sync.Mutex
	busy map[string]int // locks in flight, by the endpoint's link
}

// New returns the controller. It registers its metrics, and the tables of the statuses.
func New(c Config, d Deps) (*Controller, error) {
	n := &Controller{Config: c, Deps: d, turn: make(chan struct{}, 1), busy: map[string]int{}, agreed: d.State.Agreed}
	var errs [2]error
	n.links, errs[0] = newPlace(n, inLinks, d.Owned.Links, linkText, links{n})
	n.filter, errs[1] = newPlace(n, inFilter, d.Owned.Filter, filterText, filter{n})
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	n.passes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "trunkline_kernel_pass_seconds", Help: "Time to compare and repair links, routes, rules and nftables.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	})
	d.Registry.MustRegister(n.passes)
	n.Loop = loop.New(n.pass)
	n.Loop.MinInterval, n.Loop.Every, n.Loop.MaxBackoff = 100*time.Millisecond, 45*time.Second, maxBackoff
	return n, nil
}

// Start runs the first pass. It fails when the primary interface has no link.
func (n *Controller) Start(ctx context.Context) error {
	if err := n.findDevices(ctx); err != nil {
		return err
	}
	if err := n.expectLeft(); err != nil {
		return err
	}
	n.started.Store(true)
	_, err := n.pass(ctx, true)
	return err
}

// pass compares and repairs everything once. Reading the kernel takes a few milliseconds.
func (n *Controller) pass(ctx context.Context, full bool) (next time.Time, err error) {
	began := time.Now()
	before := n.Before(ctx)
	next, linkErr := n.links.compare(ctx)
	n.removeLeftovers(ctx)
	filterNext, filterErr := n.filter.compare(ctx)
	settingsNext, settingsErr := settings{n}.compare(ctx, full)
	n.passes.Observe(time.Since(began).Seconds())
	if linkErr != nil {
		n.Missing("the node's links differ from the ledger")
	}
	err = errors.Join(before, linkErr, filterErr, settingsErr)
	if full && err == nil {
		err = errors.Join(n.agree(), n.Compared(ctx))
	}
	return loop.Sooner(loop.Sooner(next, filterNext), settingsNext), err
}

// RestoreFilter restores the tables of the packet filter, but for the elements of locked
// endpoints.
func (n *Controller) RestoreFilter(ctx context.Context) error {
	return n.filter.restore(ctx, ownerNode)
}

// Judge has the packet filter of n call the program that is pinned at a path for forwarded
// packets of pods, or none for an empty path, and returns once it does. After an error, which may
// be that the kernel has no such match, the rules stay as they were. Before Start it only notes
// the path, for the first comparison.
func Judge(ctx context.Context, n *Controller, by ruleset.Programs) error {
	before := n.policy.Swap(&by)
	if !n.started.Load() {
		return nil
	}
	err := n.RestoreFilter(ctx)
	if err != nil {
		n.policy.Store(before)
	}
	return err
}

// SetUp configures an interface's link, routes and rules. It waits up to 30 s for the
// link: the device appears some time after EC2 says that it is attached.
func (n *Controller) SetUp(ctx context.Context, e ipam.ENI) error {
	if err := n.FindDevice(ctx, e); err != nil {
		return err
	}
	return n.links.restore(ctx, interfaceOwner(e.ID))
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
