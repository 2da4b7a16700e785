package link

import (
	"context"
	"sync"
	"time"
)

// adds counts the ADDs on their way, so that what can wait lets them go first: a pod
// that starts is waited for, one that ends is not.
type adds struct {
	mu    sync.Mutex
	now   int
	begun uint64        // ever
	none  chan struct{} // closed when the last one has ended; nil while there is none
	ended time.Time     // when there was one last
}

// Adding tells that an ADD is on its way: the reaper then lets it go first, or deletes
// in small groups, and LetADDsFirst waits. Wire does it for itself; the agent does it
// once an ADD has its address, until it is done. The returned function ends it.
func (h *Host) Adding() (done func()) {
	a := &h.adds
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun++
	if a.now++; a.now == 1 {
		a.none = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.now--; a.now == 0 {
			a.ended = time.Now()
			close(a.none)
			a.none = nil
		}
	})
}

// count returns how many ADDs are on their way, and how many ever began.
func (a *adds) count() (now int, begun uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now, a.begun
}

// LetADDsFirst returns when no ADD has been on its way for a while, when atMost is
// over, or when ctx ends. An ADD seldom comes alone.
func (h *Host) LetADDsFirst(ctx context.Context, quiet, atMost time.Duration) {
	enough := time.NewTimer(atMost)
	defer enough.Stop()
	for {
		none, left := h.adds.untilQuiet(quiet)
		if none == nil && left <= 0 {
			return
		}
		var lull <-chan time.Time
		if none == nil {
			lull = time.After(left)
		}
		select {
		case <-none:
		case <-lull:
		case <-enough.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// untilQuiet returns what closes when no ADD is on its way, or, when none is, how long
// it is until there was none for as long as quiet.
func (a *adds) untilQuiet(quiet time.Duration) (none <-chan struct{}, left time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.none != nil {
		return a.none, 0
	}
	return nil, quiet - time.Since(a.ended)
}
