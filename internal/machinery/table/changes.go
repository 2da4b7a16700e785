package table

import (
	"cmp"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
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
	graves := now.root(len(now.trees) - graveyard).Iterator()
	for _, e, ok := graves.Next(); ok; _, e, ok = graves.Next() {
		if e.revision > tr.last && e.revision > tr.began {
			changes = append(changes, Change[T]{e.row, e.revision, true})
		}
	}
	live := now.byRevision().root(len(now.trees) - revisions).Iterator()
	live.SeekLowerBound(Number(nil, tr.last+1))
	for _, e, ok := live.Next(); ok; _, e, ok = live.Next() {
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
	rows := iradix.New[*entry[T]]().Txn()
	all := v.root(0).Iterator()
	for _, e, ok := all.Next(); ok; _, e, ok = all.Next() {
		rows.Insert(Number(nil, e.revision), e)
	}
	next := &version[T]{trees: slices.Clone(v.trees), tracked: true, collected: v.collected}
	next.trees[len(next.trees)-revisions] = rows.CommitOnly()
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
		d.tree(len(d.trees)-graveyard).Insert(d.table.indexes[0].keys(row)[0], &entry[T]{row, rev})
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
	graves := d.root(len(d.trees) - graveyard).Iterator()
	for key, e, ok := graves.Next(); ok; key, e, ok = graves.Next() {
		if e.revision <= seen {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		d.tree(len(d.trees) - graveyard).Delete(key)
	}
	return seen
}
