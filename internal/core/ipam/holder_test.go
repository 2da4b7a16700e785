package ipam_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// holding is a ledger with these interfaces and their addresses.
func TestALeaseHasWhatAnADDNeedsOfTheInterface(t *testing.T) {
	e := given(1, ipam.Ready, ipam.Free)
	e.MAC, e.SubnetCIDR = vpc.MAC{2, 0, 0, 0, 0, 1}, netip.MustParsePrefix("10.0.1.0/24")
	lease, _, err := holding(t, e).Assign(holder(1), epoch)
	want := ipam.Lease{
		Holder: holder(1), Addr: addressIn(1, 1), ENI: "eni-1", Device: 1, MAC: e.MAC, Subnet: e.SubnetCIDR, Gateway: addressIn(1, 1), Since: epoch, Family: vpc.IPv4,
	}
	if err != nil || lease != want {
		t.Errorf("%+v, %v; want %+v", lease, err, want)
	}
	p := endpoint.Endpoint{ID: 7, Key: endpoint.Key{ContainerID: "c", IfName: "eth0"}, Pod: endpoint.Pod{Name: "web"}}
	if h := ipam.HolderOf(p); h != (ipam.Holder{Endpoint: 7, Key: p.Key, Pod: p.Pod}) {
		t.Errorf("%+v", h)
	}
}

func TestClaimsOfOthersOutliveADEL(t *testing.T) {
	theirs := ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "uid-theirs"})
	l := holding(t, given(0, ipam.Ready))
	l.Claim(map[netip.Addr]ipam.Claim{
		addressIn(0, 1): {Holder: holder(1)}, addressIn(0, 2): {Holder: holder(2)}, addressIn(0, 3): {Holder: theirs}, addressIn(0, 4): {Holder: theirs},
	}, true, epoch)
	l.Release(holder(1).Endpoint, epoch)
	seen := ipam.Observed{ENI: given(0, ipam.Ready).ENI, Attached: true, Addresses: []netip.Addr{addressIn(0, 1), addressIn(0, 2), addressIn(0, 3), addressIn(0, 4)}}
	l.Observe([]ipam.Observed{seen}, epoch)
	for n, want := range map[int]ipam.Holder{1: {}, 2: holder(2), 3: theirs, 4: theirs} {
		if got := rowOf(l, addressIn(0, n), epoch); got.Holder != want || (got.State == ipam.Assigned) != (n > 1) {
			t.Errorf("%s: %+v, want %s", got.Addr, got, want)
		}
	}
}

func TestAClaimTakesNoAddressOfAnotherEndpoint(t *testing.T) {
	theirs := ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "uid-theirs"})
	for state, of := range map[ipam.State]ipam.Holder{ipam.Assigned: holder(1), ipam.Releasing: {}} {
		e := given(1, ipam.Ready, state)
		e.Addresses[0].Holder = of
		l := holding(t, e)
		records := l.Claim(map[netip.Addr]ipam.Claim{addressIn(1, 1): {Holder: theirs}}, true, epoch)
		if got := rowOf(l, addressIn(1, 1), epoch); len(records) != 0 || got.State != state || got.Holder != of {
			t.Errorf("%s: %+v after %d records", state, got, len(records))
		}
	}
}

func TestARepeatedClaimChangesNothing(t *testing.T) {
	l := holding(t, given(1, ipam.Ready, ipam.Free, ipam.Free))
	for i, want := range []int{1, 0} {
		if records := l.Claim(claimOf(addressIn(1, 1), time.Time{}), true, epoch); len(records) != want {
			t.Errorf("claim %d makes %d records, want %d", i+1, len(records), want)
		}
	}
}

func TestANewSandboxFreesTheAddressOfItsOwnPodOnly(t *testing.T) {
	pod := claimOf(addressIn(1, 1), time.Time{})[addressIn(1, 1)].Holder.Pod
	another := pod
	another.UID = "uid-another"
	for name, c := range map[string]struct {
		claims map[netip.Addr]ipam.Claim // of the time of the new sandbox
		pod    endpoint.Pod
		cools  bool
	}{
		"nothing claims it any more":    {nil, pod, true},
		"only a status claims it":       {claimOf(addressIn(1, 1), epoch), pod, true},
		"the kernel shows it":           {claimOf(addressIn(1, 1), time.Time{}), pod, false},
		"it is a sandbox of another":    {nil, another, false},
		"the same, and a status claims": {claimOf(addressIn(1, 1), epoch), another, false},
	} {
		l := holding(t, given(1, ipam.Ready, ipam.Free))
		l.Claim(claimOf(addressIn(1, 1), time.Time{}), true, epoch)
		l.Claim(c.claims, false, epoch)
		records := l.Renewed(c.pod, epoch.Add(time.Second))
		if got := rowOf(l, addressIn(1, 1), epoch.Add(time.Second)); (got.State == ipam.Cooling) != c.cools || (len(records) > 0) != c.cools {
			t.Errorf("%s: %s after %d records, want a cool-down: %v", name, got.State, len(records), c.cools)
		}
	}
}

func TestWhatAnObservationChangesOfAnInterfaceIsRecorded(t *testing.T) {
	for name, change := range map[string]func(*ipam.ENI){
		"nothing":              func(*ipam.ENI) {},
		"it is not managed":    func(e *ipam.ENI) { e.Unmanaged = true },
		"why it is not":        func(e *ipam.ENI) { e.WhyUnmanaged = "its tag says so" },
		"its type":             func(e *ipam.ENI) { e.Type = vpc.TypeEFA },
		"its groups":           func(e *ipam.ENI) { e.Groups = []vpc.SecurityGroupID{"sg-7"} },
		"a prefix":             func(e *ipam.ENI) { e.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}} },
		"no groups, not a one": func(e *ipam.ENI) { e.Groups = nil },
	} {
		e := given(1, ipam.Ready)
		e.Groups = []vpc.SecurityGroupID{"sg-1"}
		l := holding(t, e)
		want := e.ENI
		change(&want)
		seen := want
		if want.Groups == nil {
			want.Groups = e.Groups
		}
		records, _ := l.Observe([]ipam.Observed{{ENI: seen, Attached: true}}, epoch)
		if got := l.View(epoch).ENIs[0].ENI; !reflect.DeepEqual(got, want) || (len(records) > 0) != !reflect.DeepEqual(want, e.ENI) {
			t.Errorf("%s: %+v after %d records, want %+v", name, got, len(records), want)
		}
	}
}

func TestTimesOfAClockThatWasAheadAreMovedBack(t *testing.T) {
	l := holding(t, given(0, ipam.Ready, ipam.Free, ipam.Free))
	ahead := epoch.Add(time.Hour)
	if _, _, err := l.Assign(holder(1), ahead); err != nil {
		t.Fatal(err)
	}
	l.Return(holder(1).Endpoint, ahead.Add(time.Second))
	if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.AssignAddresses, ENI: "eni-0", Count: 1}, ahead.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Fail("act", cloud.Failure{Reason: cloud.FailAddressLimit, Definite: true}, ahead.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if v := l.View(ahead.Add(time.Second)); v.Peak != 1 {
		t.Errorf("a peak of %d, want 1 of the address that was returned", v.Peak)
	}
	v := l.View(epoch)
	if b := v.Backoffs[0]; b.Since.After(epoch) {
		t.Errorf("the failure is of %s, after now", b.Since)
	}
	if v.PeakFalls.After(epoch.Add(time.Minute)) {
		t.Errorf("the peak falls at %s, a minute after now is %s", v.PeakFalls, epoch.Add(time.Minute))
	}
}

func TestOnlyEndpointsThatAreRemovedAreInQuarantine(t *testing.T) {
	e := used(1, ipam.Ready, ipam.Assigned)
	e.Addresses[1].Holder = ipam.ForeignHolder(endpoint.Pod{Name: "theirs"})
	v := holding(t, e).View(epoch).Removing(func(endpoint.ID) bool { return true })
	if got := fmt.Sprint(v.ENIs[0].Addresses[0].State, " ", v.ENIs[0].Addresses[1].State); got != "quarantined assigned" {
		t.Error(got)
	}
}
