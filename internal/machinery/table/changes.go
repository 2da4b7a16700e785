package table

import (
	"cmp"
	"slices"

	"github.com/cilium/statedb/part"
)

// Change is a row that was inserted, replaced or deleted.
type Change[T any] struct {
	Row      T // as it is, or as it was when it was deleted
	Revision Revision
	Deleted  bool
}

// Tracker lists the changes to a table since it was last asked. As long as it is
// not closed, the table keeps the deleted rows that it has not seen. It belongs to
// one goroutine.
type Tracker[T any] struct {
	table *Table[T]
	began Revision // deletions before are not reported
	last  Revision
}

// Track returns a tracker; its first changes are all rows that there are. Track waits
// for a running Update, so it must not be called in one.
func (t *Table[T]) Track() *Tracker[T] {
	t.db.writing.Lock() // so that no running update deletes a row without burying it
	defer t.db.writing.Unlock()
	if !t.tracked {
		t.tracked = true
		t.db.replace(t.slot, t.in(t.db.Snapshot()).(*version[T]).byRevision())
	}
	tr := &Tracker[T]{table: t, began: t.db.current.Load().revision}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trackers[tr] = tr.began
	return tr
}

// Next returns what changed after the snapshot of the call before, up to this one,
// in the order of revisions. A row that changed several times is listed once, as it
// is in the snapshot; one that came and went in between as deleted.
func (tr *Tracker[T]) Next(s *Snapshot) []Change[T] {
	now := tr.table.version(s)
	if s.Revision() <= tr.last {
		return nil
	}
	var changes []Change[T]
	for _, e := range now.trees[len(now.trees)-graveyard].All {
		if e.revision > tr.last && e.revision > tr.began {
			changes = append(changes, Change[T]{e.row, e.revision, true})
		}
	}
	live := now.byRevision().tree(len(now.trees) - revisions)
	for _, e := range live.LowerBound(Number(nil, tr.last+1)).All {
		changes = append(changes, Change[T]{e.row, e.revision, false})
	}
	slices.SortFunc(changes, func(a, b Change[T]) int { return cmp.Compare(a.Revision, b.Revision) })
	tr.last = s.Revision()
	tr.table.acknowledge(tr, tr.last)
	return changes
}

// byRevision is the version with all rows in its tree by revision, which a table has
// from its first tracker on.
func (v *version[T]) byRevision() *version[T] {
	if v.tracked {
		return v
	}
	byRevision := part.New[*entry[T]]()
	rows := byRevision.Txn()
	for _, e := range v.trees[0].All {
		rows.Insert(Number(nil, e.revision), e)
	}
	next := &version[T]{trees: slices.Clone(v.trees), tracked: true, collected: v.collected}
	next.trees[len(next.trees)-revisions] = rows.Commit()
	return next
}

// Close frees the deleted rows that are kept for the tracker. Next must not be
// called after it.
func (tr *Tracker[T]) Close() {
	tr.table.mu.Lock()
	defer tr.table.mu.Unlock()
	delete(tr.table.trackers, tr)
}

func (t *Table[T]) acknowledge(tr *Tracker[T], seen Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, open := t.trackers[tr]; open && seen > before {
		t.trackers[tr] = seen
	}
}

// seen returns up to where all trackers have seen deletions; tracked is false, and
// seen is limit, if there are none.
func (t *Table[T]) seen(limit Revision) (seen Revision, tracked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen = limit
	for _, r := range t.trackers {
		seen = min(seen, r)
	}
	return seen, len(t.trackers) > 0
}

// bury keeps a deleted row for the trackers.
func (d *draft[T]) bury(row T, rev Revision) {
	if _, tracked := d.table.seen(rev); tracked {
		d.changing(len(d.trees)-graveyard).Insert(d.table.indexes[0].keys(row)[0], &entry[T]{row, rev})
	}
}

// collect removes from the graveyard what every tracker has seen, and returns up to
// which revision that is.
func (d *draft[T]) collect(limit Revision) Revision {
	seen, _ := d.table.seen(limit)
	if seen <= d.base.collected {
		return d.base.collected
	}
	var gone [][]byte
	graves := d.tree(len(d.trees) - graveyard)
	for key, e := range graves.All {
		if e.revision <= seen {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		d.changing(len(d.trees) - graveyard).Delete(key)
	}
	return seen
}
