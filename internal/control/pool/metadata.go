package pool

import (
	"context"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
)

// publishRangesEvery is how often the time of a read of metadata is written to the node's
// row, which is journaled, if the ranges stay the same.
const publishRangesEvery = 10 * time.Minute

// compareWithMetadata compares the ledger with instance metadata, and follows the ranges of
// the VPC, to which pods send without SNAT. What it finds of interfaces changes nothing: a
// difference is a reason to read EC2.
func (o *Observer) compareWithMetadata(ctx context.Context) {
	listed, unreadable, err := o.p.Metadata.Listed(ctx)
	if err == nil {
		err = o.followRanges(ctx, unreadable)
	}
	o.p.note(state.Metadata, err)
	if err != nil {
		o.p.Log.Debug("instance metadata could not be compared with the ledger", "error", err)
		return
	}
	var doubts []string
	_, _ = o.p.State.Update(func(tx *state.Tx) error { // changes nothing, so nothing is journaled
		doubts = tx.Ledger().Doubts(listed, time.Now())
		return nil
	})
	o.mu.Lock()
	before := o.schedule.doubts
	o.schedule.compare(doubts, time.Now())
	o.mu.Unlock()
	for _, doubt := range doubts {
		if !slices.Contains(before, doubt) {
			o.p.Log.Info("instance metadata and the ledger differ", "what", doubt)
		}
	}
}

// followRanges reads the VPC's ranges again, and reports what of instance metadata cannot be read
// beside skipped.
func (o *Observer) followRanges(ctx context.Context, skipped []string) error {
	was := o.known()
	ranges, unreadable, err := o.p.Metadata.VPCCIDRs(ctx, was.PrimaryMAC)
	if err != nil {
		return err
	}
	o.notUsed.lines(append(skipped, unreadable...))
	now, same := time.Now(), slices.Equal(ranges, was.Ranges)
	if same && now.Sub(was.Read[state.FactRanges]) < publishRangesEvery {
		return nil
	}
	o.mu.Lock()
	o.node.Ranges = ranges
	o.node = o.node.With(now, state.FactRanges)
	o.mu.Unlock()
	o.publish()
	if !same {
		o.p.Log.Info("the VPC's ranges changed", "ranges", ranges, "was", was.Ranges)
		o.p.CompareKernel()
	}
	return nil
}
