package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

func TestRowsAreUpdatedBeforeOthersAreDeletedAndTheRestIsPruned(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.insert("b", "1")
	equal(t, g.mustPass(), "update b")
	g.insert("a", "1")
	g.remove("b")
	g.have["x"] = "theirs"
	equal(t, g.mustPass(), "update a", "delete b", "prune x")
	equal(t, g.mustPass())
	equal(t, g.drifts, "x is theirs, not wanted")
}

func TestAPassLeavesWhatIsAlreadyAsItShouldBe(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.have["a"], g.have["b"] = "1", "old"
	g.insert("a", "1")
	g.insert("b", "1")
	equal(t, g.mustPass(), "update b")
	if a, b := g.status("a"), g.status("b"); a.State != Done || b.State != Done {
		t.Errorf("a is %s, b is %s", a.State, b.State)
	}
	equal(t, g.drifts)
}

func TestARowThatFailsIsTriedAgainAfterItsOwnBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{Backoff: time.Second, MaxBackoff: 3 * time.Second})
		start := time.Now()
		g.refuse["bad"] = true
		g.insert("bad", "1")
		for i, want := range []time.Duration{time.Second, 3 * time.Second, 6 * time.Second} { // 1, 2 and 3 s apart
			next, err := g.pass()
			if err != nil || next.Sub(start) != want {
				t.Fatalf("attempt %d: next at %s, error %v; want %s", i+1, next.Sub(start), err, want)
			}
			g.insert("good", next.String())
			equal(t, g.mustPass(), "update good") // and not bad
			time.Sleep(time.Until(next))
		}
		s := g.status("bad")
		if s.State != Failed || s.Attempts != 3 || s.Error != "update bad: refused" || s.Since != start {
			t.Errorf("status %+v", s)
		}
		g.insert("bad", "2") // is tried at once
		equal(t, g.mustPass(), "update bad")
		g.remove("bad")
		g.calls = nil
		if next, err := g.pass(); err != nil || time.Until(next) != time.Second || !g.status("bad").Deleting {
			t.Errorf("a deletion that fails: next in %s, error %v, status %+v", time.Until(next), err, g.status("bad"))
		}
		g.refuse["bad"] = false
		time.Sleep(time.Second)
		equal(t, g.mustPass(), "delete bad")
		if s := g.status("bad"); s.Name != "" {
			t.Errorf("the status is left: %+v", s)
		}
	})
}

func TestWhatOthersDidToADoneRowIsReportedOnceAndRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.insert("a", "1")
		g.insert("b", "1")
		g.mustPass()
		delete(g.have, "a")
		g.have["b"] = "theirs"
		time.Sleep(time.Second)
		equal(t, g.mustPass(), "update a", "update b")
		equal(t, g.drifts, "a is missing", "b is theirs")
		if d := g.status("b").Drift; !slices.Equal(d.Texts(), []string{"b is theirs"}) || d.Found != time.Now() || d.Repaired != time.Now() {
			t.Errorf("drift %+v", d)
		}
		equal(t, g.mustPass())
		delete(g.have, "a") // another episode
		g.mustPass()
		equal(t, g.drifts, "a is missing", "b is theirs", "a is missing")
	})
}

func TestDriftThatCannotBeRepairedIsReportedOnceItIs(t *testing.T) {
	for name, set := range map[string]func(g *rig, on bool){
		"the repair fails":              func(g *rig, on bool) { g.refuse["a"] = on },
		"the repair changes nothing":    func(g *rig, on bool) { g.stuck["a"] = on },
		"the repair cannot be verified": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config[want]{})
				g.insert("a", "1")
				g.mustPass()
				delete(g.have, "a")
				if set == nil {
					g.stuck["a"] = true
					g.during = func(call string) { g.refuse["read"] = call == "update" }
					if _, err := g.pass(); !errors.Is(err, errRefused) {
						t.Errorf("error %v", err)
					}
					g.during, g.refuse["read"] = nil, false
					g.mustPass()
					time.Sleep(time.Minute)
					set = func(g *rig, _ bool) { g.stuck["a"] = false }
				} else {
					set(g, true)
					for range 3 {
						g.mustPass()
						time.Sleep(time.Minute)
					}
					if s := g.status("a"); s.State != Failed || s.Attempts != 3 {
						t.Errorf("status %+v", s)
					}
				}
				equal(t, g.drifts)
				if d := g.status("a").Drift; !d.Open() || !slices.Equal(d.Texts(), []string{"a is missing"}) {
					t.Errorf("drift %+v", d)
				}
				set(g, false)
				g.mustPass()
				if s := g.status("a"); s.State != Done || s.Drift.Open() {
					t.Errorf("status %+v", s)
				}
				equal(t, g.mustPass())
				equal(t, g.drifts, "a is missing")
			})
		})
	}
}

func TestOwnWorkIsNeverCalledDrift(t *testing.T) {
	for _, tc := range []struct {
		name string
		work func(g *rig) // done while a pass reads the target
	}{
		{"a row is changed", func(g *rig) { g.insert("a", "2") }},
		{"a row is added", func(g *rig) { g.insert("c", "1") }},
		{"a row is deleted", func(g *rig) { g.remove("a") }},
		{"a row is added directly", func(g *rig) {
			end := g.lock("c")
			g.have["c"] = "1"
			end("1")
		}},
		{"a row is changed directly", func(g *rig) {
			end := g.lock("a")
			g.have["a"] = "2"
			end("2")
		}},
		{"a row is deleted directly", func(g *rig) {
			end := g.lock("a")
			delete(g.have, "a")
			end()
		}},
	} {
		for _, when := range []string{"list", "read", "diff"} {
			t.Run(tc.name+" at "+when, func(t *testing.T) { duringAPass(t, when, tc.work) })
		}
	}
}

// duringAPass does work at one point of a pass, and checks that all agrees after
// the next one and that no drift was reported.
func duringAPass(t *testing.T, when string, work func(g *rig)) {
	g := newRig(t, Config[want]{})
	g.insert("a", "1")
	g.insert("b", "1")
	g.mustPass()
	g.during = func(call string) {
		if call == when {
			g.during = nil
			work(g)
		}
	}
	g.mustPass()
	g.mustPass()
	equal(t, g.drifts)
	for w := range g.wanted.All(g.db.Snapshot()) {
		if g.have[w.key] != w.value || g.status(w.key).State != Done {
			t.Errorf("%s is %q and %s, want %q", w.key, g.have[w.key], g.status(w.key).State, w.value)
		}
	}
	if len(g.have) != g.wanted.Len(g.db.Snapshot()) {
		t.Errorf("the target has %v", g.have)
	}
}

func TestDirectWorkThatBeginsWhileTheTargetIsReadIsNotPruned(t *testing.T) {
	g := newRig(t, Config[want]{})
	var end func(value ...string)
	g.during = func(string) {
		g.during = nil
		end = g.lock("a")
		g.have["a"] = "1"
	}
	equal(t, g.mustPass())
	end("1")
	equal(t, g.mustPass())
}

func TestDirectWorkOnADamagedRowIsNotRepeated(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.insert("a", "1")
	g.insert("b", "1")
	g.mustPass()
	g.have["a"] = "theirs"
	diffs := 0
	g.during = func(call string) {
		if call != "diff" {
			return
		}
		if diffs++; diffs == 2 { // a has been judged
			end := g.lock("a")
			g.have["a"] = "2"
			end("2")
		}
	}
	equal(t, g.mustPass())
	equal(t, g.drifts)
}

func TestDirectWorkThatUndoesItselfIsNotDrift(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.insert("a", "1")
	g.mustPass()
	release, err := g.r.Lock(t.Context(), want{key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	g.have["a"] = "half"
	g.during = func(call string) { // the target has been listed
		if g.during = nil; call == "read" {
			g.have["a"] = "1"
			release()
		}
	}
	equal(t, g.mustPass())
	equal(t, g.drifts)
}

func TestDirectWorkWhileAPassJudgesIsNotUndone(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.have["a"] = "1"
	g.insert("a", "1")
	g.during = func(call string) {
		if call == "diff" {
			g.during = nil
			end := g.lock("a")
			g.have["a"] = "2"
			end("2")
		}
	}
	equal(t, g.mustPass())
	equal(t, g.mustPass()) // the result of the direct work is recorded
}

func TestAPassLeavesDirectWorkAloneUntilItEnds(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.insert("a", "1")
	g.insert("gone", "1")
	g.mustPass()
	endNew, endOld, endGone := g.lock("new"), g.lock("a"), g.lock("gone")
	g.have["new"] = "half" // not in the table yet
	g.have["a"] = "half"
	delete(g.have, "gone")
	equal(t, g.mustPass()) // neither repaired nor pruned
	g.insert("a", "3")     // the owner wants something else meanwhile
	equal(t, g.mustPass())
	g.have["new"], g.have["a"] = "1", "2"
	endNew("1")
	endOld("2")
	endGone()
	equal(t, g.mustPass()) // direct work is not repeated
	equal(t, g.drifts)
	if s := g.status("new"); s.State != Done {
		t.Errorf("status %+v", s)
	}
	g.have["new"] = "theirs" // what was done directly is judged as the rest
	equal(t, g.mustPass(), "update new")
	equal(t, g.drifts, "new is theirs")
}

func TestDirectWorkThatFailedIsClearedByTheNextPass(t *testing.T) {
	g := newRig(t, Config[want]{})
	release, err := g.r.Lock(t.Context(), want{key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	g.have["a"] = "half"
	release()
	equal(t, g.mustPass(), "prune a")
	equal(t, g.drifts)
}

func TestRowsThatAnEarlierProcessLeftAreJudged(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.have["a"] = "1"
	g.update(func(txn *table.Txn) error {
		for _, row := range []want{{key: "a", value: "1"}, {key: "b", value: "1"}} {
			rev, err := g.wanted.Insert(txn, row)
			if err != nil {
				return err
			}
			if err := g.r.MarkDone(txn, row, rev); err != nil {
				return err
			}
		}
		return nil
	})
	equal(t, g.mustPass(), "update b")
	equal(t, g.drifts, "b is missing")
}

func TestDirectWorkWaitsForThePassAndForOtherDirectWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.insert("a", "1")
		working, finish := make(chan struct{}), make(chan struct{})
		g.during = func(call string) {
			if call == "update" {
				close(working)
				<-finish
			}
		}
		passed := make(chan error)
		go func() { _, err := g.pass(); passed <- err }()
		<-working
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.r.Lock(ctx, want{key: "a"}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "lock a in table wanted") {
			t.Errorf("error %v", err)
		}
		var order []string
		locked := make(chan struct{})
		go func() {
			end := g.lock("a")
			order = append(order, "locked")
			end("2")
			close(locked)
		}()
		synctest.Wait()
		order = append(order, "finished")
		close(finish)
		if err := <-passed; err != nil {
			t.Fatal(err)
		}
		<-locked
		equal(t, order, "finished", "locked")
	})
}

func TestAPassThatCannotReadOrPruneIsOwed(t *testing.T) {
	for _, step := range []string{"read", "prune"} {
		g := newRig(t, Config[want]{})
		g.insert("a", "1")
		g.refuse[step] = true
		if _, err := g.pass(); !errors.Is(err, errRefused) {
			t.Errorf("error %v", err)
		}
		g.refuse[step] = false
		g.mustPass()
		if g.have["a"] != "1" || g.status("a").State != Done {
			t.Errorf("the target has %v, status %+v", g.have, g.status("a"))
		}
	}
}

func TestRowsOfDirectWorkAreComparedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{Recheck: 2 * time.Second})
		g.insert("a", "1")
		g.mustPass()
		end := g.lock("a")
		if next, err := g.pass(); err != nil || !next.IsZero() {
			t.Errorf("nothing differs: next %v, error %v", next, err)
		}
		g.have["a"] = "half"
		if next, err := g.pass(); err != nil || time.Until(next) != 2*time.Second {
			t.Errorf("a row differs: next in %s, error %v; want 2s", time.Until(next), err)
		}
		g.insert("a", "2")
		if next, err := g.pass(); err != nil || time.Until(next) != 2*time.Second {
			t.Errorf("a row has changed: next in %s, error %v; want 2s", time.Until(next), err)
		}
		g.have["a"] = "2"
		end("2")
		if next, err := g.pass(); err != nil || !next.IsZero() {
			t.Errorf("the work has ended: next %v, error %v", next, err)
		}
		equal(t, g.drifts)
	})
}

func TestDirectWorkThatFailedIsDoneAgainOrUndone(t *testing.T) {
	g := newRig(t, Config[want]{})
	fail := func(key string) {
		release, err := g.r.Lock(t.Context(), want{key: key})
		if err != nil {
			t.Fatal(err)
		}
		g.have[key] = "half"
		g.update(func(txn *table.Txn) error {
			row := want{key: key, value: "1"}
			rev, err := g.wanted.Insert(txn, row)
			if err != nil {
				return err
			}
			return g.r.MarkFailed(txn, row, rev, errRefused)
		})
		release()
	}
	g.mustPass()
	fail("a")
	if s := g.status("a"); s.State != Failed || s.Error != errRefused.Error() {
		t.Errorf("status %+v", s)
	}
	equal(t, g.mustPass(), "update a")
	fail("b")
	g.remove("b")
	equal(t, g.mustPass(), "delete b")
	equal(t, g.drifts)
}

func TestOnlyWhatTheFirstPassPrunesIsNotReported(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.have["x"] = "of an earlier process"
	equal(t, g.mustPass(), "prune x")
	g.have["y"] = "theirs"
	equal(t, g.mustPass(), "prune y")
	equal(t, g.drifts, "y is theirs, not wanted")
}

// What direct work left is Left until it, the row or the work changes.
func TestWhatIsLeftInTheTarget(t *testing.T) {
	g := newRig(t, Config[want]{})
	left := func() bool {
		s := g.db.Snapshot()
		row, rev, _ := g.wanted.Get(s, byWantKey().Query("a"))
		return g.r.Left(s, row, rev)
	}
	g.insert("a", "1")
	if left() {
		t.Error("a pending row is left")
	}
	g.mustPass()
	if !left() {
		t.Error("a row that is done is not left")
	}
	end := g.lock("a")
	if left() {
		t.Error("a row that is worked on is left")
	}
	end("2")
	if !left() {
		t.Error("what direct work has done is not left")
	}
}

func TestStatusesArePrintedWithoutRevisionsAndTimes(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.insert("a", "1")
	g.insert("b", "1")
	g.insert("c", "1")
	g.mustPass()
	delete(g.have, "a")
	g.refuse["b"] = true
	g.insert("b", "2")
	g.refuse["c"] = true
	g.remove("c")
	g.mustPass()
	var text strings.Builder
	if err := g.db.Snapshot().Print(&text, "wanted-status"); err != nil {
		t.Fatal(err)
	}
	if want := `ROW  STATE          ATTEMPTS  ERROR               DRIFT
a    done           0         -                   a is missing (repaired)
b    failed         1         update b: refused   -
c    failed delete  1         delete c: refused   -
`; strings.ReplaceAll(text.String(), " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("printed\n%s", text.String())
	}
}
