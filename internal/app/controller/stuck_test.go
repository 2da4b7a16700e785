package controller

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/faults"
)

// long is given to what never ends: longer than the rest of a pass takes on a busy
// machine.
const long = 2 * time.Second

func TestACallThatHangsEndsThePassAndTheNextOneCollects(t *testing.T) {
	for _, action := range []string{"DescribeNetworkInterfaces", "DescribeInstances"} {
		t.Run(action, func(t *testing.T) {
			r := newRealRig(t, shippedPolicy(t))
			leaked := r.make(1, dead, nil)
			r.passes(1)
			r.c.lookWithin = long
			r.set(faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Hang, Count: -1}}})
			if _, err := r.pass(); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("pass: %v, want that it took too long", err)
			}
			r.c.lookWithin = lookWithin
			r.set(faults.Plan{})
			r.passes(1)
			if left := r.left(leaked); len(left) != 0 {
				t.Errorf("%v is left: what was seen before the hang is forgotten", left)
			}
		})
	}
}

func TestADeletionThatEC2NeverFinishesDoesNotStopTheCollector(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	leaked := r.make(2, dead, nil)
	r.passes(1)
	r.c.deleteWithin = long
	r.set(faults.Plan{Calls: []faults.Call{{Action: "DeleteNetworkInterface", Do: faults.Fail, Code: "InternalError", Status: 500, Count: -1}}})
	if _, err := r.pass(); err == nil {
		t.Fatal("a pass that deleted nothing says nothing")
	}
	if n := r.count(failedMetric); n != 2 {
		t.Errorf("%v failures counted, want both", n)
	}
	r.c.deleteWithin = deleteWithin
	r.set(faults.Plan{})
	r.passes(1)
	if left := r.left(leaked); len(left) != 0 {
		t.Errorf("%v are left once EC2 answers again", left)
	}
}

// slow is an EC2 whose read ends a while after it was told to.
type slow struct {
	EC2
	began    chan struct{}
	finished atomic.Bool
	held     func() bool // whether the lease is ours
	lost     atomic.Bool
}

func (s *slow) Interfaces(ctx context.Context, _ string) ([]leak.Interface, error) {
	close(s.began)
	<-ctx.Done()
	<-time.After(200 * time.Millisecond)
	s.lost.Store(!s.held())
	s.finished.Store(true)
	return nil, ctx.Err()
}

func (s *slow) Instances(context.Context, []vpc.InstanceID) (leak.Instances, error) { return nil, nil }

func TestALeaderEndsItsWorkBeforeItGivesTheLeaseBack(t *testing.T) {
	r := newRig(t)
	s := &slow{began: make(chan struct{}), held: func() bool {
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
	<-s.began
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if !s.finished.Load() {
		t.Error("Run returned while the leader was still at work")
	}
	if s.lost.Load() {
		t.Error("the lease was given back while the leader was still at work")
	}
	if s.held() {
		t.Error("the lease was not given back: another replica has to wait for it")
	}
}
