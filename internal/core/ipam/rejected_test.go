package ipam_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

func TestOnlyAnActionThatTheLedgerKnowsBeginsAndEnds(t *testing.T) {
	w := ready(t)
	if _, err := w.ledger.Begin(cloud.Action{Kind: cloud.AssignAddresses, ENI: "eni-00", Count: 1}, w.now); err == nil || !strings.Contains(err.Error(), "the action has no id") {
		t.Errorf("begin without an id: %v", err)
	}
	if _, err := w.ledger.Begin(cloud.Action{ID: "x", Kind: "paint", ENI: "eni-00"}, w.now); err == nil || !strings.Contains(err.Error(), `unknown kind "paint"`) {
		t.Errorf("begin of an unknown kind: %v", err)
	}
	if _, err := w.ledger.Settle("x", cloud.Outcome{}, w.now); !errors.Is(err, ipam.ErrUnknown) {
		t.Errorf("settle of an action that is not in flight: %v, want ErrUnknown", err)
	}
	if _, err := w.ledger.Fail("x", cloud.Failure{}, w.now); !errors.Is(err, ipam.ErrUnknown) {
		t.Errorf("fail of an action that is not in flight: %v, want ErrUnknown", err)
	}
	if view := w.ledger.View(w.now); len(view.InFlight)+len(view.Backoffs) != 0 {
		t.Errorf("the ledger has %v and %v", view.InFlight, view.Backoffs)
	}
}

func TestAnAddressIsAssignedToEndpointsOnly(t *testing.T) {
	w := ready(t)
	for _, h := range []ipam.Holder{{}, ipam.NodeHolder("eth1"), ipam.ForeignHolder(endpoint.Pod{Name: "theirs"})} {
		if lease, records, err := w.ledger.Assign(h, w.now); err == nil || len(records) != 0 {
			t.Errorf("%s got %s", h, lease.Addr)
		}
	}
}

func TestAReplayChecksWhatARecordRefersTo(t *testing.T) {
	w := ready(t)
	second := w.ec2.makeENI(w.ec2.subnets[0], 1, w.now)
	second.attached, second.device = true, 1
	w.observe()
	of := w.ledger.View(w.now).ENIs
	free := of[0].Addresses[0].Addr
	moved := of[0].Addresses[0]
	moved.ENI = second.id
	if err := w.ledger.Replay([]ipam.Record{{Op: ipam.PutAddress, Address: &moved}}); err == nil || !strings.Contains(err.Error(), "was on eni-00") {
		t.Errorf("an address moved to another interface: %v", err)
	}
	if got := stateOf(w, free).ENI; got != "eni-00" {
		t.Errorf("%s is on %s", free, got)
	}
	for range 2 { // a drop can be repeated
		if err := w.ledger.Replay([]ipam.Record{{Op: ipam.DropAddress, Addr: free}}); err != nil {
			t.Errorf("drop: %v", err)
		}
	}
	if err := w.ledger.Replay([]ipam.Record{{Op: ipam.DropENI, ENIID: second.id}}); err != nil {
		t.Errorf("drop of an interface that no pod uses: %v", err)
	}
	if err := ipam.CheckIndexes(w.ledger); err != nil {
		t.Error(err)
	}
	if n := len(w.ledger.View(w.now).ENIs); n != 1 {
		t.Errorf("%d interfaces", n)
	}
	for name, r := range map[string]ipam.Record{
		"an interface without an id":  {Op: ipam.PutENI, ENI: &ipam.ENI{}},
		"an address of no interface":  {Op: ipam.PutAddress, Address: &ipam.Address{}},
		"an action without an id":     {Op: ipam.PutAction, Action: &cloud.Action{}},
		"a back-off without a key":    {Op: ipam.PutBackoff, Backoff: &ipam.Backoff{}},
		"a release of nothing":        {Op: ipam.PutGone, Gone: &ipam.Gone{}},
		"a release of two objects":    {Op: ipam.PutGone, Gone: &ipam.Gone{Addr: free, ENI: "eni-00"}},
		"a release without its row":   {Op: ipam.DropGone},
		"no interface to drop":        {Op: ipam.DropENI},
		"no address to drop":          {Op: ipam.DropAddress},
		"no action to drop":           {Op: ipam.DropAction},
		"no back-off to drop":         {Op: ipam.DropBackoff},
		"an action without its row":   {Op: ipam.PutAction},
		"a back-off without its row":  {Op: ipam.PutBackoff},
		"an address without its row":  {Op: ipam.PutAddress},
		"an operation without a name": {},
	} {
		if err := w.ledger.Replay([]ipam.Record{r}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if key := (ipam.Record{Op: "paint"}).Key(); key != "unknown/paint" {
		t.Errorf("key %q", key)
	}
}

// Observe has dropped the interface before the outcome of the action was known.
func TestTheOutcomeOfAnActionOnADroppedInterfaceChangesNoOther(t *testing.T) {
	w := ready(t)
	second := w.ec2.makeENI(w.ec2.subnets[0], 1, w.now)
	second.attached, second.device = true, 1
	w.observe()
	if _, err := w.ledger.Begin(cloud.Action{ID: "x", Kind: cloud.SetUp, ENI: second.id}, w.now); err != nil {
		t.Fatal(err)
	}
	if err := w.ledger.Replay([]ipam.Record{{Op: ipam.DropENI, ENIID: second.id}}); err != nil {
		t.Fatal(err)
	}
	before := len(w.ledger.Records())
	if _, err := w.ledger.Settle("x", cloud.Outcome{}, w.now); err != nil {
		t.Fatal(err)
	}
	if after := len(w.ledger.Records()); after != before-1 || len(w.ledger.View(w.now).InFlight) != 0 {
		t.Errorf("%d records before and %d after, want only the action dropped", before, after)
	}
}

// A describe showed the address on the interface that it was moved from.
func TestAnAddressThatEC2AssignsIsMovedFromWhereItWasNotConfirmed(t *testing.T) {
	w := ready(t)
	second := w.ec2.makeENI(w.ec2.subnets[0], 1, w.now)
	second.attached, second.device = true, 1
	w.observe()
	stale := w.ledger.View(w.now).ENIs[1].Addresses[0]
	if stale.State != ipam.Unconfirmed {
		t.Fatalf("%+v, want it unconfirmed", stale)
	}
	used := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	if _, _, err := w.ledger.Adopt(holder(1), used, w.now); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ledger.Begin(cloud.Action{ID: "x", Kind: cloud.AssignAddresses, ENI: "eni-00", Count: 2}, w.now); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ledger.Settle("x", cloud.Outcome{Addresses: []netip.Addr{stale.Addr, used}}, w.now); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(w, stale.Addr); got.ENI != "eni-00" || got.State != ipam.Free {
		t.Errorf("%+v, want it free on eni-00", got)
	}
	if got := stateOf(w, used); got.State != ipam.Assigned || got.Holder != holder(1) {
		t.Errorf("%+v, want it assigned as before", got)
	}
}

func TestAnADDThatWasUndoneFreesNoAddressThatEC2DoesNotShow(t *testing.T) {
	w, lost := withoutAddress(t)
	w.ledger.Return(holder(0).Endpoint, w.now)
	if got := stateOf(w, lost); got.State != ipam.Unconfirmed || !got.Missing.IsZero() || got.Holder != (ipam.Holder{}) {
		t.Errorf("%+v, want it unconfirmed", got)
	}
	if records := w.ledger.Return(holder(0).Endpoint, w.now); len(records) != 0 {
		t.Errorf("undone twice: %v", records)
	}
}

func TestARenewedPodWithoutAnUIDEndsNoClaim(t *testing.T) {
	w := ready(t)
	addr := w.ledger.View(w.now).ENIs[0].Addresses[0].Addr
	w.ledger.Claim(map[netip.Addr]ipam.Claim{addr: {Holder: ipam.ForeignHolder(endpoint.Pod{}), Made: w.now}}, true, w.now)
	if records := w.ledger.Renewed(endpoint.Pod{Namespace: "default", Name: "a"}, w.now); len(records) != 0 || stateOf(w, addr).State != ipam.Assigned {
		t.Errorf("%v; %s is %s", records, addr, stateOf(w, addr).State)
	}
}

func TestAnInterfaceInUseIsNotFenced(t *testing.T) {
	for name, use := range map[string]func(*world){
		"a pod has an address":  func(*world) {},
		"an address cools down": func(w *world) { w.ledger.Release(holder(100).Endpoint, w.now) },
	} {
		w := withTwoInterfaces(t)
		w.now = w.now.Add(time.Hour)
		e := w.ledger.View(w.now).ENIs[1]
		var free netip.Addr
		for _, a := range e.Addresses {
			if a.State == ipam.Assigned {
				w.ledger.Release(a.Holder.Endpoint, w.now.Add(-time.Hour))
			} else {
				free = a.Addr
			}
		}
		w.now = w.now.Add(time.Second)
		if _, _, err := w.ledger.Adopt(holder(100), free, w.now); err != nil {
			t.Fatal(err)
		}
		use(w)
		_, err := w.ledger.Begin(cloud.Action{ID: "x", Kind: cloud.Detach, ENI: e.ID}, w.now)
		if !errors.Is(err, ipam.ErrStale) || !strings.Contains(err.Error(), free.String()) {
			t.Errorf("%s: %v, want ErrStale because of %s", name, err, free)
		}
		for _, a := range viewOf(w, e.ID).Addresses {
			if a.State == ipam.Releasing {
				t.Errorf("%s: %s is fenced", name, a.Addr)
			}
		}
	}
}

// A version of before had longer back-offs, or the clock was ahead.
func TestARestartShortensBackoffsThatAreTooLong(t *testing.T) {
	w := ready(t)
	for key, until := range map[string]time.Duration{"long": time.Minute + time.Second, "longest": time.Minute, "short": time.Second} {
		if err := w.ledger.Replay([]ipam.Record{{Op: ipam.PutBackoff, Backoff: &ipam.Backoff{Key: key, Since: w.now, Until: w.now.Add(until), Tries: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	w.ledger.Restart(w.now)
	var left []time.Duration
	for _, b := range w.ledger.View(w.now).Backoffs {
		left = append(left, b.Until.Sub(w.now))
	}
	if want := []time.Duration{time.Minute, time.Minute, time.Second}; !slices.Equal(left, want) {
		t.Errorf("pauses after the restart: %v, want %v", left, want)
	}
}
