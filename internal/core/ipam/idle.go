package ipam

import (
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

const (
	// neededWithin is how soon after a release a request for addresses shows that the
	// release was too early.
	neededWithin = time.Hour
	// longestIdle is the most to which the idle time grows; a longer configured one stays.
	longestIdle = time.Hour
	// idleFactor is by how much the idle time grows and falls.
	idleFactor = 4
)

// idleTime is how long addresses must have been unneeded before they are released. It
// grows when addresses are requested soon after a release, once for each release, and falls
// with a release that follows the last one after neededWithin or later. So pods that come
// and go at any rhythm up to longestIdle cost calls a few times and then none, and if pods do
// not come back, their addresses are released soon.
type idleTime struct {
	released time.Time     // when the last release began; zero if none has
	extra    time.Duration // beyond the configured time
	early    bool          // the last release was too early, and that is counted
}

// begin notes that an action begins; configured is the idle time without extra.
func (i *idleTime) begin(kind cloud.Kind, now time.Time, configured time.Duration) {
	soon := !i.released.IsZero() && now.Sub(i.released) < neededWithin
	switch kind {
	case cloud.UnassignAddresses, cloud.Detach:
		if !soon {
			i.extra = max(0, (configured+i.extra)/idleFactor-configured)
		}
		i.released, i.early = now, false
	case cloud.CreateENI, cloud.AssignAddresses:
		if soon && !i.early {
			i.extra = max(0, min(idleFactor*(configured+i.extra), longestIdle)-configured)
			i.early = true
		}
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.DeleteENI:
	}
}
