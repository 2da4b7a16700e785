package ipam_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// withoutAddress is a node with two pods; another program has unassigned the address of the
// first, and one observation has shown that.
func withoutAddress(t *testing.T) (w *world, lost netip.Addr) {
	t.Helper()
	w = ready(t)
	w.fill(2)
	lease, ok := w.ledger.Lookup(holder(0).Endpoint)
	if !ok {
		t.Fatal("the pod has no address")
	}
	w.now = w.now.Add(2 * time.Minute) // older than a describe may be
	w.ec2.release(w.ec2.enis[lease.ENI], lease.Addr)
	w.quick = true // the check of the simulation compares assigned addresses with EC2's
	w.observeQuietly()
	return w, lease.Addr
}

// observeQuietly observes EC2 without the world's checks.
func (w *world) observeQuietly() { w.ledger.Observe(w.ec2.describe(), w.now) }

// restores are the planned actions that assign addresses of pods again.
func (w *world) restores() (planned []cloud.Action) {
	for _, a := range ipam.Plan(w.snapshot(), w.config, w.now).Actions {
		if a.Kind == cloud.RestoreAddresses {
			planned = append(planned, a)
		}
	}
	return planned
}

// carryOut begins an action and records its result.
func (w *world) carryOut(a cloud.Action, failure *cloud.Failure) {
	w.t.Helper()
	a.ID = "restore"
	if _, err := w.ledger.Begin(a, w.now); err != nil {
		w.t.Fatalf("%v", err)
	}
	var err error
	if failure != nil {
		_, err = w.ledger.Fail(a.ID, *failure, w.now)
	} else {
		_, failure := w.ec2.execute(a, w.now)
		if failure != nil {
			w.t.Fatalf("%s: %+v", a, failure)
		}
		_, err = w.ledger.Settle(a.ID, cloud.Outcome{}, w.now)
	}
	if err != nil {
		w.t.Fatalf("%v", err)
	}
}

func TestAPodsLostAddressIsRestoredAfterASecondObservation(t *testing.T) {
	w, lost := withoutAddress(t)
	if planned := w.restores(); len(planned) > 0 {
		t.Errorf("%v after one observation, which may be stale", planned)
	}
	w.now = w.now.Add(time.Second)
	w.observeQuietly()
	if planned := w.restores(); len(planned) > 0 {
		t.Errorf("%v after two observations within a second", planned)
	}
	w.now = w.now.Add(5 * time.Second)
	w.observeQuietly()
	planned := w.restores()
	if len(planned) != 1 || len(planned[0].Addresses) != 1 || planned[0].Addresses[0] != lost || !strings.Contains(planned[0].Why, "default/pod-0") {
		t.Fatalf("planned %v, want %s restored for default/pod-0", planned, lost)
	}
	w.carryOut(planned[0], nil)
	w.observeQuietly()
	if left := w.ledger.View(w.now).Differences(); len(left) > 0 || len(w.restores()) > 0 {
		t.Errorf("differences %q, planned %v; want none once it is restored", left, w.restores())
	}
	if lease, ok := w.ledger.Lookup(holder(0).Endpoint); !ok || lease.Addr != lost {
		t.Errorf("the pod has %+v, want %s", lease, lost)
	}
}

func TestARefusedRestoreBacksOffForThatAddressOnly(t *testing.T) {
	w, _ := withoutAddress(t)
	other, _ := w.ledger.Lookup(holder(1).Endpoint)
	w.ec2.release(w.ec2.enis[other.ENI], other.Addr)
	w.observeQuietly()
	w.now = w.now.Add(5 * time.Second)
	w.observeQuietly()
	first := w.restores()
	if len(first) != 1 || len(first[0].Addresses) != 1 {
		t.Fatalf("planned %v, want one address: EC2 rejects a call as a whole", first)
	}
	w.carryOut(first[0], failed(cloud.FailOther, "InvalidParameterValue"))
	second := w.restores()
	if len(second) != 1 || second[0].Addresses[0] == first[0].Addresses[0] {
		t.Fatalf("planned %v after the refusal for %s, want the other address", second, first[0].Addresses[0])
	}
	w.carryOut(second[0], nil)
	if planned := w.restores(); len(planned) > 0 {
		t.Errorf("planned %v within the back-off", planned)
	}
	w.now = w.now.Add(3 * time.Second)
	if planned := w.restores(); len(planned) != 1 || planned[0].Addresses[0] != first[0].Addresses[0] {
		t.Errorf("planned %v after the back-off, want %s again", planned, first[0].Addresses[0])
	}
}

func TestABrakeOnAllocationsRestoresNothing(t *testing.T) {
	w, _ := withoutAddress(t)
	w.now = w.now.Add(5 * time.Second)
	w.observeQuietly()
	for brake, want := range map[cloud.Brake]int{cloud.BrakeOff: 1, cloud.FreezeRelease: 1, cloud.AllocateOnly: 1, cloud.FreezeAll: 0, cloud.Unobserved: 0} {
		w.brake = brake
		if planned := w.restores(); len(planned) != want {
			t.Errorf("%q: planned %v, want %d", brake, planned, want)
		}
	}
}

func TestAnAddressThatEC2ShowsAgainIsNotRestored(t *testing.T) {
	w, lost := withoutAddress(t)
	e := w.ec2.enis["eni-00"]
	e.addrs[lost], e.subnet.used[lost] = true, true // the describe was stale
	w.now = w.now.Add(5 * time.Second)
	w.observeQuietly()
	if planned, left := w.restores(), w.ledger.View(w.now).Differences(); len(planned) > 0 || len(left) > 0 {
		t.Errorf("planned %v, differences %q; want none", planned, left)
	}
}

func TestDifferencesNameInterfacesPrefixesAndAddresses(t *testing.T) {
	w, lost := withoutAddress(t)
	seen := w.ec2.describe()
	seen[0].Addresses = append(seen[0].Addresses, netip.MustParseAddr("10.0.30.1"))
	w.ledger.Observe(seen, w.now)
	text := strings.Join(w.ledger.View(w.now).Differences(), "\n")
	for _, want := range []string{
		"EC2 does not show " + lost.String() + " of default/pod-0 on eni-00", "10.0.30.1 on eni-00 is not confirmed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	w.now = w.now.Add(2 * time.Minute)
	w.ledger.Observe(nil, w.now)
	if text := strings.Join(w.ledger.View(w.now).Differences(), "\n"); !strings.Contains(text, "EC2 does not show interface eni-00") {
		t.Errorf("%q lacks the interface", text)
	}
	prefixed, e := delegated(t, 1)
	e.prefixes = nil
	prefixed.now = prefixed.now.Add(2 * time.Minute)
	prefixed.observeQuietly()
	if text := strings.Join(prefixed.ledger.View(prefixed.now).Differences(), "\n"); !strings.Contains(text, "EC2 does not show prefix") {
		t.Errorf("%q lacks the prefix", text)
	}
}
