package trunk

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// listEvery is the least time between two listings of associations.
const listEvery = time.Second

// associations is EC2's listing of the associations of all trunks, which all nodes share: EC2 has no
// filter by trunk, and a listing of 100,000 branches takes minutes. It is made when a node needs one, and
// no pass waits for it.
type associations struct {
	read  func(context.Context) (ec2.Associations, error)
	log   *slog.Logger
	asked chan struct{} // capacity 1: a node waits

	mu      sync.Mutex
	last    ec2.Associations
	waiting map[*loop.Loop]time.Time // marked after a listing that began at that time or later
}

func newAssociations(read func(context.Context) (ec2.Associations, error), log *slog.Logger) *associations {
	return &associations{read: read, log: log, asked: make(chan struct{}, 1), waiting: map[*loop.Loop]time.Time{}}
}

// since returns a listing that began at that time or later. If there is none, one is made, and of is
// marked after it.
func (a *associations) since(t time.Time, of *loop.Loop) (ec2.Associations, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.last.At.IsZero() && !a.last.At.Before(t) {
		delete(a.waiting, of)
		return a.last, true
	}
	a.waiting[of] = t
	select {
	case a.asked <- struct{}{}:
	default:
	}
	return ec2.Associations{}, false
}

// run lists until ctx ends. After a failure the nodes ask again.
func (a *associations) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.asked:
		}
		if !a.needed() {
			continue
		}
		found, err := a.read(ctx)
		if err != nil {
			a.log.Warn("associations of trunks not listed, retrying", "err", err)
		} else {
			a.log.Debug("associations of trunks listed", "count", found.Len())
		}
		for _, of := range a.listed(found, err) {
			of.Mark()
		}
		pause := time.NewTimer(listEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// needed reports whether a node waits: one that asked during a listing may have been content with it.
func (a *associations) needed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting) > 0
}

// listed keeps a listing, and returns what waits for it no longer.
func (a *associations) listed(found ec2.Associations, err error) (ready []*loop.Loop) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.last = found
	}
	for of, t := range a.waiting {
		if err != nil || !found.At.Before(t) {
			delete(a.waiting, of)
			ready = append(ready, of)
		}
	}
	return ready
}
