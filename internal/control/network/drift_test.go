package network

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// check compares what the controller has reported so far.
func check(t *testing.T, n *Controller, seen *calls, where string, table []string, events, counted, reports int) {
	t.Helper()
	if got := n.State.Drift(); !slices.Equal(got, table) {
		t.Errorf("%s: the drift table has %q, want %q", where, got, table)
	}
	var counter dto.Metric
	if err := n.Drift.WithLabelValues(inLinks).Write(&counter); err != nil {
		t.Fatal(err)
	}
	if got := counter.GetCounter().GetValue(); len(seen.events) != events || int(got) != counted || seen.reports != reports {
		t.Errorf("%s: events %q, counted %v, %d reports; want %d events, %d counted, %d reports", where, seen.events, got, seen.reports, events, counted, reports)
	}
}

func TestARepairedChangeIsAnEventAndNoRow(t *testing.T) {
	n, seen := newController(t)
	next := n.reportDrift(inLinks, []hostnet.Drift{
		{Object: "rule 512", Was: "is missing", Repaired: true},
		{Object: "route 10.0.0.7", Was: "is missing", Repaired: true},
		{Object: "link eni2", Was: "is new", Repaired: true, Own: true},
	})
	check(t, n, seen, "after the pass", nil, 1, 2, 0)
	if !next.IsZero() || len(seen.missing) > 0 {
		t.Errorf("next pass %v, requests %q: want none, all is repaired", next, seen.missing)
	}
	if e := strings.Join(seen.events, ""); !strings.Contains(e, "rule 512") || !strings.Contains(e, "route 10.0.0.7") || strings.Contains(e, "eni2") {
		t.Errorf("event %q, want both external changes and not the agent's own", e)
	}
}

func TestDriftThatCannotBeRepairedIsARowUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, seen := newController(t)
		gone := []hostnet.Drift{{Object: "link eni1", Was: "is gone"}}
		if next := n.reportDrift(inLinks, gone); !next.Equal(time.Now().Add(drift.Standing)) {
			t.Errorf("compares again in %s, want %s", time.Until(next), drift.Standing)
		}
		check(t, n, seen, "at once", nil, 0, 0, 0)
		<-time.After(drift.Standing)
		for range 2 {
			n.reportDrift(inLinks, gone)
			check(t, n, seen, "once it stands", []string{"link eni1: is gone"}, 1, 1, 1)
		}
		if len(seen.missing) != 1 {
			t.Errorf("requests to the backend %q, want one: the interface may be detached", seen.missing)
		}
		n.reportDrift(inLinks, nil)
		check(t, n, seen, "once it has ended", nil, 1, 1, 1)
		if err := n.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}

func TestAPlaceReplacesItsOwnRowsOnly(t *testing.T) {
	n, _ := newController(t)
	n.publish(inLinks, []string{"link a", "link b"})
	n.publish(inFilter, []string{"set c"})
	n.publish(inLinks, []string{"link b"})
	if got := n.State.Drift(); !slices.Equal(got, []string{"link b", "set c"}) {
		t.Errorf("rows %q", got)
	}
	n.publish(inLinks, nil)
	n.publish(inFilter, nil)
	if got := n.State.Drift(); len(got) > 0 {
		t.Errorf("rows %q after both places are clean", got)
	}
}
