package controller

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/faults"
)

// shortTimeout replaces a timeout that a test waits for. The rest of a pass takes less,
// also on a busy machine.
const shortTimeout = 2 * time.Second

func TestACallThatHangsFailsItsPassAndTheNextPassCollects(t *testing.T) {
	for _, action := range []string{"DescribeNetworkInterfaces", "DescribeInstances"} {
		t.Run(action, func(t *testing.T) {
			r := newRealRig(t, shippedPolicy(t))
			leaked := r.make(1, dead, nil)
			r.passes(1)
			r.c.readTimeout = shortTimeout
			r.set(faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Hang, Count: -1}}})
			if _, err := r.pass(); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("pass: %v, want a timeout", err)
			}
			r.c.readTimeout = readTimeout
			r.set(faults.Plan{})
			r.passes(1)
			if left := r.left(leaked); len(left) != 0 {
				t.Errorf("%v is left: the observation from before the hang was lost", left)
			}
		})
	}
}

func TestADeletionThatKeepsFailingDoesNotStopTheCollector(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	leaked := r.make(2, dead, nil)
	r.passes(1)
	r.c.deleteTimeout = shortTimeout
	r.set(faults.Plan{Calls: []faults.Call{{Action: "DeleteNetworkInterface", Do: faults.Fail, Code: "InternalError", Status: 500, Count: -1}}})
	if _, err := r.pass(); err == nil {
		t.Fatal("a pass with failed deletions returned no error")
	}
	if n := r.count(failedMetric); n != 2 {
		t.Errorf("%v failures counted, want both", n)
	}
	r.c.deleteTimeout = deleteTimeout
	r.set(faults.Plan{})
	r.passes(1)
	if left := r.left(leaked); len(left) != 0 {
		t.Errorf("%v are left after EC2 recovered", left)
	}
}

// slow is an EC2 that returns from a read some time after its context ended.
type slow struct {
	EC2
	started  chan struct{}
	finished atomic.Bool
	held     func() bool // whether the replica holds the lease
	lost     atomic.Bool
}

func (s *slow) Interfaces(ctx context.Context, _ string) ([]leak.Interface, error) {
	close(s.started)
	<-ctx.Done()
	<-time.After(200 * time.Millisecond)
	s.lost.Store(!s.held())
	s.finished.Store(true)
	return nil, ctx.Err()
}

func (s *slow) Instances(context.Context, []vpc.InstanceID) (leak.Instances, error) { return nil, nil }

func TestALeaderEndsItsWorkBeforeItReleasesTheLease(t *testing.T) {
	r := newRig(t)
	s := &slow{started: make(chan struct{}), held: func() bool {
		var lease struct {
			Spec struct{ HolderIdentity string }
		}
		return r.Get("/apis/coordination.k8s.io/v1/leases", "kube-system/"+LeaseName, &lease) && lease.Spec.HolderIdentity == r.opts.PodName
	}}
	r.opts.EC2, r.opts.Registry = s, prometheus.NewRegistry()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.opts.Listen = l.Addr().String()
	l.Close()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, r.opts) }()
	<-s.started
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if !s.finished.Load() {
		t.Error("Run returned before the leader's work ended")
	}
	if s.lost.Load() {
		t.Error("the lease was released before the leader's work ended")
	}
	if s.held() {
		t.Error("the lease was not released: another replica must wait until it expires")
	}
}

// The pod is then restarted by the kubelet and takes part in the election again.
func TestALeaderThatLosesItsLeaseEndsWithAnError(t *testing.T) {
	t.Parallel() // a lease is lost after renewTime
	r := newRig(t)
	s := &slow{started: make(chan struct{}), held: func() bool { return false }}
	r.opts.EC2, r.opts.Registry, r.opts.Listen = s, prometheus.NewRegistry(), "127.0.0.1:0"
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, r.opts) }()
	<-s.started
	r.SetDown(true)
	err := <-done
	if err == nil || !strings.Contains(err.Error(), "lost the lease") || ctx.Err() != nil {
		t.Errorf("Run: %v, want that it lost the lease, within a minute", err)
	}
	if !s.finished.Load() {
		t.Error("Run returned before the leader's work ended")
	}
}
