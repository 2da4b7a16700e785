package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// How many links one deletion takes. The kernel holds its lock for all of them:
// 64 delay an ADD by up to 24 ms, 8 not measurably.
const (
	batchAlone    = 64
	batchWhileADD = 8
)

// A deletion holds the kernel's lock (RTNL) about as long for one link as for eight, and
// longer on a busy machine; an ADD takes the lock six times. So links are gathered before
// they are deleted, and ADDs have precedence for a bounded time.
const (
	gatherFor    = 100 * time.Millisecond // without an ADD in flight
	gatherAtMost = 2 * time.Second
	reapEvery    = 30 * time.Second // for links that a crash left
)

// reaper deletes discarded links. Each endpoint's addresses are released once its link
// is gone.
type reaper struct{ *Controller }

// run deletes links until ctx ends.
func (c reaper) run(ctx context.Context) error {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		if err := c.Links.DeleteDiscarded(ctx, c.batch, c.linkGone); err != nil && ctx.Err() == nil {
			c.Log.Warn("links of removed pods are left for the next pass", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-c.Links.Discarded():
			c.gather(ctx)
		}
	}
}

// gather waits for more links to delete, until no ADD was in flight for gatherFor.
func (c reaper) gather(ctx context.Context) {
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		c.adds.Yield(ctx, gatherFor, gatherAtMost-gatherFor)
	}
}

func (c reaper) batch() int {
	if c.adds.Active() > 0 {
		return batchWhileADD
	}
	return batchAlone
}

// linkGone releases the endpoint of a link that the kernel has deleted. It does not block.
func (c reaper) linkGone(w link.Wired) {
	for _, e := range c.State.Endpoints() {
		if e.Stage == endpoint.Removing && e.Key == w.Key && (len(w.Addresses) == 0 || overlaps(w.Addresses, e)) {
			c.release(e.ID)
		}
	}
}

// ReleaseGone releases the endpoints that are being removed and have no link any more
// without a report of its deletion: it was deleted with its namespace, or by hand.
func (c *Controller) ReleaseGone(ctx context.Context) error {
	before := c.State.Endpoints() // first: a link made later is not missed
	links, err := c.Links.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list the links of pods: %w", err)
	}
	for _, e := range before {
		if e.Stage != endpoint.Removing || c.calls.Busy(e.Key) > 0 {
			continue
		}
		there := false
		for _, w := range links {
			// A half-made link has no alias: any endpoint may own it.
			there = there || w.Half || overlaps(w.Addresses, e) || w.Key == e.Key && len(w.Addresses) == 0
		}
		if !there {
			c.release(e.ID)
		}
	}
	return nil
}
