package ec2_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestTheLastRefusalStaysUntilTheSameActionSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(1, 1)
		if r, ok := w.LastRefusal(); ok {
			t.Fatalf("a refusal before any refused call: %v", r.Error)
		}
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "UnauthorizedOperation", Count: 2}}})
		for range 2 {
			if _, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})); err == nil {
				t.Fatal("not refused")
			}
		}
		w.describe(eni.ID) // the success of another action does not end it
		r, ok := w.LastRefusal()
		if !ok || r.Action != "AssignPrivateIpAddresses" || r.Code != "UnauthorizedOperation" || r.Count != 2 || r.RequestID == "" {
			t.Errorf("%+v, %v", r, ok)
		}
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})
		if r, ok := w.LastRefusal(); ok {
			t.Errorf("still %v after it succeeded", r.Error)
		}
	})
}

// A permission depends on the tags of the object, so that success on another one says
// nothing about it.
func TestARefusalForPermissionOnOneInterfaceStaysWhenAnotherOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		refused, other := w.attached(1, 1), w.attached(1, 2)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "UnauthorizedOperation"}}})
		if _, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: refused.ID, Count: 1})); err == nil {
			t.Fatal("not refused")
		}
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: other.ID, Count: 1})
		if r, ok := w.LastRefusal(); !ok || r.Object != string(refused.ID) {
			t.Errorf("%+v, %v; want the refusal on %s", r, ok, refused.ID)
		}
		time.Sleep(31 * time.Minute)
		if r, ok := w.LastRefusal(); ok {
			t.Errorf("still %v half an hour later, although the call is not repeated", r.Error)
		}
	})
}

func TestAnyOtherRefusalEndsWhenTheActionSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		refused, other := w.attached(1, 1), w.attached(1, 2)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "PrivateIpAddressLimitExceeded"}}})
		if _, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: refused.ID, Count: 1})); err == nil {
			t.Fatal("not refused")
		}
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: other.ID, Count: 1})
		if r, ok := w.LastRefusal(); ok {
			t.Errorf("still %v", r.Error)
		}
	})
}
