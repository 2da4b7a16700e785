package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/loop"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// reading is what a pass found in the target.
type reading[T any] struct {
	actual  Actual[T]
	recheck bool // a row differed that direct work was in flight on
}

// observe reads the target and judges each row by it. Rows that were worked on
// directly while the target was read are compared again after Recheck.
func (r *Reconciler[T]) observe(ctx context.Context) (reading[T], error) {
	actual, err := r.ops.Read(ctx)
	if err != nil {
		return reading[T]{}, fmt.Errorf("read the actual state for table %s: %w", r.desired.Name(), err)
	}
	after, now := r.db.Snapshot(), time.Now()
	direct := r.locks.watched() // after the snapshot: no direct work that it shows is missing
	r.collect(after)
	read := reading[T]{actual: actual}
	var judged []Status
	for row, rev := range r.desired.All(after) {
		key := r.desired.Key(row)
		found := actual.Diff(row)
		if _, ok := direct[key]; ok {
			read.recheck = read.recheck || len(found) > 0
			continue
		}
		status := r.statusOf(after, row)
		repaired, changed := status.judge(rev, found, now)
		r.repaired(row, repaired)
		switch {
		case status.doneAt(rev): // also if it cannot be compared
		case len(found) > 0 || status.outdated(rev) != nil: // what only the earlier one wanted is to be removed
			r.dirty[key] = row
		default:
			status.finish(rev, row, now)
			changed = true
			delete(r.dirty, key)
		}
		if changed {
			judged = append(judged, status)
		}
	}
	return read, r.settle(after, judged)
}

// repaired reports drift that a reading of the target has no more.
func (r *Reconciler[T]) repaired(row T, d Drift) {
	if r.cfg.OnRepaired != nil && !d.Repaired.IsZero() {
		r.cfg.OnRepaired(row, d)
	}
}

// settle records the statuses of rows that were judged, and drops those of rows that
// are gone, about which nothing is left to do but to prune. What has changed since the
// snapshot stays: direct work has recorded its result.
func (r *Reconciler[T]) settle(s *table.Snapshot, judged []Status) error {
	return r.db.Update(func(txn *table.Txn) error {
		for _, status := range judged {
			if r.unchanged(txn, s, status.Key) {
				if _, err := r.status.Insert(txn, status); err != nil {
					return err
				}
			}
		}
		for status := range r.status.All(s) {
			_, _, there := r.desired.Get(txn, r.desired.ByKey(status.Key))
			_, dirty := r.dirty[status.Key]
			if !there && !dirty && r.unchanged(txn, s, status.Key) {
				r.status.Delete(txn, ByRow().Query(status.Key))
			}
		}
		return nil
	})
}

// unchanged reports whether a row and its status are in a as they are in b.
func (r *Reconciler[T]) unchanged(a, b table.View, key table.Key) bool {
	_, rowA, _ := r.desired.Get(a, r.desired.ByKey(key))
	_, rowB, _ := r.desired.Get(b, r.desired.ByKey(key))
	_, statusA, _ := r.status.Get(a, ByRow().Query(key))
	_, statusB, _ := r.status.Get(b, ByRow().Query(key))
	return rowA == rowB && statusA == statusB
}

// job is the work that one row needs.
type job[T any] struct {
	kind     jobKind
	row      T
	rev      table.Revision
	status   Status
	err      error // of the work
	repaired Drift
}

type jobKind uint8

const (
	nothing jobKind = iota
	update
	remove
)

// job says what a row needs by a view.
func (r *Reconciler[T]) job(v table.View, key table.Key) job[T] {
	row, rev, there := r.desired.Get(v, r.desired.ByKey(key))
	status, _, has := r.status.Get(v, ByRow().Query(key))
	j := job[T]{row: row, rev: rev, status: status}
	switch {
	case there && status.doneAt(rev):
	case there:
		j.kind = update
		j.status = r.statusOf(v, row)
	case has: // else it never came into the target, or was taken from it directly
		j.kind = remove
		j.row, j.rev = r.dirty[key], status.Revision
	}
	return j
}

// work does what the dirty rows need, adding before deleting. next is when a row that
// failed, or that direct work is in flight on, is to be tried again. removed are the
// rows, and earlier versions of rows, that it deleted, or tried to.
func (r *Reconciler[T]) work(ctx context.Context, read reading[T]) (removed []*job[T], next time.Time, err error) {
	var held []table.Key
	recheck := read.recheck
	for key, row := range r.dirty {
		if r.locks.try(key, row) {
			held = append(held, key)
		} else {
			recheck = true
		}
	}
	slices.Sort(held)
	defer func() {
		for _, key := range held {
			r.locks.release(key)
		}
	}()
	updates, removes, next := r.plan(held)
	if recheck {
		next = loop.Sooner(next, time.Now().Add(r.cfg.Recheck))
	}
	if err := r.record(updates, removes); err != nil {
		return removes, next, err
	}
	run(ctx, updates, r.ops.Update)
	old := r.removeOld(ctx, updates)
	run(ctx, removes, r.ops.Delete)
	unverified := r.verify(ctx, updates)
	if ctx.Err() != nil {
		return removes, next, nil // cut short: the rows stay as they were
	}
	for _, j := range slices.Concat(updates, removes) {
		next = loop.Sooner(next, r.conclude(j))
	}
	if err := r.record(updates, removes); err != nil {
		return removes, next, err
	}
	for _, j := range updates {
		r.repaired(j.row, j.repaired)
	}
	return slices.Concat(removes, old), next, unverified
}

// plan says what each of the rows, which nothing else works on, needs now.
func (r *Reconciler[T]) plan(keys []table.Key) (updates, removes []*job[T], next time.Time) {
	now, s := time.Now(), r.db.Snapshot()
	for _, key := range keys {
		j := r.job(s, key)
		same := j.status.Revision == j.rev && j.status.Deleting == (j.kind == remove)
		switch {
		case j.kind == nothing:
			delete(r.dirty, key)
			continue
		case j.status.State == Failed && same && now.Before(j.status.Retry) && !r.now:
			next = loop.Sooner(next, j.status.Retry)
			continue
		case !same:
			j.status.begin(j.rev, j.kind == remove, now)
		}
		j.status.known, j.status.left = false, nil // until the attempt is verified
		if j.kind == update {
			updates = append(updates, &j)
		} else {
			removes = append(removes, &j)
		}
	}
	return updates, removes, next
}

// run does jobs in one call and notes their errors.
func run[T any](ctx context.Context, jobs []*job[T], do func(context.Context, []T) []error) {
	if len(jobs) == 0 || ctx.Err() != nil {
		return
	}
	rows := make([]T, len(jobs))
	for i, j := range jobs {
		rows[i] = j.row
	}
	errs := do(ctx, rows)
	if errs != nil && len(errs) != len(jobs) {
		errs = slices.Repeat([]error{fmt.Errorf("%d errors for %d rows", len(errs), len(jobs))}, len(jobs))
	}
	for i, err := range errs {
		jobs[i].err = err
	}
}

// removeOld removes what updated rows wanted when they were last done and do not want now.
func (r *Reconciler[T]) removeOld(ctx context.Context, updates []*job[T]) (old []*job[T]) {
	var changed []*job[T]
	for _, j := range updates {
		if last, ok := j.status.outdated(j.rev).(T); ok && j.err == nil {
			changed, old = append(changed, j), append(old, &job[T]{row: last})
		}
	}
	run(ctx, old, r.ops.Delete)
	for i, j := range changed {
		j.err = old[i].err
	}
	return old
}

// verify reads the target again after updates, and notes what they left different and
// which drift they have repaired. If it cannot, they have failed, and what they left is not
// known.
func (r *Reconciler[T]) verify(ctx context.Context, updates []*job[T]) error {
	if len(updates) == 0 {
		return nil
	}
	actual, err := r.ops.Read(ctx)
	if err != nil {
		err = fmt.Errorf("read what became of updates from table %s: %w", r.desired.Name(), err)
		for _, j := range updates {
			j.err = cmp.Or(j.err, err)
		}
		return err
	}
	now := time.Now()
	for _, j := range updates {
		found := actual.Diff(j.row)
		j.status.known, j.status.left = true, found
		j.repaired = j.status.Drift.repair(found, now)
		if j.err == nil && len(found) > 0 {
			j.err = errors.New("it still differs after the update: " + strings.Join(texts(found), "; "))
		}
	}
	return nil
}

// conclude makes a job's status say how it came out, and returns when to try again;
// zero if it succeeded.
func (r *Reconciler[T]) conclude(j *job[T]) (retry time.Time) {
	now := time.Now()
	if j.err != nil {
		j.status.fail(j.err.Error(), now, r.pause)
		return j.status.Retry
	}
	delete(r.dirty, j.status.Key)
	if j.kind == update {
		j.status.finish(j.rev, j.row, now)
	} else {
		j.status.State = Done
	}
	return time.Time{}
}

// record writes the statuses of jobs. That of a deletion that is done goes.
func (r *Reconciler[T]) record(updates, removes []*job[T]) error {
	if len(updates)+len(removes) == 0 {
		return nil
	}
	return r.db.Update(func(txn *table.Txn) error {
		for _, j := range slices.Concat(updates, removes) {
			if j.kind == remove && j.status.State == Done {
				r.status.Delete(txn, ByRow().Query(j.status.Key))
				continue
			}
			if _, err := r.status.Insert(txn, j.status); err != nil {
				return err
			}
		}
		return nil
	})
}

// pause is the back-off after a number of failures.
func (r *Reconciler[T]) pause(attempts int) time.Duration {
	p := r.cfg.Backoff
	for range attempts - 1 {
		if p *= 2; p >= r.cfg.MaxBackoff {
			break
		}
	}
	return min(p, r.cfg.MaxBackoff)
}
