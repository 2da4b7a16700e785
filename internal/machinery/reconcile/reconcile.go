// Package reconcile makes a target, such as the kernel, agree with the rows of a
// table, and says for each row in a status table how that went.
//
// It is level-triggered: a change of the table only marks its row; the work reads
// the row again. A full pass, at the start, every so often and on demand, reads the
// target's actual state, repairs what differs and prunes what no row wants. Rows are
// added before others are deleted. A row that failed is tried again after a back-off
// of its own.
//
// Drift is judged by status: a row that was Done at its present revision, and that
// the target no longer agrees with, was changed by another program. A row that is
// pending, failed, changed or worked on directly since is never called drift.
//
// A caller on a fast path does the work for a row itself: it claims the row, changes
// the target, and records the result in the update that inserts the row. See
// Reconciler.Claim.
//
// The package knows no technology. It writes its status table and calls the Ops it
// is given; a controller owns it and calls Run.
package reconcile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/loop"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Ops changes and reads the target. A reconciler makes one call at a time, but work
// under a claim goes on beside it.
type Ops[T any] interface {
	// Update makes the target as row says, whatever it was for that key before. It is
	// idempotent.
	Update(ctx context.Context, row T) error
	// Delete removes from the target what row says. If it is not there, that is
	// success. Another row may say the same by now: what that one needs stays.
	Delete(ctx context.Context, row T) error
	// Read lists what the target has.
	Read(ctx context.Context) (Actual[T], error)
}

// Actual is what a target had when it was read.
type Actual[T any] interface {
	// Diff says, for people, how the target differs from row; empty if it does not.
	// It does no I/O.
	Diff(row T) string
	// Prune removes from the target what was listed, is ours, and is not of a row in
	// keep. It names objects by what is never used twice (an interface index, a
	// handle), for work under a claim may make a new one of the same name meanwhile.
	Prune(ctx context.Context, keep []T) error
}

// Batcher is implemented by Ops of a target that takes many rows in one call. Both
// methods return one error for each row, in order, or nil when all succeeded.
type Batcher[T any] interface {
	UpdateBatch(ctx context.Context, rows []T) []error
	DeleteBatch(ctx context.Context, rows []T) []error
}

// Config says when a reconciler works.
type Config[T any] struct {
	Every       time.Duration // between full passes; zero: only the first, and on demand
	MinInterval time.Duration // between passes, so that many changes are one pass
	// Backoff is the pause after a row's first failure, and after a pass that could
	// not read or prune; doubled for each further one up to MaxBackoff. Zero means one
	// second and one minute.
	Backoff, MaxBackoff time.Duration
	BatchSize           int // rows in one call of a Batcher; zero: all
	// OnDrift is called once for each episode of drift, after the attempt to repair
	// it, by the goroutine of Run. May be nil.
	OnDrift func(row T, d Drift)
	// OnError is called with every error of a pass as a whole, and the pause that
	// follows. Errors of rows are in their status. May be nil.
	OnError func(err error, pause time.Duration)
}

// Reconciler makes a target agree with a table.
type Reconciler[T any] struct {
	db      *table.DB
	desired *table.Table[T]
	status  table.RW[Status]
	ops     Ops[T]
	cfg     Config[T]
	loop    *loop.Loop
	claims  claims[T]

	// Of the pass that runs:
	tracker *table.Tracker[T]
	dirty   map[table.Key]T // rows that may have work, as last seen
}

// New returns a reconciler of a table, and registers its status table, named after
// it with "-status". Call Run to start it.
func New[T any](db *table.DB, desired *table.Table[T], ops Ops[T], cfg Config[T]) (*Reconciler[T], error) {
	if cfg.Backoff <= 0 {
		cfg.Backoff = time.Second
	}
	if cfg.MaxBackoff <= 0 {
		cfg.MaxBackoff = time.Minute
	}
	status, err := table.Register(db, statusSchema(desired.Name()+"-status"))
	if err != nil {
		return nil, fmt.Errorf("reconcile table %s: %w", desired.Name(), err)
	}
	r := &Reconciler[T]{db: db, desired: desired, status: status, ops: ops, cfg: cfg, dirty: map[table.Key]T{}}
	r.loop = loop.New(r.Pass)
	r.loop.Every, r.loop.MinInterval = cfg.Every, cfg.MinInterval
	r.loop.Backoff, r.loop.MaxBackoff = cfg.Backoff, cfg.MaxBackoff
	r.loop.Report = cfg.OnError
	r.claims.wake = r.loop.Mark
	return r, nil
}

// Status is the table of statuses. The reconciler alone writes it.
func (r *Reconciler[T]) Status() *table.Table[Status] { return r.status.Table() }

// Full asks for a full pass soon. It never blocks.
func (r *Reconciler[T]) Full() { r.loop.MarkFull() }

// Run reconciles until ctx ends, beginning with a full pass. It returns nil.
func (r *Reconciler[T]) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		for ctx.Err() == nil {
			changed := r.desired.Watch(r.db.Snapshot(), table.Query[T]{})
			r.loop.Mark()
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	return r.loop.Run(ctx)
}

// Claim reserves a row for direct work: until release is called the reconciler
// neither changes nor judges nor prunes what the row, new or old, stands for. If the
// reconciler, or another claim, is at work on the row, Claim waits.
//
// The order is: claim; change the target; in one update insert the row and MarkDone,
// or delete the row and MarkDeleted; release. Direct work that fails undoes what it
// did, or leaves it to the next full pass. Claim must not be called in an update.
func (r *Reconciler[T]) Claim(ctx context.Context, row T) (release func(), err error) {
	if err := r.claims.direct(ctx, r.desired.Key(row), row); err != nil {
		return nil, fmt.Errorf("claim %s in table %s: %w", r.desired.KeyText(row), r.desired.Name(), err)
	}
	return func() { r.claims.release(r.desired.Key(row)) }, nil
}

// MarkDone records that the target agrees with a row at a revision, as Insert
// returned it. It belongs to a claim, or to the time before Run: rows that an earlier
// process has left in the target, and that are marked so, are drift if they differ.
func (r *Reconciler[T]) MarkDone(txn *table.Txn, row T, rev table.Revision) error {
	next := r.statusOf(txn, row)
	next.finish(rev, time.Now())
	next.Drift.close(next.Since)
	_, err := r.status.Insert(txn, next)
	return err
}

// MarkDeleted records that the target has nothing left of a row. It belongs to a
// claim.
func (r *Reconciler[T]) MarkDeleted(txn *table.Txn, row T) {
	r.status.Delete(txn, byKey().Query(r.desired.Key(row)))
}

// statusOf returns a row's status, or a new one.
func (r *Reconciler[T]) statusOf(v table.View, row T) Status {
	key := r.desired.Key(row)
	if s, _, ok := r.status.Get(v, byKey().Query(key)); ok {
		return s
	}
	return Status{Key: key, Name: r.desired.KeyText(row)}
}

// Pass does one pass, a full one if asked: what loop.Loop calls. Run calls it; a
// test may call it instead of Run. next is when a row is to be tried again.
func (r *Reconciler[T]) Pass(ctx context.Context, full bool) (next time.Time, err error) {
	if r.tracker == nil {
		r.tracker = r.desired.Track()
	}
	var seen sighting[T]
	if full {
		r.claims.watch()
		defer r.claims.unwatch()
		if seen, err = r.observe(ctx); err != nil {
			return time.Time{}, err
		}
	} else {
		r.collect(r.db.Snapshot())
	}
	next, err = r.work(ctx, seen.drifted)
	if err != nil || !full || ctx.Err() != nil {
		return next, err
	}
	return next, r.prune(ctx, seen.actual)
}

// collect notes the rows that have changed.
func (r *Reconciler[T]) collect(s *table.Snapshot) {
	for _, c := range r.tracker.Next(s) {
		r.dirty[r.desired.Key(c.Row)] = c.Row
	}
	for key := range r.dirty {
		if j, _ := r.job(s, key); j.kind == nothing {
			delete(r.dirty, key)
		}
	}
}

// prune removes from the target what no row wants. What claims were for since the
// target was read stays: it may not be in the table yet.
func (r *Reconciler[T]) prune(ctx context.Context, actual Actual[T]) error {
	keep := r.claims.watched() // before the table, so that no row falls between
	for row := range r.desired.All(r.db.Snapshot()) {
		keep[r.desired.Key(row)] = row
	}
	rows := make([]T, 0, len(keep))
	for _, key := range slices.Sorted(maps.Keys(keep)) {
		rows = append(rows, keep[key])
	}
	if err := actual.Prune(ctx, rows); err != nil {
		return fmt.Errorf("prune what no row of table %s wants: %w", r.desired.Name(), err)
	}
	return nil
}
