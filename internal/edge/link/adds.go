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
}

// Adding tells that an ADD is on its way: the reaper then lets it go first, or deletes
// in small groups, and LetADDsFirst waits. Wire does it for itself; the agent does it
// from the moment an ADD arrives. The returned function ends it.
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

// LetADDsFirst returns when no ADD is on its way, when atMost is over, or when ctx
// ends.
func (h *Host) LetADDsFirst(ctx context.Context, atMost time.Duration) {
	h.adds.mu.Lock()
	none := h.adds.none
	h.adds.mu.Unlock()
	if none == nil {
		return
	}
	enough := time.NewTimer(atMost)
	defer enough.Stop()
	select {
	case <-none:
	case <-enough.C:
	case <-ctx.Done():
	}
}
