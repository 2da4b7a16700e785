package trunk

import (
	"context"
	"errors"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// observer compares the record of a node with EC2.
type observer struct{ *node }

// due reports whether an observation is due, or the plan depends on one.
func (n observer) due(d core.Decision, now time.Time) bool {
	n.times.unlisted = false
	if d.Observe == "" {
		n.times.asked = time.Time{}
	}
	return d.Observe != "" || !now.Before(n.times.observe)
}

// observe compares the record with EC2, if the associations of trunks are listed; else a pass follows
// once they are. why is why the plan depends on it; without a reason it is a regular observation, of
// which a failure keeps no pod waiting.
func (n observer) observe(ctx context.Context, why string, now time.Time) error {
	listed, ok := n.associations(why, now)
	if n.times.unlisted = !ok; !ok {
		return nil
	}
	seen, skipped, err := n.c.o.EC2.Branches(ctx, n.rec.state.Instance, listed, core.Interfaces(n.rec.state)...)
	switch {
	case errors.Is(err, ec2.ErrUnlisted):
		n.seen.branches = true
		n.loop.Mark()
		return nil
	case err != nil && why == "":
		n.c.o.Log.Warn("branches not observed, retrying", "node", n.name, "in", observeAgain, "err", err)
		n.times.observe = now.Add(observeAgain)
		return nil
	case err != nil:
		return err
	}
	for _, s := range skipped {
		n.c.o.Log.Warn("EC2 describes what is skipped", "node", n.name, "object", s.Object, "why", s.Why)
	}
	seen.At = seen.At.UTC().Truncate(time.Microsecond)
	n.rec.state = core.Observe(n.rec.state, seen, n.c.o.Config, now)
	n.times.observe, n.times.asked, n.seen.branches = now.Add(observeEvery), time.Time{}, false
	n.c.o.Log.Debug("branches observed", "node", n.name, "interfaces", len(seen.Interfaces), "why", why)
	if why != "" {
		n.loop.Mark() // what it depends on may be newer than the listing
	}
	return nil
}

// associations is a listing for an observation; ok is false if it is not made yet. A regular
// observation shares the listing of other nodes. Without branches none is needed.
func (n observer) associations(why string, now time.Time) (_ ec2.Associations, ok bool) {
	s := n.rec.state
	if len(s.Branches) == 0 && len(s.Unowned) == 0 && !n.seen.branches {
		return ec2.Associations{}, true
	}
	if why != "" {
		if n.times.asked.IsZero() {
			n.times.asked = now
		}
		return n.c.listing.since(n.times.asked, n.loop)
	}
	since := now.Add(-listingFor)
	if since.Before(s.Observed) {
		since = s.Observed
	}
	return n.c.listing.since(since, n.loop)
}
