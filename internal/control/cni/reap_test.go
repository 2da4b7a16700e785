package cni

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/edge/link"
)

// deleting notes when discarded links are deleted.
type deleting struct {
	*wires
	at      []time.Time
	batches []int
}

func (d *deleting) DeleteDiscarded(_ context.Context, batch func() int, _ func(link.Wired)) error {
	d.at, d.batches = append(d.at, time.Now()), append(d.batches, batch())
	return nil
}

func TestLinksAreDeletedInSmallGroupsBesideADDsAfterABoundedDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deleting{wires: &wires{trash: make(chan struct{}, 1)}}
		c := &Controller{Deps: Deps{Links: d}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = reaper{c}.run(ctx) }()
		synctest.Wait() // the pass at the start
		discard := func() time.Duration {
			began, n := time.Now(), len(d.at)
			d.trash <- struct{}{}
			for len(d.at) == n {
				time.Sleep(time.Millisecond) // on the test's own clock
			}
			return d.at[n].Sub(began)
		}
		if took := discard(); took != gatherFor || d.batches[len(d.batches)-1] != batchAlone {
			t.Errorf("deleted after %s in groups of %d, want %s and %d", took, d.batches[len(d.batches)-1], gatherFor, batchAlone)
		}
		leave := c.adds.Enter() // for an address, which only a link that goes frees
		if took := discard(); took != gatherAtMost || d.batches[len(d.batches)-1] != batchWhileADD {
			t.Errorf("beside an ADD deleted after %s in groups of %d, want %s and %d", took, d.batches[len(d.batches)-1], gatherAtMost, batchWhileADD)
		}
		leave()
	})
}
