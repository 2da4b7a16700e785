// Package admission is the daemon that keeps and serves the admission of pods that
// SecurityGroupPolicies select: it constructs control/podadmission with edge/kube and edge/webhook.
//
// Every replica serves the webhook; one of them leads and writes. cmd/trunkline calls Run.
package admission

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/trunkline/trunkline/internal/control/podadmission"
	core "github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/edge/health"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/webhook"
)

// Options of Run.
type Options struct {
	Client *kube.Client
	// PodName and Namespace are those of the daemon's own pod; the name is its identity in the
	// leader election.
	PodName, Namespace string
	Service            string // of the webhook, in Namespace
	Owner              string // ClusterRole that owns the written objects
	Listen             string // address of /healthz, /readyz and /metrics
	Webhook            string // address of the webhook
	Registry           *prometheus.Registry
	Log                *slog.Logger
}

// Name of the election's Lease and of the certificates' Secret.
const (
	LeaseName  = "trunkline-admission"
	SecretName = "trunkline-admission-certificates"
)

// Durations of the election: a leader that dies is replaced within leaseTime. Until then the objects
// that it wrote stay in force.
const (
	leaseTime = 15 * time.Second
	renewTime = 10 * time.Second
	retryTime = 2 * time.Second
)

// controllerAccount is the service account of the controller that writes the annotation.
const controllerAccount = "trunkline-controller"

// secrets is the Secret of the certificates.
type secrets struct{ o Options }

// Read reads it.
func (s secrets) Read(ctx context.Context) (kube.Secret, error) {
	return kube.ReadSecret(ctx, s.o.Client, s.o.Namespace, SecretName)
}

// Write writes it.
func (s secrets) Write(ctx context.Context, data map[string][]byte, has kube.Secret) (string, error) {
	return kube.WriteSecret(ctx, s.o.Client, s.o.Namespace, SecretName, data, has)
}

// Run serves health, metrics and the webhook, and leads if it is elected. It returns nil when ctx
// ends. The webhook's address refuses connections until the replica can answer.
func Run(ctx context.Context, o Options) error {
	probes, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for health and metrics: %w", err)
	}
	var c *podadmission.Controller
	inputs, err := kube.NewAdmissionInputs(o.Client, func() { c.Changed() }, o.Log)
	if err != nil {
		return err
	}
	server := webhook.NewServer(
		func(ctx context.Context, namespace string, pod *corev1.Pod) core.Answer {
			return c.Decide(ctx, namespace, pod)
		},
		func(ctx context.Context, namespace, name string) core.Answer {
			return c.DecideAccount(ctx, namespace, name)
		},
		o.Log)
	c, err = podadmission.New(podadmission.Options{
		Inputs: inputs, Objects: kube.NewAdmissionObjects(o.Client, o.Owner), Secrets: secrets{o}, Use: server.Use,
		Config: core.Config{
			Excluded: []string{metav1.NamespaceSystem, o.Namespace},
			Writers:  append(podeni.AWSWriters(), "system:serviceaccount:"+o.Namespace+":"+controllerAccount),
			Webhook:  core.Webhook{Namespace: o.Namespace, Service: o.Service},
		},
		Registry: o.Registry, Log: o.Log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	elector, err := newElector(o, c)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return health.Serve(ctx, probes, o.Registry, c.NotReady) })
	g.Go(func() error { return inputs.Run(ctx) })
	g.Go(func() error { return c.Follow.Run(ctx) })
	g.Go(func() error {
		wait.UntilWithContext(ctx, elector.Run, retryTime) // a lost lease is no reason to stop serving
		return nil
	})
	g.Go(func() error { return serveReviews(ctx, o, c, server) })
	return g.Wait()
}

// newElector returns an election in which the leader runs the controller's loop.
func newElector(o Options, c *podadmission.Controller) (*leaderelection.LeaderElector, error) {
	var leading sync.Mutex // a lease that was lost may still have its last pass running
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: LeaseName},
			Client:     o.Client.Core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.PodName},
		},
		LeaseDuration: leaseTime, RenewDeadline: renewTime, RetryPeriod: retryTime,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) {
				leading.Lock()
				defer leading.Unlock()
				o.Log.Info("leading", "identity", o.PodName)
				_ = c.Lead.Run(lease) // returns nil
			},
			OnStoppedLeading: func() { o.Log.Info("not the leader", "identity", o.PodName) },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the leader election: %w", err)
	}
	return elector, nil
}

// serveReviews opens the webhook's address once the replica can answer.
func serveReviews(ctx context.Context, o Options, c *podadmission.Controller, s *webhook.Server) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for c.NotReady() != "" {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	l, err := net.Listen("tcp", o.Webhook)
	if err != nil {
		return fmt.Errorf("listen for admission reviews: %w", err)
	}
	o.Log.Info("webhook serves", "address", l.Addr().String())
	return s.Serve(ctx, l)
}
