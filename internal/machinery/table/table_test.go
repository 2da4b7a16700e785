package table

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

// pod is the row of these tests.
type pod struct {
	name  string
	node  string
	addrs []netip.Addr
}

func byName() Index[*pod, string] {
	return By("name", func(p *pod) string { return p.name }, String)
}

func byNode() Index[*pod, string] {
	return By("node", func(p *pod) string { return p.node }, String)
}

func byAddr() Index[*pod, netip.Addr] {
	return ByEach("address", func(p *pod) []netip.Addr { return p.addrs }, Addr).Unique()
}

func schema(name string) Schema[*pod] {
	return Schema[*pod]{
		Name: name, Primary: byName(), Others: []Indexer[*pod]{byNode(), byAddr()},
		Columns: []string{"NAME", "NODE", "ADDRESSES"},
		Cells: func(p *pod) []string {
			var addrs []string
			for _, a := range p.addrs {
				addrs = append(addrs, a.String())
			}
			return []string{p.name, p.node, strings.Join(addrs, ",")}
		},
	}
}

func register(t testing.TB, db *DB, name string) RW[*pod] {
	t.Helper()
	pods, err := Register(db, schema(name))
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func newPod(name, node string, addrs ...string) *pod {
	p := &pod{name: name, node: node}
	for _, a := range addrs {
		p.addrs = append(p.addrs, netip.MustParseAddr(a))
	}
	return p
}

// insert inserts rows in one update.
func insert(t testing.TB, db *DB, pods RW[*pod], rows ...*pod) {
	t.Helper()
	if err := db.Update(func(txn *Txn) error {
		for _, p := range rows {
			if _, err := pods.Insert(txn, p); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// remove deletes rows by name in one update.
func remove(t testing.TB, db *DB, pods RW[*pod], names ...string) {
	t.Helper()
	if err := db.Update(func(txn *Txn) error {
		for _, name := range names {
			if pods.Delete(txn, byName().Query(name)) != 1 {
				return fmt.Errorf("%s is not in the table", name)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func names(t *Table[*pod], v View, q Query[*pod]) (list []string) {
	for p := range t.List(v, q) {
		list = append(list, p.name)
	}
	return list
}

func wantNames(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestRowsAreFoundByEachIndexInItsOrder(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods,
		newPod("b", "n2", "10.0.0.2", "2001:db8::2"), newPod("a", "n2", "10.0.0.9"), newPod("c", "n"), newPod("ab", "n1", "10.0.0.1"))
	s := db.Snapshot()
	wantNames(t, names(pods.Table(), s, Query[*pod]{}), "a", "ab", "b", "c")
	wantNames(t, names(pods.Table(), s, byNode().Query("n2")), "a", "b")
	wantNames(t, names(pods.Table(), s, byNode().Query("n")), "c") // and not n1's and n2's
	wantNames(t, names(pods.Table(), s, byNode().From("n1")), "ab", "a", "b")
	wantNames(t, names(pods.Table(), s, byAddr().From(netip.MustParseAddr("10.0.0.2"))), "b", "a", "b")
	if p, rev, ok := pods.Get(s, byAddr().Query(netip.MustParseAddr("2001:db8::2"))); !ok || p.name != "b" || rev != 1 {
		t.Errorf("2001:db8::2 is of %v at revision %d", p, rev)
	}
	if p, _, ok := pods.Get(s, byNode().Query("n9")); ok {
		t.Errorf("found %v on a node that has none", p)
	}
}

func TestAReplacedRowLeavesItsOldKeys(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1", "10.0.0.1", "10.0.0.2"))
	insert(t, db, pods, newPod("a", "n2", "10.0.0.2", "10.0.0.3"), newPod("b", "n1", "10.0.0.1"))
	s := db.Snapshot()
	wantNames(t, names(pods.Table(), s, byNode().Query("n1")), "b")
	wantNames(t, names(pods.Table(), s, byAddr().From(netip.Addr{})), "b", "a", "a")
	if pods.Len(s) != 2 || s.Revision() != 3 {
		t.Errorf("%d rows at revision %d, want 2 at 3", pods.Len(s), s.Revision())
	}
}

func TestASecondRowWithAUniqueKeyIsRefused(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1", "10.0.0.1"))
	err := db.Update(func(txn *Txn) error {
		if _, err := pods.Insert(txn, newPod("c", "n1")); err != nil {
			t.Fatal(err)
		}
		_, err := pods.Insert(txn, newPod("b", "n1", "10.0.0.1"))
		return err
	})
	if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "insert b into table pods: another row has this key: a has address") {
		t.Errorf("error %v", err)
	}
	wantNames(t, names(pods.Table(), db.Snapshot(), Query[*pod]{}), "a") // and not c of the same update
}

func TestTheSamePointerIsRefused(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	a := newPod("a", "n1")
	insert(t, db, pods, a)
	if err := db.Update(func(txn *Txn) error {
		a.node = "n2"
		_, err := pods.Insert(txn, a)
		return err
	}); !errors.Is(err, errSamePointer) {
		t.Errorf("error %v", err)
	}
}

func TestAnUpdateThatFailsChangesNothing(t *testing.T) {
	db := New()
	pods, others := register(t, db, "pods"), register(t, db, "others")
	insert(t, db, pods, newPod("a", "n1"))
	changed := pods.Watch(db.Snapshot(), Query[*pod]{})
	broken := errors.New("broken")
	change := func(txn *Txn) {
		if _, err := others.Insert(txn, newPod("x", "n1")); err != nil {
			t.Fatal(err)
		}
		if n := pods.Delete(txn, byNode().Query("n1")); n != 1 {
			t.Errorf("deleted %d rows, want 1", n)
		}
	}
	if err := db.Update(func(txn *Txn) error { change(txn); return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	func() {
		defer func() { _ = recover() }()
		_ = db.Update(func(txn *Txn) error { change(txn); panic(broken) })
	}()
	s := db.Snapshot()
	if pods.Len(s) != 1 || others.Len(s) != 0 || s.Revision() != 1 || closed(changed) {
		t.Errorf("%d and %d rows at revision %d, watch closed: %t", pods.Len(s), others.Len(s), s.Revision(), closed(changed))
	}
}

func TestASnapshotStaysAndATransactionSeesItsOwnChanges(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1"), newPod("b", "n1"))
	before := db.Snapshot()
	if err := db.Update(func(txn *Txn) error {
		if _, err := pods.Insert(txn, newPod("c", "n1")); err != nil {
			return err
		}
		var listed []string
		for p := range pods.List(txn, byNode().Query("n1")) { // writing meanwhile does not disturb it
			listed = append(listed, p.name)
			if p.name == "a" {
				pods.Delete(txn, byName().Query("c"))
			}
			if _, err := pods.Insert(txn, newPod(p.name, "n2")); err != nil {
				return err
			}
			if _, err := pods.Insert(txn, newPod(p.name+"x", "n1")); err != nil {
				return err
			}
		}
		wantNames(t, listed, "a", "b", "c")
		wantNames(t, names(pods.Table(), txn, byNode().Query("n1")), "ax", "bx", "cx")
		wantNames(t, names(pods.Table(), db.Snapshot(), byNode().Query("n1")), "a", "b")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantNames(t, names(pods.Table(), before, Query[*pod]{}), "a", "b")
	wantNames(t, names(pods.Table(), db.Snapshot(), Query[*pod]{}), "a", "ax", "b", "bx", "c", "cx")
}

func TestAWatchClosesWhenItsQueryFindsSomethingElse(t *testing.T) {
	watched := map[string]Query[*pod]{
		"row a": byName().Query("a"), "row c": byName().Query("c"),
		"node n1": byNode().Query("n1"), "node n3": byNode().Query("n3"),
		"address of b": byAddr().Query(netip.MustParseAddr("10.0.0.2")),
		"all":          {}, "from b": byName().From("b"),
	}
	for _, tc := range []struct {
		name   string
		change func(txn *Txn, pods RW[*pod]) error
		closes []string // at least
		stays  []string
	}{
		{"a row is added", func(txn *Txn, pods RW[*pod]) error {
			_, err := pods.Insert(txn, newPod("c", "n3"))
			return err
		}, []string{"row c", "node n3", "all", "from b"}, []string{"row a", "address of b"}},
		{"a row is replaced", func(txn *Txn, pods RW[*pod]) error {
			_, err := pods.Insert(txn, newPod("a", "n1", "10.0.0.1", "10.0.0.7"))
			return err
		}, []string{"row a", "node n1", "all"}, []string{"address of b"}},
		{"a row is deleted", func(txn *Txn, pods RW[*pod]) error {
			pods.Delete(txn, byName().Query("b"))
			return nil
		}, []string{"node n1", "address of b", "all", "from b"}, []string{"row a"}},
		{
			"another table is changed", func(*Txn, RW[*pod]) error { return nil }, nil,
			[]string{"row a", "row c", "node n1", "node n3", "address of b", "all", "from b"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := New()
			pods, others := register(t, db, "pods"), register(t, db, "others")
			insert(t, db, pods, newPod("a", "n1", "10.0.0.1"), newPod("b", "n1", "10.0.0.2"))
			s, watches := db.Snapshot(), map[string]<-chan struct{}{}
			for name, q := range watched {
				watches[name] = pods.Watch(s, q)
			}
			if err := db.Update(func(txn *Txn) error {
				if _, err := others.Insert(txn, newPod("a", "n1")); err != nil {
					return err
				}
				return tc.change(txn, pods)
			}); err != nil {
				t.Fatal(err)
			}
			for _, name := range tc.closes {
				if !closed(watches[name]) {
					t.Errorf("the watch on %s is open", name)
				}
			}
			for _, name := range tc.stays {
				if closed(watches[name]) {
					t.Errorf("the watch on %s is closed", name)
				}
			}
		})
	}
}

// Changes close watch channels from the table's first Watch on: a snapshot from before is
// reported as changed, because it may be.
func TestTheFirstWatchOfAnOldSnapshotClosesAtOnce(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1"))
	old := db.Snapshot()
	insert(t, db, pods, newPod("a", "n2"))
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	if !closed(pods.Watch(old, Query[*pod]{})) {
		t.Error("a change after the snapshot and before the watch is missed")
	}
	changed := pods.Watch(db.Snapshot(), Query[*pod]{})
	if closed(changed) {
		t.Error("closed without a change")
	}
	insert(t, db, pods, newPod("a", "n3"))
	if !closed(changed) {
		t.Error("a change after the watch is missed")
	}
}

func TestReplaceChangesOnlyWhatDiffers(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1", "10.0.0.1"), newPod("b", "n1", "10.0.0.2"), newPod("c", "n1"))
	equal := func(a, b *pod) bool { return a.node == b.node && slices.Equal(a.addrs, b.addrs) }
	want := []*pod{newPod("a", "n1", "10.0.0.1"), newPod("c", "n2"), newPod("d", "n1", "10.0.0.2")} // d has what b had
	for _, changes := range []int{3, 0} {
		if err := db.Update(func(txn *Txn) error {
			n, err := pods.Replace(txn, want, equal)
			if n != changes {
				t.Errorf("%d changes, want %d", n, changes)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	s := db.Snapshot()
	wantNames(t, names(pods.Table(), s, Query[*pod]{}), "a", "c", "d")
	if _, rev, _ := pods.Get(s, byName().Query("a")); rev != 1 {
		t.Errorf("a row that did not change is at revision %d, want 1", rev)
	}
}

func TestATableIsPrintedByPrimaryKey(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	register(t, db, "empty")
	insert(t, db, pods, newPod("web-10", "node-1", "10.0.0.1", "2001:db8::1"), newPod(`a"b`, ""))
	for _, tc := range []struct {
		name, text, json string
	}{
		{
			"pods", "NAME    NODE    ADDRESSES\na\"b     -       -\nweb-10  node-1  10.0.0.1,2001:db8::1\n",
			"[\n  {\"NAME\": \"a\\\"b\", \"NODE\": \"\", \"ADDRESSES\": \"\"},\n  {\"NAME\": \"web-10\", \"NODE\": \"node-1\", \"ADDRESSES\": \"10.0.0.1,2001:db8::1\"}\n]\n",
		},
		{"empty", "NAME  NODE  ADDRESSES\n", "[\n]\n"},
	} {
		var text, asJSON strings.Builder
		if err := errors.Join(db.Snapshot().Print(&text, tc.name), db.Snapshot().PrintJSON(&asJSON, tc.name)); err != nil {
			t.Fatal(err)
		}
		if text.String() != tc.text || asJSON.String() != tc.json {
			t.Errorf("printed\n%s%s", text.String(), asJSON.String())
		}
	}
	if err := db.Snapshot().Print(&strings.Builder{}, "pod"); err == nil || err.Error() != "there is no table pod; the tables are empty, pods" {
		t.Errorf("error %v", err)
	}
}

func TestAnIncompleteSchemaIsRefused(t *testing.T) {
	db := New()
	register(t, db, "pods")
	for why, spoil := range map[string]func(s *Schema[*pod]){
		"there is one of that name":                        func(s *Schema[*pod]) { s.Name = "pods" },
		"it needs a name and a primary index":              func(s *Schema[*pod]) { s.Primary = nil },
		"it needs columns and cells to be printed":         func(s *Schema[*pod]) { s.Cells = nil },
		"the primary index must have one key for each row": func(s *Schema[*pod]) { s.Primary = byAddr() },
		"two indexes are named node":                       func(s *Schema[*pod]) { s.Others = append(s.Others, byNode()) },
	} {
		s := schema("new")
		spoil(&s)
		if _, err := Register(db, s); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("error %v, want %s", err, why)
		}
	}
}

func TestMisuseOfTransactionsPanics(t *testing.T) {
	db, other := New(), New()
	pods := register(t, db, "pods")
	var ended *Txn
	if err := db.Update(func(txn *Txn) error { ended = txn; return nil }); err != nil {
		t.Fatal(err)
	}
	for want, misuse := range map[string]func(){
		"table: the transaction has ended":           func() { _, _ = pods.Insert(ended, newPod("a", "n1")) },
		"table: the snapshot is of another database": func() { pods.Len(other.Snapshot()) },
		"table pods has no index address of the tests": func() {
			pods.Get(db.Snapshot(), By("address of the tests", func(*pod) int { return 0 }, Number).Query(1))
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v, want %s", got, want)
				}
			}()
			misuse()
		}()
	}
}

func TestATableRegisteredLaterIsEmptyInOlderSnapshots(t *testing.T) {
	db := New()
	before := db.Snapshot()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1"))
	if pods.Len(before) != 0 || pods.Len(db.Snapshot()) != 1 {
		t.Errorf("%d rows before, %d now", pods.Len(before), pods.Len(db.Snapshot()))
	}
}

func TestReadersSeeAllOfAnUpdateOrNothing(t *testing.T) {
	db := New()
	left, right := register(t, db, "left"), register(t, db, "right")
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for !closed(done) {
				s := db.Snapshot()
				a, _, _ := left.Get(s, byName().Query("a"))
				b, _, _ := right.Get(s, byName().Query("a"))
				if (a == nil) != (b == nil) || a != nil && a.node != b.node {
					t.Errorf("left has %v, right has %v", a, b)
				}
				select {
				case <-left.Watch(s, byName().Query("a")):
				case <-done:
				}
			}
		})
	}
	for i := range 200 {
		if err := db.Update(func(txn *Txn) error {
			for _, pods := range []RW[*pod]{left, right} {
				if _, err := pods.Insert(txn, newPod("a", fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	readers.Wait()
}
