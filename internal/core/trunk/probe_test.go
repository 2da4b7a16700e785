package trunk_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

// A dry run of the calls that branches need is refused, and allowed later.
func TestTheTrunkWaitsWhileADryRunIsRefused(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	before := w.state.String()
	refused := trunk.Probe{Refusal: "UnauthorizedOperation: no", Since: epoch.Add(-time.Minute), Until: epoch.Add(time.Minute), Tries: 3}
	paused := trunk.Probed(w.state, refused)
	if w.state.String() != before {
		t.Error("the state that was given has changed")
	}
	want := trunk.Backoff{Since: refused.Since, Until: refused.Until, Tries: 3, Reason: trunk.FailRefused, Message: refused.Refusal}
	if got := paused.Backoffs["trunk"]; got != want {
		t.Errorf("back-off %+v, want %+v", got, want)
	}
	for at, want := range map[time.Time]bool{epoch: true, refused.Until.Add(-1): true, refused.Until: false} {
		if paused.TrunkPaused(at) != want || w.state.TrunkPaused(at) {
			t.Errorf("at %s paused: %v, want %v; without a refusal: %v", at, paused.TrunkPaused(at), want, w.state.TrunkPaused(at))
		}
	}
	w.state = paused
	if got := problems(w); got != ": the trunk waits until 12:01:00: UnauthorizedOperation: no" || len(w.decided.Actions) > 0 {
		t.Errorf("%s", w.decided)
	}
	w.state = trunk.Probed(w.state, trunk.Probe{})
	w.settle()
	if w.state.Trunk.Stage != trunk.Ready {
		t.Errorf("once the calls are allowed: %s\n%s", w.state, w.decided)
	}
}

func TestAProbeWithoutNewsChangesNothing(t *testing.T) {
	refused := trunk.Probe{Refusal: "no", Since: epoch, Until: epoch.Add(time.Minute), Tries: 1}
	longer := refused
	longer.Until, longer.Tries = epoch.Add(time.Hour), 2
	failed := trunk.New(instance)
	failed.Backoffs["trunk"] = trunk.Backoff{Until: epoch.Add(time.Minute), Tries: 1, Reason: trunk.FailOther, Message: "EC2 failed"}
	first := trunk.Probed(trunk.New(instance), refused)
	for name, tt := range map[string]struct {
		state   trunk.State
		probe   trunk.Probe
		want    string // the message of the back-off; "" is none
		until   time.Time
		changes bool
	}{
		"allowed, as before":                 {trunk.New(instance), trunk.Probe{}, "", time.Time{}, false},
		"allowed after a refusal":            {first, trunk.Probe{}, "", time.Time{}, true},
		"allowed, and the call has failed":   {failed, trunk.Probe{}, "EC2 failed", epoch.Add(time.Minute), false},
		"refused, as before":                 {first, refused, "no", refused.Until, false},
		"refused for longer":                 {first, longer, "no", longer.Until, true},
		"refused, where the call has failed": {failed, refused, "no", refused.Until, true},
	} {
		got := trunk.Probed(tt.state, tt.probe)
		if b := got.Backoffs["trunk"]; b.Message != tt.want || !b.Until.Equal(tt.until) {
			t.Errorf("%s: %+v, want %q until %s", name, b, tt.want, tt.until)
		}
		if same := reflect.DeepEqual(got, tt.state); same == tt.changes {
			t.Errorf("%s: the state is the same: %v", name, same)
		}
	}
}
