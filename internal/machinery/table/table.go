package table

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sync"

	"github.com/cilium/statedb/part"
)

// ErrConflict is the error of Insert when another row has the same key in a unique
// index.
var ErrConflict = errors.New("another row has this key")

var errSamePointer = errors.New("the table has this very pointer; insert a modified copy")

// Schema describes a table.
type Schema[T any] struct {
	Name    string
	Primary Indexer[T] // made with By; unique without saying so
	Others  []Indexer[T]

	// Columns are the names, and Cells the texts of one row, in which the table is
	// printed. Keep revisions and times out of them where goldens compare them.
	Columns []string
	Cells   func(row T) []string
}

// Table reads one table. It is safe for concurrent use.
type Table[T any] struct {
	db      *DB
	slot    int
	schema  Schema[T]
	indexes []indexSpec[T] // the primary one first
	pointer bool           // T is a pointer
	empty   *version[T]

	tracked bool // rows are kept by revision; guarded by db.writing

	mu       sync.Mutex
	trackers map[*Tracker[T]]Revision // up to where each has seen deletions
}

// reader keeps the Table of an RW out of reach, so that one cannot be made of it
// outside of this package.
type reader[T any] = Table[T]

// RW writes one table, and reads it as Table does. Only the table's owner has it.
type RW[T any] struct{ *reader[T] }

// Table is the table without the right to write.
func (t RW[T]) Table() *Table[T] { return t.reader }

// Register adds a table to a database and returns its write handle. It fails if the
// name is taken or the schema is not complete.
func Register[T any](db *DB, schema Schema[T]) (RW[T], error) {
	fail := func(why string) (RW[T], error) {
		return RW[T]{}, fmt.Errorf("register table %q: %s", schema.Name, why)
	}
	if schema.Name == "" || schema.Primary == nil {
		return fail("it needs a name and a primary index")
	}
	if len(schema.Columns) == 0 || schema.Cells == nil {
		return fail("it needs columns and cells to be printed")
	}
	t := &Table[T]{
		db: db, schema: schema, trackers: map[*Tracker[T]]Revision{},
		pointer: reflect.TypeFor[T]().Kind() == reflect.Pointer,
	}
	names := map[string]bool{}
	for i, x := range append([]Indexer[T]{schema.Primary}, schema.Others...) {
		spec := x.index()
		if i == 0 && spec.many {
			return fail("the primary index must have one key for each row")
		}
		if names[spec.name] {
			return fail("two indexes are named " + spec.name)
		}
		names[spec.name] = true
		spec.unique = spec.unique || i == 0
		t.indexes = append(t.indexes, spec)
	}
	t.empty = newVersion[T](len(t.indexes))
	slot, err := db.register(t, t.empty)
	if err != nil {
		return RW[T]{}, err
	}
	t.slot = slot
	return RW[T]{t}, nil
}

// Name is the table's name.
func (t *Table[T]) Name() string { return t.schema.Name }

// Key returns a row's encoded primary key.
func (t *Table[T]) Key(row T) Key { return Key(t.indexes[0].keys(row)[0]) }

// KeyText returns a row's primary key as fmt.Sprint writes it.
func (t *Table[T]) KeyText(row T) string { return t.indexes[0].text(row) }

// ByKey finds the row with an encoded primary key.
func (t *Table[T]) ByKey(key Key) Query[T] {
	return Query[T]{index: t.indexes[0].name, key: []byte(key), kind: exact}
}

// Get returns the first row that a query finds, and the revision of its last change.
func (t *Table[T]) Get(v View, q Query[T]) (row T, rev Revision, found bool) {
	i := t.indexOf(q)
	if q.kind == exact && t.indexes[i].unique {
		if e, ok := t.in(v).get(i, q.key); ok {
			return e.row, e.revision, true
		}
		return row, 0, false
	}
	for row, rev := range t.List(v, q) {
		return row, rev, true
	}
	return row, 0, false
}

// List returns the rows that a query finds, with the revisions of their last change.
// Changes made in a Txn while its rows are listed are not seen by the list.
func (t *Table[T]) List(v View, q Query[T]) iter.Seq2[T, Revision] {
	i := t.indexOf(q)
	return func(yield func(T, Revision) bool) {
		tree := t.in(v).tree(i)
		rows := tree.Iterator()
		switch q.kind {
		case every:
		case exact:
			rows = tree.Prefix(q.key)
		case from:
			rows = tree.LowerBound(q.key)
		}
		for _, e := range rows.All {
			if !yield(e.row, e.revision) {
				return
			}
		}
	}
}

// All returns every row in the order of the primary keys, with the revisions of
// their last change.
func (t *Table[T]) All(v View) iter.Seq2[T, Revision] { return t.List(v, Query[T]{}) }

// Len is the number of rows.
func (t *Table[T]) Len(s *Snapshot) int { return t.version(s).trees[0].Len() }

// Watch returns a channel that is closed when something changes, after the
// snapshot, in what a query finds. It may also close when it did not: query again.
func (t *Table[T]) Watch(s *Snapshot, q Query[T]) <-chan struct{} {
	i := t.indexOf(q)
	tree := &t.version(s).trees[i]
	if q.kind == exact && t.indexes[i].unique {
		_, changed, _ := tree.GetWatch(q.key)
		return changed
	}
	var prefix []byte
	if q.kind == exact {
		prefix = q.key
	}
	_, changed := tree.PrefixWatch(prefix)
	return changed
}

// Insert adds a row, or replaces the one with its primary key, and returns the
// revision that it has from now on. It returns an error, and changes nothing, if
// another row has one of its keys in a unique index (ErrConflict), or if row is the
// very pointer that is in the table: rows are replaced by copies, not modified.
func (t RW[T]) Insert(txn *Txn, row T) (Revision, error) {
	d := t.draft(txn)
	if err := d.acceptable(row); err != nil {
		return 0, fmt.Errorf("insert %s into table %s: %w", t.KeyText(row), t.Name(), err)
	}
	rev := txn.next()
	d.insert(row, rev)
	return rev, nil
}

// Delete removes the rows that a query finds and returns how many they were. None
// is no error.
func (t RW[T]) Delete(txn *Txn, q Query[T]) int {
	var rows []T
	for row := range t.List(txn, q) {
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return 0
	}
	d, n := t.draft(txn), 0
	for _, row := range rows { // of an index with several keys a row may come twice
		if d.delete(row) {
			d.bury(row, txn.next())
			n++
		}
	}
	return n
}

// Replace makes rows the content of the table: it inserts those that are new or not
// equal to the present ones, deletes the others, and leaves the rest, with their
// revisions, alone. It returns how many rows it changed.
func (t RW[T]) Replace(txn *Txn, rows []T, equal func(a, b T) bool) (changed int, err error) {
	keep := make(map[Key]bool, len(rows))
	for _, row := range rows {
		keep[t.Key(row)] = true
	}
	var gone []Key
	for row := range t.All(txn) {
		if key := t.Key(row); !keep[key] {
			gone = append(gone, key)
		}
	}
	for _, key := range gone { // first, so that their unique keys are free
		changed += t.Delete(txn, t.ByKey(key))
	}
	for _, row := range rows {
		if old, _, ok := t.Get(txn, t.ByKey(t.Key(row))); ok && equal(old, row) {
			continue
		}
		if _, err := t.Insert(txn, row); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// indexOf returns the number of the index that a query uses.
func (t *Table[T]) indexOf(q Query[T]) int {
	if q.kind == every {
		return 0
	}
	for i := range t.indexes {
		if t.indexes[i].name == q.index {
			return i
		}
	}
	panic(fmt.Sprintf("table %s has no index %s", t.Name(), q.index))
}

// source is where the rows of a view are.
type source[T any] interface {
	get(index int, key []byte) (*entry[T], bool)
	tree(index int) part.Tree[*entry[T]] // fixed, also while a draft changes
}

func (t *Table[T]) in(v View) source[T] {
	if s, ok := v.content(t.db, t.slot).(source[T]); ok {
		return s
	}
	return t.empty
}

func (t *Table[T]) version(s *Snapshot) *version[T] {
	if v, ok := s.content(t.db, t.slot).(*version[T]); ok {
		return v
	}
	return t.empty
}

func (t *Table[T]) draft(txn *Txn) *draft[T] {
	content := txn.content(t.db, t.slot)
	if d, ok := content.(*draft[T]); ok {
		return d
	}
	base := content.(*version[T])
	d := &draft[T]{table: t, base: base, trees: make([]*part.Txn[*entry[T]], len(base.trees))}
	txn.drafts[t.slot] = d
	return d
}

// print implements registered.
func (t *Table[T]) print(s *Snapshot) (columns []string, rows [][]string) {
	for row := range t.All(s) {
		rows = append(rows, t.schema.Cells(row))
	}
	return t.schema.Columns, rows
}

// entry is a row in the trees of its table.
type entry[T any] struct {
	row      T
	revision Revision
}

// version is the content of a table at one time; it never changes. Its trees are
// one for each index, then two more.
type version[T any] struct {
	trees   []part.Tree[*entry[T]]
	tracked bool // the tree by revision has all rows
	// collected is up to where the trackers had seen deletions when the graveyard
	// was last cleared.
	collected Revision
}

// The last two trees of a table: rows by revision, and the graveyard, which is the
// deleted rows that some tracker has not seen, by primary key.
const (
	revisions = 2 // from the end
	graveyard = 1
)

func newVersion[T any](indexes int) *version[T] {
	v := &version[T]{trees: make([]part.Tree[*entry[T]], indexes+2)}
	for i := range v.trees {
		v.trees[i] = part.New[*entry[T]]()
	}
	return v
}

func (v *version[T]) get(index int, key []byte) (*entry[T], bool) { return v.trees[index].Get(key) }

func (v *version[T]) tree(index int) part.Tree[*entry[T]] { return v.trees[index] }

// draft is the content of a table in a running update.
type draft[T any] struct {
	table *Table[T]
	base  *version[T]
	trees []*part.Txn[*entry[T]] // nil where nothing has changed
}

func (d *draft[T]) get(index int, key []byte) (*entry[T], bool) {
	if changed := d.trees[index]; changed != nil {
		return changed.Get(key)
	}
	return d.base.get(index, key)
}

func (d *draft[T]) tree(index int) part.Tree[*entry[T]] {
	if changed := d.trees[index]; changed != nil {
		return changed.Clone() // a transaction changes its own nodes in place
	}
	return d.base.tree(index)
}

// changing returns a tree to change.
func (d *draft[T]) changing(index int) *part.Txn[*entry[T]] {
	if d.trees[index] == nil {
		d.trees[index] = d.base.trees[index].Txn()
	}
	return d.trees[index]
}

func (d *draft[T]) revisions() *part.Txn[*entry[T]] { return d.changing(len(d.trees) - revisions) }

// keys returns the keys of a row in an index's tree. Where the index is not unique
// the primary key follows.
func (d *draft[T]) keys(index int, row T, primary []byte) [][]byte {
	keys := d.table.indexes[index].keys(row)
	if !d.table.indexes[index].unique {
		for i := range keys {
			keys[i] = append(keys[i], primary...)
		}
	}
	return keys
}

// acceptable returns why a row cannot be inserted, nil if it can.
func (d *draft[T]) acceptable(row T) error {
	primary := d.table.indexes[0].keys(row)[0]
	if old, ok := d.get(0, primary); ok && d.table.pointer && any(old.row) == any(row) {
		return errSamePointer
	}
	for i, x := range d.table.indexes {
		if i == 0 || !x.unique {
			continue
		}
		for _, key := range x.keys(row) {
			other, ok := d.get(i, key)
			if ok && !bytes.Equal(d.table.indexes[0].keys(other.row)[0], primary) {
				return fmt.Errorf("%w: %s has %s %s", ErrConflict, d.table.KeyText(other.row), x.name, x.text(other.row))
			}
		}
	}
	return nil
}

func (d *draft[T]) insert(row T, rev Revision) {
	primary := d.table.indexes[0].keys(row)[0]
	old, update := d.get(0, primary)
	e := &entry[T]{row, rev}
	d.changing(0).Insert(primary, e)
	for i := 1; i < len(d.table.indexes); i++ {
		keys := d.keys(i, row, primary)
		if update {
			for _, key := range d.keys(i, old.row, primary) {
				if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
					d.changing(i).Delete(key)
				}
			}
		}
		for _, key := range keys {
			d.changing(i).Insert(key, e)
		}
	}
	if d.table.tracked {
		if update {
			d.revisions().Delete(Number(nil, old.revision))
		}
		d.revisions().Insert(Number(nil, rev), e)
	}
	if _, ok := d.get(len(d.trees)-graveyard, primary); ok {
		d.changing(len(d.trees) - graveyard).Delete(primary)
	}
}

// delete removes the row with the primary key of row and reports whether there was
// one.
func (d *draft[T]) delete(row T) bool {
	primary := d.table.indexes[0].keys(row)[0]
	old, ok := d.get(0, primary)
	if !ok {
		return false
	}
	for i := range d.table.indexes {
		for _, key := range d.keys(i, old.row, primary) {
			d.changing(i).Delete(key)
		}
	}
	if d.table.tracked {
		d.revisions().Delete(Number(nil, old.revision))
	}
	return true
}

func (d *draft[T]) commit(limit Revision) any {
	next := &version[T]{trees: slices.Clone(d.base.trees), tracked: d.base.tracked, collected: d.collect(limit)}
	for i, tree := range d.trees {
		if tree != nil {
			next.trees[i] = tree.Commit()
		}
	}
	return next
}

func (d *draft[T]) notify() {
	for _, tree := range d.trees {
		if tree != nil {
			tree.Notify()
		}
	}
}
