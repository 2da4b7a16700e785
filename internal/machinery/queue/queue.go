// Package queue makes callers wait, first come first served, for a resource that
// other callers supply.
//
// It knows no technology and owns no goroutine. The agent's ADDs wait for an
// address in one.
package queue

import (
	"context"
	"slices"
	"sync"
)

// Queue is a queue of callers. The zero value is ready.
type Queue struct {
	mu      sync.Mutex
	callers []*caller
	// exhausted is closed once a try was not done. The first caller of an empty queue makes
	// another one: while it is open, no caller is known to wait.
	exhausted chan struct{}
}

type caller struct {
	wake      chan struct{} // holds one; sent to when it is worth trying
	exhausted <-chan struct{}
}

// Wait calls try at once if no caller waits, and otherwise when all earlier callers
// have returned; then again after every Wake until it reports done or an error. It
// returns try's error, or the cause of the end of ctx. try is never called by two callers
// at once and must not block.
//
// Once it is known that the caller has to wait, Wait calls waits, once: after a try that was
// not done, its own or that of an earlier caller, whether or not the caller has tried itself.
// So it does not call waits if the first try of each caller is done.
func (q *Queue) Wait(ctx context.Context, try func() (done bool, err error), waits func()) error {
	c := q.join()
	defer q.leave(c)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.exhausted:
			c.exhausted = nil
			waits()
			continue
		case <-c.wake:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := try(); done || err != nil {
			return err
		}
		q.exhaust()
	}
}

// Wake makes the first waiting caller try again. It never blocks.
func (q *Queue) Wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeFirst()
}

func (q *Queue) wakeFirst() {
	if len(q.callers) == 0 {
		return
	}
	select {
	case q.callers[0].wake <- struct{}{}:
	default: // already woken
	}
}

func (q *Queue) join() *caller {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.callers) == 0 {
		q.exhausted = make(chan struct{})
	}
	c := &caller{wake: make(chan struct{}, 1), exhausted: q.exhausted}
	q.callers = append(q.callers, c)
	if len(q.callers) == 1 {
		q.wakeFirst()
	}
	return c
}

// exhaust makes every caller, and those that join until the queue is empty, call waits.
func (q *Queue) exhaust() {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.exhausted:
	default:
		close(q.exhausted)
	}
}

// leave wakes the next caller: the supply may suffice for two, and a caller that
// gave up may have consumed a wake.
func (q *Queue) leave(c *caller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.callers, c)
	q.callers = slices.Delete(q.callers, i, i+1)
	q.wakeFirst()
}
