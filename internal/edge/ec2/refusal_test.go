package ec2_test

import (
	"testing"
	"testing/synctest"

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
