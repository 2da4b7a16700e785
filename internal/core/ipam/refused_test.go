package ipam_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// withRefusedDetach is a node with a second interface that has been idle for longer than
// the idle time, and an EC2 that refuses to detach it.
func withRefusedDetach(t *testing.T, why cloud.FailReason) *world {
	t.Helper()
	w := testWorld(t, m5xlarge(), nil)
	w.fill(20)
	for n := range 20 {
		w.del(n)
	}
	w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
		if a.Kind == cloud.Detach {
			return failed(why, "You are not authorized to perform this operation.")
		}
		return nil
	}
	for w.ec2.calls[cloud.Detach] == 0 {
		w.now = w.now.Add(5 * time.Second)
		for w.begin() > 0 {
			w.finishAll()
		}
	}
	return w
}

func TestAnInterfaceThatEC2RefusesToDetachServesPodsAgain(t *testing.T) {
	for _, why := range []cloud.FailReason{cloud.FailUnauthorized, cloud.FailFrozen, cloud.FailThrottled} {
		w := withRefusedDetach(t, why)
		for n := range 20 {
			if _, err := w.add(100 + n); err != nil {
				t.Fatalf("%s: pod %d of 20: %v; the interface is still attached with its addresses\n%s", why, n, err, w.snapshot())
			}
		}
	}
}

func TestARefusedDetachIsRepeatedWithABackoffThatDoubles(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailThrottled)
	var pauses []time.Duration
	for last := (ipam.Backoff{}); len(pauses) < 8; w.pass(time.Second, time.Second) {
		if b := w.ledger.View(w.now).Backoffs; len(b) == 1 && b[0] != last {
			pauses, last = append(pauses, b[0].Until.Sub(b[0].Since)), b[0]
		}
	}
	wantDoubled(t, pauses)
}

// wantDoubled checks the first eight pauses after a refusal.
func wantDoubled(t *testing.T, pauses []time.Duration) {
	t.Helper()
	want := []time.Duration{2, 4, 8, 16, 32, 64, 120, 120}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses after refused detach calls: %v, want %v", pauses, want)
	}
}

// The pace of releases (ReleaseEvery) does not delay a release that EC2 refused.
func TestTheCallsOfARefusedDetachFollowItsBackoff(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailThrottled)
	var pauses []time.Duration
	for last, calls := w.now, w.ec2.calls[cloud.Detach]; len(pauses) < 8; w.pass(time.Second, time.Second) {
		if now := w.ec2.calls[cloud.Detach]; now > calls {
			pauses, last, calls = append(pauses, w.now.Sub(last)), w.now, now
		}
	}
	wantDoubled(t, pauses)
}

// What is repeated by its back-off does not hasten other releases.
func TestARefusedDetachDoesNotHastenOtherReleases(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailThrottled)
	began := w.now
	for w.ec2.calls[cloud.UnassignAddresses] == 0 {
		w.pass(time.Second, time.Second)
	}
	if after := w.now.Sub(began); after < w.config.ReleaseEvery {
		t.Errorf("addresses were released %s after a refused detach, want at least %s", after, w.config.ReleaseEvery)
	}
}

func TestARefusedDetachIsCalledLessAndLessOften(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailThrottled)
	w.pass(10*time.Minute, time.Second)
	if n := w.ec2.calls[cloud.Detach]; n > 10 { // after 0, 2, 6, 14, 30, 62, 126, 246, 366 and 486 s
		t.Errorf("%d detach calls within ten minutes, want at most 10: the back-off grows to two minutes", n)
	}
}

// causes are those that concern one action on one object.
func causes() []cloud.FailReason {
	return []cloud.FailReason{cloud.FailAddressLimit, cloud.FailThrottled, cloud.FailUnauthorized, cloud.FailInUse, cloud.FailCredentials, cloud.FailNotFound, cloud.FailFrozen, cloud.FailOther}
}

func TestARefusedDetachPausesNoOtherAction(t *testing.T) {
	for _, why := range causes() {
		w := withRefusedDetach(t, why)
		for n := range 40 {
			w.bind(100 + n)
		}
		w.settle() // without time for a back-off to end
		for n := range 40 {
			if _, err := w.add(100 + n); err != nil {
				t.Fatalf("%s: pod %d of 40: %v\n%s", why, n, err, w.snapshot())
			}
		}
	}
}

// Others are read soon, so the longest pause is a part of the time that an ADD waits.
func TestARefusalOfCredentialsIsRepeatedAfterHalfAMinuteAtMost(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailCredentials)
	var pauses []time.Duration
	for last := (ipam.Backoff{}); len(pauses) < 6; w.pass(time.Second, time.Second) {
		if b := w.ledger.View(w.now).Backoffs; len(b) == 1 && b[0] != last {
			pauses, last = append(pauses, b[0].Until.Sub(b[0].Since)/time.Second), b[0]
		}
	}
	if want := []time.Duration{2, 4, 8, 16, 30, 30}; !slices.Equal(pauses, want) {
		t.Errorf("pauses of %v seconds, want %v", pauses, want)
	}
}

// A permission does not come back by itself.
func TestARefusalForPermissionIsRepeatedAfterMinutes(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailUnauthorized)
	view := w.ledger.View(w.now)
	if why := view.Denied(view.ENIs[1].ID); !strings.Contains(why, "EC2 refuses Detach for permission: You are not authorized") || !strings.Contains(why, "tried 1 times, again at") {
		t.Errorf("the interface says %q", why)
	}
	if why := view.Denied(view.ENIs[0].ID); why != "" {
		t.Errorf("the other interface says %q", why)
	}
	w.pass(time.Hour, time.Second)
	if n := w.ec2.calls[cloud.Detach]; n < 5 || n > 9 {
		t.Errorf("%d detach calls within an hour, want 5 to 9: pauses of 1, 2, 4, 8 and then 16 minutes", n)
	}
	w.ec2.refuse = nil
	w.pass(17*time.Minute, time.Second)
	if n := len(w.ledger.View(w.now).ENIs); n != 1 {
		t.Errorf("%d interfaces a quarter of an hour after the permission was granted, want 1\n%s", n, w.snapshot())
	}
}

// A throttled call, and a refusal that EC2 bases on the tags of one interface, pause nothing
// else.
func TestARefusedGrowthOfThePrimaryInterfaceGrowsTheOthers(t *testing.T) {
	for _, why := range causes() {
		w := testWorld(t, m5xlarge(), nil)
		w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
			if a.Kind == cloud.AssignAddresses && a.ENI == "eni-00" {
				return failed(why, "You are not authorized to perform this operation.")
			}
			return nil
		}
		w.settle()
		for n := range 5 {
			if _, err := w.add(n); err != nil {
				t.Fatalf("%s: pod %d: %v\n%s", why, n, err, w.snapshot())
			}
		}
	}
}

func TestADetachWithUnknownOutcomeKeepsItsInterfaceFenced(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailOther)
	id := w.ledger.View(w.now).ENIs[1].ID
	if _, err := w.ledger.Begin(cloud.Action{ID: "open", Kind: cloud.Detach, ENI: id}, w.now); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ledger.Fail("open", cloud.Failure{Reason: cloud.FailOther, Message: "no answer"}, w.now); err != nil {
		t.Fatal(err)
	}
	if e := w.ledger.View(w.now).ENIs[1]; e.Phase != ipam.Detaching || e.Count(ipam.Free) != 0 {
		t.Errorf("%s with %d free addresses, want all fenced: it may be detached", e.Phase, e.Count(ipam.Free))
	}
}

func TestThePlanIsDueAtTheEndOfACoolDownAlsoWithAddressesInFlight(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 4, MaxPods: 10}, func(c *ipam.Config) { c.WarmIPs, c.Headroom = 1, 0 })
	w.settle()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.del(1)
	w.bind(2)
	if w.begin() == 0 {
		t.Fatal("nothing is incoming")
	}
	w.now = w.now.Add(time.Second)
	w.begin() // EC2 has not replied
	over := w.now.Add(-time.Second).Add(w.config.CoolDown)
	if d := w.decided; d.Numbers.Free != 0 || d.Numbers.Incoming == 0 || d.Next.IsZero() || d.Next.After(over) {
		t.Errorf("%d free, %d incoming, plan again at %s; want none free, some incoming, and a plan when the cool-down ends at %s",
			d.Numbers.Free, d.Numbers.Incoming, d.Next, over)
	}
}

// setBack sets the clock of the node and of EC2 back by a day, and has the ledger and its
// shadow detect that at the same time.
func (w *world) setBack() {
	w.now = w.now.Add(-24 * time.Hour)
	for _, e := range w.ec2.enis {
		e.born = e.born.Add(-24 * time.Hour)
	}
	w.ledger.View(w.now)
	w.shadow.View(w.now)
}

func TestAClockSetBackDoesNotExtendACoolDown(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 2, MaxPods: 10}, nil)
	w.settle()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.del(1)
	w.setBack()
	w.pass(w.config.CoolDown-time.Second, time.Second)
	if _, err := w.add(2); err == nil {
		t.Error("the cool-down ended early")
	}
	w.pass(2*time.Second, time.Second)
	if _, err := w.add(2); err != nil {
		t.Errorf("after a cool-down with the clock set back: %v", err)
	}
}

func TestAClockSetBackDoesNotDelayARetry(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 4, MaxPods: 10}, nil)
	w.ec2.refuse = func(cloud.Action) *cloud.Failure { return failed(cloud.FailThrottled, "Request limit exceeded.") }
	w.begin()
	w.finishAll()
	w.ec2.refuse = nil
	w.setBack()
	w.pass(3*time.Minute, time.Second)
	if _, err := w.add(1); err != nil {
		t.Errorf("three minutes after the clock was set back by a day: %v\n%s", err, w.snapshot())
	}
}

func TestAClockSetBackDoesNotDelayARelease(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 20 {
		w.bind(n)
	}
	w.settle()
	w.pending = nil
	w.setBack()
	w.pass(10*time.Minute, 5*time.Second)
	if w.ec2.calls[cloud.Detach] == 0 {
		t.Errorf("the idle interface is still attached ten minutes after the clock was set back by a day:\n%s\n%s", w.snapshot(), w.decided)
	}
}

func TestAReleasedAddressCanBeAssignedAgainAfterARestartWithTheClockSetBack(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 4, MaxPods: 10}, nil)
	w.settle()
	again := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	if _, err := w.ledger.Begin(cloud.Action{ID: "u", Kind: cloud.UnassignAddresses, ENI: "eni-00", Addresses: []netip.Addr{again}}, w.now); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ledger.Settle("u", cloud.Outcome{}, w.now); err != nil {
		t.Fatal(err)
	}
	back := ipam.New(w.config.Settings())
	if err := back.Replay(w.ledger.Records()); err != nil {
		t.Fatal(err)
	}
	now := w.now.Add(-24 * time.Hour)
	back.Restart(now)
	for range 3 { // another program assigned it to the interface again
		now = now.Add(time.Minute)
		back.Observe([]ipam.Observed{{ENI: w.ec2.enis["eni-00"].row(), Attached: true, Addresses: addrs(w.ec2.enis["eni-00"].addrs)}}, now)
	}
	for _, a := range back.View(now).ENIs[0].Addresses {
		if a.Addr == again && a.State == ipam.Free {
			return
		}
	}
	t.Errorf("%s is not free although three observations showed it", again)
}
