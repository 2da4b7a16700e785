package trunk

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cloud"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Options of New.
type Options struct {
	Client *kube.Client
	EC2    ec2.Trunks
	Events *kube.Events
	Config core.Config
	// BranchLimits are numbers of branches by instance type or family, in the place of the known
	// ones.
	BranchLimits map[string]int
	// GroupLimit is how many security groups an interface may have; 0 is EC2's default.
	GroupLimit int
	// Excluded are the namespaces in which admission adds no request to pods, and no node refuses pods
	// without one. It is said in the status of their policies.
	Excluded []string
	// NodesEnforce: nodes enforce the groups of pods without a branch.
	NodesEnforce bool
	// Choose: each node has a mode of its own, which the controller chooses; it needs NodesEnforce.
	// Otherwise it makes branches on all nodes that ask for them.
	Choose bool
	// Registry receives the metrics; nil: none are kept.
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Intervals.
const (
	// observeEvery is the time between two regular observations of a node, which find what other
	// programs changed.
	observeEvery = 30 * time.Minute
	// listingFor is how old the listing of associations of a regular observation may be.
	listingFor = observeEvery / 2
	// observeAgain is the time after which a regular observation that failed is made again.
	observeAgain = time.Minute
	// hostEvery is the least time between two describes of an instance.
	hostEvery = 10 * time.Second
	// goneEvery is the time between two checks whether an instance is terminated.
	goneEvery = time.Minute
	// passEvery is the least time between two passes of a node.
	passEvery = 50 * time.Millisecond
	// advertiseAgain is the time after which a capacity that was not written is written again.
	advertiseAgain = time.Second
	// boundWithin is how long the record of a binding waits for the next action, which is written with it.
	boundWithin = 2 * time.Second
	// settleFor is how long a new process makes no regular observation: what a restart must do first
	// is to serve pods.
	settleFor = 5 * time.Minute
	// fleetEvery and statusEvery are those between two passes over all nodes or policies.
	fleetEvery  = time.Second
	statusEvery = 2 * time.Second
)

// Controller runs the reconciles of all nodes.
type Controller struct {
	o       Options
	objects *kube.BranchObjects
	byNode  *kube.NodeGroupObjects // nil where nodes enforce no groups
	groups  *groups
	subnets *subnets
	listing *associations
	fleet   *loop.Loop
	probes  *loop.Loop
	probe   probe
	metrics metrics
	status  *loop.Loop
	started time.Time

	mu    sync.Mutex
	nodes map[string]*node
	wait  sync.WaitGroup // of the goroutines of nodes
}

// New returns a controller. Run starts it.
func New(o Options) (*Controller, error) {
	c := &Controller{o: o, nodes: map[string]*node{}}
	if err := c.metrics.register(o.Registry, c); err != nil {
		return nil, err
	}
	c.objects = kube.NewBranchObjects(o.Client, c.changed, o.Log)
	c.groups = newGroups(o.EC2.Groups, func() { c.changed(kube.BranchChange{All: true}) }, o.Log)
	c.groups.quarantine = newQuarantine(o.Config.Quarantine, o.EC2.Allowing, c.groups.news, o.Log)
	c.subnets = newSubnets(o.EC2.SubnetsOf, func() { c.changed(kube.BranchChange{All: true}) }, o.Log)
	c.listing = newAssociations(o.EC2.Associations, o.Log)
	c.fleet = loop.New(c.startNodes)
	c.fleet.MinInterval, c.fleet.Report = fleetEvery, c.report("nodes")
	c.status = loop.New(c.writeStatus)
	c.status.MinInterval, c.status.Report = statusEvery, c.report("status of SecurityGroupPolicies")
	if o.NodesEnforce {
		c.byNode = kube.NewNodeGroupObjects(o.Client, c.status.Mark, o.Log)
		c.status.Every = kube.StaleReport // until reports of nodes are stale
	}
	c.probes = loop.New(c.runProbe)
	c.probes.Every, c.probes.MaxBackoff, c.probes.Report = probeEvery, time.Minute, c.report("dry run of trunk calls")
	return c, nil
}

func (c *Controller) report(what string) func(error, time.Duration) {
	return func(err error, pause time.Duration) {
		c.o.Log.Warn("branches: pass failed, retrying", "of", what, "in", pause, "err", err)
	}
}

// Run reconciles until ctx ends, and returns once no call is in flight any more.
func (c *Controller) Run(ctx context.Context) {
	c.started = time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { c.objects.Run(ctx) })
	if c.objects.Wait(ctx) {
		wg.Go(func() { _ = c.groups.loop.Run(ctx) }) // returns nil
		wg.Go(func() { _ = c.subnets.loop.Run(ctx) })
		wg.Go(func() { _ = c.groups.quarantine.loop.Run(ctx) })
		wg.Go(func() { c.listing.run(ctx) })
		wg.Go(func() { _ = c.probes.Run(ctx) }) // returns nil
		wg.Go(func() { _ = c.fleet.Run(ctx) })  // returns nil
		wg.Go(func() { c.runStatus(ctx) })
	}
	wg.Wait()
	c.wait.Wait()
}

// byNodeWithin is how long the status of policies waits for what nodes report.
const byNodeWithin = 30 * time.Second

// runStatus writes the status of policies until ctx ends. What nodes report is waited for at most byNodeWithin: without
// the right to read it, an earlier status would stay.
func (c *Controller) runStatus(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.byNode != nil {
		wg.Go(func() { c.byNode.Run(ctx) })
		waits, cancel := context.WithTimeout(ctx, byNodeWithin)
		if !c.byNode.Wait(waits) && ctx.Err() == nil {
			c.o.Log.Warn("what nodes report was not read: pods without a branch count as not applied in the status of policies; see deploy/components/node-groups")
		}
		cancel()
	}
	_ = c.status.Run(ctx) // returns nil
}

// changed is called by the cache.
func (c *Controller) changed(what kube.BranchChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if what.All {
		for _, n := range c.nodes {
			n.loop.Mark()
		}
	} else if n, runs := c.nodes[what.Node]; runs {
		n.loop.Mark()
	}
	c.fleet.Mark()
	c.status.Mark()
}

// markNodes has all nodes planned again.
func (c *Controller) markNodes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		n.loop.Mark()
	}
}

// startNodes starts the reconcile of each node that has branches or may have.
func (c *Controller) startNodes(ctx context.Context, _ bool) (time.Time, error) {
	for _, n := range c.objects.CNINodes() {
		if !c.wanted(n) {
			continue
		}
		c.mu.Lock()
		if _, runs := c.nodes[n.Name]; !runs {
			started := newNode(c, n.Name)
			c.nodes[n.Name] = started
			var running context.Context
			running, started.end = context.WithCancel(ctx)
			c.wait.Go(func() { c.run(running, started) })
		}
		c.mu.Unlock()
	}
	return time.Time{}, nil
}

// run runs the reconcile of a node until ctx ends.
func (c *Controller) run(ctx context.Context, n *node) {
	defer n.end()
	_ = n.loop.Run(ctx) // returns nil
	n.flights.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.name)
	c.fleet.Mark()
}

// wanted reports whether a node has branches or may have. Nodes of EKS Auto Mode have another
// controller.
func (c *Controller) wanted(n *vpcresources.CNINode) bool {
	if n.Spec.ManagedBy == vpcresources.ManagedByEKSAutoMode {
		return false
	}
	of, exists := c.objects.Node(n.Name)
	return n.Status.Trunkline != nil || asksForBranches(n, of) || c.o.Choose && exists
}

// asksForBranches reports whether a node is to have branches. on is nil without a Node.
func asksForBranches(n *vpcresources.CNINode, on *corev1.Node) bool {
	return hasFeature(n, vpcresources.SecurityGroupsForPods) || on != nil && hasLabel(on, vpc.LabelTrunkAttached)
}

func hasFeature(n *vpcresources.CNINode, name vpcresources.FeatureName) bool {
	return slices.ContainsFunc(n.Spec.Features, func(f vpcresources.Feature) bool { return f.Name == name })
}

func hasLabel(n *corev1.Node, name string) bool {
	_, ok := n.Labels[name]
	return ok
}

// instanceOf is the instance of a Node by its providerID, aws:///zone/i-…; empty without one.
// Kubernetes does not allow to change a providerID.
func instanceOf(n *corev1.Node) vpc.InstanceID {
	id := path.Base(n.Spec.ProviderID)
	if !strings.HasPrefix(n.Spec.ProviderID, "aws://") || !strings.HasPrefix(id, "i-") {
		return ""
	}
	return vpc.InstanceID(id)
}

// newID is a name that no other action has.
func newID() cloud.ActionID { return cloud.ActionID("br-" + rand.Text()) }

// clock is the time as it is recorded.
func clock() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// brake is the strictest of the brakes that are in force for a node.
func (c *Controller) brake(name string) cloud.Brake {
	of, _ := c.o.EC2.Brake()
	freeze, _ := c.objects.Freeze(name)
	switch {
	case !freeze.AllowsAllocate() || of == cloud.FreezeAll:
		return cloud.FreezeAll
	case !freeze.AllowsRelease():
		return cloud.FreezeRelease
	}
	return of
}

func podName(p *corev1.Pod) string { return fmt.Sprintf("%s/%s", p.Namespace, p.Name) }
