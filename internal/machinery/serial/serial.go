// Package serial runs work on the same key one after another, in the order it
// came, and allows some of it to cancel the rest.
//
// It knows no technology and owns no goroutine. The agent serialises CNI calls
// by container and interface with it.
package serial

import (
	"context"
	"errors"
	"sync"
)

// ErrPreempted is the cause with which Preempt cancels work.
var ErrPreempted = errors.New("preempted by a later call")

// Keys is a set of queues, one per key. The zero value is ready.
type Keys[K comparable] struct {
	mu     sync.Mutex
	queues map[K]*queue
}

// queue is the calls of one key: one runs, the others wait.
type queue struct {
	turns []*turn // the first one runs
}

type turn struct {
	ready  chan struct{} // closed when it is first
	cancel context.CancelCauseFunc
	firm   bool // Preempt does not cancel it
}

// Do runs fn when everything that came before it under key has returned, with a
// context that ends with ctx, or with ErrPreempted as the cause. When the
// context ends while waiting, fn does not run and the cause is returned.
func (k *Keys[K]) Do(ctx context.Context, key K, fn func(context.Context) error) error {
	return k.run(ctx, key, false, fn)
}

// Preempt cancels what Do runs or has waiting under key, and then takes its turn.
// Another Preempt does not cancel it.
func (k *Keys[K]) Preempt(ctx context.Context, key K, fn func(context.Context) error) error {
	return k.run(ctx, key, true, fn)
}

// Busy returns how many calls run or wait under key.
func (k *Keys[K]) Busy(key K) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.queues[key]; q != nil {
		return len(q.turns)
	}
	return 0
}

func (k *Keys[K]) run(ctx context.Context, key K, firm bool, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &turn{ready: make(chan struct{}), cancel: cancel, firm: firm}
	k.join(key, t)
	defer k.leave(key, t)
	select {
	case <-t.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // ready and cancelled at once: fn has not begun, so it is not called
		return context.Cause(ctx)
	}
	return fn(ctx)
}

func (k *Keys[K]) join(key K, t *turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queues == nil {
		k.queues = map[K]*queue{}
	}
	q := k.queues[key]
	if q == nil {
		q = &queue{}
		k.queues[key] = q
	}
	if t.firm {
		for _, other := range q.turns {
			if !other.firm {
				other.cancel(ErrPreempted)
			}
		}
	}
	q.turns = append(q.turns, t)
	if len(q.turns) == 1 {
		close(t.ready)
	}
}

func (k *Keys[K]) leave(key K, t *turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.queues[key]
	for i, other := range q.turns {
		if other != t {
			continue
		}
		q.turns = append(q.turns[:i], q.turns[i+1:]...)
		if i == 0 && len(q.turns) > 0 {
			close(q.turns[0].ready)
		}
		break
	}
	if len(q.turns) == 0 {
		delete(k.queues, key)
	}
}
