package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// rows is the store of a reflector. It converts each object at once and keeps none: what is
// in memory is what the functions keep. Of a streamed list, the reflector holds the converted
// rows until the list is whole.
type rows[T any] struct {
	convert func(obj any) (T, error)
	set     func(T)
	remove  func(namespace, name string)
	replace func([]T)
}

func (s rows[T]) row(obj any) (T, error) {
	if row, ok := obj.(T); ok {
		return row, nil
	}
	return s.convert(obj)
}

// Transformer converts the objects of a streamed list.
func (s rows[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.row(obj) }
}

// Add enters an object.
func (s rows[T]) Add(obj any) error {
	row, err := s.row(obj)
	if err != nil {
		return err
	}
	s.set(row)
	return nil
}

// Update enters an object.
func (s rows[T]) Update(obj any) error { return s.Add(obj) }

// Delete removes an object.
func (s rows[T]) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("read deleted %T: %w", obj, err)
	}
	s.remove(m.GetNamespace(), m.GetName())
	return nil
}

// Replace enters a list, and removes what is not in it.
func (s rows[T]) Replace(list []any, _ string) error {
	all := make([]T, 0, len(list))
	for i, obj := range list {
		row, err := s.row(obj)
		if err != nil {
			return err
		}
		all = append(all, row)
		list[i] = nil
	}
	s.replace(all)
	return nil
}

// Resync has nothing to do.
func (s rows[T]) Resync() error { return nil }

// reflector reflects the objects of a resource. Servers that can do so stream the list
// (client-go's WatchListClient), others return it in one answer.
func reflector[T any](name string, kind runtime.Object, lw *cache.ListWatch, s rows[T]) *cache.Reflector {
	return cache.NewReflectorWithOptions(failFast(lw), kind, s, cache.ReflectorOptions{Name: "policy", TypeDescription: name})
}

// failFast hides from the reflector that the connection for a streamed list was refused:
// it would retry without end, and its pauses do not end with the context. A watch that
// continues is left to it, since it does not need another list.
func failFast(lw *cache.ListWatch) *cache.ListWatch {
	open := lw.WatchFuncWithContext
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := open(ctx, o)
		if o.SendInitialEvents != nil && utilnet.IsConnectionRefused(err) {
			return nil, errors.New(err.Error())
		}
		return w, err
	}
	return lw
}

// Pauses between attempts: doubled from the first to the last, with jitter, and back to the
// first after an attempt that lasted. A resource that is not served is tried again after the first
// pause for some time: objects that are created as soon as a definition exists again must not have to
// wait for half a minute.
const (
	firstPause  = 800 * time.Millisecond
	lastPause   = 30 * time.Second
	lasted      = 2 * time.Minute
	unservedFor = 10 * time.Minute
)

// pauses are those of one reflector.
type pauses struct {
	backoff  wait.Backoff
	unserved time.Time // since when the resource is not served; zero while it is
}

func newPauses() pauses { return pauses{backoff: firstBackoff()} }

func firstBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 1, Steps: 6, Cap: lastPause}
}

// after is the pause after an attempt that ended with err.
func (p *pauses) after(began, now time.Time, err error) time.Duration {
	if now.Sub(began) > lasted {
		p.backoff = firstBackoff()
	}
	if !apierrors.IsNotFound(err) {
		p.unserved = time.Time{}
		return p.backoff.Step()
	}
	if p.unserved.IsZero() {
		p.unserved, p.backoff = now, firstBackoff()
	}
	if now.Sub(p.unserved) < unservedFor {
		return wait.Jitter(firstPause, 1)
	}
	return p.backoff.Step()
}

// reflect runs a reflector until ctx ends.
func (p *PolicyObjects) reflect(ctx context.Context, r *cache.Reflector) {
	runReflector(ctx, r, p.opts.Log, nil)
}

// runReflector runs a reflector until ctx ends. failed, which may be nil, is called with each error.
func runReflector(ctx context.Context, r *cache.Reflector, log *slog.Logger, failed func(error)) {
	pauses := newPauses()
	for {
		began := time.Now()
		err := r.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Warn("watch interrupted, retrying", "resource", r.TypeDescription(), "err", err)
			if failed != nil {
				failed(err)
			}
		}
		timer := time.NewTimer(pauses.after(began, time.Now(), err))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (p *PolicyObjects) policyReflector() *cache.Reflector {
	lw := cache.NewListWatchFromClient(p.opts.Client.Core.NetworkingV1().RESTClient(), "networkpolicies", metav1.NamespaceAll, fields.Everything())
	return reflector("networkpolicies", &networkingv1.NetworkPolicy{}, lw, rows[policyRow]{
		convert: policyRowFrom,
		set:     func(row policyRow) { p.update(func() bool { return p.known.watched(row) }, p.policies, p.dirty) },
		remove: func(namespace, name string) {
			row := policyRow{ref: policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: namespace, Name: name}}
			p.update(func() bool { return p.known.setPolicy(row) }, p.policies, p.dirty)
		},
		replace: func(list []policyRow) {
			p.update(func() bool { return p.known.replacePolicies(list) }, p.policies, p.dirty)
		},
	})
}

func (p *PolicyObjects) namespaceReflector() *cache.Reflector {
	namespaces := p.opts.Client.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return namespaces.List(ctx, o)
		},
		WatchFuncWithContext: namespaces.Watch,
	}
	return reflector("namespaces", &metav1.PartialObjectMetadata{}, lw, rows[namespaceRow]{
		convert: namespaceRowFrom,
		set:     func(row namespaceRow) { p.update(func() bool { return p.known.setNamespace(row) }, p.dirty) },
		remove: func(_, name string) {
			p.update(func() bool { return p.known.setNamespace(namespaceRow{name: name, gone: true}) }, p.dirty)
		},
		replace: func(list []namespaceRow) { p.update(func() bool { return p.known.replaceNamespaces(list) }, p.dirty) },
	})
}

// podReflector reflects the pods that are bound to a node and have not ended.
func (p *PolicyObjects) podReflector() *cache.Reflector {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)
	lw := cache.NewListWatchFromClient(p.opts.Client.Core.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, running)
	return reflector("pods", &corev1.Pod{}, lw, rows[*peer]{
		convert: p.convert.row,
		set:     func(row *peer) { p.update(func() bool { return p.known.setPod(row) }, p.moved) },
		remove: func(namespace, name string) {
			p.update(func() bool { return p.known.setPod(&peer{ref: policy.PodRef{Namespace: namespace, Name: name}}) }, p.moved)
		},
		replace: func(list []*peer) { p.update(func() bool { return p.known.replacePods(list) }, p.moved) },
	})
}

// update changes what is known, and signals if anything changed.
func (p *PolicyObjects) update(change func() bool, signals ...chan struct{}) {
	received := time.Now()
	p.mu.Lock()
	changed := change()
	if changed && p.known.pending.Since.IsZero() {
		p.known.pending.Since = received
	}
	p.mu.Unlock()
	if changed {
		p.changed(signals...)
	}
}

// podsLinger is for how long pods are still watched after the last policy was deleted: every
// node lists all pods when a policy comes back.
const podsLinger = time.Minute

// watchPods watches pods while they are needed.
func (p *PolicyObjects) watchPods(ctx context.Context) {
	needed := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.watchesPods()
	}
	for p.await(ctx, needed, 0) {
		podsCtx, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.reflect(podsCtx, p.podReflector())
		}()
		p.await(ctx, func() bool { return !needed() }, podsLinger)
		stop()
		<-done
		if ctx.Err() == nil {
			p.update(p.known.forgetPods, p.moved)
		}
	}
}

// await returns true once a condition on the policies has held for a time, false if ctx ends
// before.
func (p *PolicyObjects) await(ctx context.Context, holds func() bool, lasting time.Duration) bool {
	for {
		var elapsed <-chan time.Time
		if holds() {
			if lasting == 0 {
				return ctx.Err() == nil
			}
			timer := time.NewTimer(lasting)
			defer timer.Stop()
			elapsed = timer.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-elapsed:
			return true
		case <-p.policies:
		}
	}
}
