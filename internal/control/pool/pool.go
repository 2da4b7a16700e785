// Package pool is the backend that gives pods VPC addresses: it keeps the node's
// interfaces and addresses at EC2 as ipam.Plan says.
//
// It reads endpoints, which hold addresses, and interfaces. Demand is the pods bound to the
// node, by edge/kube, and the ADDs of the table waiting. It alone writes interfaces,
// addresses, actions, node, pool and sources. It drives edge/ec2 and edge/imds, reads the
// Node by edge/kube, and the addresses in use on the node by edge/link. core/ipam decides.
//
// Plan (plan.go) reads the ledger and begins actions; each is executed and its outcome
// recorded (act.go). An Observer compares the ledger with instance metadata (metadata.go), and
// for a reason (schedule.go) with EC2 (observe.go). control/cni takes addresses for ADDs
// through Backend (backend.go); app/agent runs the loops.
package pool

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Cluster is what the pool reads of Kubernetes; *kube.Cluster is one.
type Cluster interface {
	Synced() bool
	Pods() []kube.Pod
	Node() (kube.Node, bool)
	Freeze() (trunkline.Freeze, string)
}

// Events creates Kubernetes events; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	NodeWarning(reason, message string)
}

// Config is the part of the configuration that matters here.
type Config struct {
	NodeName    string
	ClusterName string
	ENITags     map[string]string // of created interfaces, besides Trunkline's own
	IPAM        ipam.Config
}

// Deps is what the pool works with.
type Deps struct {
	Log      *slog.Logger
	State    *state.Store
	Owned    state.BackendTables
	EC2      *ec2.Executor
	Metadata *imds.Client
	Cluster  Cluster
	Events   Events
	Registry prometheus.Registerer
	Drift    prometheus.Counter // differences between the ledger and EC2
	// Used are the addresses in use on the node that are not our endpoints', where the
	// instance has interfaces of these MACs.
	Used func(ctx context.Context, enis []vpc.MAC) (link.Used, error)
	// SetUp configures an interface's link, routes and rules.
	SetUp func(ctx context.Context, e ipam.ENI) error
	// WithoutTrunk reports that the instance type can have no trunk. Nil: it may.
	WithoutTrunk func() bool
	// Wake makes the ADDs that wait for an address try again: one may be free.
	Wake func()
	// CompareKernel requests a comparison of the kernel, Report a report of the node.
	CompareKernel func()
	Report        func()
}

// Pool plans and executes. Its methods may be called from any goroutine.
type Pool struct {
	Config
	Deps
	// Observer compares the ledger with EC2.
	Observer *Observer
	// Plan is the loop that plans.
	Plan    *loop.Loop
	metrics metrics

	serve     sync.Once
	addressed chan struct{} // closed once calls can be served
	work      sync.WaitGroup

	mu       sync.Mutex
	decision ipam.Decision
	local    []localAddress // addresses of the ledger that the node itself has
}

// maxBackoff is the longest pause after a plan that failed.
const maxBackoff = 5 * time.Second

// planDelay keeps the plan away from the ADDs that cause it: that of an ADD would run while its
// plugin ends, and ten ADDs at once have one.
const planDelay = 20 * time.Millisecond

// New returns a pool. It registers its metrics.
func New(c Config, d Deps) *Pool {
	p := &Pool{Config: c, Deps: d, metrics: newMetrics(d.Registry, d.State), addressed: make(chan struct{})}
	p.Plan = loop.New(p.plan)
	p.Plan.MinInterval, p.Plan.Every, p.Plan.MaxBackoff = 20*time.Millisecond, 30*time.Second, maxBackoff
	p.Plan.Delay = planDelay
	p.Observer = newObserver(p)
	p.startSources(time.Now())
	return p
}

// Addressed is closed once an ADD can be served, or pods are there: a full node serves
// DELs.
func (p *Pool) Addressed() <-chan struct{} { return p.addressed }

// Serve closes Addressed at once: an earlier process of this boot served, and ADDs wait.
func (p *Pool) Serve() { p.serve.Do(func() { close(p.addressed) }) }

// serves reports whether Addressed is closed.
func (p *Pool) serves() bool {
	select {
	case <-p.addressed:
		return true
	default:
		return false
	}
}

// Wait returns when no action is being executed. Actions end with the contexts
// that they were begun with; what is in flight at EC2 is in the journal.
func (p *Pool) Wait() { p.work.Wait() }

// condition returns the condition of the last plan, and how many addresses pods use, those of
// another CNI included.
func (p *Pool) condition() (c ipam.Condition, used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.decision.Numbers
	return p.decision.Condition, n.Assigned + n.Quarantined + p.decision.Claimed
}

// publish writes the pool's row.
func (p *Pool) publish() {
	row := state.Pool{Warnings: p.Observer.warnings()}
	p.mu.Lock()
	row.Decision = p.decision
	for _, a := range p.local {
		row.Local = append(row.Local, a.String())
	}
	p.mu.Unlock()
	brake, why := p.EC2.Brake()
	if brake != cloud.BrakeOff {
		row.Brake, row.BrakeReason = brake, why
	}
	row.Skipped = p.Observer.notUsed.sentences()
	if failed := p.Observer.failure(); failed != nil {
		row.Unobserved, row.Refused = failed.Error(), ec2.Code(failed) != ""
	}
	if r, ok := p.EC2.LastRefusal(); ok {
		row.Refusal = &state.Refusal{Action: r.Action, Code: r.Code, Message: r.Message, RequestID: r.RequestID, At: r.At, Count: r.Count}
	}
	state.Set(p.State, p.Owned.Pool, row)
}
