// Package agent is the node daemon: it introduces the rooms of a node to each
// other. It answers the CNI plugin, keeps the pool of addresses as ipam.Plan
// says, and has the kernel agree with the pods that are there.
//
// It decides nothing that a core package could: which address, what to ask of
// EC2 and what the kernel should hold are theirs. cmd/trunkline calls Run and, in
// the privileged init container, Init.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Cluster is what the agent asks of Kubernetes; *kube.Cluster is one.
type Cluster interface {
	Run(ctx context.Context) error
	Synced() bool
	Pods() []kube.Pod
	Pod(ctx context.Context, ref kube.PodRef, uid string) (kube.Pod, error)
	Node() (kube.Node, bool)
	Freeze() (trunkline.Freeze, string)
	WriteNetwork(ctx context.Context, s trunkline.NodeNetworkStatus) error
	SetNetworkUnavailable(ctx context.Context, unavailable bool, reason, message string) error
}

// Events is where the agent tells people; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	NodeWarning(reason, message string)
}

// Deps is what an agent is introduced to.
type Deps struct {
	Version string // build version, for people and answers
	Log     *slog.Logger
	// AWS is the SDK's configuration: credentials, region, endpoints.
	AWS aws.Config
	// Cluster reflects Kubernetes; changed is called when something did.
	Cluster func(changed func()) (Cluster, Events)
	// Registry receives the metrics and is served at the metrics address.
	Registry *prometheus.Registry
	// Components take part in each ADD.
	Components []cni.Component
	// Removed tells, when the agent is told to stop, whether the stop is meant to
	// last (its DaemonSet is going) rather than to make room for a successor.
	// Nil: it never is.
	Removed func(ctx context.Context) bool
}

// Agent is a running node daemon.
type Agent struct {
	cfg   config.Config
	deps  Deps
	log   *slog.Logger
	began time.Time

	metadata *imds.Client
	ec2      *ec2.Executor
	host     *link.Host
	filter   *nft.Firewall
	cluster  Cluster
	events   Events
	metrics  *metrics

	facts facts
	state *state.Store
	cni   *cni.Controller
	// addressed is closed by the pool's loop once canServe.
	addressed chan struct{}

	pool, kernel, observe, report *loop.Loop

	work     sync.WaitGroup // actions on their way
	mu       sync.Mutex
	decision ipam.Decision
	subnets  []ipam.Subnet
	sight    sight
	enis     map[string]hostENI
	why      string                    // of the next look at EC2
	drift    map[string]*drift.Tracker // by place
	serving  bool
}

// Run starts the agent and runs it until ctx ends, then stops in order: no new
// calls, the calls under way given up (their plugins ask our successor), the
// journal closed last. What is under way at EC2 is in the journal.
//
// The conflist is taken away when Deps.Removed says the stop is meant to last.
// Otherwise it stays: the plugin of a node whose agent is being replaced waits for
// the next one, while without a conflist the runtime would report the node's
// network as not ready and fail every ADD of a roll.
func Run(ctx context.Context, cfg config.Config, deps Deps) (err error) {
	if err := refusal(probe(ctx, cfg)); err != nil {
		return err
	}
	a := &Agent{cfg: cfg, deps: deps, log: deps.Log, began: time.Now(), enis: map[string]hostENI{}, drift: map[string]*drift.Tracker{}}
	if err := a.open(ctx); err != nil {
		return errors.Join(err, a.close())
	}
	stopping := ctx
	// The conflist goes before the journal's lock: a successor, if there is one after
	// all, writes it again.
	defer func() { err = errors.Join(err, a.leave(stopping), a.close()) }()

	group, ctx := errgroup.WithContext(ctx)
	defer a.work.Wait()
	group.Go(func() error { return a.cluster.Run(ctx) })
	group.Go(func() error { return a.introspect(ctx) })
	group.Go(func() error { return a.live(ctx) })
	err = group.Wait()
	if stopping.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, errStopped)) {
		return nil // as we were told
	}
	return err
}

// open does what needs nobody's answer: metrics, kernel sockets, the journal.
func (a *Agent) open(ctx context.Context) error {
	var err error
	a.addressed = make(chan struct{})
	a.pool = loop.New(a.planOnce)
	a.kernel = loop.New(a.reconcileKernel)
	a.observe = loop.New(a.observeEC2)
	a.report = loop.New(a.reportOnce)
	a.cluster, a.events = a.deps.Cluster(func() { a.pool.Mark() })
	a.metrics = newMetrics(a.deps.Registry, a)
	if a.host, err = link.Open(nil, a.log); err != nil {
		return fmt.Errorf("open the node's links: %w", err)
	}
	if a.filter, err = nft.Open(nil, a.log); err != nil {
		return fmt.Errorf("open the node's nftables: %w", err)
	}
	a.state, err = state.Open(ctx, state.Options{
		Dir: filepath.Join(a.cfg.StateDir, "journal"), BootID: bootID(), Settings: poolConfig(a.cfg).Settings(),
		LinkPrefix: a.cfg.VethPrefix, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.cni = cni.New(cni.Config{
		NodeName: a.cfg.NodeName, StateDir: a.cfg.StateDir, LinkPrefix: a.cfg.VethPrefix, MTU: cmp.Or(a.cfg.PodMTU, a.cfg.MTU), PodMetadata: a.cfg.PodMetadata,
	}, cni.Deps{
		Log: a.log, State: a.state, Backend: eni{a}, Links: a.host, Filter: a.filter, Pods: a.cluster, Events: a.events,
		Components: a.deps.Components, Registry: a.deps.Registry, CompareKernel: a.kernel.MarkFull,
		RestoreFilter: func(ctx context.Context) error { _, err := a.applyFilter(ctx); return err },
		Route:         a.routed,
	})
	if err := atomicfile.RemoveLeftovers(conflistPath(a.cfg)); err != nil { // the journal's lock is held: no other agent writes there
		a.log.Warn("half a conflist of an earlier agent is left", "error", err)
	}
	a.metadata = imds.New(a.deps.AWS, imds.Options{})
	a.ec2, err = ec2.NewExecutor(ec2.Options{
		Clients: ec2.NewClients(a.deps.AWS), Log: a.log, Registry: a.deps.Registry,
	})
	return err
}

func (a *Agent) close() (err error) {
	if a.host != nil {
		err = errors.Join(err, a.host.Close())
	}
	if a.filter != nil {
		err = errors.Join(err, a.filter.Close())
	}
	if a.state != nil {
		err = errors.Join(err, a.state.Close())
	}
	return err
}

// leave takes the conflist away after a stop that is meant to last.
func (a *Agent) leave(ctx context.Context) error {
	if ctx.Err() == nil || a.deps.Removed == nil {
		return nil // we failed, and will be started again; or nobody can tell
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if !a.deps.Removed(ctx) {
		return nil
	}
	a.log.Info("taking the conflist away: this stop is meant to last")
	return Uninstall(a.cfg)
}

// live is the life of the agent once its parts are open: facts, then the kernel,
// then what an earlier process left, then the loops, then calls.
func (a *Agent) live(ctx context.Context) error {
	if err := a.learn(ctx); err != nil {
		return err
	}
	if err := a.settle(ctx); err != nil {
		return err
	}
	a.metrics.started.WithLabelValues("settled").Observe(time.Since(a.began).Seconds())
	group, ctx := errgroup.WithContext(ctx)
	a.recoverEC2(ctx)
	for name, l := range a.loops() {
		l.Report = func(err error, pause time.Duration) {
			a.log.Warn("pass failed, will be tried again", "loop", name, "error", err, "pause", pause)
			a.metrics.loopErrors.WithLabelValues(name).Inc()
		}
		group.Go(func() error { return l.Run(ctx) })
	}
	group.Go(func() error { return a.watched(ctx, "links", a.host.Watch) })
	group.Go(func() error { return a.watched(ctx, "nftables", a.filter.Watch) })
	group.Go(func() error { return a.cni.Run(ctx) })
	group.Go(func() error { return a.serve(ctx) })
	return group.Wait()
}

// soon is the longest pause after what failed on the node itself: what differs there
// is repaired within seconds, also when it could not be for a while.
const soon = 5 * time.Second

// loops are the agent's by name, each at its pace.
func (a *Agent) loops() map[string]*loop.Loop {
	a.pool.MinInterval, a.pool.Every, a.pool.MaxBackoff = 20*time.Millisecond, 30*time.Second, soon
	a.kernel.MinInterval, a.kernel.Every, a.kernel.MaxBackoff = 100*time.Millisecond, 45*time.Second, soon
	a.observe.MinInterval, a.observe.Every = 2*time.Second, lookInterval(a.cfg.NodeName)
	a.report.MinInterval, a.report.Every = 3*time.Second, 30*time.Second
	conflist := loop.New(a.keepConflist)
	conflist.Every, conflist.MaxBackoff = soon, soon
	return map[string]*loop.Loop{"pool": a.pool, "kernel": a.kernel, "EC2": a.observe, "report": a.report, "conflist": conflist}
}

// watched runs a kernel watch for as long as ctx lives: one that breaks is
// started again, and everything is compared, for something may have been missed.
func (a *Agent) watched(ctx context.Context, what string, watch func(context.Context, func(string)) error) error {
	again := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		a.kernel.MarkFull()
		err := watch(ctx, func(why string) {
			a.log.Debug("kernel changed", "watch", what, "why", why)
			a.kernel.Mark()
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the watch ended")
		}
		return time.Time{}, err
	})
	again.MaxBackoff = soon
	again.Report = func(err error, pause time.Duration) {
		a.log.Warn("kernel watch broke, will be started again", "watch", what, "error", err, "pause", pause)
	}
	return again.Run(ctx)
}

// serve answers calls once the first address is there, and writes the conflist
// last: it is what tells the runtime that pods can be wired.
func (a *Agent) serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil // before there was one: an ordered stop
	case <-a.addressed:
	}
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
	if err := a.writeConflist(); err != nil {
		return errors.Join(err, group.Wait())
	}
	a.mu.Lock()
	a.serving = true
	a.mu.Unlock()
	a.report.MarkFull()
	a.metrics.started.WithLabelValues("serving").Observe(time.Since(a.began).Seconds())
	a.log.Info("serving", "socket", a.cfg.Socket, "node", a.cfg.NodeName, "instance", a.facts.identity.Instance)
	return group.Wait()
}

// bootID names this boot.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // then a reboot goes unnoticed here; links tell it all the same
	}
	return strings.TrimSpace(string(raw))
}

// retry calls f until it is done or ctx ends, and returns its last error.
func retry(ctx context.Context, pause time.Duration, f func() (again bool, err error)) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		again, err := f()
		if !again {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
