// Package latematch evicts pods that a SecurityGroupPolicy came to select after they were admitted without a
// request for a branch, so that their next ones have branches: pods that were wired before, and pods that
// their node refuses, because the policy was created a moment before they were.
//
// It decides which pod is evicted next, and which ones stay and why (plan.go): at most one in
// evictEvery, by the Eviction API, which respects PodDisruptionBudgets. It reads no table and writes
// none. It drives edge/kube. The elected leader of app/controller runs it where the setting
// pod-security-group-late-match is evict.
//
// What it remembers is lost with its process: a pod is then evicted settle later, and back-offs begin
// again.
package latematch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Reasons of events on pods.
const (
	EventEvicted    = "SGPLateMatchEvicted"
	EventNotEvicted = "SGPLateMatchNotEvicted"
)

// Times.
const (
	// settle is how long a pod must have been without its groups: the status of a new policy is
	// written meanwhile, and labels that are changed back evict nothing.
	settle = 30 * time.Second
	// evictEvery is the least time between two evictions in the cluster.
	evictEvery = 10 * time.Second
	// every is the time between two passes without a change.
	every = time.Minute
	// retryAfter is the least time between two attempts for pods of one owner, and firstPause to
	// lastPause are those after an eviction that gave the owner another pod without a branch.
	retryAfter = time.Minute
	firstPause = 10 * time.Minute
	lastPause  = 6 * time.Hour
)

// Events creates Kubernetes events of pods; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	PodNormal(ref kube.PodRef, uid, reason, message string)
}

// Options of New.
type Options struct {
	Client *kube.Client
	Events Events
	// Excluded are namespaces of which no pod is evicted: admission requests no branch there.
	Excluded []string
	DryRun   bool // log evictions in the place of making them
	Log      *slog.Logger
}

// Evictor evicts pods.
type Evictor struct {
	o       Options
	objects *kube.SelectionObjects
	loop    *loop.Loop

	since  map[types.UID]time.Time // since when a pod is a candidate
	said   map[types.UID]string    // why it is not evicted, as an event has it
	owners map[types.UID]owner
	last   time.Time // of the last attempt
}

// New returns an evictor. Run starts it.
func New(o Options) *Evictor {
	e := &Evictor{o: o, since: map[types.UID]time.Time{}, said: map[types.UID]string{}, owners: map[types.UID]owner{}}
	e.loop = loop.New(e.pass)
	e.loop.MinInterval, e.loop.Every = time.Second, every
	e.loop.Report = func(err error, pause time.Duration) {
		o.Log.Warn("late matches of SecurityGroupPolicies not evicted, retrying", "in", pause, "err", err)
	}
	e.objects = kube.NewSelectionObjects(o.Client, func(kube.BranchChange) { e.loop.Mark() }, o.Log)
	return e
}

// Run evicts until ctx ends. Nothing is evicted before everything was read.
func (e *Evictor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { e.objects.Run(ctx) })
	if e.objects.Wait(ctx) {
		_ = e.loop.Run(ctx) // returns nil
	}
	wg.Wait()
}

// pass evicts one pod, if one is due, and returns when the next one may be.
func (e *Evictor) pass(ctx context.Context, _ bool) (time.Time, error) {
	now := time.Now()
	due, next := e.plan(now)
	if due == nil {
		return next, nil
	}
	if wait := e.last.Add(evictEvery); now.Before(wait) {
		return wait, nil
	}
	e.last = now
	why, err := e.held(ctx, due)
	if err != nil || why != "" {
		e.leave(due, why)
		return now.Add(every), err
	}
	return now.Add(evictEvery), e.evict(ctx, due, now)
}

// held is why no pod may be evicted now, because its next one would get no branch.
func (e *Evictor) held(ctx context.Context, p *corev1.Pod) (string, error) {
	_, brakes, err := kube.Reports(ctx, e.o.Client)
	if err != nil {
		return "", err
	}
	if freeze, reason := kube.Strictest(brakes, p.Spec.NodeName); !freeze.AllowsAllocate() {
		return "a brake forbids the calls for a branch: " + reason, nil
	}
	nodes, err := kube.Nodes(ctx, e.o.Client)
	if err != nil {
		return "", err
	}
	for i := range nodes {
		if n, has := kube.BranchCapacity(&nodes[i]); has && n > 0 {
			return "", nil
		}
	}
	return "no node can have branches", nil
}

// evict evicts a pod. A refusal, such as that of a PodDisruptionBudget, is an event, and is tried again.
func (e *Evictor) evict(ctx context.Context, p *corev1.Pod, now time.Time) error {
	of := e.owners[ownerOf(p).UID]
	of.next = now.Add(retryAfter)
	e.owners[ownerOf(p).UID] = of
	if e.o.DryRun {
		e.o.Log.Info("would evict a late match", "pod", name(p))
		return nil
	}
	err := kube.Evict(ctx, e.o.Client, kube.PodRef{Namespace: p.Namespace, Name: p.Name}, p.UID)
	switch {
	case err != nil && kube.Refused(err):
		e.leave(p, err.Error())
		return nil
	case err != nil:
		return err
	}
	of.evicted = now
	e.owners[ownerOf(p).UID] = of
	owner := ownerOf(p)
	e.o.Log.Info("late match evicted", "pod", name(p))
	e.o.Events.PodNormal(kube.PodRef{Namespace: p.Namespace, Name: p.Name}, string(p.UID), EventEvicted, fmt.Sprintf(
		"Pod %s is evicted: it %s, and is %s. %s %s creates its next one, which gets a branch.", name(p), without(p, "was wired without a branch"), e.objects.Select(p).Why, owner.Kind, owner.Name))
	return nil
}

// leave reports why a pod is not evicted, once for each reason.
func (e *Evictor) leave(p *corev1.Pod, why string) {
	if why == "" || e.said[p.UID] == why {
		return
	}
	e.said[p.UID] = why
	e.o.Events.PodWarning(kube.PodRef{Namespace: p.Namespace, Name: p.Name}, string(p.UID), EventNotEvicted, fmt.Sprintf(
		"Pod %s %s, although it is %s. It is not evicted: %s.", name(p), without(p, "runs with the groups of its node"), e.objects.Select(p).Why, why))
}

// without is what it means that a pod has no branch; wired: if it is wired.
func without(p *corev1.Pod, wired string) string {
	if kube.Wired(p) {
		return wired
	}
	return "is refused by its node, because it requests no branch"
}

func name(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
