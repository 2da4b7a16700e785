package reconcile

import (
	"context"
	"maps"
	"sync"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// claims says who works on which row: the reconciler or direct work, one at a time.
type claims[T any] struct {
	mu     sync.Mutex
	held   map[table.Key]*claim[T]
	during map[table.Key]T // rows of direct work since watch; nil when not watching
}

type claim[T any] struct {
	row    T
	direct bool
	ended  chan struct{} // closed when it is released
}

// direct claims a row for direct work when it is free.
func (c *claims[T]) direct(ctx context.Context, key table.Key, row T) error {
	for {
		before := c.take(key, &claim[T]{row: row, direct: true, ended: make(chan struct{})})
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

// try claims a row for the reconciler if it is free.
func (c *claims[T]) try(key table.Key, row T) bool {
	return c.take(key, &claim[T]{row: row, ended: make(chan struct{})}) == nil
}

// take puts a claim on a row and returns nil, or returns the claim that is there.
func (c *claims[T]) take(key table.Key, mine *claim[T]) (before *claim[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.held[key]; before != nil {
		return before
	}
	if c.held == nil {
		c.held = map[table.Key]*claim[T]{}
	}
	c.held[key] = mine
	if mine.direct && c.during != nil {
		c.during[key] = mine.row
	}
	return nil
}

func (c *claims[T]) release(key table.Key) {
	c.mu.Lock()
	mine := c.held[key]
	delete(c.held, key)
	c.mu.Unlock()
	close(mine.ended)
}

// busy reports whether direct work on a row is in flight.
func (c *claims[T]) busy(key table.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[key]
	return h != nil && h.direct
}

// watch begins to note the rows of direct work, those under way included.
func (c *claims[T]) watch() {
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
func (c *claims[T]) watched() map[table.Key]T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.during)
}

func (c *claims[T]) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.during = nil
}
