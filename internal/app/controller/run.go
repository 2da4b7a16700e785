package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/trunkline/trunkline/internal/control/groupstatus"
	"github.com/trunkline/trunkline/internal/control/latematch"
	branches "github.com/trunkline/trunkline/internal/control/trunk"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/health"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Options of Run.
type Options struct {
	Client *kube.Client
	EC2    EC2
	// PodName and Namespace are those of the controller's own pod; the name is its
	// identity in the leader election.
	PodName   string
	Namespace string
	Cluster   string // name of the cluster, as in tags
	Policy    leak.Policy
	DryRun    bool          // log deletions instead of making them
	Every     time.Duration // between two passes of the collector
	Listen    string        // address of /healthz, /readyz and /metrics
	Registry  *prometheus.Registry
	Log       *slog.Logger
	// Branches is the controller of trunks and branches; nil where Trunkline does not own them.
	Branches *BranchOptions
	// Groups reads the security groups that nodes enforce; nil where they enforce none.
	Groups ec2.GroupAPI
	// GroupStatus: nodes enforce the groups of all pods, and the status of policies says so.
	GroupStatus bool
	// EvictLate: pods that came to match a policy after they were wired without a branch are evicted.
	EvictLate bool
}

// BranchOptions are those of the controller of trunks and branches.
type BranchOptions struct {
	EC2        ec2.Trunks
	Config     trunk.Config
	Limits     map[string]int // branches by instance type or family
	GroupLimit int            // groups of an interface
	// Choose: each node has a mode of its own.
	Choose bool
}

// RequestRate is how many requests a second the controller may make of each API group: it writes
// the records, annotations and capacities of all nodes. The API server's own priorities limit it
// further.
const RequestRate = 400

// LeaseName is the name of the leader election's Lease.
const LeaseName = "trunkline-controller"

// Durations of the election: a leader that dies is replaced within leaseTime.
const (
	leaseTime = 15 * time.Second
	renewTime = 10 * time.Second
	retryTime = 2 * time.Second
)

// syncInterval is the interval between two runs of syncObjects.
const syncInterval = 30 * time.Second

// Run serves health and metrics, takes part in the leader election, and does the
// leader's work while it holds the lease. It returns nil when ctx ends, and an error
// when it loses the lease or cannot listen; the process must then be restarted.
func Run(ctx context.Context, o Options) error {
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for health and metrics: %w", err)
	}
	var ready atomic.Bool
	notReady := func() string {
		if ready.Load() {
			return ""
		}
		return "no leader elected yet"
	}
	forEvents, err := o.Client.ForEvents()
	if err != nil {
		return err
	}
	events := kube.NewEvents(forEvents, "")
	c, err := newCollector(o, events)
	if err != nil {
		return err
	}
	leads := make(chan context.Context, 1) // receives one context, which ends with the lease
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: LeaseName},
			Client:     o.Client.Core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.PodName},
		},
		LeaseDuration: leaseTime, RenewDeadline: renewTime, RetryPeriod: retryTime, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) { leads <- lease },
			OnStoppedLeading: func() { o.Log.Info("not the leader", "identity", o.PodName) },
			OnNewLeader: func(identity string) {
				ready.Store(true) // the API server answers, and the cluster has a leader
				o.Log.Info("leader elected", "leader", identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	// The election outlives ctx: the lease is released only after the leader's work ended.
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return health.Serve(ctx, listener, o.Registry, notReady) })
	g.Go(func() error { events.Run(ctx); return nil })
	g.Go(func() error {
		elector.Run(electing)
		if ctx.Err() == nil {
			return errors.New("lost the lease: another replica may lead now")
		}
		return nil
	})
	g.Go(func() error {
		defer release()
		select {
		case <-ctx.Done():
		case lease := <-leads:
			work, stop := context.WithCancel(lease)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			return lead(work, o, c, events)
		}
		return nil
	})
	return g.Wait()
}

// checkVersion logs that the API server is too old for the manifests. What they need of it is
// missing without an error anywhere else.
func checkVersion(ctx context.Context, o Options) {
	version, err := kube.ServerVersion(ctx, o.Client)
	if err != nil {
		o.Log.Warn("it is not known whether the API server is new enough", "need", kube.OldestKubernetes, "err", err)
	}
	if why := kube.TooOld(version); why != "" {
		o.Log.Error("the API server " + why)
	}
}

// lead does the leader's work until ctx ends.
func lead(ctx context.Context, o Options, c *collector, events *kube.Events) error {
	own, err := ownBranches(o, events)
	if err != nil {
		return err
	}
	o.Log.Info("leading", "identity", o.PodName, "dryRun", o.DryRun)
	checkVersion(ctx, o)
	var g errgroup.Group
	g.Go(func() error {
		wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
			if _, err := c.pass(ctx, time.Now()); err != nil {
				o.Log.Warn("collector pass failed, retrying", "err", err)
			}
		}, o.Every)
		return nil
	})
	g.Go(func() error {
		wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, syncInterval)
			defer cancel()
			if err := syncObjects(ctx, o); err != nil {
				o.Log.Warn("CNINodes and reports not synced with nodes, retrying", "err", err)
			}
		}, syncInterval)
		return nil
	})
	bind := newBinder(o)
	g.Go(func() error {
		wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			if err := bind.pass(ctx, time.Now()); err != nil {
				o.Log.Warn("primary interfaces not tagged with their instances, retrying", "err", err)
			}
		}, syncInterval)
		return nil
	})
	if own != nil {
		g.Go(func() error { own.Run(ctx); return nil })
	}
	if o.Groups != nil {
		g.Go(func() error { feedGroups(ctx, o); return nil })
	}
	if o.GroupStatus {
		g.Go(func() error { groupstatus.New(o.Client, o.Log).Run(ctx); return nil })
	}
	if o.EvictLate {
		evictor := latematch.New(latematch.Options{Client: o.Client, Events: events, Excluded: excluded(o), DryRun: o.DryRun, Log: o.Log})
		g.Go(func() error { evictor.Run(ctx); return nil })
	}
	return g.Wait() // all return nil
}

// excluded are the namespaces in which no pod is required to have a branch.
func excluded(o Options) []string { return []string{metav1.NamespaceSystem, o.Namespace} }

// ownBranches is the controller of trunks and branches; nil where Trunkline does not own them.
func ownBranches(o Options, events *kube.Events) (*branches.Controller, error) {
	b := o.Branches
	if b == nil {
		return nil, nil
	}
	config := b.Config
	config.DryRun = o.DryRun
	return branches.New(branches.Options{
		Client: o.Client, EC2: b.EC2, Events: events, Config: config, BranchLimits: b.Limits, GroupLimit: b.GroupLimit, Log: o.Log,
		NodesEnforce: o.Groups != nil, Choose: b.Choose,
		Excluded: excluded(o), Registry: o.Registry,
	})
}
