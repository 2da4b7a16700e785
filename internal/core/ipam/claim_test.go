package ipam_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// claimOf is a claim of the foreign pod default/theirs to addr; made: see ipam.Claim.
func claimOf(addr netip.Addr, made time.Time) map[netip.Addr]ipam.Claim {
	return map[netip.Addr]ipam.Claim{addr: {Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "uid-theirs"}), Made: made}}
}

func stateOf(w *world, addr netip.Addr) ipam.Address {
	for _, e := range w.ledger.View(w.now).ENIs {
		for _, a := range e.Addresses {
			if a.Addr == addr {
				return a
			}
		}
	}
	return ipam.Address{}
}

func TestAClaimedAddressIsNotAssignedUntilTheClaimEnds(t *testing.T) {
	w := ready(t)
	addr := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	w.ledger.Claim(claimOf(addr, time.Time{}), true, w.now)
	for i := 1; ; i++ {
		lease, _, err := w.ledger.Assign(holder(i), w.now)
		if err != nil {
			break
		}
		if lease.Addr == addr {
			t.Fatalf("%s was assigned although a pod of another CNI claims it", addr)
		}
	}
	w.ledger.Claim(nil, false, w.now)
	if got := stateOf(w, addr); got.State != ipam.Assigned {
		t.Errorf("%s after an incomplete read of claims, want assigned", got.State)
	}
	w.ledger.Claim(nil, true, w.now)
	if got := stateOf(w, addr); got.State != ipam.Cooling {
		t.Errorf("%s without a claim, want a cool-down", got.State)
	}
}

func TestAClaimedAddressThatEC2ShowsLateIsAssignedToItsClaimant(t *testing.T) {
	w := ready(t)
	view := w.ledger.View(w.now)
	late := netip.MustParseAddr("10.0.9.9")
	w.ledger.Claim(map[netip.Addr]ipam.Claim{late: {Holder: holder(1)}}, true, w.now)
	seen := ipam.Observed{ENI: view.ENIs[0].ENI, Attached: true, Addresses: []netip.Addr{late}}
	for _, a := range view.ENIs[0].Addresses {
		seen.Addresses = append(seen.Addresses, a.Addr)
	}
	records, _ := w.ledger.Observe([]ipam.Observed{seen}, w.now)
	if got, ok := w.ledger.Lookup(holder(1).Endpoint); !ok || got.Addr != late {
		t.Fatalf("the pod has %v, %v; want %s", got.Addr, ok, late)
	}
	if got := records[len(records)-1]; got.Op != ipam.PutAddress || got.Address.Holder != holder(1) {
		t.Errorf("the last record is %+v, want the assignment to the claimant", got)
	}
}

func TestOfTwoAddressesThatAreClaimedForAnEndpointItGetsTheFirst(t *testing.T) {
	w := ready(t)
	free := w.ledger.View(w.now).ENIs[0].Addresses
	w.ledger.Claim(map[netip.Addr]ipam.Claim{free[1].Addr: {Holder: holder(1)}, free[0].Addr: {Holder: holder(1)}}, true, w.now)
	if got, ok := w.ledger.Lookup(holder(1).Endpoint); !ok || got.Addr != free[0].Addr {
		t.Errorf("the endpoint has %v, %v; want %s", got.Addr, ok, free[0].Addr)
	}
	if got := stateOf(w, free[1].Addr); got.State != ipam.Free {
		t.Errorf("%s, which it does not need, is %s", free[1].Addr, got.State)
	}
}

func TestADELEndsAClaim(t *testing.T) {
	w := ready(t)
	addr := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	w.ledger.Claim(map[netip.Addr]ipam.Claim{addr: {Holder: holder(1)}}, true, w.now)
	w.ledger.Release(holder(1).Endpoint, w.now)
	if got := stateOf(w, addr); got.State != ipam.Cooling {
		t.Errorf("%s after the DEL of its claimant, want a cool-down", got.State)
	}
}

func TestAReleasedAddressIsNotClaimedByAStalePodStatus(t *testing.T) {
	w := ready(t)
	made := w.now.Add(-time.Minute)
	lease, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	w.ledger.Release(holder(1).Endpoint, w.now)
	w.ledger.Claim(claimOf(lease.Addr, made), true, w.now)
	if got := stateOf(w, lease.Addr); got.State != ipam.Cooling {
		t.Errorf("%s, want the cool-down to continue", got.State)
	}
}

// A full node that was migrated from another CNI is rebooted: the pods' new sandboxes
// must not wait for the addresses of the old ones.
func TestANewSandboxEndsTheClaimOfThePodsForeignSandbox(t *testing.T) {
	w := ready(t)
	addr := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	claims := claimOf(addr, w.now.Add(-time.Minute))
	w.ledger.Claim(claims, true, w.now)
	fresh := endpoint.Pod{Namespace: "default", Name: "theirs", UID: "uid-theirs"}
	w.ledger.Renewed(fresh, w.now)
	w.ledger.Claim(claims, true, w.now)
	if got := stateOf(w, addr); got.State != ipam.Cooling {
		t.Errorf("%s, want a cool-down", got.State)
	}
	seen := claimOf(addr, time.Time{})
	w.ledger.Claim(seen, true, w.now)
	w.ledger.Renewed(fresh, w.now)
	if got := stateOf(w, addr); got.State != ipam.Assigned {
		t.Errorf("%s while the kernel still has the old sandbox, want assigned", got.State)
	}
}

func TestAfterAJournalLossEveryAddressStartsInCoolDown(t *testing.T) {
	w := ready(t)
	var seen []ipam.Observed
	for _, e := range w.ledger.View(w.now).ENIs {
		o := ipam.Observed{ENI: e.ENI, Attached: true}
		for _, a := range e.Addresses {
			o.Addresses = append(o.Addresses, a.Addr)
		}
		seen = append(seen, o)
	}
	settings := ipam.Settings{CoolDown: 30 * time.Second, IdleAfter: time.Minute}
	rebuilt := ipam.New(settings)
	rebuilt.AssumeLost(w.now)
	rebuilt.Observe(seen, w.now)
	if _, _, err := rebuilt.Assign(holder(1), w.now.Add(29*time.Second)); !errors.Is(err, ipam.ErrAllCooling) {
		t.Errorf("29 s after the loss: %v, want %v", err, ipam.ErrAllCooling)
	}
	if _, _, err := rebuilt.Assign(holder(1), w.now.Add(30*time.Second)); err != nil {
		t.Errorf("after the cool-down: %v", err)
	}
}
