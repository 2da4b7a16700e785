package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// told is everything the agent tells people, one a line.
type told struct{ events []string }

func (l *told) PodWarning(ref kube.PodRef, uid, reason, message string) {
	l.events = append(l.events, fmt.Sprintf("pod %s %s %s: %s", ref, uid, reason, message))
}

func (l *told) NodeWarning(reason, message string) {
	l.events = append(l.events, "node "+reason+": "+message)
}

// looking is an agent whose passes over the kernel can be told of.
func looking(t *testing.T) (*Agent, *told) {
	t.Helper()
	a := withExecutor(t, &lossy{broken: func() bool { return false }})
	l := &told{}
	a.events, a.broken = l, map[string]map[string]defect{}
	return a, l
}

func TestOnlyWhatOthersDidIsTold(t *testing.T) {
	a, told := looking(t)
	list := []hostnet.Drift{
		{Object: "rule of a pod that is being wired", Own: true},
		{Object: "route of a pod that came", Own: true, Repaired: true},
	}
	now := time.Now()
	if next := a.found(inLinks, list, now); !next.Equal(now.Add(time.Second)) {
		t.Errorf("looks again at %v, want a second later: work is under way", next.Sub(now))
	}
	if len(told.events) > 0 {
		t.Errorf("told of our own work: %q", told.events)
	}
	for _, rule := range []string{"one", "two", "three", "four"} {
		list = append(list, hostnet.Drift{Object: "rule " + rule, Was: "is missing", Repaired: true})
	}
	a.found(inLinks, list, now)
	if len(told.events) != 1 || !strings.Contains(told.events[0], "NetworkDrift") || !strings.Contains(told.events[0], "rule three: is missing (repaired); and 1 more") {
		t.Errorf("told %q, want one event about four rules", told.events)
	}
}

func TestWhatCannotBeRepairedIsToldOnceAfterAWhile(t *testing.T) {
	a, told := looking(t)
	list := []hostnet.Drift{{Object: "link eni1", Was: "is gone"}}
	first := time.Now()
	if next := a.found(inLinks, list, first); !next.Equal(first.Add(standing)) {
		t.Errorf("looks again after %v, want %v", next.Sub(first), standing)
	}
	if got := a.standingDrift(); len(got) != 0 || len(told.events) != 0 {
		t.Errorf("at once: %v, %v", got, told.events)
	}
	later := first.Add(standing)
	for range 2 {
		a.found(inLinks, list, later)
		if got := a.standingDrift(); !slices.Equal(got, []string{"link eni1: is gone"}) || len(told.events) != 1 {
			t.Errorf("after a while: %v, %v", got, told.events)
		}
	}
	a.found(inLinks, nil, later)
	if got := a.standingDrift(); len(got) != 0 {
		t.Errorf("after a clean pass: %v", got)
	}
}

// A second pass no longer knows that it was there, nor does a new process.
func TestWhatCannotBeRepairedIsToldWhoeverDidIt(t *testing.T) {
	a, told := looking(t)
	first := time.Now()
	gone := hostnet.Drift{Object: "link eni1", Was: "is gone"}
	a.found(inLinks, []hostnet.Drift{gone}, first)
	gone.Own = true
	if next := a.found(inLinks, []hostnet.Drift{gone}, first.Add(time.Second)); !next.Equal(first.Add(2*time.Second)) || len(told.events) != 0 {
		t.Errorf("a second later: looks again at %v, told %q", next, told.events)
	}
	a.found(inLinks, []hostnet.Drift{gone}, first.Add(standing))
	if len(told.events) != 1 || !strings.Contains(told.events[0], "link eni1: is gone") {
		t.Errorf("told %q, want that the link is gone", told.events)
	}
	if next := a.found(inLinks, []hostnet.Drift{gone}, first.Add(time.Minute)); !next.IsZero() || len(told.events) != 1 {
		t.Errorf("once it is told: looks again at %v, told %q", next, told.events)
	}
}
