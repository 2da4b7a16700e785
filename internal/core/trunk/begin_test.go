package trunk_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

func TestARestartRepeatsEachIntentUnderItsTokenWithoutADescribe(t *testing.T) {
	for step := range 12 {
		for _, arrives := range []bool{false, true} {
			w := newWorld(t, warmConfig(0), 18)
			p := w.start(1, "sg-a")
			for range step {
				if w.begin() == 0 {
					w.end(p)
					w.now = w.now.Add(2 * time.Minute)
				}
				w.finishAll()
			}
			w.begin()
			in := slices.Clone(w.flights)
			w.restart(func(trunk.Action) bool { return arrives })
			w.plan()
			for _, a := range in {
				if a.Kind != trunk.Bind && !slices.ContainsFunc(w.decided.Actions, func(b trunk.Action) bool { return b.ID == a.ID && b.Kind == a.Kind }) {
					t.Fatalf("step %d: %s is not repeated as %s\n%s", step, a, a.ID, w.decided)
				}
			}
			for range 20 {
				w.begin()
				w.finishAll()
			}
			if !p.Ended {
				bound(t, w, p)
			}
			w.end(p)
			for range 60 {
				w.begin()
				w.finishAll()
				w.now = w.now.Add(10 * time.Second)
			}
			if n := len(w.ec2.branches()); n > 0 {
				t.Errorf("step %d: %d branches are left\n%s", step, n, w.state)
			}
		}
	}
}

func TestBeginRefusesWhatBreaksAGuarantee(t *testing.T) {
	w := newWorld(t, warmConfig(2), 18)
	p := w.start(1, "sg-a")
	w.settle()
	own := bound(t, w, p)
	var warm []trunk.Branch
	for _, b := range w.state.Branches {
		if b.Stage == trunk.Idle {
			warm = append(warm, b)
		}
	}
	busy, err := trunk.Begin(w.state, trunk.Action{ID: "x", Kind: trunk.SetGroups, Instance: instance, Branch: warm[0].ID, ENI: warm[0].ENI, Groups: trunk.NewGroups("sg-a")}, w.c, w.now)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		state  trunk.State
		action trunk.Action
		want   error
	}{
		{"an action without an ID", w.state, trunk.Action{Kind: trunk.CreateBranch, Instance: instance}, trunk.ErrStale},
		{"of another instance", w.state, trunk.Action{ID: "y", Kind: trunk.CreateBranch, Instance: "i-2"}, trunk.ErrStale},
		{"a second call of a branch", busy, trunk.Action{ID: "y", Kind: trunk.Disassociate, Branch: warm[0].ID}, trunk.ErrBusy},
		{"a call that is in flight", busy, trunk.Action{ID: "x", Kind: trunk.SetGroups, Branch: warm[0].ID}, trunk.ErrBusy},
		{"a second branch of a pod", w.state, trunk.Action{ID: "y", Kind: trunk.CreateBranch, Pod: p.UID}, trunk.ErrStale},
		{"a branch of another pod", w.state, trunk.Action{ID: "y", Kind: trunk.Bind, Branch: own.ID, Pod: "pod-2", Groups: own.Groups}, trunk.ErrStale},
		{"a binding to other groups", w.state, trunk.Action{ID: "y", Kind: trunk.Bind, Branch: warm[0].ID, Pod: "pod-2", Groups: trunk.NewGroups("sg-a")}, trunk.ErrStale},
		{"the end of a branch of a pod", w.state, trunk.Action{ID: "y", Kind: trunk.Disassociate, Branch: own.ID}, trunk.ErrStale},
		{"the deletion of an associated branch", w.state, trunk.Action{ID: "y", Kind: trunk.DeleteBranch, Branch: warm[0].ID}, trunk.ErrStale},
		{"the release of another pod", w.state, trunk.Action{ID: "y", Kind: trunk.Release, Branch: own.ID, Pod: "pod-2"}, trunk.ErrStale},
		{"an unknown branch", w.state, trunk.Action{ID: "y", Kind: trunk.Associate, Branch: "z"}, trunk.ErrStale},
		{"an unknown unowned branch", w.state, trunk.Action{ID: "y", Kind: trunk.Disassociate, ENI: "eni-z"}, trunk.ErrStale},
		{"a second trunk", w.state, trunk.Action{ID: "y", Kind: trunk.CreateTrunk}, trunk.ErrStale},
	}
	for _, tt := range tests {
		if tt.action.Instance == "" {
			tt.action.Instance = instance
		}
		got, err := trunk.Begin(tt.state, tt.action, w.c, w.now)
		if !errors.Is(err, tt.want) || got.String() != tt.state.String() {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestARefusalAfterALostReplyDoesNotShowThatNothingHappened: an association with a lost reply is
// repeated until EC2 confirms it, although a repetition is throttled.
func TestARefusalAfterALostReplyDoesNotShowThatNothingHappened(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	tries := 0
	w.fault = func(a trunk.Action) string {
		if a.Kind != trunk.Associate {
			return ""
		}
		tries++
		return []string{"reply lost", string(trunk.FailThrottled), ""}[tries-1]
	}
	for range 9 {
		w.begin()
		w.finishAll()
		w.now = w.now.Add(2 * time.Second)
		if tries == 2 {
			w.end(p)
			p.asked = true
		}
	}
	if got := w.ec2.calls[trunk.DeleteBranch]; tries != 3 || got != 0 {
		t.Errorf("%d tries, %d deletions\n%s", tries, got, w.state)
	}
	w.pass(5*time.Minute, time.Minute)
	if len(w.ec2.branches()) > 0 {
		t.Errorf("it is left: %s", w.state)
	}
}
