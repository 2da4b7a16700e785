package policy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// listing is how much the API server has listed of what policies are judged on: policies,
// namespaces and pods, one after the other. A copy on disk has them all.
type listing struct {
	objects Objects
	noCopy  atomic.Bool // the objects are those of the API server
}

func newListing(o Objects) *listing {
	l := &listing{objects: o}
	l.noCopy.Store(!o.Copied())
	return l
}

// complete reports whether all objects are known. Without namespaces and pods, what is in force
// would be replaced by less: pods with an unknown namespace are closed, and unknown peers are
// denied.
func (l *listing) complete() bool {
	synced := l.objects.Synced()
	if synced {
		l.noCopy.Store(true)
	}
	return synced || !l.noCopy.Load() && l.objects.Known()
}

// errUnlisted refuses pods while the first policies are put in force.
var errUnlisted = errors.New("the API server has not listed the namespaces and pods of the cluster yet, which network policies are judged on. The pod is tried again")

// listWithin is how long an ADD waits for the lists of the API server.
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
			return errUnlisted
		case <-tick.C:
		}
	}
	return nil
}
