package ec2_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestAnAddressJustGivenBackIsNotTakenForTheEffectOfALostAssign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(4, 1)
		time.Sleep(time.Minute)
		w.do(ec2.Intent{Kind: ec2.Unassign, ENI: eni.ID, Addresses: eni.Addresses[:2]})
		w.set(faults.Plan{DescribeLag: faults.Duration(5 * time.Second)}) // they are still shown
		in := w.withID(ec2.Intent{Kind: ec2.Assign, ENI: eni.ID, Count: 2, Held: eni.Addresses[2:], Recent: eni.Addresses[:2]})
		kill(w, in, "AssignPrivateIpAddresses", "before the call")
		w.boot()
		got := w.recoverAll()
		if len(got) != 1 || got[0].Outcome.Done || ec2.Code(got[0].Err) != ec2.CodeNotCarriedOut {
			t.Errorf("recovered %+v, want that nothing was assigned", got)
		}
	})
}

func TestAStaleDescribeDoesNotProveThatAnAddressIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(1, 1)
		time.Sleep(time.Minute)
		more := w.do(ec2.Intent{Kind: ec2.Assign, ENI: eni.ID, Count: 2, Held: eni.Addresses})
		w.set(faults.Plan{
			DescribeLag: faults.Duration(5 * time.Second), // they are not shown yet
			Calls:       []faults.Call{{Action: "UnassignPrivateIpAddresses", Do: faults.Fail, Code: "InvalidParameterValue"}},
		})
		w.do(ec2.Intent{Kind: ec2.Unassign, ENI: eni.ID, Addresses: more.Addresses})
		w.set(faults.Plan{})
		for _, a := range w.describe(eni.ID).Addresses {
			if slices.Contains(more.Addresses, a) {
				t.Errorf("%s is called gone and still there", a)
			}
		}
	})
}

func TestAnAttachmentNotYetTiedToItsInstanceIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: "RequestLimitExceeded", Count: -1}}})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err := w.Do(ctx, w.withID(ec2.Intent{Kind: ec2.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
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
			t.Errorf("attachment %+v, want tied to the instance", a)
		}
	})
}

func TestAnInterfaceThatCannotBeTiedIsAttachedWithAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Count: -1}}})
		out := w.do(ec2.Intent{Kind: ec2.Attach, ENI: eni.ID, Instance: w.instance, Device: 1})
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
			t.Errorf("the next create took %s after six throttled ones, want the budget to be pressed", took)
		}
		began = time.Now()
		w.do(ec2.Intent{Kind: ec2.Delete, ENI: eni.ID})
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a delete took %s; another action's budget must not be", took)
		}
	})
}

func TestAnIntentThatLacksSomethingIsRefusedBeforeTheJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for _, in := range []ec2.Intent{
			{Kind: ec2.Create, Subnet: w.subnet},
			{ID: "a", Kind: ec2.Create},
			{ID: "a", Kind: ec2.Attach, ENI: "eni-1"},
			{ID: "a", Kind: ec2.Assign, ENI: "eni-1"},
			{ID: "a", Kind: ec2.Unassign, ENI: "eni-1"},
			{ID: "a", Kind: ec2.Detach, ENI: "eni-1"},
			{ID: "a", Kind: ec2.Delete},
			{ID: "a", Kind: "paint", ENI: "eni-1"},
		} {
			if _, err := w.Do(t.Context(), in); err == nil || len(w.journal.intents()) != 0 {
				t.Errorf("%s: %v, journal %v; want an error and nothing written", in, err, w.journal.intents())
			}
		}
	})
}
