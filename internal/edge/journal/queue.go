package journal

import (
	"context"
	"fmt"
	"sync"
)

// commit is the records of one caller that are not yet on the disk.
type commit struct {
	records []Record
	forBoot bool // complete when written; synced later
	pending *Pending
}

// Pending is an append in flight.
type Pending struct {
	done chan struct{}
	err  error
}

// Wait returns once the records are on the disk (of EnqueueForBoot: written), or
// ctx ends. It may be called more than once.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("append to journal: %w", context.Cause(ctx))
	}
}

// Ended reports whether Wait returns at once, and with which error.
func (p *Pending) Ended() (ended bool, err error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

func (p *Pending) end(err error) {
	p.err = err
	close(p.done)
}

// queue is the commits that the writer has not taken yet, in their order.
type queue struct {
	added chan struct{} // capacity 1: signals that commits were added

	mu      sync.Mutex
	waiting []*commit
	closed  bool // commits are no longer accepted
}

func newQueue() *queue { return &queue{added: make(chan struct{}, 1)} }

// add returns ErrClosed after close.
func (q *queue) add(c *commit) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	q.waiting = append(q.waiting, c)
	select {
	case q.added <- struct{}{}:
	default: // a signal is pending
	}
	return nil
}

// take empties the queue.
func (q *queue) take() []*commit {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := q.waiting
	q.waiting = nil
	return group
}

// close empties the queue; it accepts no more commits.
func (q *queue) close() []*commit {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := q.waiting
	q.waiting, q.closed = nil, true
	return group
}
