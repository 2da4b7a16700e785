package reconcile

import (
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
}

// outdated returns the row when it was last Done, if that was at another revision than
// rev: the target may have what only that one wanted.
func (s Status) outdated(rev table.Revision) any {
	if s.lastAt == rev {
		return nil
	}
	return s.last
}

// Drift is one episode in which the target differed from a row that was Done. It
// ends when the target has been read again and agrees with the row.
type Drift struct {
	What     []string  // how it differed
	Found    time.Time // by a pass
	Repaired time.Time // zero while it is not
}

// Open reports whether the drift was found and is not known to be repaired.
func (d Drift) Open() bool { return !d.Found.IsZero() && d.Repaired.IsZero() }

func (d *Drift) close(now time.Time) {
	if d.Open() {
		d.Repaired = now
	}
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
}

func (s *Status) finish(rev table.Revision, row any, now time.Time) {
	s.begin(rev, false, now)
	s.State, s.Since, s.last, s.lastAt = Done, now, row, rev
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
			state, drift := string(s.State), strings.Join(s.Drift.What, "; ")
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
