package reconcile

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// State is how far the reconciliation of a row is.
type State string

// The states of a row.
const (
	Pending State = "pending" // its work has not been done
	Done    State = "done"    // the target agreed with it
	Failed  State = "failed"  // its last attempt failed; another one follows
)

// Status says how far a row, at a revision, is reconciled. A row without a
// status, or with one of another revision, is pending.
type Status struct {
	Key  table.Key // of the row
	Name string    // the key, for people

	State    State
	Deleting bool           // the row is deleted, and the target may still have it
	Revision table.Revision // of the row that State is about
	Since    time.Time      // when State began
	Attempts int            // that failed, one after another
	Error    string         // of the last attempt; empty unless it failed
	Retry    time.Time      // when a failed row is tried again

	Drift Drift // the last one; zero if there was none

	last   any            // the row when it was last Done; nil before
	lastAt table.Revision // its revision

	known bool         // the target was read after the last attempt, or direct work was done
	left  []Difference // what differed then, and has since
}

// outdated returns the row when it was last Done, if that was at another revision than
// rev: the target may have what only that one wanted.
func (s Status) outdated(rev table.Revision) any {
	if s.lastAt == rev {
		return nil
	}
	return s.last
}

// Drift is what of a row differs, or did at last, although the target agreed with it
// before. The drift of an object ends when the target has been read again and agrees in it.
type Drift struct {
	What     []Difference // as they were found
	Found    time.Time    // the first of them, by a pass
	Repaired time.Time    // zero while they are not
}

// Open reports whether the drift was found and is not known to be repaired.
func (d Drift) Open() bool { return !d.Found.IsZero() && d.Repaired.IsZero() }

// Texts lists for people how the target differed.
func (d Drift) Texts() []string { return texts(d.What) }

// add opens the drift of objects that are not in it.
func (d *Drift) add(fresh []Difference, now time.Time) {
	if !d.Open() {
		*d = Drift{Found: now}
	}
	_, more := split(fresh, d.What)
	d.What = slices.Concat(d.What, more)
}

// repair takes the objects that a reading did not find different out of an open drift, and
// returns them; zero if there are none.
func (d *Drift) repair(found []Difference, now time.Time) (repaired Drift) {
	if !d.Open() {
		return Drift{}
	}
	stay, gone := split(d.What, found)
	if len(gone) == 0 {
		return Drift{}
	}
	repaired = Drift{What: gone, Found: d.Found, Repaired: now}
	if d.What = stay; len(stay) == 0 {
		*d = repaired
	}
	return repaired
}

func (d *Drift) close(now time.Time) {
	if d.Open() {
		d.Repaired = now
	}
}

// split returns the differences of objects that are in a list, and the rest.
func split(differences, list []Difference) (in, out []Difference) {
	for _, d := range differences {
		if slices.ContainsFunc(list, func(o Difference) bool { return o.Object == d.Object }) {
			in = append(in, d)
		} else {
			out = append(out, d)
		}
	}
	return in, out
}

// texts lists those that could be compared.
func texts(differences []Difference) (list []string) {
	for _, d := range differences {
		if d.Text != "" {
			list = append(list, d.Text)
		}
	}
	return list
}

// doneAt reports whether the target agreed with the row at a revision.
func (s Status) doneAt(rev table.Revision) bool {
	return s.State == Done && s.Revision == rev && !s.Deleting
}

func (s *Status) enter(state State, now time.Time) {
	if s.State != state {
		s.State, s.Since = state, now
	}
}

// begin makes s the status of a row, or of its deletion, that is not reconciled. Drift
// from another revision ends: what is desired has changed.
func (s *Status) begin(rev table.Revision, deleting bool, now time.Time) {
	if s.Revision != rev && s.Drift.Open() {
		s.Drift = Drift{}
	}
	s.enter(Pending, now)
	s.Revision, s.Deleting = rev, deleting
	s.Attempts, s.Error, s.Retry = 0, "", time.Time{}
	s.known, s.left = false, nil
}

// judge judges a row, at a revision, by what a reading of the target found. What differs and
// was not left so is drift, and a reason to work at once. What was left so and agrees by now
// is drift if it differs again.
func (s *Status) judge(rev table.Revision, found []Difference, now time.Time) (repaired Drift, changed bool) {
	if s.Revision != rev || s.Deleting {
		return Drift{}, false
	}
	repaired = s.Drift.repair(found, now)
	changed = !repaired.Found.IsZero()
	if !s.known && len(found) > 0 {
		return repaired, changed
	}
	changed = changed || !s.known
	s.known = true
	left, ended := split(s.left, found)
	_, fresh := split(found, s.left)
	fresh = slices.DeleteFunc(fresh, func(d Difference) bool { return d.Text == "" })
	s.left = left
	if len(fresh) > 0 {
		s.Drift.add(fresh, now)
		if s.State == Failed {
			s.Retry = now
		} else {
			s.enter(Pending, now)
		}
	}
	return repaired, changed || len(ended)+len(fresh) > 0
}

func (s *Status) finish(rev table.Revision, row any, now time.Time) {
	s.begin(rev, false, now)
	s.State, s.Since, s.last, s.lastAt, s.known = Done, now, row, rev, true
}

func (s *Status) fail(why string, now time.Time, pause func(attempts int) time.Duration) {
	s.enter(Failed, now)
	s.Attempts++
	s.Error, s.Retry = why, now.Add(pause(s.Attempts))
}

// ByRow is the primary index of the statuses: the key of the row.
func ByRow() table.Index[Status, table.Key] {
	return table.By("key", func(s Status) table.Key { return s.Key }, table.Encoded)
}

// ByState lists statuses by their state.
func ByState() table.Index[Status, State] {
	return table.By("state", func(s Status) State { return s.State }, table.String)
}

func statusSchema(name string) table.Schema[Status] {
	return table.Schema[Status]{
		Name: name, Primary: ByRow(), Others: []table.Indexer[Status]{ByState()},
		Columns: []string{"ROW", "STATE", "ATTEMPTS", "ERROR", "DRIFT"},
		Cells: func(s Status) []string {
			state, drift := string(s.State), strings.Join(s.Drift.Texts(), "; ")
			if s.Deleting {
				state += " delete"
			}
			if drift != "" && !s.Drift.Open() {
				drift += " (repaired)"
			}
			return []string{s.Name, state, strconv.Itoa(s.Attempts), s.Error, drift}
		},
	}
}
