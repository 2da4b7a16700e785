package reconcile

import (
	"context"
	"maps"
	"sync"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// locks are the rows in work: each by the reconciler or by direct work.
type locks[T any] struct {
	mu     sync.Mutex
	held   map[table.Key]*lock[T]
	during map[table.Key]T // rows of direct work since watch; nil when not watching
}

type lock[T any] struct {
	row    T
	direct bool
	ended  chan struct{} // closed when it is released
}

// direct locks a row for direct work when it is free.
func (c *locks[T]) direct(ctx context.Context, key table.Key, row T) error {
	for {
		before := c.take(key, &lock[T]{row: row, direct: true, ended: make(chan struct{})})
		if before == nil {
			return nil
		}
		select {
		case <-before.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// try locks a row for the reconciler if it is free.
func (c *locks[T]) try(key table.Key, row T) bool {
	return c.take(key, &lock[T]{row: row, ended: make(chan struct{})}) == nil
}

// take puts a lock on a row and returns nil, or returns the lock that is there.
func (c *locks[T]) take(key table.Key, mine *lock[T]) (before *lock[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.held[key]; before != nil {
		return before
	}
	if c.held == nil {
		c.held = map[table.Key]*lock[T]{}
	}
	c.held[key] = mine
	if mine.direct && c.during != nil {
		c.during[key] = mine.row
	}
	return nil
}

func (c *locks[T]) release(key table.Key) {
	c.mu.Lock()
	mine := c.held[key]
	delete(c.held, key)
	c.mu.Unlock()
	close(mine.ended)
}

// busy reports whether direct work on a row is in flight.
func (c *locks[T]) busy(key table.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[key]
	return h != nil && h.direct
}

// watch begins to note the rows of direct work, those under way included.
func (c *locks[T]) watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.during = map[table.Key]T{}
	for key, h := range c.held {
		if h.direct {
			c.during[key] = h.row
		}
	}
}

// watched returns the rows of direct work since watch.
func (c *locks[T]) watched() map[table.Key]T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.during)
}

func (c *locks[T]) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.during = nil
}
