package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// want is the desired row of these tests: a value under a key, and another one, if it is
// not empty, under a key of its own. These are its objects.
type want struct{ key, value, second string }

// objects has the values of a row by the keys of the target.
func (w want) objects() map[string]string {
	if w.second == "" {
		return map[string]string{w.key: w.value}
	}
	return map[string]string{w.key: w.value, w.key + "2": w.second}
}

func byWantKey() table.Index[want, string] {
	return table.By("key", func(w want) string { return w.key }, table.String)
}

var errRefused = errors.New("refused")

// target is a target that is a map, and its Ops.
type target struct {
	have    map[string]string
	refuse  map[string]bool // keys of rows, and "read" and "prune"
	foreign map[string]bool // objects that updates cannot change
	stuck   map[string]bool // objects on which updates succeed and change nothing
	calls   []string
	desired func(key string) bool // whether a row has a key
	during  func(call string)     // called in each call, before it has its effect
}

func (g *target) call(verb, key string) error {
	g.calls = append(g.calls, verb+" "+key)
	if g.during != nil {
		g.during(verb)
	}
	if g.refuse[key] {
		return fmt.Errorf("%s %s: %w", verb, key, errRefused)
	}
	return nil
}

func (g *target) Update(_ context.Context, rows []want) []error {
	errs := make([]error, len(rows))
	for i, w := range rows {
		if errs[i] = g.call("update", w.key); errs[i] != nil {
			continue
		}
		desired := w.objects()
		for _, object := range slices.Sorted(maps.Keys(desired)) {
			value := desired[object]
			switch {
			case g.foreign[object] && g.have[object] != value:
				errs[i] = fmt.Errorf("%s is in the way of %s", g.have[object], object)
			case !g.stuck[object]:
				g.have[object] = value
			}
		}
	}
	return errs
}

func (g *target) Delete(_ context.Context, rows []want) []error {
	errs := make([]error, len(rows))
	for i, w := range rows {
		if g.desired(w.key) {
			continue // another row says the same by now
		}
		if errs[i] = g.call("delete", w.key); errs[i] == nil {
			delete(g.have, w.key)
			delete(g.have, w.key+"2")
		}
	}
	return errs
}

func (g *target) Read(context.Context) (Actual[want], error) {
	if g.refuse["read"] {
		return nil, errRefused
	}
	if g.during != nil {
		g.during("list") // before the target is listed
	}
	list := listing{target: g}
	list.had = maps.Clone(g.have)
	if g.during != nil {
		g.during("read") // after it
	}
	return list, nil
}

// listing is what a target had.
type listing struct {
	target *target
	had    map[string]string
}

// Diff compares the objects of a row. None of it can be compared but the first if that is
// "closed".
func (l listing) Diff(w want) (differences []Difference) {
	if l.target != nil && l.target.during != nil {
		l.target.during("diff")
	}
	desired := w.objects()
	for _, object := range slices.Sorted(maps.Keys(desired)) {
		value, there := l.had[object]
		switch {
		case object != w.key && l.had[w.key] == "closed":
			differences = append(differences, Difference{Object: object})
		case !there:
			differences = append(differences, Difference{object, object + " is missing"})
		case value != desired[object]:
			differences = append(differences, Difference{object, object + " is " + value})
		}
	}
	return differences
}

func (l listing) Prune(_ context.Context, keep []want) (what []string, err error) {
	if l.target.refuse["prune"] {
		return nil, errRefused
	}
	for _, key := range slices.Sorted(maps.Keys(l.had)) {
		if !slices.ContainsFunc(keep, func(w want) bool { return w.key == key || w.key+"2" == key }) {
			l.target.calls = append(l.target.calls, "prune "+key)
			delete(l.target.have, key)
			what = append(what, key+" is "+l.had[key]+", not wanted")
		}
	}
	return what, nil
}

// rig is a reconciler of a target.
type rig struct {
	t interface {
		Fatal(args ...any)
		Errorf(format string, args ...any)
		Helper()
	}
	*target
	db     *table.DB
	wanted table.RW[want]
	r      *Reconciler[want]
	drifts []string // reported
}

func newRig(t interface {
	Fatal(args ...any)
	Errorf(format string, args ...any)
	Helper()
}, cfg Config[want],
) *rig {
	g := &rig{t: t, db: table.New(), target: &target{
		have: map[string]string{}, refuse: map[string]bool{}, foreign: map[string]bool{}, stuck: map[string]bool{},
	}}
	var err error
	g.wanted, err = table.Register(g.db, table.Schema[want]{
		Name: "wanted", Primary: byWantKey(), Columns: []string{"KEY", "VALUE", "SECOND"},
		Cells: func(w want) []string { return []string{w.key, w.value, w.second} },
	})
	if err != nil {
		g.t.Fatal(err)
	}
	g.desired = func(key string) bool {
		_, _, ok := g.wanted.Get(g.db.Snapshot(), byWantKey().Query(key))
		return ok
	}
	cfg.OnRepaired = func(_ want, d Drift) { g.drifts = append(g.drifts, d.Texts()...) }
	cfg.OnPruned = func(what []string) { g.drifts = append(g.drifts, what...) }
	if g.r, err = New(g.db, g.wanted.Table(), g.target, cfg); err != nil {
		g.t.Fatal(err)
	}
	return g
}

func (g *rig) update(change func(txn *table.Txn) error) {
	g.t.Helper()
	if err := g.db.Update(change); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) insert(key, value string) { g.t.Helper(); g.put(want{key: key, value: value}) }

func (g *rig) put(w want) {
	g.t.Helper()
	g.update(func(txn *table.Txn) error { _, err := g.wanted.Insert(txn, w); return err })
}

func (g *rig) remove(key string) {
	g.t.Helper()
	g.update(func(txn *table.Txn) error { g.wanted.Delete(txn, byWantKey().Query(key)); return nil })
}

// lock begins direct work on a key; the returned function records its result, one or two
// values or, without one, a deletion, and ends it.
func (g *rig) lock(key string) (end func(value ...string)) {
	g.t.Helper()
	release, err := g.r.Lock(context.Background(), want{key: key})
	if err != nil {
		g.t.Fatal(err)
	}
	return func(value ...string) {
		g.update(func(txn *table.Txn) error {
			if len(value) == 0 {
				g.wanted.Delete(txn, byWantKey().Query(key))
				g.r.MarkDeleted(txn, want{key: key})
				return nil
			}
			row := want{key: key, value: value[0]}
			if len(value) > 1 {
				row.second = value[1]
			}
			rev, err := g.wanted.Insert(txn, row)
			if err != nil {
				return err
			}
			return g.r.MarkDone(txn, row, rev)
		})
		release()
	}
}

func (g *rig) pass() (next time.Time, err error) { return g.r.Pass(context.Background()) }

// mustPass does a pass and returns what it called.
func (g *rig) mustPass() []string {
	g.t.Helper()
	g.calls = nil
	if _, err := g.pass(); err != nil {
		g.t.Fatal(err)
	}
	return g.calls
}

func (g *rig) status(key string) Status {
	s, _, _ := g.r.Status().Get(g.db.Snapshot(), ByRow().Query(g.wanted.Key(want{key: key})))
	return s
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
