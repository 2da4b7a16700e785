package ec2_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestARecentlyReleasedAddressIsNotTheEffectOfALostAssign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(4, 1)
		time.Sleep(time.Minute)
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]})
		w.set(faults.Plan{DescribeLag: faults.Duration(5 * time.Second)}) // they are still shown
		in := w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 2, Held: eni.Addresses[2:], Recent: eni.Addresses[:2]})
		kill(w, in, "AssignPrivateIpAddresses", "before the call")
		w.boot()
		got := w.recoverAll()
		if len(got) != 1 || ec2.Code(got[0].Err) != ec2.CodeNotCarriedOut {
			t.Errorf("recovered %+v, want CodeNotCarriedOut", got)
		}
	})
}

func TestAStaleDescribeDoesNotProveThatAnAddressIsUnassigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(1, 1)
		time.Sleep(time.Minute)
		more := w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 2, Held: eni.Addresses})
		w.set(faults.Plan{
			DescribeLag: faults.Duration(5 * time.Second), // they are not shown yet
			Calls:       []faults.Call{{Action: "UnassignPrivateIpAddresses", Do: faults.Fail, Code: "InvalidParameterValue"}},
		})
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: more.Addresses})
		w.set(faults.Plan{})
		for _, a := range w.describe(eni.ID).Addresses {
			if slices.Contains(more.Addresses, a) {
				t.Errorf("%s is reported as unassigned and EC2 still has it", a)
			}
		}
	})
}

func TestAnAttachmentWithoutDeleteOnTerminationIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: "RequestLimitExceeded", Count: -1}}})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err := w.Do(ctx, w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
		if !errors.Is(err, ec2.ErrOpen) {
			t.Fatalf("attach: %v, want ErrOpen: the interface is on the instance", err)
		}
		w.set(faults.Plan{})
		for _, r := range w.recoverAll() {
			if r.Err != nil || r.Outcome.Attachment == "" {
				t.Errorf("recovered %+v", r)
			}
		}
		if a := w.describe(eni.ID).Attachment; a == nil || !a.DeleteOnTermination {
			t.Errorf("attachment %+v, want it deleted with the instance", a)
		}
	})
}

func TestADeniedDeleteOnTerminationIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Count: -1}}})
		out := w.do(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1})
		if out.Warning == "" || out.Attachment == "" {
			t.Errorf("outcome %+v, want an attachment and a warning", out)
		}
	})
}

func TestThrottlingSlowsLaterCallsOfTheSameAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *ec2.Options) {
			o.Budget = func(string) ec2.Budget { return ec2.Budget{PerSecond: 1, Burst: 1} }
		})
		w.set(faults.Plan{Calls: []faults.Call{{Action: "CreateNetworkInterface", Do: faults.Fail, Code: "RequestLimitExceeded", Count: 6}}})
		eni := w.created(0)
		began := time.Now()
		w.created(0)
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("the next create took %s after six throttled ones, want them slowed down by the reduced budget", took)
		}
		began = time.Now()
		w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a delete took %s; want the budget of another action unchanged", took)
		}
	})
}

func TestAnIncompleteActionIsRejectedBeforeAnyCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for _, in := range []cloud.Action{
			{Kind: cloud.CreateENI, Subnet: w.subnet, Instance: w.instance},
			{ID: "a", Kind: cloud.CreateENI, Instance: w.instance},
			{ID: "a", Kind: cloud.CreateENI, Subnet: w.subnet},
			{ID: "a", Kind: cloud.Attach, ENI: "eni-1"},
			{ID: "a", Kind: cloud.AssignAddresses, ENI: "eni-1"},
			{ID: "a", Kind: cloud.UnassignAddresses, ENI: "eni-1"},
			{ID: "a", Kind: cloud.Detach, ENI: "eni-1"},
			{ID: "a", Kind: cloud.DeleteENI},
			{ID: "a", Kind: cloud.SetUp, ENI: "eni-1"},
			{ID: "a", Kind: "paint", ENI: "eni-1"},
		} {
			before := len(w.wire.calls)
			if _, err := w.Do(t.Context(), in); err == nil || len(w.wire.calls) != before {
				t.Errorf("%s: %v, calls %v; want an error and no call", in, err, w.wire.calls[before:])
			}
		}
	})
}

func TestAnActionThatWasNotBegunIsRejectedBeforeAnyCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		a := w.withID(w.createAction(1))
		for name, execute := range map[string]func(context.Context, cloud.Action) (cloud.Outcome, error){
			"do": w.Executor.Do, "recover": w.Recover,
		} {
			if _, err := execute(t.Context(), a); err == nil || w.wire.count("CreateNetworkInterface") != 0 {
				t.Errorf("%s: %v; want an error and no call: Ledger.Begin has not recorded the action", name, err)
			}
		}
	})
}
