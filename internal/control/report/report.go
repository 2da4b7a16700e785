// Package report publishes the state of the node: the status of its NodeNetwork object,
// its NetworkUnavailable condition, events about policies that are not enforced and programs
// that are not updated, the introspection endpoints and metrics under AWS's names.
//
// It reads every table and writes none. It drives edge/kube for the API server, and
// serves HTTP on the introspection and metrics addresses and on a socket for root.
// app/agent runs its loop and its servers; other controllers request a report by marking
// the loop.
package report

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/handover"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Cluster reads the node and its pods, and writes the node's objects; *kube.Cluster is one.
type Cluster interface {
	Node() (kube.Node, bool)
	Pods() []kube.Pod
	Freeze() (trunkline.Freeze, string)
	WriteNetwork(ctx context.Context, s trunkline.NodeNetworkStatus) error
	SetNetworkUnavailable(ctx context.Context, unavailable bool, reason, message string) error
	Policies(ctx context.Context) (found []string, err error)
}

// Events creates Kubernetes events of the node; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
}

// Deps is what the controller works with.
type Deps struct {
	Version  string // of the agent's build
	Log      *slog.Logger
	State    *state.Store
	Cluster  Cluster
	Events   Events
	Registry *prometheus.Registry
	// Backend is where pods get their addresses, config.BackendENI or
	// config.BackendPodCIDR, and BackendWhy why.
	Backend, BackendWhy string
	Called
	// Enforcement is what the node does with network policies.
	Enforcement func() Enforcement
	// Problems are why the container runtime may not wire new pods by the plugin as it
	// should; none is good.
	Problems func() []cniconf.Problem
	Left
	// OtherAgent reports whether AWS's daemon runs on the node, or may.
	OtherAgent func() bool
	Wires
	Debug
}

// Wires is how the agent wires pods.
type Wires struct {
	// Refuses is why the agent wires no pod although it runs; empty if it wires pods.
	Refuses func() string
	// GroupMode is how pods of the node get their security groups.
	GroupMode func() groupmode.Choice
}

// Debug is what the debug socket answers with beside tables and profiles.
type Debug struct {
	// Policies answers questions about network policies; nil: there are none.
	Policies http.Handler
	// Handover writes the checkpoint of AWS's daemon.
	Handover func(ctx context.Context) (handover.Plan, error)
}

// Called is what the container runtime calls.
type Called struct {
	// Plugin is the version of the plugin that called last, and CNI the version of the
	// network configuration.
	Plugin func() string
	CNI    func() string
}

// Left finds what other agents have left on the node.
type Left struct {
	// Filtered returns the addresses on links of other CNIs that have filters, with both.
	Filtered func(ctx context.Context) (map[netip.Addr]string, error)
	// Legacy returns the chains of AWS's daemon in iptables-legacy that no pod needs and that could
	// not be removed, with the reason.
	Legacy func() (chains []string, why, err error)
}

// Reporter publishes. Its methods may be called from any goroutine.
type Reporter struct {
	cfg config.Config
	Deps
	// Loop is the loop that writes the node's objects, Policies the one that looks for
	// policies that are not enforced, and Filters the one that looks for pods with the
	// programs of an agent that has left, and for its chains in iptables-legacy.
	Loop     *loop.Loop
	Policies *loop.Loop
	Filters  *loop.Loop
	serving  atomic.Bool // calls are served
	ready    atomic.Bool // and the runtime's configuration has been in place
	full     bool        // the disk, at the last pass
	policies policies

	mu     sync.Mutex
	server state.Source // the API server
	frozen frozen
	legacy legacy
}

// New returns a reporter.
func New(cfg config.Config, d Deps) *Reporter {
	r := &Reporter{cfg: cfg, Deps: d, server: state.Source{Name: state.APIServer}}
	r.Loop = loop.New(r.pass)
	r.Loop.MinInterval, r.Loop.Every = 3*time.Second, 30*time.Second
	r.Policies = loop.New(r.findPolicies)
	r.Policies.Every, r.Policies.MaxBackoff = policiesLook, policiesEvery
	r.Filters = loop.New(r.findLeft)
	r.Filters.Every, r.Filters.MaxBackoff = filtersEvery, filtersEvery
	return r
}

// Serving reports that calls are served from now on: what the node has and lacks is reported.
func (r *Reporter) Serving() {
	r.mu.Lock()
	r.server.Since = time.Now()
	r.mu.Unlock()
	r.serving.Store(true)
	r.Loop.MarkFull()
}

// Configured reports that the runtime has the configuration by which it makes those calls: the
// node is ready. It returns whether this is the first time.
func (r *Reporter) Configured() (first bool) {
	if r.ready.Swap(true) {
		return false
	}
	r.Loop.MarkFull()
	return true
}

// pass writes the state of the node to the API server.
func (r *Reporter) pass(ctx context.Context, _ bool) (time.Time, error) {
	if !r.serving.Load() || !r.ready.Load() && len(r.Problems()) == 0 {
		return time.Time{}, nil // the report of the agent before holds until the configuration is compared
	}
	r.eventIfFull()
	problems := r.mark(ctx)
	status := r.status()
	var err error
	status.Versions, err = r.versions()
	problems = errors.Join(problems, r.Cluster.WriteNetwork(ctx, status))
	if ctx.Err() == nil {
		r.noteServer(problems)
	}
	return time.Time{}, errors.Join(err, problems)
}

// mark writes the Node's condition NetworkUnavailable. It stays false while the agent refuses to
// serve, because another CNI serves the node, and is not written before the runtime has its
// configuration.
func (r *Reporter) mark(ctx context.Context) error {
	if why := r.Refuses(); why != "" {
		return r.Cluster.SetNetworkUnavailable(ctx, false, kube.ReasonRefuses, why)
	}
	if !r.ready.Load() {
		return nil
	}
	return r.Cluster.SetNetworkUnavailable(ctx, false, kube.ReasonReady, "pods are wired by Trunkline")
}

// eventIfFull creates an event when the disk of the journal became full since the last pass.
func (r *Reporter) eventIfFull() {
	full := state.DiskFull(r.State)
	if c := writable(full, r.cfg.StateDir); full && !r.full {
		r.Log.Error("no pod is added", "reason", c.Reason, "why", c.Message)
		r.Events.NodeWarning(c.Reason, c.Message)
	}
	r.full = full
}

// status is the status of the node's NodeNetwork.
func (r *Reporter) status() trunkline.NodeNetworkStatus {
	ledger, node, pool := r.ledger(), r.State.Node(), r.State.Pool()
	d := pool.Decision
	freeze, _ := r.Cluster.Freeze()
	s := trunkline.NodeNetworkStatus{
		ObservedAt: metav1.Now(), InstanceID: ledger.Instance, InstanceType: node.Type, Zone: node.Zone,
		Mode: trunkline.ModeSecondaryIP, Why: d.Condition.Message, Brake: freeze,
		LastError: lastError(pool.Refusal), NotUsed: pool.Skipped, Warnings: ledger.Warnings, PodGroups: podGroups(r.cfg, node.VPC, r.GroupMode),
		Addresses: trunkline.AddressCounts{
			Total: int32(ledger.Pool.Total), Assigned: int32(ledger.Pool.Assigned), Cooling: int32(ledger.Pool.Cooling), Free: int32(ledger.Pool.Free),
			WarmTarget: int32(ledger.Pool.WarmTarget), Waiting: int32(ledger.Pool.Waiting), Limit: int32(ledger.Pool.Limit),
			Interfaces: int32(d.Numbers.ENIs), InterfaceLimit: int32(d.Numbers.MaxENIs),
		},
	}
	s.Conditions = []metav1.Condition{
		r.readiness(d.Condition),
		condition(trunkline.ConditionSufficientAddresses, d.Numbers.Attainable > 0 || d.Numbers.Demand == 0, d.Condition),
		configured(r.Problems()),
		writable(state.DiskFull(r.State), r.cfg.StateDir),
		enforced(r.Enforcement(), r.cfg.Origin("network-policy")),
	}
	if why := ledger.WithoutEC2; why != "" {
		s.Mode = trunkline.ModePodCIDR
		s.Conditions = append(s.Conditions, driftOf(r.State.Drift()), notUsed(why))
		return s
	}
	for _, e := range ledger.ENIs {
		s.Interfaces = append(s.Interfaces, interfaceOf(e))
	}
	view, _ := r.State.View(time.Now())
	s.Conditions = append(s.Conditions, driftAtEC2(view.Differences(), slices.Concat(pool.Local, r.State.Drift())), reachable(pool, ledger.Outages),
		answering(trunkline.ConditionMetadataReachable, state.Metadata, ledger.Outages),
		answering(trunkline.ConditionCredentialsValid, state.Credentials, ledger.Outages))
	return s
}

// readiness is the condition Ready: that of the backend, once the runtime calls the plugin.
func (r *Reporter) readiness(backend ipam.Condition) metav1.Condition {
	c := condition(trunkline.ConditionReady, backend.CanAdd, backend)
	if r.ready.Load() {
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonNotConfigured, "the container runtime's configuration is not in place yet"
	if problem := configured(r.Problems()); problem.Status == metav1.ConditionFalse {
		c.Reason, c.Message = problem.Reason, problem.Message
	}
	return c
}

func interfaceOf(e introspection.ENI) trunkline.Interface {
	out := trunkline.Interface{
		ID: e.ID, MAC: e.MAC, SubnetID: e.Subnet, NetworkCard: int32(e.Card), DeviceIndex: int32(e.Device), Why: e.Why,
		State: trunkline.InterfaceReady,
	}
	if e.Primary.IsValid() {
		out.PrimaryAddress = e.Primary.String()
	}
	switch ipam.Phase(e.State) {
	case ipam.Attaching, ipam.SettingUp:
		out.State = trunkline.InterfaceAttaching
	case ipam.Detaching, ipam.Deleting:
		out.State = trunkline.InterfaceReleasing
	case ipam.Ready:
	}
	for _, ad := range e.Addresses {
		switch ipam.State(ad.State) {
		case ipam.Assigned:
			out.Assigned++
		case ipam.Cooling, ipam.Quarantined:
			out.Cooling++
		case ipam.Free:
			out.Free++
		case ipam.Releasing, ipam.Unconfirmed:
			continue
		}
		out.Total++
	}
	return out
}

// versions of what runs on the node. The plugin's is that of its last call.
func (r *Reporter) versions() (trunkline.Versions, error) {
	v := trunkline.Versions{Agent: r.Version, Plugin: r.Plugin(), CNI: r.CNI()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return v, errors.Join(errors.New("read the kernel's version"), err)
	}
	v.Kernel = unix.ByteSliceToString(name.Release[:])
	return v, nil
}
