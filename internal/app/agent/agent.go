// Package agent is the node daemon: it constructs the controllers of a node, connects
// them and starts them in order.
//
// It decides nothing. control/cni answers the plugin, control/pool or control/podcidr is the
// backend, control/network keeps the kernel's state, control/report publishes, and all of
// them meet in the tables of control/state. cmd/trunkline calls Run and, in the privileged
// init container, Init.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/branch"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/conflist"
	"github.com/trunkline/trunkline/internal/control/guard"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	corepolicy "github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/cniplugin"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/edge/vlan"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Cluster is what the agent reads and writes of Kubernetes; *kube.Cluster is one.
type Cluster interface {
	Run(ctx context.Context) error
	Synced() bool
	PodsKnown() bool
	Pods() []kube.Pod
	Pod(ctx context.Context, ref kube.PodRef, uid string) (kube.Pod, error)
	Node() (kube.Node, bool)
	Freeze() (trunkline.Freeze, string)
	WriteNetwork(ctx context.Context, s trunkline.NodeNetworkStatus) error
	SetNetworkUnavailable(ctx context.Context, unavailable bool, reason, message string) error
	Refuse(ctx context.Context, why string) error
	Leave(ctx context.Context) error
	Confirm(instance string)
	Policies(ctx context.Context) (found []string, err error)
}

// Events creates Kubernetes events; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	NodeWarning(reason, message string)
	PolicyWarning(ref corepolicy.Ref, uid, reason, message string)
}

// Deps is what an agent works with.
type Deps struct {
	Version string // of the build; in answers, logs and status
	Log     *slog.Logger
	// AWS is the SDK's configuration: credentials, region, endpoints.
	AWS aws.Config
	// Cluster reflects Kubernetes; changed is called after every change.
	Cluster func(changed func()) (Cluster, Events)
	// Policies reflects what network policies are judged on; changed is called after every
	// change. Nil: there is no cluster, and none are enforced.
	Policies func(changed func()) PolicyObjects
	// Groups reflects what the security groups of pods depend on; changed is called after every
	// change. Nil: there is no cluster.
	Groups func(changed func()) GroupObjects
	// CNINode reflects the CNINode of the node; changed is called after every change. Nil: there is no
	// cluster.
	CNINode func(changed func()) CNINode
	// Registry receives the metrics and is served at the metrics address.
	Registry *prometheus.Registry
	// Components take part in each ADD.
	Components []cni.Component
	// Removed reports, when the agent is stopped, whether the stop is meant to last
	// (its DaemonSet is going) rather than to make way for a successor. Nil: it never is.
	Removed func(ctx context.Context) bool
	// Service is the address of the Service "kubernetes"; invalid outside a cluster.
	Service netip.Addr
	// Root is below which the machine's firmware is read: "/" outside tests.
	Root string
}

// agent is a node daemon: its edges and its controllers.
type agent struct {
	cfg   config.Config
	deps  Deps
	log   *slog.Logger
	began time.Time

	kernel
	cluster guarded
	events  Events

	state    *state.Store
	backend  *backend
	network  *network.Controller
	cni      *cni.Controller
	policies *policies
	reporter *report.Reporter
	conflist *conflist.File

	planned atomic.Pointer[loop.Loop] // of the backend, once there is one
	metrics metrics
}

// kernel is the edges of the node's kernel.
type kernel struct {
	host     *link.Host
	filter   *nft.Firewall
	branches *vlan.Host // nil: the node serves no branch interfaces
}

// guarded is the cluster, with the brake of the guard, and with pods that request a branch only where the
// mode of the node gives them one.
type guarded struct {
	Cluster
	guard *guard.Guard
	modes modes
}

// modes are how pods of the node get their security groups, and the CNINode that it is recorded in.
type modes struct {
	*branch.Modes
	node CNINode // nil: there is no cluster, or no pod can have a branch
}

// Pods implements Cluster.
func (g guarded) Pods() []kube.Pod { return g.modes.Have(g.Cluster.Pods()) }

// Pod implements Cluster.
func (g guarded) Pod(ctx context.Context, ref kube.PodRef, uid string) (kube.Pod, error) {
	p, err := g.Cluster.Pod(ctx, ref, uid)
	return g.modes.Wanted(p), err
}

// Freeze implements Cluster.
func (g guarded) Freeze() (trunkline.Freeze, string) { return g.guard.Freeze() }

// metrics that several controllers share.
type metrics struct {
	drift      *prometheus.CounterVec
	loopErrors *prometheus.CounterVec
	started    *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		drift:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_drift_total", Help: "Differences between desired and actual state that the agent did not cause."}, []string{"where"}),
		loopErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_loop_errors_total", Help: "Passes of a loop that failed."}, []string{"loop"}),
		started: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trunkline_start_seconds", Help: "Time from the agent's start until the kernel and EC2 agree with its record (settled), and until it serves.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 90},
		}, []string{"until"}),
	}
	r.MustRegister(m.drift, m.loopErrors, m.started)
	return m
}

// Run starts the agent and runs it until ctx ends, then stops in order: it accepts no new
// calls, ends the calls in flight (their plugins call the successor) and closes the
// journal last. Actions in flight at EC2 are in the journal.
//
// When Deps.Removed says that the stop is meant to last, the agent leaves the node (leave.go).
// Otherwise the conflist stays: while an agent is being replaced the plugin waits for the next one.
// Without a conflist the runtime would report the node's network as not ready and fail
// every ADD during a rollout.
func Run(ctx context.Context, cfg config.Config, deps Deps) (err error) {
	if err := refusal(probe(ctx, cfg)); err != nil {
		return err
	}
	collectLess()
	for _, n := range cfg.NotServed() {
		deps.Log.Warn("a variable of AWS's CNI has no effect", "name", n.Env, "value", n.Value, "why", n.Means)
	}
	a := &agent{cfg: cfg, deps: deps, log: deps.Log, began: time.Now(), metrics: newMetrics(deps.Registry)}
	if err := a.open(ctx); err != nil {
		return errors.Join(err, a.close())
	}
	stopping := ctx
	// The agent leaves before the journal is unlocked: a successor that waits for the lock
	// writes the conflist again.
	defer func() { err = errors.Join(err, a.leave(stopping), a.close()) }()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.cluster.Run(ctx) })
	group.Go(func() error {
		if why := a.refusedFamily(); why != "" {
			return a.refuse(ctx, why)
		}
		if err := a.construct(ctx); err != nil {
			return err
		}
		defer a.backend.wait()
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return a.reporter.Serve(ctx) })
		group.Go(func() error { return a.live(ctx) })
		return group.Wait()
	})
	err = group.Wait()
	if stopping.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, errStopped)) {
		return nil // an ordered stop
	}
	return err
}

// open opens the edges that need no answer from outside: kernel sockets, the journal.
func (a *agent) open(ctx context.Context) (err error) {
	if a.host, err = link.Open(nil); err != nil {
		return fmt.Errorf("open the node's links: %w", err)
	}
	if a.cfg.NetworkPolicy {
		a.host.PrepareFilters()
	}
	if a.filter, err = nft.Open(nil, a.log); err != nil {
		return fmt.Errorf("open the node's nftables: %w", err)
	}
	if a.cfg.Branches() {
		if a.branches, err = vlan.Open(nil); err != nil {
			return fmt.Errorf("open the node's branches: %w", err)
		}
	}
	a.state, err = state.Open(ctx, state.Options{
		Dir: filepath.Join(a.cfg.StateDir, "journal"), BootID: bootID(), Settings: poolConfig(a.cfg).Settings(),
		LinkPrefix: a.cfg.VethPrefix, Log: a.log,
	})
	if err != nil {
		return err
	}
	cluster, events := a.deps.Cluster(a.clusterChanged)
	a.events = events
	a.cluster = guarded{cluster, guard.New(guard.Deps{
		Cluster: cluster, Events: events, Log: a.log,
		Changed: func() { a.markPlan(); a.reporter.Loop.Mark(); a.conflist.Loop.Mark() },
	}), newModes(a, cluster)}
	a.conflist = conflist.New(a.cfg, conflist.Deps{
		Runtime:   func() string { node, _ := a.cluster.Node(); return node.Runtime },
		Supported: new(cniplugin.Asker).Supported, Called: func() time.Time { return a.cni.Called() },
		Pods: a.cluster.Pods, Changed: func() { a.reporter.Loop.Mark() }, Events: a.events, Log: a.log,
		Yield:  func() bool { return a.cluster.guard.Yields() && len(a.state.Endpoints()) == 0 },
		Daemon: a.cluster.guard.Beside, Written: func() { configured(a) },
	})
	if err := a.conflist.RemoveLeftovers(); err != nil { // the journal's lock is held: no other agent writes there
		a.log.Warn("incomplete conflist files of an earlier agent were not removed", "error", err)
	}
	return nil
}

// construct makes the controllers and hands them to each other.
func (a *agent) construct(ctx context.Context) error {
	metadata := imds.New(a.deps.AWS, imds.Options{})
	name, why, err := a.choose(ctx, metadata)
	if err != nil {
		return err
	}
	a.cfg = a.cfg.On(name)
	a.reporter = report.New(a.cfg, report.Deps{
		Version: a.deps.Version, Log: a.log, State: a.state, Cluster: a.cluster, Events: a.events, Registry: a.deps.Registry,
		Backend: name, BackendWhy: why,
		Called:      report.Called{Plugin: func() string { return a.cni.Plugin() }, CNI: a.conflist.Version},
		Debug:       report.Debug{Policies: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.policies.views(w, r) }), Handover: a.writeHandover},
		Enforcement: func() report.Enforcement { return a.policies.enforcement() },
		Problems:    func() []cniconf.Problem { return append(a.cluster.guard.Problems(), a.conflist.Problems()...) },
		Left:        report.Left{Filtered: a.host.Filtered, Legacy: func() (chains []string, why, err error) { return a.network.LegacyAWS() }},
		OtherAgent:  a.cluster.guard.MayBeBeside, Wires: report.Wires{Refuses: a.cluster.guard.Refuses, GroupMode: a.cluster.modes.Choice},
	})
	if name == config.BackendPodCIDR {
		a.backend = a.podCIDRBackend()
	} else {
		if err := a.setRegion(ctx, metadata); err != nil {
			return err
		}
		executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.NewClients(a.deps.AWS), Log: a.log, Registry: a.deps.Registry})
		if err != nil {
			return err
		}
		a.backend = a.eniBackend(executor, metadata)
	}
	if err := a.assemble(); err != nil {
		return err
	}
	a.planned.Store(a.backend.plan)
	return nil
}

// assemble makes the controllers that do not depend on where addresses come from.
func (a *agent) assemble() (err error) {
	a.network, err = network.New(network.Config{
		MTU: a.cfg.MTU, ExternalCIDRs: a.cfg.ExternalCIDRs, PodMetadata: a.cfg.PodMetadata, Ruleset: filterConfig(a.cfg),
	}, network.Deps{
		Log: a.log, State: a.state, Owned: a.state.NetworkTables(), Links: a.host, Filter: a.filter, Events: a.events, Registry: a.deps.Registry, Drift: a.metrics.drift,
		Branches: devices(a.kernel), Before: a.backend.claim,
		Compared:   func(ctx context.Context) error { return a.cni.ReleaseGone(ctx) },
		OtherAgent: a.cluster.guard.MayBeBeside, Missing: a.backend.missing, Report: a.reporter.Loop.Mark,
	})
	if err != nil {
		return err
	}
	a.policies = newPolicies(a)
	if a.backend.groups, err = newGroups(a); err != nil {
		return err
	}
	a.cni = cni.New(cni.Config{
		NodeName: a.cfg.NodeName, LinkPrefix: a.cfg.VethPrefix,
		SpoolDirs: []string{filepath.Join(a.cfg.StateDir, "spool"), cnirpc.VolatileSpool(a.cfg.Socket)},
		MTU:       cmp.Or(a.cfg.PodMTU, a.cfg.MTU), PodMetadata: a.cfg.PodMetadata,
		StaleAfter: a.cfg.StaleAfter,
	}, cni.Deps{
		Log: a.log, State: a.state, Owned: a.state.CNITables(), Backend: a.backend, Branches: a.backend.groups.branches(), Links: a.host, Filter: a.filter, Pods: a.cluster, Events: a.events,
		Components: slices.Concat([]cni.Component{a.cluster.guard}, a.policies.components(), a.backend.groups.components(), a.deps.Components), Registry: a.deps.Registry,
		Lock: a.network.Lock, CompareKernel: a.network.Loop.MarkFull, RestoreFilter: a.network.RestoreFilter, Route: a.network.Route,
	})
	return nil
}

// clusterChanged has the backend plan again, and policies compared with the pods' labels: pods or
// the Node changed.
func (a *agent) clusterChanged() {
	a.cluster.guard.Loop.Mark()
	a.markPlan()
}

func (a *agent) markPlan() {
	if plan := a.planned.Load(); plan != nil {
		plan.Mark()
		a.policies.mark()
		a.backend.groups.changed()
		reportMode(a) // the label of the Node may have changed
	}
}

func (a *agent) close() (err error) {
	err = a.policies.close()
	if a.host != nil {
		err = errors.Join(err, a.host.Close())
	}
	if a.filter != nil {
		err = errors.Join(err, a.filter.Close())
	}
	if a.branches != nil {
		a.branches.Close()
	}
	if a.state != nil {
		err = errors.Join(err, a.state.Close())
	}
	return err
}

// live runs the constructed agent: it reads the node's facts, as far as an earlier process
// has not recorded them, reconciles the kernel, finishes what that process left, then
// starts the loops, answers calls, and reads the other facts.
func (a *agent) live(ctx context.Context) error {
	unread, err := a.learn(ctx)
	if err != nil {
		return err
	}
	if err := a.settle(ctx); err != nil {
		return err
	}
	a.metrics.started.WithLabelValues("settled").Observe(time.Since(a.began).Seconds())
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range unread {
		group.Go(func() error { return a.read(ctx, f, a.factWaits(f.name)) })
	}
	a.cluster.guard.Check() // before anything is done at EC2
	a.backend.recover(ctx)
	for name, l := range a.loops() {
		l.Report = func(err error, pause time.Duration) {
			a.log.Warn("pass failed, will be retried", "loop", name, "error", err, "pause", pause)
			a.metrics.loopErrors.WithLabelValues(name).Inc()
		}
		group.Go(func() error { return l.Run(ctx) })
	}
	group.Go(func() error {
		return a.network.Watch(ctx, "links", func(ctx context.Context, dirty func(string)) error { return a.host.Watch(ctx, a.network, dirty) })
	})
	group.Go(func() error { return a.network.Watch(ctx, "nftables", a.filter.Watch) })
	a.policies.run(ctx, group)
	a.backend.groups.run(ctx, group)
	group.Go(func() error { return a.cni.Run(ctx) })
	group.Go(func() error { return a.serve(ctx) })
	return group.Wait()
}

// loops are the agent's loops by name; each has its own interval.
func (a *agent) loops() map[string]*loop.Loop {
	all := map[string]*loop.Loop{"guard": a.cluster.guard.Loop, "kernel": a.network.Loop, "report": a.reporter.Loop, "policies": a.reporter.Policies, "filters": a.reporter.Filters}
	maps.Copy(all, a.backend.loops)
	maps.Copy(all, a.backend.groups.loops())
	if a.policies != nil {
		all["network policy"] = a.policies.Loop
	}
	return all
}

// serve answers calls once the first address is available. It writes the conflist last:
// with the conflist in place the runtime starts to call the plugin.
func (a *agent) serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil // before there was one: an ordered stop
	case <-a.backend.addressed:
	}
	awaitLists(ctx, a)
	l, err := cniserver.Listen(a.cfg.Socket)
	if err != nil {
		return err
	}
	server := cniserver.Server{
		Handle: a.cni.Handle, Agent: a.deps.Version, UID: uint32(os.Getuid()), MaxWait: a.cfg.AddWait + 10*time.Second,
		Report: func(err error) { a.log.Warn("plugin connection", "error", err) },
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(ctx, l) })
	a.reporter.Serving()
	keep := a.conflist.Loop
	keep.Report = func(err error, pause time.Duration) {
		a.log.Warn("conflist not written, will be retried", "error", err, "pause", pause)
		a.metrics.loopErrors.WithLabelValues("conflist").Inc()
	}
	group.Go(func() error { return keep.Run(ctx) })
	return group.Wait()
}

// configured is called when the conflist is as it should be. The node is ready from the first
// time on: a directory that cannot be written then is a problem until it can be, as later.
func configured(a *agent) {
	if a.reporter.Configured() {
		a.metrics.started.WithLabelValues("serving").Observe(time.Since(a.began).Seconds())
		a.log.Info("serving", "socket", a.cfg.Socket, "node", a.cfg.NodeName, "instance", a.state.Node().Instance)
	}
}

// bootID is the kernel's ID of this boot.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // a reboot is then detected by the missing links
	}
	return strings.TrimSpace(string(raw))
}
