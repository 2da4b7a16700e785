package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Stop is a call that is held until it is released.
type Stop struct {
	ID        int       `json:"id"`
	Action    string    `json:"action"`
	Where     string    `json:"where"` // StopBefore or StopAfter
	RequestID string    `json:"requestId"`
	Principal string    `json:"principal"`
	Since     time.Time `json:"since"`
}

type stop struct {
	Stop
	release chan struct{}
}

// hold holds a call until it is released; it returns false if the client disconnected
// first. A call held before its effect must then not take effect.
func (i *Injector) hold(ctx context.Context, f *Flight, c Call) bool {
	i.mu.Lock()
	i.nextStop++
	s := &stop{Stop{
		ID: i.nextStop, Action: f.action, Where: c.Do,
		RequestID: f.info.RequestID, Principal: f.info.Principal, Since: i.now(),
	}, make(chan struct{})}
	i.stops[s.ID] = s
	i.stopsChanged()
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.stops, s.ID)
		i.stopsChanged()
	}()
	select {
	case <-s.release:
		return true
	case <-ctx.Done():
		return false
	case <-i.closed:
		return false
	}
}

// stopsChanged wakes the goroutines that wait for held calls. The caller holds mu.
func (i *Injector) stopsChanged() {
	close(i.moved)
	i.moved = make(chan struct{})
}

// AwaitStops waits until enough returns true for the held calls, and returns them; if
// ctx ends first it returns the calls held then, and ctx's error.
func (i *Injector) AwaitStops(ctx context.Context, enough func([]Stop) bool) ([]Stop, error) {
	for {
		i.mu.Lock()
		moved := i.moved
		i.mu.Unlock()
		held := i.Stops()
		if enough(held) {
			return held, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return held, fmt.Errorf("await held calls: %w", ctx.Err())
		}
	}
}

// Stops lists the calls held now, oldest first.
func (i *Injector) Stops() []Stop {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := []Stop{}
	for _, s := range i.stops {
		out = append(out, s.Stop)
	}
	slices.SortFunc(out, func(a, b Stop) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Release releases a held call; id 0 releases all.
func (i *Injector) Release(id int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if id != 0 && i.stops[id] == nil {
		return fmt.Errorf("release stop %d: no such call is held", id)
	}
	for _, s := range i.stops {
		if id == 0 || s.ID == id {
			close(s.release)
			delete(i.stops, s.ID)
			i.stopsChanged()
		}
	}
	return nil
}
