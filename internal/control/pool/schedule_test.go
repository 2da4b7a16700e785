package pool

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// A fleet that was started together does not read EC2 at the same time.
func TestIntervalsDifferByTheNameOfTheNodeByATenthAtMost(t *testing.T) {
	found := make(map[time.Duration]bool)
	for i := range 100 {
		every := interval(fmt.Sprintf("ip-10-0-0-%d.us-west-2.compute.internal", i))
		if every < observeEvery*9/10 || every > observeEvery*11/10 {
			t.Errorf("%s, want %s plus or minus a tenth", every, observeEvery)
		}
		found[every.Round(time.Second)] = true
	}
	if len(found) < 50 {
		t.Errorf("a hundred nodes have %d intervals", len(found))
	}
}

// A difference that lasts, such as an address that another account holds, is not observed
// forever at the interval of a fresh one.
func TestThePauseBetweenObservationsOfALastingDifferenceDoubles(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := schedule{every: observeEvery, observed: now, surveyed: now, answered: now}
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second} {
		s.read(reading{interfaces: true}, nil, now)
		s.compared(1, now)
		if got := s.recheck.Sub(now); got != want {
			t.Errorf("observed again after %s, want %s", got, want)
		}
		if r := s.due(s.recheck.Add(-time.Second)); r.any() {
			t.Errorf("due before: %q", r.why)
		}
		now = s.recheck
		if r := s.due(now); !r.interfaces || r.subnets {
			t.Errorf("due after %s: %+v, want the interfaces", want, r)
		}
	}
	for range 20 {
		s.compared(1, now)
	}
	if got := s.recheck.Sub(now); got != observeEvery {
		t.Errorf("the longest pause is %s", got)
	}
	if !s.compared(2, now) || s.recheck.Sub(now) != recheckAfter {
		t.Errorf("another difference is observed again after %s", s.recheck.Sub(now))
	}
}

// A request to metadata fails now and then, for instance when a session token expires.
func TestAnOutageOfMetadataBeginsAfterTenMinutes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := schedule{every: observeEvery, observed: now, surveyed: now, answered: now}
	s.compare(nil, now.Add(5*time.Minute))
	if r := s.due(now.Add(14 * time.Minute)); r.any() {
		t.Errorf("due although metadata answered nine minutes ago: %q", r.why)
	}
	if r := s.due(now.Add(15 * time.Minute)); !r.interfaces || r.subnets {
		t.Errorf("due after ten minutes without an answer: %+v, want the interfaces", r)
	}
}

// A later plan waits for the subnets again.
func TestAReadOfTheSubnetsEndsTheWaitOfAPlan(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, failed := range []error{nil, errors.New("throttled")} {
		s := schedule{every: observeEvery, asking: now.Add(-time.Second)}
		s.read(reading{subnets: true}, failed, now)
		if !s.asking.IsZero() || s.subnets != now {
			t.Errorf("%v: asking since %s, read at %s", failed, s.asking, s.subnets)
		}
	}
}
