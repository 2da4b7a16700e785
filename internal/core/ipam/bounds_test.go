package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Each step becomes due at a time, and not a nanosecond before.
func TestEachStepOfAPlanIsDueAtItsTime(t *testing.T) {
	full := given(0, ipam.Ready, slices.Repeat([]ipam.State{ipam.Assigned}, 14)...)
	half := given(0, ipam.Ready, ipam.Free, ipam.Free)
	for name, c := range map[string]struct {
		after time.Duration
		plan  func(since time.Time) ipam.Decision
		due   func(ipam.Decision) bool
	}{
		"the deletion of a detached interface": {20 * time.Second, func(since time.Time) ipam.Decision {
			e := given(1, ipam.Deleting)
			e.Since = since
			return planned(ipam.Snapshot{}, half, e)
		}, func(d ipam.Decision) bool { return kindsOf(d) == "DeleteENI" }},
		"the removal of a new interface": {time.Minute, func(since time.Time) ipam.Decision {
			e := given(1, ipam.Ready, ipam.Free)
			e.Created = since
			return planned(ipam.Snapshot{}, half, e)
		}, func(d ipam.Decision) bool { return kindsOf(d) == "Detach" }},
		"the deletion of an interface without a slot": {time.Minute, func(since time.Time) ipam.Decision {
			e := given(1, ipam.Attaching)
			e.Created = since
			full := ipam.Backoff{Key: "interfaces", Reason: cloud.FailENILimit, Until: epoch.Add(time.Hour)}
			return planned(ipam.Snapshot{View: ipam.View{Backoffs: []ipam.Backoff{full}}}, half, e)
		}, func(d ipam.Decision) bool { return kindsOf(d) == "DeleteENI" }},
		"the restore of an address": {5 * time.Second, func(since time.Time) ipam.Decision {
			e := given(0, ipam.Ready, ipam.Assigned, ipam.Free, ipam.Free)
			e.Addresses[0].Missing, e.Addresses[0].Holder = since, holder(1)
			return planned(ipam.Snapshot{View: ipam.View{Observed: epoch}}, e)
		}, func(d ipam.Decision) bool { return kindsOf(d) == "RestoreAddresses" }},
		"the survey before a new interface": {5 * time.Minute, func(since time.Time) ipam.Decision {
			return planned(ipam.Snapshot{Surveyed: since, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 100}}}, full)
		}, func(d ipam.Decision) bool { return d.Survey != "" && len(d.Actions) == 0 }},
		"the end of the wait for a survey": {5 * time.Second, func(since time.Time) ipam.Decision {
			return planned(ipam.Snapshot{Surveyed: epoch.Add(-time.Hour), SurveyAsked: since, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 100}}}, full)
		}, func(d ipam.Decision) bool { return d.Survey == "" && kindsOf(d) == "CreateENI" }},
		"the end of a pod's demand": {5 * time.Minute, func(since time.Time) ipam.Decision {
			return planned(ipam.Snapshot{Pending: []ipam.Pending{{UID: "a", Bound: since}}}, half)
		}, func(d ipam.Decision) bool { return d.Numbers.Demand == 0 }},
	} {
		if d := c.plan(epoch.Add(-c.after)); !c.due(d) {
			t.Errorf("%s is not due after %s:\n%s", name, c.after, d)
		}
		early := c.plan(epoch.Add(-c.after + time.Nanosecond))
		if c.due(early) {
			t.Errorf("%s is due too early:\n%s", name, early)
		}
		if want := epoch.Add(time.Nanosecond); name != "the restore of an address" && name != "the survey before a new interface" && !early.Next.Equal(want) {
			t.Errorf("%s: plan again at %s, want %s", name, early.Next, want)
		}
	}
}

// A jitter of up to half of it is added to the time between two releases.
func TestReleasesAreApart(t *testing.T) {
	for since, want := range map[time.Duration]string{30*time.Second - 1: "", 45 * time.Second: "UnassignAddresses"} {
		d := planned(ipam.Snapshot{View: ipam.View{Released: epoch.Add(-since)}}, given(0, ipam.Ready, ipam.Free, ipam.Free, ipam.Free))
		if got := kindsOf(d); got != want {
			t.Errorf("%s after a release: %q, want %q", since, got, want)
		}
	}
}

// observed is an interface as EC2 shows it, with some addresses.
func observed(device int, addrs ...netip.Addr) ipam.Observed {
	return ipam.Observed{Attached: true, Addresses: addrs, ENI: ipam.ENI{
		ID: vpc.ENIID(fmt.Sprint("eni-", device)), Type: vpc.TypeInterface, Primary: device == 0, Device: device, Subnet: "subnet-0", SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"),
	}}
}

// A difference is compared with what a describe may show at each age of a record.
func TestADifferenceCountsFromItsAge(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.10")
	state := func(l *ipam.Ledger, now time.Time) ipam.State {
		for _, e := range l.View(now).ENIs {
			for _, row := range e.Addresses {
				if row.Addr == a {
					return row.State
				}
			}
		}
		return "none"
	}
	for age, want := range map[time.Duration]ipam.State{time.Minute - 1: ipam.Free, time.Minute: ipam.Unconfirmed} {
		l := ipam.New(ipam.DefaultConfig().Settings())
		l.Observe([]ipam.Observed{observed(0, a)}, epoch)
		l.Observe([]ipam.Observed{observed(0)}, epoch.Add(age))
		if got := state(l, epoch.Add(age)); got != want {
			t.Errorf("a free address that is not shown after %s: %s, want %s", age, got, want)
		}
	}
	// An address that appears is confirmed by a second observation, and one that disappears
	// before that is dropped by it.
	for shown, want := range map[bool]ipam.State{true: ipam.Free, false: "none"} {
		for _, early := range []bool{true, false} {
			l := ipam.New(ipam.DefaultConfig().Settings())
			l.Observe([]ipam.Observed{observed(0)}, epoch)
			l.Observe([]ipam.Observed{observed(0, a)}, epoch.Add(time.Second))
			now, then, want := epoch.Add(6*time.Second), observed(0), want
			if early {
				now, want = now.Add(-time.Nanosecond), ipam.Unconfirmed
			}
			if shown {
				then = observed(0, a)
			}
			l.Observe([]ipam.Observed{then}, now)
			if got := state(l, now); got != want {
				t.Errorf("shown again %v, %s later: %s, want %s", shown, now.Sub(epoch)-time.Second, got, want)
			}
		}
	}
	// An interface that is not shown is missing after a minute, and dropped after another.
	l := ipam.New(ipam.DefaultConfig().Settings())
	l.Observe([]ipam.Observed{observed(0), observed(1, a)}, epoch)
	for _, step := range []struct {
		at   time.Duration
		want string
	}{
		{time.Minute - 1, "there"}, {time.Minute, "missing"}, {2*time.Minute - 1, "missing"}, {2 * time.Minute, "dropped"},
	} {
		now := epoch.Add(step.at)
		l.Observe([]ipam.Observed{observed(0)}, now)
		got := "dropped"
		for _, e := range l.View(now).ENIs {
			if e.ID == "eni-1" {
				if got = "there"; !e.Missing.IsZero() {
					got = "missing"
				}
			}
		}
		if got != step.want {
			t.Errorf("after %s the interface is %s, want %s", step.at, got, step.want)
		}
	}
}

func TestWhatWasReleasedIsIgnoredInDescribesForAMinute(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("10.0.0.11")
	for _, late := range []bool{false, true} {
		l := ipam.New(ipam.DefaultConfig().Settings())
		l.Observe([]ipam.Observed{observed(0, a, b)}, epoch)
		if _, err := l.Begin(cloud.Action{ID: "x", Kind: cloud.UnassignAddresses, ENI: "eni-0", Addresses: []netip.Addr{a}}, epoch); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Settle("x", cloud.Outcome{}, epoch); err != nil {
			t.Fatal(err)
		}
		now := epoch.Add(time.Minute)
		if !late {
			now = now.Add(-time.Nanosecond)
		}
		l.Observe([]ipam.Observed{observed(0, a, b)}, now)
		if n := len(l.View(now).ENIs[0].Addresses); (n == 2) != late {
			t.Errorf("%d addresses %s after the release", n, now.Sub(epoch))
		}
		if _, err := l.Begin(cloud.Action{ID: "y", Kind: cloud.AssignAddresses, ENI: "eni-0", Count: 1}, now); err != nil {
			t.Fatal(err)
		}
		if recent := l.View(now).InFlight[0].Recent; slices.Contains(recent, a) == late {
			t.Errorf("%s after the release, a describe may still show %v", now.Sub(epoch), recent)
		}
		// The record of the release is dropped once it says nothing any more.
		for _, at := range []time.Duration{2 * time.Minute, 2*time.Minute + 1} {
			if _, err := l.Fail(l.View(now).InFlight[0].ID, cloud.Failure{Definite: true}, epoch.Add(at)); err != nil {
				t.Fatal(err)
			}
			kept := slices.ContainsFunc(l.Records(), func(r ipam.Record) bool { return r.Op == ipam.PutGone })
			if kept != (at == 2*time.Minute) {
				t.Errorf("the record of the release is kept %s after it: %v", at, kept)
			}
			if _, err := l.Begin(cloud.Action{ID: cloud.ActionID(at.String()), Kind: cloud.AssignAddresses, ENI: "eni-0", Count: 1}, epoch.Add(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestACoolDownEndsAtItsTime(t *testing.T) {
	w := ready(t)
	lease, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	w.del(1)
	for over, want := range map[time.Duration]ipam.State{w.config.CoolDown - 1: ipam.Cooling, w.config.CoolDown: ipam.Free} {
		copied := ipam.New(w.config.Settings())
		if err := copied.Replay(w.ledger.Records()); err != nil {
			t.Fatal(err)
		}
		at := w.now.Add(over)
		for _, row := range copied.View(at).ENIs[0].Addresses {
			if row.Addr == lease.Addr && row.State != want {
				t.Errorf("after %s it is %s, want %s", over, row.State, want)
			}
		}
	}
}

// Concurrent callers read the clock before they take the lock.
func TestAClockThatIsASecondBackWasNotSetBack(t *testing.T) {
	for back, set := range map[time.Duration]bool{time.Second: false, time.Second + 1: true} {
		w := ready(t)
		w.now = w.now.Add(time.Hour)
		if _, err := w.add(1); err != nil {
			t.Fatal(err)
		}
		w.ledger.View(w.now.Add(-back))
		lease, ok := w.ledger.Lookup(holder(1).Endpoint)
		if moved := lease.Since.Before(w.now); !ok || moved != set {
			t.Errorf("%s back: times were moved back %v, want %v", back, moved, set)
		}
	}
}
