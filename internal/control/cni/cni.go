// Package cni answers the plugin's calls: ADD, DEL, CHECK, STATUS and GC.
//
// It decides when an endpoint begins and ends and carries out each step of it. It alone
// writes endpoints, and waiting: the ADDs that wait for an address. It reads pods by
// edge/kube, asks the backend for addresses, drives edge/link for the links of single
// endpoints and edge/nft for their filter elements, and waits for edge/journal before an
// answer. The calls and the plugin's spool of DELs come by edge/cnirpc. An ADD changes the
// kernel directly, without a reconciler, and its result enters the tables; control/network
// compares the whole kernel with them.
//
// app/agent passes Handle to cniserver and calls Run. One ADD, in reading order: Handle
// (call.go), add (add.go), Backend.Assign, link.Wire, the filter's Put, link.Up, result
// (add.go).
package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/priority"
	"github.com/trunkline/trunkline/internal/machinery/queue"
	"github.com/trunkline/trunkline/internal/machinery/serial"
	"github.com/trunkline/trunkline/internal/machinery/steps"
)

// Backend gives endpoints their addresses. The first three are called within a
// transaction and answer at once.
type Backend interface {
	// Assign takes addresses for an endpoint that has none. An endpoint that has some
	// gets the same again. An error that wraps ipam.ErrNoAddress means that waiting may help.
	Assign(tx *state.Tx, e endpoint.Endpoint, now time.Time) (Grant, error)
	// Adopt records an endpoint that was found in the kernel and returns its attachment;
	// until then it has the route table alone. ipam.ErrHeld means that another holder has
	// its addresses, ipam.ErrUnknown that they are not known yet: the attachment is valid.
	Adopt(tx *state.Tx, e endpoint.Endpoint, now time.Time) (endpoint.Attachment, error)
	// Free returns the addresses of an endpoint to the backend.
	Free(tx *state.Tx, e endpoint.Endpoint, why Reason, now time.Time)
	// Renewed reports that the runtime makes a new sandbox for a pod: an address that only
	// the API server shows for an earlier sandbox is no longer in use. It is called before
	// each Assign, in no transaction: it holds also when Assign finds no address.
	Renewed(pod endpoint.Pod)
	// Explain is why Assign finds no address, and what would help; nil if that is not
	// known.
	Explain() error
	// Status is why no pod can be wired at all; nil while ADDs are served or wait.
	Status() error
	// Demanded reports that an ADD waits or gave up, or that one took an address.
	Demanded()
	// Doubted reports that the kernel has an address that the backend does not know.
	Doubted(why string)
}

// Branches serves pods that request a branch interface of their own.
type Branches interface {
	// Grant waits until the pod has a branch and returns its attachment. An error is shown to
	// users; it is a *cnirpc.Error where the runtime should not simply try again.
	Grant(ctx context.Context, pod kube.Pod, key endpoint.Key) (Grant, error)
	// Connect brings the branch of an endpoint into the kernel. It is idempotent.
	Connect(ctx context.Context, e endpoint.Endpoint) error
	// Disconnect removes the branches of endpoints that are being removed.
	Disconnect(ctx context.Context) error
	// Adopted completes the attachment of a link of a pod that was found in the kernel; false if
	// it is on no branch.
	Adopted(ctx context.Context, key endpoint.Key) (endpoint.Attachment, bool, error)
}

// Grant is what a backend assigns to an endpoint.
type Grant struct {
	Addresses  endpoint.Addresses
	Attachment endpoint.Attachment
}

// Reason is why addresses are freed.
type Reason int

// Reasons.
const (
	NeverWired Reason = iota // no link was made: free at once
	Removed                  // DEL was accepted: quarantined, the link may still exist
	LinkGone                 // the link is gone: they cool down
)

// Links changes the links of single endpoints; *link.Host is one.
type Links interface {
	Wire(ctx context.Context, podNS *os.File, e endpoint.Endpoint) (index int, err error)
	Up(ctx context.Context, e endpoint.Endpoint, index int) error
	Unwire(ctx context.Context, e endpoint.Endpoint) (queued bool, err error)
	Pods(ctx context.Context) ([]link.Wired, error)
	Read(ctx context.Context, sysctls ...string) (hostnet.State, error)
	Discarded() <-chan struct{}
	DeleteDiscarded(ctx context.Context, batch func() int, gone func(link.Wired)) error
}

// Filter is the packet filter; *nft.Firewall is one.
type Filter interface {
	Put(ctx context.Context, elements ...ruleset.Element) error
	Remove(ctx context.Context, elements ...ruleset.Element) error
}

// Pods are the pods of the node; *kube.Cluster is one.
type Pods interface {
	Synced() bool
	Pods() []kube.Pod
	Pod(ctx context.Context, ref kube.PodRef, uid string) (kube.Pod, error)
}

// Events creates Kubernetes events of pods and of the node; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	NodeWarning(reason, message string)
}

// Component takes part in an ADD. Its errors are shown to users: they name what is wrong
// and what to do.
type Component interface {
	// Admit may refuse a pod before it has an address: with the code of a *cnirpc.Error, or until
	// what the error names is changed.
	Admit(ctx context.Context, pod kube.Pod) error
	// Ready returns once the component's rules for an endpoint are in force in the
	// kernel. The endpoint is wired and its link, of which it gets the index, is down; an
	// error undoes the ADD, and the runtime retries it.
	Ready(ctx context.Context, e endpoint.Endpoint, link int) error
}

// Config is the part of the configuration that matters here.
type Config struct {
	NodeName    string
	SpoolDirs   []string // where plugins spool DELs
	LinkPrefix  string
	MTU         int // bytes, of pods' links
	PodMetadata bool
	// StaleAfter is how long a pod must be gone before its endpoint is removed without a
	// DEL.
	StaleAfter time.Duration
}

// Deps is what the controller works with.
type Deps struct {
	Log        *slog.Logger
	State      *state.Store
	Owned      state.CNITables
	Backend    Backend
	Branches   Branches // nil: the node serves no branch interfaces
	Links      Links
	Filter     Filter
	Pods       Pods
	Events     Events
	Components []Component
	Registry   prometheus.Registerer
	// Lock begins direct work on what an endpoint has in the kernel: comparisons leave it
	// alone until end is called with the result.
	Lock func(ctx context.Context, e endpoint.Endpoint) (end func(e endpoint.Endpoint, err error), err error)
	// CompareKernel requests a full comparison of the kernel with the state.
	CompareKernel func()
	// RestoreFilter restores the packet filter after another program removed it.
	RestoreFilter func(ctx context.Context) error
	// Route returns an endpoint with the interface and route table that hold its
	// addresses now.
	Route func(endpoint.Endpoint) endpoint.Endpoint
}

// Controller answers calls. Its methods may be called from any goroutine.
type Controller struct {
	Config
	Deps
	metrics  metrics
	addition *steps.List[*addition] // the steps of an ADD

	calls     serial.Keys[endpoint.Key]
	sandboxes sandboxes
	queue     queue.Queue   // ADDs that take an address, or wait for one
	adds      priority.Gate // ADDs in flight: DELs yield to them

	mu     sync.Mutex
	plugin string    // version of the plugin that called last
	called time.Time // for an ADD; zero before the first
}

// New returns the controller. It registers its metrics.
func New(c Config, d Deps) *Controller {
	m := newMetrics(d.Registry)
	return &Controller{Config: c, Deps: d, metrics: m, addition: additionSteps(m)}
}

// Run deletes discarded links, carries out spooled DELs and removes stale endpoints until ctx
// ends.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return reaper{c}.run(ctx) })
	group.Go(func() error { return spool{c}.run(ctx, 5*time.Second) })
	group.Go(func() error { return collector{c}.run(ctx) })
	return group.Wait()
}

// Wake makes the ADDs that wait for an address try again: one may be free.
func (c *Controller) Wake() { c.queue.Wake() }

// Plugin is the version of the plugin that called last.
func (c *Controller) Plugin() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plugin
}

// Called is when the plugin called last for an ADD; zero if it has not since the agent began to serve.
func (c *Controller) Called() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.called
}

// elements are the elements of an endpoint in the packet filter's sets.
func (c *Controller) elements(e endpoint.Endpoint) []ruleset.Element {
	return ruleset.PodOf(e, c.PodMetadata).Elements()
}

// overlaps reports whether one of a link's addresses is the endpoint's.
func overlaps(addresses []netip.Addr, e endpoint.Endpoint) bool {
	return endpoint.AddressesOf(addresses...).Overlaps(e.Addresses)
}
