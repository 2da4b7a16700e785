// Package reconcile makes a target, such as the kernel, agree with the rows of a
// table, and says for each row in a status table how that went.
//
// It is level-triggered: a change of the table only asks for a pass. A pass reads the
// target's actual state and the rows, repairs what differs and prunes what no row wants.
// Rows are added before others are deleted. A row that failed is tried again after a
// back-off of its own.
//
// Drift is judged by status and object. A status knows the objects in which the target
// still differed when it was read after the last attempt; of a row that is Done, there is
// none. An object of the row that differs later, and is not one of them, was changed by
// another program. It is repaired at once, and reported when a reading shows that it is;
// the others stay in the status until they end. Nothing is known of a row that was changed,
// or of direct work on it that failed: what differs then is not drift. What is pruned after
// the first pass is drift too: no row ever wanted it.
//
// A caller on a fast path does the work for a row itself: it locks the row, changes
// the target, and records the result in the update that inserts the row. See
// Reconciler.Lock.
//
// The package knows no technology. It writes its status table and calls the Ops it
// is given. A controller owns it and calls Pass, by a loop.Loop.
package reconcile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Ops changes and reads the target. A reconciler makes one call at a time, but work
// under a lock goes on beside it. Update and Delete return one error for each row, in
// order, or nil when all succeeded.
type Ops[T any] interface {
	// Update makes the target as the rows say, whatever it was for their keys before. It
	// is idempotent.
	Update(ctx context.Context, rows []T) []error
	// Delete removes from the target what the rows say. If it is not there, that is
	// success. Another row may say the same by now: what that one needs stays.
	Delete(ctx context.Context, rows []T) []error
	// Read lists what the target has.
	Read(ctx context.Context) (Actual[T], error)
}

// Actual is what a target had when it was read.
type Actual[T any] interface {
	// Diff lists the objects in which the target differs from row; empty if it does not.
	// It does no I/O.
	Diff(row T) []Difference
	// Prune removes from the target what was listed, is ours, and is not of a row in
	// keep, and lists what it removed. keep may have several versions of a row. It names
	// objects by what is never used twice (an interface index, a handle), for work under a
	// lock may make a new one of the same name meanwhile.
	Prune(ctx context.Context, keep []T) ([]string, error)
}

// Difference is an object in which a target differs from a row.
type Difference struct {
	// Object identifies it among the objects of the row, in whichever way it differs.
	Object string
	// Text says for people how it differs, and names the object first. It is empty if the
	// object cannot be compared as long as another one differs: a route on a link that is
	// gone. Such an object is neither right nor, by itself, a reason to work.
	Text string
}

// Config says when a reconciler works again, and receives what it found.
type Config[T any] struct {
	// Backoff is the pause after a row's first failure, doubled for each further one up
	// to MaxBackoff. Zero means one second and one minute.
	Backoff, MaxBackoff time.Duration
	// Recheck is when a row is compared again that differed during direct work. Zero
	// means one second.
	Recheck time.Duration
	// OnRepaired is called with drift that has been repaired, once for each object. Drift
	// that cannot be repaired is in the status of its row. May be nil.
	OnRepaired func(row T, d Drift)
	// OnPruned is called with what was pruned after the first pass. What that one
	// prunes an earlier process may have left. May be nil.
	OnPruned func(what []string)
}

// Reconciler makes a target agree with a table.
type Reconciler[T any] struct {
	db      *table.DB
	desired *table.Table[T]
	status  table.RW[Status]
	ops     Ops[T]
	cfg     Config[T]
	locks   locks[T]

	// Of the pass that runs:
	tracker *table.Tracker[T]
	dirty   map[table.Key]T // rows that may have work, as last seen
	pruned  bool            // a pass has pruned
	now     bool            // this pass tries failed rows before their back-off is over
}

// New returns a reconciler of a table, and registers its status table, named after
// it with "-status". Call Pass to work.
func New[T any](db *table.DB, desired *table.Table[T], ops Ops[T], cfg Config[T]) (*Reconciler[T], error) {
	if cfg.Backoff <= 0 {
		cfg.Backoff = time.Second
	}
	if cfg.MaxBackoff <= 0 {
		cfg.MaxBackoff = time.Minute
	}
	if cfg.Recheck <= 0 {
		cfg.Recheck = time.Second
	}
	status, err := table.Register(db, statusSchema(desired.Name()+"-status"))
	if err != nil {
		return nil, fmt.Errorf("reconcile table %s: %w", desired.Name(), err)
	}
	return &Reconciler[T]{db: db, desired: desired, status: status, ops: ops, cfg: cfg, dirty: map[table.Key]T{}}, nil
}

// Status is the table of statuses. The reconciler alone writes it.
func (r *Reconciler[T]) Status() *table.Table[Status] { return r.status.Table() }

// Left reports whether the target agreed with a row, at a revision, when it was last
// compared or worked on, and no direct work on it is in flight: what differs from it
// since is drift.
func (r *Reconciler[T]) Left(v table.View, row T, rev table.Revision) bool {
	status, _, _ := r.status.Get(v, ByRow().Query(r.desired.Key(row)))
	return status.doneAt(rev) && !r.locks.busy(r.desired.Key(row))
}

// Lock reserves a row for direct work: until release is called the reconciler
// neither changes nor judges nor prunes what the row, new or old, stands for. If the
// reconciler, or other direct work, has locked the row, Lock waits.
//
// The order is: lock; change the target; in one update insert the row and MarkDone,
// or delete the row and MarkDeleted; release. Direct work that fails undoes what it
// did, or leaves it to the next pass. Lock must not be called in an update.
func (r *Reconciler[T]) Lock(ctx context.Context, row T) (release func(), err error) {
	if err := r.locks.direct(ctx, r.desired.Key(row), row); err != nil {
		return nil, fmt.Errorf("lock %s in table %s: %w", r.desired.KeyText(row), r.desired.Name(), err)
	}
	return func() { r.locks.release(r.desired.Key(row)) }, nil
}

// MarkDone records that the target agrees with a row at a revision, as Insert
// returned it. It belongs to a lock, or to the time before the first Pass: rows that an earlier
// process has left in the target, and that are marked so, are drift if they differ.
func (r *Reconciler[T]) MarkDone(txn *table.Txn, row T, rev table.Revision) error {
	next := r.statusOf(txn, row)
	next.finish(rev, row, time.Now())
	next.Drift.close(next.Since)
	_, err := r.status.Insert(txn, next)
	return err
}

// MarkFailed records that direct work on a row failed and what the target has of it is
// not known. The next pass does the work, or deletes what is there once the row is
// deleted. It belongs to a lock.
func (r *Reconciler[T]) MarkFailed(txn *table.Txn, row T, rev table.Revision, why error) error {
	next := r.statusOf(txn, row)
	next.begin(rev, false, time.Now())
	next.fail(why.Error(), time.Now(), func(int) time.Duration { return 0 })
	next.Drift = Drift{}
	_, err := r.status.Insert(txn, next)
	return err
}

// MarkDeleted records that the target has nothing left of a row. It belongs to a
// lock.
func (r *Reconciler[T]) MarkDeleted(txn *table.Txn, row T) {
	r.status.Delete(txn, ByRow().Query(r.desired.Key(row)))
}

// statusOf returns a row's status, or a new one.
func (r *Reconciler[T]) statusOf(v table.View, row T) Status {
	key := r.desired.Key(row)
	if s, _, ok := r.status.Get(v, ByRow().Query(key)); ok {
		return s
	}
	return Status{Key: key, Name: r.desired.KeyText(row)}
}

// Pass reads the target, repairs what differs from the rows and prunes what no row wants:
// the work of a loop.Loop. Only one pass may run at a time. next is when a row is to be
// tried or compared again; zero: no need.
func (r *Reconciler[T]) Pass(ctx context.Context) (next time.Time, err error) {
	r.now = false
	return r.pass(ctx)
}

// PassNow is a Pass that tries failed rows at once, whatever their back-off: its caller
// waits for one of them.
func (r *Reconciler[T]) PassNow(ctx context.Context) (next time.Time, err error) {
	r.now = true
	return r.pass(ctx)
}

func (r *Reconciler[T]) pass(ctx context.Context) (next time.Time, err error) {
	if r.tracker == nil {
		r.tracker = r.desired.Track()
	}
	r.locks.watch()
	defer r.locks.unwatch()
	read, err := r.observe(ctx)
	if err != nil {
		return time.Time{}, err
	}
	removed, next, err := r.work(ctx, read)
	if err != nil || ctx.Err() != nil {
		return next, err
	}
	return next, r.prune(ctx, read.actual, removed)
}

// collect notes the rows that have changed.
func (r *Reconciler[T]) collect(s *table.Snapshot) {
	for _, c := range r.tracker.Next(s) {
		r.dirty[r.desired.Key(c.Row)] = c.Row
	}
	for key := range r.dirty {
		if r.job(s, key).kind == nothing {
			delete(r.dirty, key)
		}
	}
}

// prune removes from the target what no row wants. What locks were for since the
// target was read stays: it may not be in the table yet. So does what belongs to rows
// that this pass deletes, or that are deleted meanwhile, and what rows wanted when they
// were last done: that is not drift.
func (r *Reconciler[T]) prune(ctx context.Context, actual Actual[T], removed []*job[T]) error {
	locked := r.locks.watched() // before the table, so that no row falls between
	s := r.db.Snapshot()
	r.collect(s)
	keep := slices.Collect(maps.Values(locked))
	keep = slices.AppendSeq(keep, maps.Values(r.dirty))
	for _, j := range removed {
		keep = append(keep, j.row)
	}
	for row := range r.desired.All(s) {
		keep = append(keep, row)
	}
	for status := range r.status.All(s) {
		if last, ok := status.last.(T); ok {
			keep = append(keep, last)
		}
	}
	what, err := actual.Prune(ctx, keep)
	if len(what) > 0 && r.pruned && r.cfg.OnPruned != nil {
		r.cfg.OnPruned(what)
	}
	if err != nil {
		return fmt.Errorf("prune what no row of table %s wants: %w", r.desired.Name(), err)
	}
	r.pruned = true
	return nil
}
