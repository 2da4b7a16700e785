package trunk

import (
	"slices"
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

func TestEachProblemOfANodeIsReportedAndRepeatedBeforeItsEventExpires(t *testing.T) {
	w, start := waits{}, time.Unix(1_000_000, 0)
	of := func(whys ...string) (problems []core.Problem) {
		problems = []core.Problem{{Pod: "pod", Why: "its subnet is full"}, {Pod: "pod", Why: "of less weight"}}
		for _, why := range whys {
			problems = append(problems, core.Problem{Why: why})
		}
		return problems
	}
	for _, step := range []struct {
		after    time.Duration
		problems []core.Problem
		want     []string
		next     time.Duration
	}{
		{0, of("one", "two"), nil, 10 * time.Second},
		{10 * time.Second, of("one", "two"), []string{"its subnet is full", "one; two"}, 10*time.Second + 55*time.Minute},
		{20 * time.Second, of("one", "two", "three"), nil, 70 * time.Second},
		{70 * time.Second, of("one", "two", "three"), []string{"one; two; three"}, 10*time.Second + 55*time.Minute},
		{time.Hour, of("one", "two", "three"), []string{"its subnet is full", "one; two; three"}, time.Hour + 55*time.Minute},
		{time.Hour + time.Second, nil, nil, 0},
		{time.Hour + 2*time.Second, of("one"), nil, time.Hour + 12*time.Second},
	} {
		report, next := w.update(step.problems, start.Add(step.after))
		var got []string
		for _, p := range report {
			got = append(got, p.Why)
		}
		want := time.Time{}
		if step.next > 0 {
			want = start.Add(step.next)
		}
		if !slices.Equal(got, step.want) || !next.Equal(want) {
			t.Errorf("after %v: reported %q, want %q; next after %v, want %v", step.after, got, step.want, next.Sub(start), step.next)
		}
	}
}
