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

// play drives a rig at random, and keeps account of what must be reported as drift. Each
// row has two objects. The account is one of objects, not of statuses.
type play struct {
	*rig
	t        *rapid.T
	verified map[string]bool            // rows of which a reading after the last work is known
	agreed   map[string]bool            // objects that agreed by it
	due      map[string]string          // objects that agreed and were damaged, and how a pass found them
	open     map[string]func(...string) // locks
	touched  map[string]bool            // rows that were changed, or locked, since the pass began
	late     map[string]bool            // those of them of which the pass may have seen an earlier version
	may      []string                   // reports of them that were due when the pass began
}

func (p *play) key() string { return rapid.SampledFrom([]string{"a", "b"}).Draw(p.t, "key") }

func (p *play) value() string {
	return rapid.SampledFrom([]string{"1", "2", "3"}).Draw(p.t, "value")
}

func (p *play) object() (key, object string) {
	key = p.key()
	return key, key + rapid.SampledFrom([]string{"", "2"}).Draw(p.t, "object")
}

// touch notes that a row is changed or worked on: what differs may be due to that.
func (p *play) touch(key string) {
	p.touched[key] = true
	delete(p.verified, key)
	for _, object := range []string{key, key + "2"} {
		delete(p.agreed, object)
		if text := p.due[object]; text != "" {
			p.may = append(p.may, text)
		}
		delete(p.due, object)
	}
}

// differences are how the objects of a row differ; an empty text: it cannot be compared.
func (p *play) differences(row want) map[string]string {
	texts := map[string]string{}
	for _, d := range (listing{had: p.have}).Diff(row) {
		texts[d.Object] = d.Text
	}
	return texts
}

// change is what the owner of the table, or direct work, does.
func (p *play) change() {
	key := p.key()
	end, locked := p.open[key]
	switch rapid.SampledFrom([]string{"insert", "remove", "lock"}).Draw(p.t, "change") {
	case "insert":
		p.touch(key)
		p.put(want{key, p.value(), p.value()})
	case "remove":
		p.touch(key)
		p.remove(key)
	case "lock":
		p.touch(key)
		p.late[key] = true
		if !locked {
			p.open[key] = p.lock(key)
			p.have[key], p.have[key+"2"] = "half", "half"
			return
		}
		if delete(p.open, key); rapid.Bool().Draw(p.t, "delete") {
			delete(p.have, key)
			delete(p.have, key+"2")
			end()
			return
		}
		p.have[key], p.have[key+"2"] = p.value(), p.value()
		end(p.have[key], p.have[key+"2"])
		p.verified[key], p.agreed[key], p.agreed[key+"2"] = true, true, true
	}
}

// obstruct makes updates of a row or an object fail, or have no effect, or ends that.
func (p *play) obstruct() {
	key, object := p.object()
	switch rapid.SampledFrom([]string{"row", "foreign", "stuck"}).Draw(p.t, "obstacle") {
	case "row":
		p.refuse[key] = !p.refuse[key]
	case "foreign":
		p.foreign[object] = !p.foreign[object]
	case "stuck":
		p.stuck[object] = !p.stuck[object]
	}
}

// damage is what another program does to an object; it may also restore it.
func (p *play) damage() {
	key, object := p.object()
	if p.open[key] != nil {
		return // the direct work would be as likely a cause
	}
	row, _, there := p.wanted.Get(p.db.Snapshot(), byWantKey().Query(key))
	switch what := rapid.SampledFrom([]string{"missing", "theirs", "closed", "restored"}).Draw(p.t, "damage"); {
	case what == "missing":
		delete(p.have, object)
	case what == "restored" && there:
		p.have[object] = row.objects()[object]
	case what == "closed" && object == key || what == "theirs":
		p.have[object] = what
	}
}

// found enters in the account what a pass that begins now reads. It returns the reports
// that the reading alone demands, by row, and the rows that must be attempted.
func (p *play) found() (restored map[string][]string, attempt map[string]bool) {
	restored, attempt = map[string][]string{}, map[string]bool{}
	for row := range p.wanted.All(p.db.Snapshot()) {
		texts := p.differences(row)
		for _, object := range slices.Sorted(maps.Keys(row.objects())) {
			text, differs := texts[object]
			switch {
			case p.due[object] != "" && !differs:
				restored[row.key] = append(restored[row.key], p.due[object])
				p.may = append(p.may, p.due[object])
				delete(p.due, object)
			case p.agreed[object] && text != "":
				p.due[object], p.agreed[object], attempt[row.key] = text, false, true
			}
		}
	}
	return restored, attempt
}

// known enters in the account what is known after a pass, and returns the reports that its
// work demands.
func (p *play) known(readable bool) (repaired []string) {
	for row := range p.wanted.All(p.db.Snapshot()) {
		texts, attempted := p.differences(row), slices.Contains(p.calls, "update "+row.key)
		switch {
		case attempted && !readable:
			p.verified[row.key], p.agreed[row.key], p.agreed[row.key+"2"] = false, false, false
			continue
		case !attempted && (p.late[row.key] || len(texts) > 0 && !p.verified[row.key]):
			continue
		}
		p.verified[row.key] = true
		for _, object := range slices.Sorted(maps.Keys(row.objects())) {
			text, differs := texts[object]
			if !differs && p.due[object] != "" {
				repaired = append(repaired, p.due[object])
				delete(p.due, object)
			}
			if attempted || text != "" || !differs {
				p.agreed[object] = !differs
			}
		}
	}
	return repaired
}

// waiting lists the rows that are in back-off.
func (p *play) waiting() (keys []string) {
	for row, rev := range p.wanted.All(p.db.Snapshot()) {
		if s := p.status(row.key); s.State == Failed && s.Revision == rev && time.Now().Before(s.Retry) {
			keys = append(keys, row.key)
		}
	}
	return keys
}

func (p *play) pass() {
	p.drifts, p.calls, p.may, p.touched, p.late = nil, nil, nil, map[string]bool{}, map[string]bool{}
	for key := range p.open {
		p.touched[key], p.late[key] = true, true
	}
	waiting := p.waiting()
	restored, attempt := p.found()
	p.during = func(call string) {
		switch {
		case call == "update" || call == "delete": // from here on rows are the reconciler's, and a lock would wait
			p.during = nil
			p.refuse["read"] = rapid.IntRange(0, 3).Draw(p.t, "unreadable") == 0
		case rapid.IntRange(0, 3).Draw(p.t, "work during the "+call) == 0:
			before := maps.Clone(p.touched)
			p.touched = map[string]bool{}
			p.change()
			for key := range p.touched {
				p.late[key] = p.late[key] || call == "diff"
			}
			maps.Copy(p.touched, before)
		}
	}
	_, err := p.r.Pass(p.t.Context())
	p.during = nil
	readable := !p.refuse["read"]
	p.refuse["read"] = false
	if err != nil && readable {
		p.t.Fatal(err)
	}
	p.check(restored, p.known(readable))
	for _, row := range []string{"a", "b"} {
		attempted := slices.Contains(p.calls, "update "+row)
		switch {
		case p.touched[row]:
		case attempt[row] && !attempted:
			p.t.Fatalf("%s has a new difference, and was not attempted: %+v", row, p.status(row))
		case attempted && slices.Contains(waiting, row) && !attempt[row]:
			p.t.Fatalf("%s was attempted before its back-off was over: %+v", row, p.status(row))
		}
	}
}

// check compares the reports of a pass with what must be, and may be, reported.
func (p *play) check(restored map[string][]string, repaired []string) {
	must := repaired
	for key, texts := range restored {
		if !p.touched[key] {
			must = append(must, texts...)
		}
	}
	// What is pruned is not judged here: damage to a row that is gone by then is a stray.
	got := slices.DeleteFunc(p.drifts, func(what string) bool { return strings.HasSuffix(what, "not wanted") })
	got = slices.DeleteFunc(got, func(what string) bool { return slices.Contains(p.may, what) && !slices.Contains(must, what) })
	slices.Sort(must)
	slices.Sort(got)
	if !slices.Equal(got, must) {
		p.t.Fatalf("reported %q, want %q", got, must)
	}
}

func TestAnyHistoryConvergesAndOnlyDamageIsReportedAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // rapid must not ask for a deadline in it
		for range 10 { // one check of 100 histories misses half of the mutations
			rapid.Check(struct{ testing.TB }{t}, history)
		}
	})
}

func history(t *rapid.T) {
	p := &play{
		rig: newRig(t, Config[want]{MaxBackoff: 4 * time.Second}), t: t, verified: map[string]bool{}, agreed: map[string]bool{},
		due: map[string]string{}, open: map[string]func(...string){}, touched: map[string]bool{}, late: map[string]bool{},
	}
	t.Repeat(map[string]func(*rapid.T){
		"change":          func(t *rapid.T) { p.t = t; p.change() },
		"damage":          func(t *rapid.T) { p.t = t; p.damage() },
		"damage and pass": func(t *rapid.T) { p.t = t; p.damage(); p.damage(); p.pass() },
		"obstruct":        func(t *rapid.T) { p.t = t; p.obstruct() },
		"pass":            func(t *rapid.T) { p.t = t; p.pass() },
		"wait":            func(*rapid.T) { time.Sleep(4 * time.Second) },
	})
	for _, key := range slices.Sorted(maps.Keys(p.open)) {
		delete(p.have, key)
		delete(p.have, key+"2")
		p.open[key]()
	}
	clear(p.refuse)
	clear(p.foreign)
	clear(p.stuck)
	time.Sleep(4 * time.Second)
	p.mustPass()
	p.converged()
}

// converged checks that the target has what is desired, and that a pass does nothing.
func (p *play) converged() {
	desired, rows := map[string]string{}, 0
	for w := range p.wanted.All(p.db.Snapshot()) {
		rows++
		maps.Copy(desired, w.objects())
		if s := p.status(w.key); s.State != Done || s.Drift.Open() {
			p.t.Fatalf("%s is %+v", w.key, s)
		}
	}
	if !maps.Equal(p.have, desired) || p.r.Status().Len(p.db.Snapshot()) != rows {
		p.t.Fatalf("the target has %v and %d statuses, want %v", p.have, p.r.Status().Len(p.db.Snapshot()), desired)
	}
	if calls := p.mustPass(); len(calls) != 0 || len(p.r.dirty) != 0 {
		p.t.Fatalf("at the fixpoint a pass called %q, and %d rows are dirty", calls, len(p.r.dirty))
	}
}
