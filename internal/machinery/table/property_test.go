package table

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEncodedKeysAreOrderedAsTheKeysAndNoneBeginsWithAnother(t *testing.T) {
	t.Run("strings", rapid.MakeCheck(func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom([]rune{0, 1, 2, 'a', 'ÿ'}))
		checkOrder(t, s.Draw(t, "a"), s.Draw(t, "b"), strings.Compare, String[string])
	}))
	t.Run("signed numbers", rapid.MakeCheck(func(t *rapid.T) {
		checkOrder(t, rapid.Int16().Draw(t, "a"), rapid.Int16().Draw(t, "b"), cmp.Compare[int16], Number[int16])
	}))
	t.Run("unsigned numbers", rapid.MakeCheck(func(t *rapid.T) {
		checkOrder(t, rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b"), cmp.Compare[uint64], Number[uint64])
	}))
	t.Run("addresses", rapid.MakeCheck(func(t *rapid.T) {
		checkOrder(t, anyAddr(t), anyAddr(t), netip.Addr.Compare, Addr)
	}))
	t.Run("prefixes", rapid.MakeCheck(func(t *rapid.T) {
		prefix := func() netip.Prefix {
			a := anyAddr(t).WithZone("")
			return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
		}
		order := func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		}
		checkOrder(t, prefix(), prefix(), order, Prefix)
	}))
	t.Run("two parts", rapid.MakeCheck(func(t *rapid.T) {
		type pair struct {
			a string
			b int
		}
		draw := func() pair {
			return pair{rapid.StringOf(rapid.SampledFrom([]rune{0, 1, 'a'})).Draw(t, "a"), rapid.Int().Draw(t, "b")}
		}
		order := func(x, y pair) int { return cmp.Or(strings.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) }
		checkOrder(t, draw(), draw(), order, func(b []byte, p pair) []byte { return Number(String(b, p.a), p.b) })
	}))
}

func anyAddr(t *rapid.T) netip.Addr {
	return rapid.OneOf(
		rapid.Just(netip.Addr{}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 4, 4), func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }),
		rapid.Map(rapid.SliceOfN(rapid.ByteMax(1), 16, 16), func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }),
		rapid.Map(rapid.SampledFrom([]string{"", "a", "ab"}), func(zone string) netip.Addr {
			return netip.MustParseAddr("fe80::1").WithZone(zone)
		}),
		rapid.Just(netip.MustParseAddr("::ffff:10.0.0.1")),
	).Draw(t, "address")
}

func checkOrder[K any](t *rapid.T, a, b K, order func(a, b K) int, encode func([]byte, K) []byte) {
	x, y := encode(nil, a), encode(nil, b)
	if bytes.Compare(x, y) != order(a, b) {
		t.Errorf("%v and %v are ordered %d, and encoded %d", a, b, order(a, b), bytes.Compare(x, y))
	}
	if order(a, b) != 0 && (bytes.HasPrefix(x, y) || bytes.HasPrefix(y, x)) {
		t.Errorf("of %v and %v one encoded key begins with the other", a, b)
	}
}

// model is what a table should be, kept in the plainest way.
type model struct {
	revision Revision
	rows     map[string]modelRow
}

type modelRow struct {
	pod      *pod
	revision Revision
}

// modelTracker is what a tracker should know: the state it has reported.
type modelTracker struct {
	*Tracker[*pod]
	seen map[string]Revision
}

func TestATableIsAsAMapWithRevisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		db := New()
		pods, err := Register(db, schema("pods"))
		if err != nil {
			t.Fatal(err)
		}
		m := model{rows: map[string]modelRow{}}
		var trackers []*modelTracker
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				next := model{m.revision, maps.Clone(m.rows)}
				failed := errors.New("abort")
				err := db.Update(func(txn *Txn) error {
					for range rapid.IntRange(0, 5).Draw(t, "changes") {
						next.change(t, txn, pods)
					}
					if rapid.IntRange(0, 4).Draw(t, "outcome") == 0 {
						return failed
					}
					return nil
				})
				switch {
				case err == nil:
					m = next
				case !errors.Is(err, failed):
					t.Fatal(err)
				}
			},
			"track": func(t *rapid.T) {
				trackers = append(trackers, &modelTracker{pods.Track(), map[string]Revision{}})
			},
			"next": func(t *rapid.T) {
				if len(trackers) > 0 {
					rapid.SampledFrom(trackers).Draw(t, "tracker").check(t, db.Snapshot(), m)
				}
			},
			"close": func(t *rapid.T) {
				if len(trackers) > 0 {
					i := rapid.IntRange(0, len(trackers)-1).Draw(t, "tracker")
					trackers[i].Close()
					trackers = slices.Delete(trackers, i, i+1)
				}
			},
			"": func(t *rapid.T) { m.check(t, pods.Table(), db.Snapshot()) },
		})
	})
}

// change makes one change to the table and the model.
func (m *model) change(t *rapid.T, txn *Txn, pods RW[*pod]) {
	name := rapid.SampledFrom([]string{"a", "ab", "b", "c", ""}).Draw(t, "name")
	if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
		_, there := m.rows[name]
		if n := pods.Delete(txn, byName().Query(name)); (n == 1) != there || n > 1 {
			t.Fatalf("deleted %d rows named %q", n, name)
		}
		if there {
			m.revision++
			delete(m.rows, name)
		}
		return
	}
	p := &pod{name: name, node: rapid.SampledFrom([]string{"n", "n1", ""}).Draw(t, "node")}
	for _, b := range rapid.SliceOfN(rapid.ByteMax(5), 0, 3).Draw(t, "addresses") {
		p.addrs = append(p.addrs, netip.AddrFrom4([4]byte{10, 0, 0, b}))
	}
	conflict := false
	for other, row := range m.rows {
		conflict = conflict || other != name && slices.ContainsFunc(row.pod.addrs, func(a netip.Addr) bool { return slices.Contains(p.addrs, a) })
	}
	rev, err := pods.Insert(txn, p)
	if errors.Is(err, ErrConflict) != conflict || err != nil && !conflict {
		t.Fatalf("insert %v: error %v, want a conflict: %t", p, err, conflict)
	}
	if err != nil {
		return
	}
	if m.revision++; rev != m.revision {
		t.Fatalf("revision %d, want %d", rev, m.revision)
	}
	m.rows[name] = modelRow{p, rev}
}

// check compares every query with the model.
func (m *model) check(t *rapid.T, pods *Table[*pod], s *Snapshot) {
	if s.Revision() != m.revision || pods.Len(s) != len(m.rows) {
		t.Fatalf("%d rows at revision %d, want %d at %d", pods.Len(s), s.Revision(), len(m.rows), m.revision)
	}
	sorted := slices.Sorted(maps.Keys(m.rows))
	if got := names(pods, s, Query[*pod]{}); !slices.Equal(got, sorted) {
		t.Fatalf("rows %q, want %q", got, sorted)
	}
	for name, row := range m.rows {
		if p, rev, ok := pods.Get(s, byName().Query(name)); !ok || p != row.pod || rev != row.revision {
			t.Fatalf("%q is %v at revision %d, want %v", name, p, rev, row)
		}
		for _, a := range row.pod.addrs {
			if p, _, _ := pods.Get(s, byAddr().Query(a)); p != row.pod {
				t.Fatalf("%s is of %v, want %v", a, p, row.pod)
			}
		}
	}
	for _, node := range []string{"n", "n1", ""} {
		var want []string
		for _, name := range sorted {
			if m.rows[name].pod.node == node {
				want = append(want, name)
			}
		}
		if got := names(pods, s, byNode().Query(node)); !slices.Equal(got, want) {
			t.Fatalf("on node %q: %q, want %q", node, got, want)
		}
	}
	for a := range byte(6) {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, a})
		want := 0
		for _, row := range m.rows {
			if slices.Contains(row.pod.addrs, addr) {
				want = 1
			}
		}
		if got := len(names(pods, s, byAddr().Query(addr))); got != want {
			t.Fatalf("%d rows have %s, want %d", got, addr, want)
		}
	}
}

// check asks a tracker for changes: with what it reported before, they make up the
// table, in the order of revisions and without repetition.
func (tr *modelTracker) check(t *rapid.T, s *Snapshot, m model) {
	last := Revision(0)
	for _, c := range tr.Next(s) {
		if c.Revision <= last {
			t.Fatalf("change %s at revision %d after revision %d", c.Row.name, c.Revision, last)
		}
		last = c.Revision
		if was, known := tr.seen[c.Row.name]; known && was >= c.Revision {
			t.Fatalf("%s at revision %d was reported before", c.Row.name, c.Revision)
		}
		if c.Deleted {
			delete(tr.seen, c.Row.name)
		} else {
			tr.seen[c.Row.name] = c.Revision
		}
	}
	want := map[string]Revision{}
	for name, row := range m.rows {
		want[name] = row.revision
	}
	if !maps.Equal(tr.seen, want) {
		t.Fatalf("by its changes the table is %v, want %v", fmt.Sprint(tr.seen), want)
	}
}
