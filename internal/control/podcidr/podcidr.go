// Package podcidr gives endpoints addresses out of the range that Kubernetes assigned to
// the node (node.spec.podCIDRs): the backend of nodes without a cloud. It asks nothing of
// EC2 or instance metadata.
//
// It reads endpoints, which hold the addresses in use, waiting and devices. It alone writes
// cooling, node and pool, and the last address given. It drives no edge: it reads the Node
// and its pods by edge/kube, and the default route by edge/link. control/cni calls it within
// its transactions, and wires endpoints by the main route table; app/agent reads the node's
// facts with it and runs its loop. Routes between nodes are not made here.
package podcidr

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Cluster is what the node knows of itself and its pods; *kube.Cluster is one.
type Cluster interface {
	// Synced reports whether node and pods are the API server's, not a snapshot's.
	Synced() bool
	Node() (kube.Node, bool)
	Pods() []kube.Pod
}

// Config is the part of the configuration that matters here.
type Config struct {
	NodeName string
	CoolDown time.Duration // how long a released address is not assigned again
}

// Deps is what the controller works with.
type Deps struct {
	Log     *slog.Logger
	State   *state.Store
	Owned   state.BackendTables
	Cluster Cluster
	// Links reads the node's links, addresses and routes.
	Links func(ctx context.Context, sysctls ...string) (hostnet.State, error)
	// FindDevice finds the link of the interface with a MAC and enters it as a device.
	FindDevice func(ctx context.Context, e ipam.ENI) error
	// Wake makes the ADDs that wait for an address try again: one may be free.
	Wake func()
	// CompareKernel asks for a comparison of the kernel, and Report for a report of the
	// node, soon.
	CompareKernel func()
	Report        func()
}

// Controller is a cni.Backend. Its methods may be called from any goroutine.
type Controller struct {
	Config
	Deps
	// Loop is the loop that ends cool-downs and observes the node and its pods.
	Loop      *loop.Loop
	addressed chan struct{}

	mu      sync.Mutex
	foreign map[netip.Addr]endpoint.Pod // addresses of pods that another CNI wired
	claimed bool                        // foreign is complete: the API server was read
	pool    podcidr.Pool                // of the last pass
}

var _ cni.Backend = (*Controller)(nil)

// New returns the controller. Its methods may be called before its loop runs.
func New(c Config, d Deps) *Controller {
	b := &Controller{Config: c, Deps: d, addressed: make(chan struct{})}
	b.Loop = loop.New(func(ctx context.Context, _ bool) (time.Time, error) { return b.pass(ctx, time.Now()) })
	b.Loop.MinInterval, b.Loop.Every, b.Loop.MaxBackoff = 20*time.Millisecond, 30*time.Second, 5*time.Second
	return b
}

// Run runs the loop until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.Loop.Run(ctx) }

// Addressed is closed once an ADD could be served, or the node has endpoints: a node
// without a free address serves DELs.
func (c *Controller) Addressed() <-chan struct{} { return c.addressed }

// Assign implements cni.Backend.
func (c *Controller) Assign(tx *state.Tx, e endpoint.Endpoint, now time.Time) (cni.Grant, error) {
	grant := cni.Grant{Attachment: endpoint.Attachment{Kind: endpoint.Routed, Table: hostnet.TableMain}}
	if before, ok := tx.Current(e.ID); ok && before.Addresses.Primary().IsValid() {
		grant.Addresses = before.Addresses
		return grant, nil
	}
	pool := c.empty()
	if !pool.Range.IsValid() {
		return cni.Grant{}, pool.Err()
	}
	c.mu.Lock()
	foreign := c.foreign
	c.mu.Unlock()
	addr, ok := podcidr.Next(pool.Range, tx.LastGiven(), func(a netip.Addr) bool {
		_, used := tx.ByAddress(a)
		owner, other := foreign[a]
		return used || other && owner != e.Pod || cools(tx, a, now)
	})
	if !ok {
		return cni.Grant{}, count(pool, tx.Endpoints(), tx.CoolDowns(), foreign, now).Err()
	}
	tx.EndCooling(podcidr.Single(addr)) // one that is over and not swept yet
	tx.SetLastGiven(addr)
	grant.Addresses = endpoint.AddressesOf(addr)
	return grant, nil
}

// Adopt implements cni.Backend. The endpoint holds its addresses itself, also those
// outside the range, which an earlier registration of the node may have had.
func (c *Controller) Adopt(tx *state.Tx, e endpoint.Endpoint, _ time.Time) (endpoint.Attachment, error) {
	for _, a := range e.Addresses.List() {
		tx.EndCooling(podcidr.Single(a))
	}
	return endpoint.Attachment{Kind: endpoint.Routed, Table: e.Attachment.Table}, tx.Check(e)
}

// Free implements cni.Backend. Until the link is gone, the endpoint itself holds its
// addresses.
func (c *Controller) Free(tx *state.Tx, e endpoint.Endpoint, why cni.Reason, now time.Time) {
	if why != cni.LinkGone {
		return
	}
	for _, a := range e.Addresses.List() {
		tx.Cool(podcidr.Cool(a, now, c.CoolDown))
	}
}

// Renewed implements cni.Backend. Assign gives a pod the address of its earlier sandbox
// without it.
func (c *Controller) Renewed(endpoint.Pod) {}

// Explain implements cni.Backend.
func (c *Controller) Explain() error { return c.Pool(time.Now()).Err() }

// Status implements cni.Backend. Only a node that has no range and no pods refuses:
// where the range is full, ADDs wait.
func (c *Controller) Status() error {
	p := c.Pool(time.Now())
	if p.Range.IsValid() || p.Assigned+p.Quarantined > 0 {
		return nil
	}
	return p.Err()
}

// Demanded implements cni.Backend.
func (c *Controller) Demanded() { c.Loop.Mark() }

// Doubted implements cni.Backend.
func (c *Controller) Doubted(why string) {
	c.Log.Debug("pool is compared with the endpoints", "why", why)
	c.Loop.Mark()
}

// HasRecord reports whether the state is that of an agent which gave out addresses. A
// node that has pods' links and no record lost its journal.
func (c *Controller) HasRecord() bool {
	return c.State.LastGiven().IsValid() || len(c.State.CoolDowns()) > 0
}

// AssumeLost starts a cool-down of every address: an earlier record was lost, and pods
// may have had any of them a moment ago.
func (c *Controller) AssumeLost(ctx context.Context) error {
	pending, err := c.State.Update(func(tx *state.Tx) error {
		tx.Durable()
		tx.Cool(podcidr.CoolAll(time.Now(), c.CoolDown))
		return nil
	})
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

// cools reports whether an address is in its cool-down.
func cools(tx *state.Tx, a netip.Addr, now time.Time) bool {
	for _, p := range []netip.Prefix{podcidr.Single(a), podcidr.Everything()} {
		if c, ok := tx.Cooling(p); ok && !c.Over(now) {
			return true
		}
	}
	return false
}
