// Package table keeps typed rows in memory: tables with indexes, revisions,
// watches and transactions over several tables.
//
// Readers take a Snapshot, never wait and see one state of all tables. There is
// one writer at a time: an Update changes any number of tables and becomes
// visible as a whole or not at all. Every change gives its row the next Revision
// of the database. A watch channel closes at the next change of what a query
// finds, and a Tracker lists what changed since it last looked, deletions included.
//
// Each table has one owner: Register gives it the write handle RW. All others hold
// the Table, which cannot write. Rows are immutable: T is a value, or a pointer
// to a struct that nothing modifies after Insert; a change inserts a new row under
// the same primary key.
//
// The trees underneath are those of cilium/statedb. The package knows no
// technology, does no I/O and owns no goroutine. Controllers call it.
package table

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Revision counts changes to a database: each insertion and deletion of a row
// takes the next one. Zero is before the first change.
type Revision uint64

// DB is a set of tables that change together.
type DB struct {
	writing sync.Mutex // held by the Update that is running
	current atomic.Pointer[state]
}

// state is one committed state of a database; it never changes.
type state struct {
	revision Revision
	tables   []registered
	contents []any // *version[T] of each table, in the order of tables
}

// registered is a *Table[T] without its row type.
type registered interface {
	Name() string
	print(s *Snapshot) (columns []string, rows [][]string)
}

// New returns a database without tables.
func New() *DB {
	db := &DB{}
	db.current.Store(&state{})
	return db
}

// View is what a query reads: a Snapshot, or the Txn of an Update, which includes
// the changes made so far.
type View interface {
	// content returns the *version[T] or *draft[T] of a table.
	content(db *DB, slot int) any
}

// Snapshot is the state of all tables at one time. It stays as it is while updates
// go on; to see those, take another one.
type Snapshot struct {
	db *DB
	at *state
}

// Snapshot returns the latest committed state. It is cheap and never waits.
func (db *DB) Snapshot() *Snapshot { return &Snapshot{db, db.current.Load()} }

// Revision is the revision of the last change that the snapshot includes.
func (s *Snapshot) Revision() Revision { return s.at.revision }

func (s *Snapshot) content(db *DB, slot int) any {
	if s.db != db {
		panic("table: the snapshot is of another database")
	}
	if slot >= len(s.at.contents) {
		return nil // registered later
	}
	return s.at.contents[slot]
}

// Txn is a running Update. It is valid until the function given to Update returns,
// and belongs to that goroutine.
type Txn struct {
	db       *DB
	base     *state
	revision Revision
	drafts   map[int]uncommitted
	ended    bool
}

// uncommitted is a *draft[T] without its row type.
type uncommitted interface {
	commit(revision Revision) (content any)
	notify()
}

// Update runs change, which may write to any of the database's tables. If it
// returns nil its changes become visible at once; if it returns an error or panics
// none does, and Update returns the error. Updates run one after another, so change
// must not do I/O, wait for another Update, or begin one.
func (db *DB) Update(change func(txn *Txn) error) error {
	db.writing.Lock()
	defer db.writing.Unlock()
	base := db.current.Load()
	txn := &Txn{db: db, base: base, revision: base.revision, drafts: map[int]uncommitted{}}
	defer func() { txn.ended = true }()
	if err := change(txn); err != nil {
		return err
	}
	if len(txn.drafts) == 0 {
		return nil
	}
	next := &state{revision: txn.revision, tables: base.tables, contents: slices.Clone(base.contents)}
	for slot, d := range txn.drafts {
		next.contents[slot] = d.commit(txn.revision)
	}
	db.current.Store(next)
	for _, d := range txn.drafts { // after the store, so that woken readers see the new state
		d.notify()
	}
	return nil
}

// replace stores another form of a table's present content. The caller holds writing.
func (db *DB) replace(slot int, content any) {
	old := db.current.Load()
	next := &state{revision: old.revision, tables: old.tables, contents: slices.Clone(old.contents)}
	next.contents[slot] = content
	db.current.Store(next)
}

func (txn *Txn) content(db *DB, slot int) any {
	txn.check(db)
	if d, ok := txn.drafts[slot]; ok {
		return d
	}
	return txn.base.contents[slot]
}

func (txn *Txn) check(db *DB) {
	switch {
	case txn.db != db:
		panic("table: the transaction is of another database")
	case txn.ended:
		panic("table: the transaction has ended")
	}
}

// next returns the revision of a new change.
func (txn *Txn) next() Revision {
	txn.revision++
	return txn.revision
}

// register adds a table and returns its slot.
func (db *DB) register(t registered, content any) (slot int, err error) {
	db.writing.Lock()
	defer db.writing.Unlock()
	old := db.current.Load()
	for _, other := range old.tables {
		if other.Name() == t.Name() {
			return 0, fmt.Errorf("register table %s: there is one of that name", t.Name())
		}
	}
	db.current.Store(&state{
		revision: old.revision,
		tables:   append(old.tables[:len(old.tables):len(old.tables)], t),
		contents: append(old.contents[:len(old.contents):len(old.contents)], content),
	})
	return len(old.tables), nil
}
