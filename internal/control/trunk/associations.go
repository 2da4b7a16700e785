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
	waiting map[*loop.Loop]bool // marked after the next listing that begins
}

func newAssociations(read func(context.Context) (ec2.Associations, error), log *slog.Logger) *associations {
	return &associations{read: read, log: log, asked: make(chan struct{}, 1), waiting: map[*loop.Loop]bool{}}
}

// since returns a listing that began at that time or later. If there is none, one is made, and of is
// marked after it.
func (a *associations) since(t time.Time, of *loop.Loop) (ec2.Associations, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.last.At.IsZero() && !a.last.At.Before(t) {
		return a.last, true
	}
	a.waiting[of] = true
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
		a.mu.Lock()
		waiting := a.waiting
		a.waiting = map[*loop.Loop]bool{}
		a.mu.Unlock()
		found, err := a.read(ctx)
		if err != nil {
			a.log.Warn("associations of trunks not listed, retrying", "err", err)
		} else {
			a.mu.Lock()
			a.last = found
			a.mu.Unlock()
			a.log.Debug("associations of trunks listed", "count", found.Len())
		}
		for of := range waiting {
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
