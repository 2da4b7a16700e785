package drift_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestOnlyExternalChangesAreReported(t *testing.T) {
	var tr drift.Tracker
	list := []hostnet.Drift{
		{Object: "rule of a pod that is being wired", Own: true},
		{Object: "route of a pod that came", Own: true, Repaired: true},
	}
	got := tr.Note(list, now)
	if !got.Next.Equal(now.Add(time.Second)) {
		t.Errorf("compares again after %v, want a second: work is in flight", got.Next.Sub(now))
	}
	if len(got.Repaired)+len(got.Standing) > 0 || len(got.Own) != 1 {
		t.Errorf("own work is reported: %+v", got)
	}
	for i := range 4 {
		list = append(list, hostnet.Drift{Object: fmt.Sprint("rule ", i), Was: "is missing", Repaired: true})
	}
	got = tr.Note(list, now)
	if s := drift.Summary(got.Repaired); len(got.Repaired) != 4 || s != "rule 0: is missing (repaired); rule 1: is missing (repaired); rule 2: is missing (repaired); and 1 more" {
		t.Errorf("%q", s)
	}
}

func TestADifferenceThatCannotBeRepairedIsReportedOnceAfterStanding(t *testing.T) {
	var tr drift.Tracker
	list := []hostnet.Drift{{Object: "link eni1", Was: "is gone"}}
	if got := tr.Note(list, now); !got.Next.Equal(now.Add(drift.Standing)) || len(got.Standing) != 0 || len(tr.Current()) != 0 {
		t.Errorf("at once: %+v, %v", got, tr.Current())
	}
	later := now.Add(drift.Standing)
	for i := range 2 {
		got := tr.Note(list, later)
		if !slices.Equal(tr.Current(), []string{"link eni1: is gone"}) || len(got.Standing) != 1-i {
			t.Errorf("after a while: %+v, %v", got, tr.Current())
		}
	}
	if tr.Note(nil, later); len(tr.Current()) != 0 {
		t.Errorf("after a clean pass: %v", tr.Current())
	}
}

// To a second pass, or a new process, a link that is gone looks like one that was not
// made yet.
func TestADifferenceThatLastsIsReportedAlsoIfItIsMarkedAsOwnWork(t *testing.T) {
	var tr drift.Tracker
	gone := hostnet.Drift{Object: "link eni1", Was: "is gone"}
	tr.Note([]hostnet.Drift{gone}, now)
	gone.Own = true
	if got := tr.Note([]hostnet.Drift{gone}, now.Add(time.Second)); !got.Next.Equal(now.Add(2*time.Second)) || len(got.Standing) != 0 {
		t.Errorf("a second later: %+v", got)
	}
	if got := tr.Note([]hostnet.Drift{gone}, now.Add(drift.Standing)); len(got.Standing) != 1 {
		t.Errorf("after a while: %+v", got)
	}
	if got := tr.Note([]hostnet.Drift{gone}, now.Add(time.Minute)); !got.Next.IsZero() || len(got.Standing) != 0 {
		t.Errorf("once it is reported: %+v", got)
	}
}
