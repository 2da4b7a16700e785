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
	"time"
)

// Queue is a queue of waiting callers. The zero value is ready.
type Queue struct {
	trying  sync.Mutex // held during a try and until its caller has left; before mu
	mu      sync.Mutex
	waiting []*waiter
}

type waiter struct {
	wake  chan struct{} // holds one; sent to when it is worth trying
	since time.Time
}

// Wait calls try at once if no caller waits, and otherwise when all earlier callers
// have returned; then again after every Wake until it reports done or an error. It
// returns try's error, or the cause of the end of ctx. try is never called by two callers
// at once, must not block, and must not call Len or Oldest.
func (q *Queue) Wait(ctx context.Context, try func() (done bool, err error)) error {
	w := &waiter{wake: make(chan struct{}, 1), since: time.Now()}
	q.join(w)
	defer q.leave(w)
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := q.try(w, try); done || err != nil {
			return err
		}
	}
}

// try calls f. If that ends the wait, the caller has left before Len and Oldest return:
// otherwise it would still count as waiting for what it has already taken.
func (q *Queue) try(w *waiter, f func() (bool, error)) (done bool, err error) {
	q.trying.Lock()
	defer q.trying.Unlock()
	if done, err = f(); done || err != nil {
		q.leave(w)
	}
	return done, err
}

// Wake makes the first waiting caller try again. It never blocks.
func (q *Queue) Wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeFirst()
}

// Len is the number of waiting callers. It waits for the end of a try: a caller that was
// served does not count.
func (q *Queue) Len() int {
	q.trying.Lock()
	defer q.trying.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Oldest is the time since which the first caller waits; zero if none does. It waits for
// the end of a try, as Len.
func (q *Queue) Oldest() time.Time {
	q.trying.Lock()
	defer q.trying.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return time.Time{}
	}
	return q.waiting[0].since
}

func (q *Queue) wakeFirst() {
	if len(q.waiting) == 0 {
		return
	}
	select {
	case q.waiting[0].wake <- struct{}{}:
	default: // already woken
	}
}

func (q *Queue) join(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, w)
	if len(q.waiting) == 1 {
		q.wakeFirst()
	}
}

// leave wakes the next caller: the supply may suffice for two, and a caller that
// gave up may have consumed a wake.
func (q *Queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return // it was served
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.wakeFirst()
}
