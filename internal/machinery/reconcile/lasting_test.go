package reconcile

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// These tests are about rows of two objects, a and a2, one of which differs for a long time.

// lasting returns a rig in which a differs and cannot be repaired.
func lasting(t *testing.T) *rig {
	t.Helper()
	g := newRig(t, Config[want]{})
	g.have["a"], g.foreign["a"] = "theirs", true
	g.put(want{"a", "1", "1"})
	g.mustPass()
	g.failed("theirs is in the way of a")
	return g
}

// failed checks that row a has failed.
func (g *rig) failed(why string) {
	g.t.Helper()
	if s := g.status("a"); s.State != Failed || s.Error != why {
		g.t.Errorf("status %+v, want failed: %s", s, why)
	}
}

func TestAChangeBesideADifferenceThatWasThereFirstIsRepairedAtOnceAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := lasting(t)
		equal(t, g.mustPass()) // it waits for its next attempt
		delete(g.have, "a2")
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts, "a2 is missing")
		g.failed("theirs is in the way of a")
		if d := g.status("a").Drift; d.Open() || d.Repaired.IsZero() {
			t.Errorf("drift %+v", d)
		}
		g.have["a2"] = "theirs" // once more
		g.mustPass()
		equal(t, g.drifts, "a2 is missing", "a2 is theirs")
		g.foreign["a"] = false
		time.Sleep(time.Minute)
		equal(t, g.mustPass(), "update a") // what was there first is not drift
		equal(t, g.drifts, "a2 is missing", "a2 is theirs")
		equal(t, g.mustPass())
	})
}

func TestAChangeBesideLastingDriftIsReportedBeforeThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.put(want{"a", "1", "1"})
		g.mustPass()
		g.have["a"], g.foreign["a"] = "theirs", true
		g.mustPass()
		since := g.status("a").Since
		time.Sleep(time.Millisecond)
		delete(g.have, "a2")
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts, "a2 is missing")
		g.failed("theirs is in the way of a")
		if s := g.status("a"); !s.Drift.Open() || s.Since != since {
			t.Errorf("status %+v, want open drift and failed since %s", s, since)
		}
		equal(t, g.status("a").Drift.Texts(), "a is theirs")
		g.foreign["a"] = false
		time.Sleep(time.Minute)
		g.mustPass()
		equal(t, g.drifts, "a2 is missing", "a is theirs")
		equal(t, g.mustPass())
	})
}

func TestAChangeThatAlsoLastsIsReportedWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := lasting(t)
		g.have["a2"], g.stuck["a2"] = "theirs", true
		equal(t, g.mustPass(), "update a")
		equal(t, g.mustPass()) // from then on it waits for its next attempt
		equal(t, g.status("a").Drift.Texts(), "a2 is theirs")
		equal(t, g.drifts)
		g.have["a2"] = "1" // the other program restores it
		equal(t, g.mustPass())
		equal(t, g.drifts, "a2 is theirs")
		g.have["a2"], g.stuck["a2"] = "again", false
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts, "a2 is theirs", "a2 is again")
	})
}

func TestADifferenceThatHasEndedIsDriftWhenItIsThereAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := lasting(t)
		g.have["a2"], g.foreign["a2"] = "theirs", true
		g.mustPass()
		g.have["a"] = "1" // the other program restores what was there first
		equal(t, g.mustPass())
		equal(t, g.drifts)
		g.have["a"], g.foreign["a"] = "theirs", false
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts, "a is theirs")
	})
}

func TestADifferenceThatTurnsIntoAnotherOfTheSameObjectIsNotReported(t *testing.T) {
	for name, first := range map[string]bool{"it was there first": true, "it is drift": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config[want]{})
				if !first {
					g.put(want{"a", "1", "1"})
					g.mustPass()
				}
				g.have["a"], g.foreign["a"] = "theirs", true
				if first {
					g.put(want{"a", "1", "1"})
				}
				g.mustPass()
				g.have["a"] = "of a third"
				equal(t, g.mustPass()) // no reason to try again before the back-off is over
				equal(t, g.drifts)
				delete(g.have, "a")
				g.foreign["a"] = false
				equal(t, g.mustPass())
				time.Sleep(time.Minute)
				equal(t, g.mustPass(), "update a")
				if first {
					equal(t, g.drifts)
				} else {
					equal(t, g.drifts, "a is theirs") // as it was found
				}
			})
		})
	}
}

func TestAnObjectThatCannotBeComparedIsNeitherRepairedNorDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.put(want{"a", "1", "1"})
		g.mustPass()
		g.have["a2"], g.foreign["a2"] = "theirs", true
		g.mustPass()
		g.have["a"], g.foreign["a"] = "closed", true // a2 is not compared from here on
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts)
		equal(t, g.status("a").Drift.Texts(), "a2 is theirs", "a is closed")
		g.have["a"] = "1"
		g.mustPass()
		equal(t, g.drifts, "a is closed")
		equal(t, g.status("a").Drift.Texts(), "a2 is theirs")

		g = lasting(t)
		g.have["a"] = "closed" // and a2 has not changed
		equal(t, g.mustPass())
		if d := g.status("a").Drift; d.Open() {
			t.Errorf("drift %+v", d)
		}
	})
}

func TestWhatFollowsWhenAnObjectCanBeComparedAgainIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.have["a"], g.foreign["a"] = "closed", true
		g.stuck["a2"] = true // as long as it is closed
		g.put(want{"a", "1", "1"})
		g.mustPass()
		clear(g.foreign)
		clear(g.stuck)
		g.have["a"] = "1"
		g.mustPass() // a2 has never been there
		time.Sleep(time.Minute)
		g.mustPass()
		equal(t, g.drifts)
		if s := g.status("a"); s.State != Done {
			t.Errorf("status %+v", s)
		}
	})
}

// knownAgain checks that a change of a2 is the first drift that is reported.
func knownAgain(t *testing.T, g *rig) {
	t.Helper()
	delete(g.have, "a2")
	equal(t, g.mustPass(), "update a")
	equal(t, g.drifts, "a2 is missing")
}

func TestNothingIsKnownOfARowThatWasChanged(t *testing.T) {
	g := lasting(t)
	g.put(want{"a", "1", "2"})
	equal(t, g.mustPass(), "update a")
	equal(t, g.drifts)
	g.put(want{"a", "1", "3"})
	delete(g.have, "a2")
	equal(t, g.mustPass(), "update a")
	equal(t, g.drifts)
	knownAgain(t, g)
}

func TestDriftFromWhatWasDesiredBeforeIsNotReported(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.put(want{"a", "1", "1"})
	g.mustPass()
	g.have["a2"], g.foreign["a2"] = "2", true
	g.mustPass()
	g.put(want{"a", "1", "2"}) // as the other program left it
	g.mustPass()
	equal(t, g.drifts)
}

func TestNothingIsKnownOfDirectWorkThatFailed(t *testing.T) {
	g := lasting(t)
	release, err := g.r.Lock(t.Context(), want{key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	row := want{"a", "1", "1"}
	delete(g.have, "a2")
	g.update(func(txn *table.Txn) error {
		_, rev, _ := g.wanted.Get(txn, byWantKey().Query("a"))
		return g.r.MarkFailed(txn, row, rev, errRefused)
	})
	release()
	equal(t, g.mustPass(), "update a")
	equal(t, g.drifts)
	knownAgain(t, g)
}

func TestNothingIsKnownAfterAnAttemptThatCannotBeVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := lasting(t)
		delete(g.have, "a2")
		g.during = func(call string) { g.refuse["read"] = call == "update" }
		if _, err := g.pass(); !errors.Is(err, errRefused) {
			t.Errorf("error %v", err)
		}
		g.during, g.refuse["read"] = nil, false
		equal(t, g.drifts)
		g.failed("theirs is in the way of a")
		g.mustPass()
		equal(t, g.drifts, "a2 is missing") // the drift that was found is repaired
		delete(g.have, "a2")                // the attempt may have left it so
		equal(t, g.mustPass())
		time.Sleep(time.Minute)
		equal(t, g.mustPass(), "update a")
		delete(g.have, "a2")
		equal(t, g.mustPass(), "update a")
		equal(t, g.drifts, "a2 is missing", "a2 is missing")
	})
}

// Removing what only its earlier version wanted is owed.
func TestARowThatAgreesIsKnown(t *testing.T) {
	g := newRig(t, Config[want]{})
	g.put(want{"a", "1", "1"})
	g.mustPass()
	g.put(want{"a", "2", "2"})
	g.during = func(call string) { g.refuse["read"] = call == "update" }
	if _, err := g.pass(); !errors.Is(err, errRefused) {
		t.Errorf("error %v", err)
	}
	g.during, g.refuse["read"] = nil, false
	g.failed("read what became of updates from table wanted: refused")
	equal(t, g.mustPass()) // it waits for its next attempt
	delete(g.have, "a2")
	equal(t, g.mustPass(), "update a")
	equal(t, g.drifts, "a2 is missing")
}

func TestAFirstUpdateThatChangesNothingIsNotDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config[want]{})
		g.stuck["a"] = true
		g.insert("a", "1")
		g.mustPass()
		g.failed("it still differs after the update: a is missing")
		g.stuck["a"] = false
		time.Sleep(time.Minute)
		g.mustPass()
		equal(t, g.drifts)
	})
}
