package policy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// listing is how much the API server has listed of what policies are judged on: policies,
// namespaces and pods, one after the other. A copy on disk has them all, as they were some time
// before.
type listing struct {
	objects Objects
	noCopy  atomic.Bool // the objects are those of the API server

	mu      sync.Mutex
	adopted bool      // an earlier agent's policies are in force
	copyAt  time.Time // when the copy is used although they are; zero: complete was not called since
}

func newListing(o Objects) *listing {
	l := &listing{objects: o}
	l.noCopy.Store(!o.Copied())
	return l
}

// complete reports whether all objects are known. Without namespaces and pods, what is in force
// would be replaced by less: pods with an unknown namespace are closed, and unknown peers are
// denied. While the policies of an earlier agent are in force, the copy is used only if the API
// server does not list the objects within listWithin: what is in force is newer.
func (l *listing) complete() bool {
	synced := l.objects.Synced()
	if synced {
		l.noCopy.Store(true)
	}
	return synced || !l.noCopy.Load() && l.objects.Known() && !time.Now().Before(l.copyUsed())
}

// adopt notes that the policies of an earlier agent are in force.
func (l *listing) adopt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adopted = true
}

// copyUsed is when the copy is used: listWithin after the first call if the policies of an earlier
// agent are in force.
func (l *listing) copyUsed() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.adopted && l.copyAt.IsZero() {
		l.copyAt = time.Now().Add(listWithin)
	}
	return l.copyAt
}

// next is when complete may change without a change of the objects; zero: never.
func (l *listing) next() time.Time {
	if l.noCopy.Load() {
		return time.Time{}
	}
	return l.copyUsed()
}

// errUnlisted refuses pods while the first policies are put in force.
var errUnlisted = errors.New("the API server has not listed the namespaces and pods of the cluster yet, which network policies are judged on. The pod is tried again")

// listWithin is how long an ADD, and the first pass beside an earlier agent's policies, wait for the
// lists of the API server.
const listWithin = 5 * time.Second

// wait waits until all objects are known, unless policies are on already or the cluster has none.
func (l *listing) wait(ctx context.Context, on func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for l.objects.Any() && !on() && !l.complete() {
		select {
		case <-ctx.Done():
			if l.complete() { // the copy is used since now
				return nil
			}
			return errUnlisted
		case <-tick.C:
		}
	}
	return nil
}
