package reconcile

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// play drives a rig at random and keeps account of what must be reported as drift.
type play struct {
	*rig
	t       *rapid.T
	damaged map[string]string          // Done rows that were damaged, and how: to be reported once it is repaired
	open    map[string]func(...string) // locks
}

func (p *play) key() string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(p.t, "key") }

func (p *play) value() string {
	return rapid.SampledFrom([]string{"1", "2", "3"}).Draw(p.t, "value")
}

// touched notes that a row is not what it was when it was damaged, so that a
// difference may be due to that.
func (p *play) touched(key string) { delete(p.damaged, key) }

// change is what the owner of the table, or direct work, does.
func (p *play) change() {
	key := p.key()
	end, locked := p.open[key]
	switch rapid.SampledFrom([]string{"insert", "remove", "lock", "refuse"}).Draw(p.t, "change") {
	case "insert":
		p.touched(key)
		p.insert(key, p.value())
	case "remove":
		p.touched(key)
		p.remove(key)
	case "lock":
		if !locked {
			p.touched(key)
			p.open[key] = p.lock(key)
			p.have[key] = "half"
			return
		}
		if delete(p.open, key); rapid.Bool().Draw(p.t, "delete") {
			delete(p.have, key)
			end()
			return
		}
		p.have[key] = p.value()
		end(p.have[key])
	case "refuse":
		p.refuse[key] = !p.refuse[key]
	}
}

// damage is what another program does to the target.
func (p *play) damage() {
	key := p.key()
	if p.open[key] != nil {
		return // the direct work would be as likely a cause
	}
	row, rev, there := p.wanted.Get(p.db.Snapshot(), byWantKey().Query(key))
	status := p.status(key)
	if rapid.Bool().Draw(p.t, "delete") {
		delete(p.have, key)
	} else {
		p.have[key] = "theirs"
	}
	if there && status.doneAt(rev) && !status.Drift.Open() {
		p.damaged[key] = strings.Join(listing{had: p.have}.Diff(row), "")
	}
}

func (p *play) pass() {
	p.drifts = nil
	due := maps.Clone(p.damaged)
	p.during = func(call string) {
		if call == "update" || call == "delete" {
			p.during = nil // from here on rows are the reconciler's, and a lock would wait
			return
		}
		if rapid.IntRange(0, 3).Draw(p.t, "work during the "+call) == 0 {
			p.change()
		}
	}
	if _, err := p.r.Pass(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.during = nil
	// What is pruned is not judged here: damage to a row that is gone by then is a stray.
	p.drifts = slices.DeleteFunc(p.drifts, func(what string) bool { return strings.HasSuffix(what, "not wanted") })
	maps.DeleteFunc(due, func(key, _ string) bool { _, still := p.damaged[key]; return !still })
	var want []string
	for key, what := range due {
		if s := p.status(key); s.State == Done && !s.Drift.Open() {
			want = append(want, what)
			delete(p.damaged, key)
		}
	}
	slices.Sort(want)
	slices.Sort(p.drifts)
	if !slices.Equal(p.drifts, want) {
		p.t.Fatalf("reported %q, want %q", p.drifts, want)
	}
}

func TestAnyHistoryConvergesAndOnlyDamageIsReportedAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // rapid must not ask for a deadline in it
		rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) {
			p := &play{rig: newRig(t, Config[want]{MaxBackoff: 4 * time.Second}), t: t, damaged: map[string]string{}, open: map[string]func(...string){}}
			t.Repeat(map[string]func(*rapid.T){
				"change": func(t *rapid.T) { p.t = t; p.change() },
				"damage": func(t *rapid.T) { p.t = t; p.damage() },
				"pass":   func(t *rapid.T) { p.t = t; p.pass() },
				"wait":   func(*rapid.T) { time.Sleep(4 * time.Second) },
			})
			for _, key := range slices.Sorted(maps.Keys(p.open)) {
				delete(p.have, key)
				p.open[key]()
			}
			p.refuse = map[string]bool{}
			time.Sleep(4 * time.Second)
			p.mustPass()
			desired := map[string]string{}
			for w := range p.wanted.All(p.db.Snapshot()) {
				desired[w.key] = w.value
				if s := p.status(w.key); s.State != Done || s.Drift.Open() {
					t.Fatalf("%s is %+v", w.key, s)
				}
			}
			if !maps.Equal(p.have, desired) || p.r.Status().Len(p.db.Snapshot()) != len(desired) {
				t.Fatalf("the target has %v and %d statuses, want %v", p.have, p.r.Status().Len(p.db.Snapshot()), desired)
			}
			if calls := p.mustPass(); len(calls) != 0 || len(p.r.dirty) != 0 {
				t.Fatalf("at the fixpoint a pass called %q, and %d rows are dirty", calls, len(p.r.dirty))
			}
		})
	})
}
