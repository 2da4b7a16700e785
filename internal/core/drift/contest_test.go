package drift_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Another program makes an object again at once, or by a timer.
func TestAContestIsBoundedHoweverOftenTheObjectIsMadeAgain(t *testing.T) {
	for again, atMost := range map[time.Duration]int{time.Millisecond: 12, time.Minute: 12, 5 * time.Minute: 12} {
		var c drift.Contest[string]
		deleted := 0
		for at := time.Duration(0); at < time.Hour; at += again {
			now := epoch.Add(at)
			if _, paused := c.Paused(now)["a"]; !paused {
				c.Deleted("a", now)
				deleted++
			}
		}
		if deleted < 6 || deleted > atMost {
			t.Errorf("made again after %s: deleted %d times in an hour, want 6 to %d", again, deleted, atMost)
		}
	}
}

func TestAnObjectIsDeletedTwiceWithoutAPause(t *testing.T) {
	var c drift.Contest[string]
	for i, want := range []time.Duration{0, 0, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		c.Deleted("a", epoch)
		until, paused := c.Paused(epoch)["a"]
		if paused != (want > 0) || paused && until.Sub(epoch) != want {
			t.Errorf("after %d deletions: paused %v until %s, want %s", i+1, paused, until, want)
		}
	}
	if got := c.Paused(epoch.Add(10 * time.Minute)); len(got) > 0 {
		t.Errorf("after the pause: %v", got)
	}
	if _, paused := c.Paused(epoch)["b"]; paused {
		t.Error("another object is paused")
	}
}

func TestAnObjectIsContestedAfterItsSecondDeletionForAnHour(t *testing.T) {
	var c drift.Contest[string]
	for i, want := range []bool{false, true, true} {
		c.Deleted("a", epoch)
		over, contested := c.Contested(epoch)["a"]
		if contested != want || contested && over.Sub(epoch) != time.Hour {
			t.Errorf("after %d deletions: contested %v until %s, want %v", i+1, contested, over, want)
		}
	}
	if got := c.Contested(epoch.Add(time.Hour)); len(got) > 0 {
		t.Errorf("an hour after the last deletion: %v", got)
	}
}

func TestAContestIsForgotten(t *testing.T) {
	var c drift.Contest[string]
	for range 5 {
		c.Deleted("a", epoch)
	}
	later := epoch.Add(time.Hour)
	c.Deleted("b", later)
	c.Deleted("a", later)
	if got := c.Paused(later); len(got) > 0 {
		t.Errorf("paused %v: the first deletion for an hour", got)
	}
}
