// Package priority makes work that tolerates delay wait for work that does not.
//
// It knows no technology and starts no goroutine. In the agent, DELs, GC and the deletion
// of links yield to ADDs: a user waits for a pod to start, not for its network to be
// removed.
package priority

import (
	"context"
	"sync"
	"time"
)

// Gate counts urgent work in flight. The zero value is ready.
type Gate struct {
	mu     sync.Mutex
	active int
	idle   chan struct{} // closed when the last urgent work ends; nil while there is none
	ended  time.Time     // when the last urgent work ended
}

// Enter begins urgent work; the returned function ends it and may be called more than
// once.
func (g *Gate) Enter() (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active++; g.active == 1 {
		g.idle = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.active--; g.active == 0 {
			g.ended = time.Now()
			close(g.idle)
			g.idle = nil
		}
	})
}

// Active is how much urgent work is in flight.
func (g *Gate) Active() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active
}

// Yield returns when no urgent work was in flight for quiet, when atMost has passed,
// or when ctx ends. Urgent work comes in bursts, so a pause shorter than quiet does
// not count.
func (g *Gate) Yield(ctx context.Context, quiet, atMost time.Duration) {
	enough := time.NewTimer(atMost)
	defer enough.Stop()
	for {
		idle, left := g.untilQuiet(quiet)
		if idle == nil && left <= 0 {
			return
		}
		var pause <-chan time.Time
		if idle == nil {
			pause = time.After(left)
		}
		select {
		case <-idle:
		case <-pause:
		case <-enough.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// untilQuiet returns a channel that closes when urgent work ends, or, when there is
// none, the time left until there has been none for quiet.
func (g *Gate) untilQuiet(quiet time.Duration) (idle <-chan struct{}, left time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil {
		return g.idle, 0
	}
	return nil, quiet - time.Since(g.ended)
}
