package ipam_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func ready(t *testing.T) *world {
	t.Helper()
	w := testWorld(t, m5xlarge(), nil)
	w.settle()
	return w
}

func TestAHolderGetsTheSameAddressAgain(t *testing.T) {
	w := ready(t)
	first, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	again, records, err := w.ledger.Assign(holder(1), w.now)
	if err != nil || again != first || len(records) != 0 {
		t.Errorf("second ADD = %+v with %d records, %v; want %+v and none", again, len(records), err, first)
	}
	if first.Gateway != netip.MustParseAddr("10.0.0.1") || !first.Primary || first.Subnet.Bits() != 19 {
		t.Errorf("lease = %+v, want what ADD needs of the interface", first)
	}
}

func TestTheDELOfAnOldSandboxFreesNothingOfTheNewOne(t *testing.T) {
	w := ready(t)
	old, fresh := holder(1), holder(1)
	fresh.Endpoint, fresh.Key.ContainerID = 9, "container-new"
	a, _, _ := w.ledger.Assign(old, w.now)
	b, _, _ := w.ledger.Assign(fresh, w.now)
	if a.Addr == b.Addr {
		t.Fatal("two sandboxes share an address")
	}
	for range 2 { // the runtime may repeat a DEL
		w.ledger.Release(old.Endpoint, w.now)
	}
	if got, ok := w.ledger.Lookup(fresh.Endpoint); !ok || got.Addr != b.Addr {
		t.Errorf("the new sandbox has %v, %v; want %s", got.Addr, ok, b.Addr)
	}
}

func TestAnADDDuringItsOwnDELGetsAnotherAddress(t *testing.T) {
	w := ready(t)
	a, _, _ := w.ledger.Assign(holder(1), w.now)
	again := holder(1)
	again.Endpoint = 7 // a new endpoint of the same container
	b, _, err := w.ledger.Assign(again, w.now)
	if err != nil || b.Addr == a.Addr {
		t.Fatalf("got %s, %v; want another address while the old link may still have %s", b.Addr, err, a.Addr)
	}
	w.ledger.Release(holder(1).Endpoint, w.now) // of the first link
	if got, ok := w.ledger.Lookup(again.Endpoint); !ok || got.Addr != b.Addr {
		t.Errorf("holds %v, %v; want %s untouched", got.Addr, ok, b.Addr)
	}
}

func TestTheViewShowsAddressesOfRemovedEndpointsInQuarantine(t *testing.T) {
	w := ready(t)
	lease, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.add(2); err != nil {
		t.Fatal(err)
	}
	plain := w.ledger.View(w.now)
	view := plain.Removing(func(id endpoint.ID) bool { return id == holder(1).Endpoint })
	for _, a := range view.ENIs[0].Addresses {
		if (a.Addr == lease.Addr) != (a.State == ipam.Quarantined) {
			t.Errorf("%s is %s", a.Addr, a.State)
		}
	}
	if n := plain.ENIs[0].Count(ipam.Quarantined); n != 0 {
		t.Errorf("the original view has %d addresses in quarantine, want none", n)
	}
}

func TestAnAddressThatWasNeverWiredIsFreeAtOnce(t *testing.T) {
	w := ready(t)
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	before := w.ledger.View(w.now).ENIs[0].Count(ipam.Free)
	w.ledger.Return(holder(1).Endpoint, w.now)
	if got := w.ledger.View(w.now).ENIs[0].Count(ipam.Free); got != before+1 {
		t.Errorf("%d free, want %d", got, before+1)
	}
}

func TestTheAddressUnusedForLongestComesFirst(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 4, MaxPods: 10}, nil)
	w.settle()
	var order []netip.Addr
	for n := range 3 {
		lease, err := w.add(n)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, lease.Addr)
	}
	for _, n := range []int{1, 0, 2} {
		w.del(n)
		w.now = w.now.Add(time.Second)
	}
	w.now = w.now.Add(time.Minute)
	var got []netip.Addr
	for n := range 3 {
		lease, err := w.add(10 + n)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, lease.Addr)
	}
	if want := []netip.Addr{order[1], order[0], order[2]}; !slices.Equal(got, want) {
		t.Errorf("assigned %v, want %v", got, want)
	}
}

// fill binds n pods, grows the pool for them and adds them.
func (w *world) fill(n int) {
	w.t.Helper()
	for i := range n {
		w.bind(i)
	}
	w.settle()
	for i := range n {
		if _, err := w.add(i); err != nil {
			w.t.Fatalf("add pod %d: %v", i, err)
		}
	}
}

func TestPodsArePackedOnTheFullestInterface(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.fill(20)
	perENI := map[string]int{}
	for _, lease := range w.ledger.Leases() {
		perENI[string(lease.ENI)]++
	}
	if perENI["eni-00"] != 14 || len(perENI) != 2 {
		t.Errorf("pods per interface = %v, want the primary full and one other", perENI)
	}
}

func TestACoolDownSurvivesARestartAndAClockSetBack(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 2, MaxPods: 10}, nil)
	w.settle()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.del(1)
	raw, err := json.Marshal(w.ledger.Records())
	if err != nil {
		t.Fatal(err)
	}
	var records []ipam.Record
	if err := json.Unmarshal(raw, &records); err != nil {
		t.Fatal(err)
	}
	back := ipam.New(w.config.Settings())
	if err := back.Replay(records); err != nil {
		t.Fatal(err)
	}
	if _, _, err := back.Assign(holder(2), w.now.Add(29*time.Second)); !errors.Is(err, ipam.ErrAllCooling) {
		t.Errorf("29 s after the DEL: %v, want ErrAllCooling", err)
	}
	// The clock is set back by a day.
	yesterday := w.now.Add(-24 * time.Hour)
	back.Restart(yesterday)
	if _, _, err := back.Assign(holder(2), yesterday.Add(31*time.Second)); err != nil {
		t.Errorf("31 s after a restart: %v", err)
	}
}

func TestAKeyedJournalRebuildsTheLedger(t *testing.T) {
	w := ready(t)
	kept := keyed{}
	kept.keep(w.ledger.Records())
	for n := range 3 {
		_, records, err := w.ledger.Assign(holder(n), w.now)
		if err != nil {
			t.Fatal(err)
		}
		kept.keep(records)
	}
	kept.keep(w.ledger.Release(holder(0).Endpoint, w.now))
	kept.rebuilds(t, w)
}

// keyed is a journal that keeps the last record of each key.
type keyed map[string]ipam.Record

func (k keyed) keep(records []ipam.Record) {
	for _, r := range records {
		if r.Drops() {
			delete(k, r.Key())
		} else {
			k[r.Key()] = r
		}
	}
}

// rebuilds asserts that replaying the journal gives the world's ledger.
func (k keyed) rebuilds(t *testing.T, w *world) {
	t.Helper()
	var records []ipam.Record
	for _, key := range slices.Sorted(maps.Keys(k)) {
		records = append(records, k[key])
	}
	back := ipam.New(w.config.Settings())
	if err := back.Replay(records); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back.Records(), w.ledger.Records()) {
		t.Errorf("rebuilt:\n%v\nwant:\n%v", back.Records(), w.ledger.Records())
	}
}

func TestAnInterfaceDroppedByObserveLeavesNothingInAKeyedJournal(t *testing.T) {
	w := ready(t)
	kept := keyed{}
	kept.keep(w.ledger.Records())
	for range 3 {
		w.now = w.now.Add(2 * time.Minute)
		records, _ := w.ledger.Observe(nil, w.now)
		kept.keep(records)
	}
	if left := w.ledger.View(w.now).ENIs; len(left) > 0 {
		t.Fatalf("still there: %v", left)
	}
	kept.rebuilds(t, w)
}

// A node runs for years: the journal must not grow with each interface it ever had.
func TestRecordsOfDeletedObjectsDoNotStayInAKeyedJournal(t *testing.T) {
	w := ready(t)
	kept := keyed{}
	kept.keep(w.ledger.Records())
	do := func(a cloud.Action, r cloud.Outcome, failure *cloud.Failure) {
		t.Helper()
		records, err := w.ledger.Begin(a, w.now)
		if err != nil {
			t.Fatal(err)
		}
		kept.keep(records)
		if failure != nil {
			records, err = w.ledger.Fail(a.ID, *failure, w.now)
		} else {
			records, err = w.ledger.Settle(a.ID, r, w.now)
		}
		if err != nil {
			t.Fatal(err)
		}
		kept.keep(records)
	}
	var sizes []int
	for n := range 4 {
		id := vpc.ENIID(fmt.Sprint("eni-new", n))
		address := netip.AddrFrom4([4]byte{10, 0, 9, byte(n)})
		create := cloud.Action{ID: "create", Kind: cloud.CreateENI, Subnet: "subnet-0", Count: 1}
		do(create, cloud.Outcome{ENI: id, Addresses: []netip.Addr{address}}, nil)
		do(cloud.Action{ID: "attach", Kind: cloud.Attach, ENI: id}, cloud.Outcome{}, &cloud.Failure{Reason: cloud.FailOther, Definite: true})
		do(cloud.Action{ID: "delete", Kind: cloud.DeleteENI, ENI: id}, cloud.Outcome{}, nil)
		w.now = w.now.Add(time.Hour)
		sizes = append(sizes, len(kept))
	}
	if sizes[3] > sizes[0] {
		t.Errorf("the journal grows with each deleted interface: %v rows", sizes)
	}
	kept.keep(w.ledger.Restart(w.now))
	for key := range kept {
		if strings.HasPrefix(key, "gone/") || strings.HasPrefix(key, "backoff/") {
			t.Errorf("%s is still in the journal after an hour", key)
		}
	}
	kept.rebuilds(t, w)
}

func TestInvalidRecordsAreRejected(t *testing.T) {
	w := ready(t)
	lease, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]ipam.Record{
		"an unknown operation":             {Op: "paint"},
		"a row that is missing":            {Op: ipam.PutENI},
		"an address without interface":     {Op: ipam.PutAddress, Address: &ipam.Address{Addr: lease.Addr, ENI: "eni-x"}},
		"a second address of one endpoint": {Op: ipam.PutAddress, Address: &ipam.Address{Addr: netip.MustParseAddr("10.0.9.9"), ENI: lease.ENI, State: ipam.Assigned, Holder: holder(1)}},
		"the drop of an interface in use":  {Op: ipam.DropENI, ENIID: lease.ENI},
	} {
		if err := w.ledger.Replay([]ipam.Record{r}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestBeginRejectsActionsThatTheLedgerNoLongerAllows(t *testing.T) {
	w := ready(t)
	lease, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []cloud.Action{
		{ID: "x", Kind: cloud.UnassignAddresses, ENI: lease.ENI, Addresses: []netip.Addr{lease.Addr}},
		{ID: "x", Kind: cloud.Detach, ENI: lease.ENI},
		{ID: "x", Kind: cloud.DeleteENI, ENI: lease.ENI},
		{ID: "x", Kind: cloud.Attach, ENI: "eni-gone"},
	} {
		if _, err := w.ledger.Begin(a, w.now); !errors.Is(err, ipam.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", a, err)
		}
	}
	if got, ok := w.ledger.Lookup(holder(1).Endpoint); !ok || got != lease {
		t.Errorf("the pod's lease changed to %+v", got)
	}
}

func TestAnAdoptedPodKeepsItsAddress(t *testing.T) {
	w := ready(t)
	free := w.ledger.View(w.now).ENIs[0].Addresses[3].Addr
	if _, _, err := w.ledger.Adopt(holder(1), free, w.now); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.ledger.Adopt(holder(1), free, w.now); err != nil {
		t.Errorf("adopting twice: %v", err)
	}
	if _, _, err := w.ledger.Adopt(holder(2), free, w.now); !errors.Is(err, ipam.ErrHeld) {
		t.Errorf("adopting an address of another endpoint: %v, want ErrHeld", err)
	}
	if _, _, err := w.ledger.Adopt(holder(2), netip.MustParseAddr("192.0.2.1"), w.now); !errors.Is(err, ipam.ErrUnknown) {
		t.Errorf("adopting an address of no interface: %v, want ErrUnknown", err)
	}
}

func TestObserve(t *testing.T) {
	observe := func(w *world, addrs []netip.Addr) []ipam.Drift {
		records, drift := w.ledger.Observe([]ipam.Observed{{ENI: w.ec2.enis["eni-00"].row(), Attached: true, Addresses: addrs}}, w.now)
		w.journal(records)
		return drift
	}
	state := func(w *world, a netip.Addr) ipam.State {
		for _, row := range w.ledger.View(w.now).ENIs[0].Addresses {
			if row.Addr == a {
				return row.State
			}
		}
		return "none"
	}
	t.Run("an unknown address is free after a second observation", func(t *testing.T) {
		w := ready(t)
		unknown := netip.MustParseAddr("10.0.30.1")
		shown := append(addrs(w.ec2.enis["eni-00"].addrs), unknown)
		if drift := observe(w, shown); len(drift) != 1 || state(w, unknown) != ipam.Unconfirmed {
			t.Errorf("after one observation: %s, drift %v; want unconfirmed and reported", state(w, unknown), drift)
		}
		w.now = w.now.Add(10 * time.Second)
		observe(w, shown)
		if state(w, unknown) != ipam.Free {
			t.Errorf("after two observations: %s, want free", state(w, unknown))
		}
	})
	t.Run("a released address in a stale describe is ignored", func(t *testing.T) {
		w := ready(t)
		all := addrs(w.ec2.enis["eni-00"].addrs)
		if _, err := w.ledger.Begin(cloud.Action{ID: "u", Kind: cloud.UnassignAddresses, ENI: "eni-00", Addresses: all[:1]}, w.now); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Settle("u", cloud.Outcome{}, w.now); err != nil {
			t.Fatal(err)
		}
		w.quick = true
		w.now = w.now.Add(10 * time.Second)
		observe(w, all)
		if state(w, all[0]) != "none" {
			t.Errorf("%s is %s, want it not in the ledger", all[0], state(w, all[0]))
		}
	})
	t.Run("a missing address in use stays assigned", func(t *testing.T) {
		w := ready(t)
		lease, err := w.add(1)
		if err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(2 * time.Minute)
		drift := observe(w, nil)
		if state(w, lease.Addr) != ipam.Assigned || len(drift) == 0 {
			t.Errorf("%s is %s, drift %v; want it assigned and reported", lease.Addr, state(w, lease.Addr), drift)
		}
		if w.ledger.View(w.now).ENIs[0].Count(ipam.Free) != 0 {
			t.Error("addresses that EC2 does not show can still be assigned")
		}
		w.now = w.now.Add(time.Minute)
		observe(w, nil)
		if got := len(w.ledger.View(w.now).ENIs[0].Addresses); got != 1 {
			t.Errorf("%d addresses after two observations, want the pod's only", got)
		}
	})
	t.Run("an empty describe does not drop an interface with pods", func(t *testing.T) {
		w := ready(t)
		if _, err := w.add(1); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			w.now = w.now.Add(2 * time.Minute)
			records, _ := w.ledger.Observe(nil, w.now)
			w.journal(records)
		}
		if _, ok := w.ledger.Lookup(holder(1).Endpoint); !ok {
			t.Error("the pod lost its address")
		}
	})
}

func TestAddressesStayFencedAfterAFailureWithUnknownOutcome(t *testing.T) {
	for _, definite := range []bool{true, false} {
		w := ready(t)
		addr := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
		a := cloud.Action{ID: "u", Kind: cloud.UnassignAddresses, ENI: "eni-00", Addresses: []netip.Addr{addr}}
		if _, err := w.ledger.Begin(a, w.now); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Fail("u", cloud.Failure{Reason: cloud.FailOther, Definite: definite}, w.now); err != nil {
			t.Fatal(err)
		}
		want := ipam.Releasing
		if definite {
			want = ipam.Free
		}
		if got := w.ledger.View(w.now).ENIs[0].Addresses[0].State; got != want {
			t.Errorf("definite %v: %s, want %s", definite, got, want)
		}
		w.now = w.now.Add(time.Minute)
		repeated := slices.ContainsFunc(ipam.Plan(w.snapshot(), w.config, w.now).Actions, func(a cloud.Action) bool {
			return a.Kind == cloud.UnassignAddresses && slices.Contains(a.Addresses, addr)
		})
		if repeated == definite {
			t.Errorf("definite %v: release planned again: %v", definite, repeated)
		}
	}
}

// The executor has no lock per interface because of this.
func TestAnInterfaceHasOneActionInFlightAtMost(t *testing.T) {
	w := ready(t)
	idle := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	records, err := w.ledger.Begin(cloud.Action{ID: "first", Kind: cloud.AssignAddresses, ENI: "eni-00", Count: 1}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	w.journal(records)
	for _, second := range []cloud.Action{
		{ID: "second", Kind: cloud.AssignAddresses, ENI: "eni-00", Count: 1},
		{ID: "second", Kind: cloud.UnassignAddresses, ENI: "eni-00", Addresses: []netip.Addr{idle}},
		{ID: "first", Kind: cloud.CreateENI, Subnet: "subnet-0"},
	} {
		for name, l := range map[string]*ipam.Ledger{"ledger": w.ledger, "replayed ledger": w.shadow} {
			if _, err := l.Begin(second, w.now); !errors.Is(err, ipam.ErrStale) {
				t.Errorf("%s: begin %s (%s) during an assignment: %v, want ErrStale", name, second, second.ID, err)
			}
		}
	}
}
