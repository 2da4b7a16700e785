package trunk

import (
	"testing"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
)

// A time that has passed, of something that a pass could not do, does not have the passes follow each other.
func TestTheNextPassIsNeverDueInThePast(t *testing.T) {
	now := time.Unix(1000, 0)
	past, later := now.Add(-time.Second), now.Add(time.Minute)
	n := &node{}
	n.times.host, n.times.observe, n.times.gone, n.seen.custom.recheck = past, past, past, past
	if got := n.next(core.Decision{}, now); !got.IsZero() {
		t.Errorf("the next pass is due at %s", got)
	}
	n.times.observe = later
	if got := n.next(core.Decision{}, now); !got.Equal(later) {
		t.Errorf("the next pass is due at %s, want %s", got, later)
	}
	n.times.bound = now
	if got := n.next(core.Decision{Next: later.Add(-time.Second)}, now); !got.Equal(now.Add(boundWithin)) {
		t.Errorf("the next pass is due at %s, want that which writes a binding", got)
	}
}
