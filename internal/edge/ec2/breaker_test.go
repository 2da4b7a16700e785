package ec2

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// noted is the error of a call at a second.
type noted struct {
	at  time.Duration
	err error
}

func TestTheBreakerOpensAfterCallsInARowOverATime(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lost := &Error{Action: "A", Err: errors.New("cut")}
	throttled := &Error{Action: "A", Code: "RequestLimitExceeded", Status: 503}
	unsigned := &Error{Action: "A", Err: fmt.Errorf("%w: no answer", errCredentials)}
	unconnected := &Error{Action: "A", Err: fmt.Errorf("%w: no such host", errNoConnection)}
	refused := &Error{Action: "A", Code: "UnauthorizedOperation", Status: 403}
	const s = time.Second
	for name, c := range map[string]struct {
		calls []noted
		asked time.Duration
		open  bool
	}{
		"none failed":           {nil, 0, false},
		"two failed":            {[]noted{{0, lost}, {40 * s, lost}}, 40 * s, false},
		"three failed for 30 s": {[]noted{{0, lost}, {s, lost}, {30 * s, lost}}, 30 * s, true},
		"three failed for 29 s": {[]noted{{0, lost}, {s, lost}, {29 * s, lost}}, 29 * s, false},
		// EC2 throttles each action on its own, and one pauses no release of another kind.
		"all were throttled":            {[]noted{{0, throttled}, {s, throttled}, {30 * s, throttled}}, 30 * s, false},
		"three failed among throttled":  {[]noted{{0, lost}, {s, throttled}, {2 * s, lost}, {29 * s, throttled}, {31 * s, lost}}, 31 * s, true},
		"none had credentials":          {[]noted{{0, unsigned}, {s, unsigned}, {30 * s, unsigned}}, 30 * s, false},
		"none was connected":            {[]noted{{0, unconnected}, {s, unconnected}, {30 * s, unconnected}}, 30 * s, true},
		"one succeeded":                 {[]noted{{0, lost}, {s, lost}, {2 * s, nil}, {30 * s, lost}, {31 * s, lost}}, 31 * s, false},
		"one was refused":               {[]noted{{0, lost}, {s, lost}, {2 * s, refused}, {30 * s, lost}, {60 * s, lost}}, 60 * s, false},
		"three more after one was":      {[]noted{{0, lost}, {2 * s, refused}, {30 * s, lost}, {40 * s, lost}, {60 * s, lost}}, 60 * s, true},
		"the last but two minutes ago":  {[]noted{{0, lost}, {s, lost}, {30 * s, lost}}, 150*s - 1, true},
		"the last was two minutes ago":  {[]noted{{0, lost}, {s, lost}, {30 * s, lost}}, 150 * s, false},
		"one more failed after a pause": {[]noted{{0, lost}, {s, lost}, {30 * s, lost}, {200 * s, lost}}, 200 * s, true},
	} {
		b := newBrakes(3, 30*s)
		for _, call := range c.calls {
			b.note(call.err, start.Add(call.at))
		}
		got, why := b.inForce(start.Add(c.asked))
		if got == cloud.AllocateOnly != c.open || got != cloud.AllocateOnly && (got != cloud.BrakeOff || why != "") {
			t.Errorf("%s: brake %q (%s), want open %v", name, got, why, c.open)
		}
		if c.open && (!strings.Contains(why, " EC2 calls in a row failed over ") || !strings.Contains(why, "the last with: EC2 A: ")) {
			t.Errorf("%s: %q", name, why)
		}
		if err := b.allow(cloud.CreateENI, start.Add(c.asked)); err != nil {
			t.Errorf("%s: a create: %v", name, err)
		}
		if err := b.allow(cloud.DeleteENI, start.Add(c.asked)); errors.Is(err, ErrFrozen) != c.open {
			t.Errorf("%s: a delete: %v", name, err)
		}
		for _, brake := range []cloud.Brake{cloud.FreezeAll, cloud.FreezeRelease} {
			b.setOperator(brake, "incident 7")
			got, both := b.inForce(start.Add(c.asked))
			if got != brake || !strings.HasPrefix(both, "set by the operator: incident 7") || !strings.HasSuffix(both, why) || b.operatorBrake() != brake {
				t.Errorf("%s: brake %q (%s), want the operator's with the reasons of both", name, got, both)
			}
		}
		b.setOperator(cloud.BrakeOff, "")
		if again, _ := b.inForce(start.Add(c.asked)); again != got {
			t.Errorf("%s: brake %q once the operator's is off, want %q as before", name, again, got)
		}
	}
}

func TestReadsHaveALargerBudgetThanChanges(t *testing.T) {
	for action, want := range map[string]Budget{
		"DescribeSubnets": {PerSecond: 2, Burst: 20}, "CreateNetworkInterface": {PerSecond: 1, Burst: 15},
	} {
		if got := DefaultBudget(action); got != want {
			t.Errorf("%s: %+v, want %+v", action, got, want)
		}
	}
}

// Calls that were sent together are throttled together. Halving the rate for each took it to the
// lowest one, 20 s a call, after a burst that was one token too large.
func TestCallsThatAreThrottledTogetherHalveTheRateOnce(t *testing.T) {
	b, now := newBudgets(func(string) Budget { return Budget{PerSecond: 8, Burst: 1} }), time.Now()
	for range 10 {
		b.adapt("A", true, now)
		b.adapt("B", true, now)
		now = now.Add(halveEvery / 10)
	}
	if got := b.bucket("A").Limit(); got != 4 {
		t.Errorf("%v calls a second, want 4", got)
	}
	b.adapt("A", true, now)
	if got := b.bucket("A").Limit(); got != 2 {
		t.Errorf("a second later: %v calls a second, want 2", got)
	}
}

// Throttling halves the rate of its action, and a success raises it by a tenth.
func TestTheRateOfAnActionFollowsItsReplies(t *testing.T) {
	b := newBudgets(func(string) Budget { return Budget{PerSecond: 1, Burst: 1} })
	rate, now := func(action string) float64 { return float64(b.bucket(action).Limit()) }, time.Now()
	for i, step := range []struct {
		throttled bool
		want      float64
	}{{false, 1}, {true, 0.5}, {true, 0.25}, {false, 0.275}} {
		now = now.Add(halveEvery)
		b.adapt("A", step.throttled, now)
		if got := rate("A"); got < step.want-1e-9 || got > step.want+1e-9 {
			t.Errorf("step %d: %v calls a second, want %v", i, got, step.want)
		}
	}
	for range 20 {
		now = now.Add(halveEvery)
		b.adapt("A", true, now)
	}
	if got := rate("A"); got != slowest {
		t.Errorf("throttled for long: %v calls a second, want %v", got, slowest)
	}
	for range 60 {
		b.adapt("A", false, now)
	}
	if got := rate("A"); got != 1 || rate("B") != 1 {
		t.Errorf("after many successes %v calls a second, of another action %v; want 1", got, rate("B"))
	}
}
