package cni

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/edge/link"
)

// deleting sends when and in what groups discarded links are deleted.
type deleting struct {
	*wires
	deletions chan deletion
}

type deletion struct {
	at    time.Time
	batch int
}

func (d *deleting) DeleteDiscarded(_ context.Context, batch func() int, _ func(link.Wired)) error {
	d.deletions <- deletion{time.Now(), batch()}
	return nil
}

func TestLinksAreDeletedInSmallGroupsBesideADDsAfterABoundedDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deleting{&wires{trash: make(chan struct{}, 1)}, make(chan deletion)}
		c := &Controller{Deps: Deps{Links: d}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = reaper{c}.run(ctx) }()
		<-d.deletions // by the pass at the start
		discard := func() (took time.Duration, batch int) {
			began := time.Now()
			d.trash <- struct{}{}
			done := <-d.deletions
			return done.at.Sub(began), done.batch
		}
		if took, batch := discard(); took != gatherFor || batch != batchAlone {
			t.Errorf("deleted after %s in groups of %d, want %s and %d", took, batch, gatherFor, batchAlone)
		}
		leave := c.adds.Enter() // for an address, which only a link that goes frees
		if took, batch := discard(); took != gatherAtMost || batch != batchWhileADD {
			t.Errorf("beside an ADD deleted after %s in groups of %d, want %s and %d", took, batch, gatherAtMost, batchWhileADD)
		}
		leave()
	})
}
