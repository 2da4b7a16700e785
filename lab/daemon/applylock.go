package daemon

import (
	"context"
	"errors"
	"sync"
)

// applyLock serialises applies: one converges at a time, and none after close.
type applyLock struct {
	token chan struct{} // holds one token; its holder may converge

	mu     sync.Mutex // guards the fields below
	closed bool
	cancel context.CancelFunc // ends the running apply
}

func newApplyLock() *applyLock {
	a := &applyLock{token: make(chan struct{}, 1)}
	a.token <- struct{}{}
	return a
}

// acquire waits for the token until ctx ends; release returns it.
func (a *applyLock) acquire(ctx context.Context) (release func(), err error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.token:
		return func() { a.token <- struct{}{} }, nil
	}
}

// begin records how to cancel the apply that holds the token and is about to converge. It
// returns an error after close.
func (a *applyLock) begin(cancel context.CancelFunc) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errors.New("the lab is being stopped")
	}
	a.cancel = cancel
	return nil
}

// close cancels the running apply and waits for it. Later calls return false at once.
func (a *applyLock) close() (first bool) {
	a.mu.Lock()
	first = !a.closed
	a.closed = true
	if a.cancel != nil {
		a.cancel()
	}
	a.mu.Unlock()
	if first {
		<-a.token // never returned: no apply can converge after this
	}
	return first
}

func (a *applyLock) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}
