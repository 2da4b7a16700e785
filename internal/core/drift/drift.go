// Package drift decides which differences between desired and actual state are
// drift: changed externally, or not repairable for some time. Pure: the caller passes
// what a pass found and the time. control/network reports what it returns.
package drift

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Standing is how long a difference that cannot be repaired must last before it is
// drift: a pod's link is deleted with its namespace shortly before its DEL comes.
const Standing = 10 * time.Second

// ownWork is when to compare again while own work, such as an ADD, causes a difference.
const ownWork = time.Second

// Report is the result of a pass that is reported.
type Report struct {
	// Repaired was changed externally and has been repaired.
	Repaired []string
	// Standing became drift with this pass: it cannot be repaired.
	Standing []string
	// Own is what the pass did because the desired state has changed.
	Own []string
	// Next is when to compare again without an event; zero: no need.
	Next time.Time
}

// Tracker follows the differences of one part of the kernel from pass to pass. The
// zero value is ready.
type Tracker struct {
	defects map[string]defect
}

// defect is a difference that the last pass could not repair.
type defect struct {
	since    time.Time
	reported bool
}

// Note records what a pass found. A difference that follows from own work is not drift
// unless it lasts: no ADD, DEL or set-up takes as long as Standing.
func (t *Tracker) Note(found []hostnet.Drift, now time.Time) Report {
	var r Report
	left := map[string]defect{}
	soon := func(at time.Time) {
		if r.Next.IsZero() || at.Before(r.Next) {
			r.Next = at
		}
	}
	for _, d := range found {
		what := d.String()
		switch {
		case d.Own && d.Repaired:
			r.Own = append(r.Own, what)
			continue
		case d.Repaired:
			r.Repaired = append(r.Repaired, what)
			continue
		}
		known, seen := t.defects[what]
		if !seen {
			known.since = now
		}
		switch at := known.since.Add(Standing); {
		case known.reported:
		case !now.Before(at):
			known.reported = true
			r.Standing = append(r.Standing, what)
		default:
			soon(at)
		}
		if d.Own && !known.reported { // an ADD or DEL may be in flight: compare after it
			soon(now.Add(ownWork))
		}
		left[what] = known
	}
	t.defects = left
	return r
}

// Current lists the drift that is not repaired, sorted.
func (t *Tracker) Current() []string {
	var list []string
	for what, d := range t.defects {
		if d.reported {
			list = append(list, what)
		}
	}
	slices.Sort(list)
	return list
}

// Summary joins the first few of a list and counts the rest.
func Summary(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}
