package ec2_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestCoalescedReadsReturnSeparateSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.attached(0, 1)
		w.set(faults.Plan{Latency: map[string]faults.Latency{"DescribeNetworkInterfaces": {Fixed: faults.Duration(time.Second)}}})
		var got [2][]ec2.Interface
		var group sync.WaitGroup
		before := w.wire.count("DescribeNetworkInterfaces")
		for i := range got {
			group.Go(func() {
				var err error
				if got[i], err = w.Interfaces(t.Context(), w.instance); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := w.wire.count("DescribeNetworkInterfaces") - before; n != 1 {
			t.Fatalf("%d calls, want one for both", n)
		}
		id := got[1][0].ID
		got[0][0].ID = "eni-changed"
		if got[1][0].ID != id {
			t.Error("a change by one caller shows in the slice of the other")
		}
	})
}

func TestACallThatWasNotSentIsNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *ec2.Options) {
			o.Budget = func(action string) ec2.Budget {
				if action == "AssignPrivateIpAddresses" {
					return ec2.Budget{PerSecond: 0.01, Burst: 1}
				}
				return ec2.DefaultBudget(action)
			}
		})
		eni := w.attached(0, 1)
		first := w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop) // the agent stops
		in := w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1, Held: first.Addresses})
		if _, err := w.Do(ctx, in); err == nil || errors.Is(err, ec2.ErrOpen) {
			t.Errorf("assign: %v; want an error that is not ErrOpen: no call was sent", err)
		}
		if n := w.wire.count("AssignPrivateIpAddresses"); n != 1 {
			t.Fatalf("%d assigns were sent, want only the first", n)
		}
		if left := w.journal.inFlight(); len(left) != 0 {
			t.Errorf("the journal still has %v", left)
		}
	})
}

func TestAnAttachmentFoundWithoutDeleteOnTerminationIsOpenWhenTheAgentStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		refuse := func(code string) {
			w.set(faults.Plan{Calls: []faults.Call{{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: code, Count: -1}}})
		}
		refuse("UnauthorizedOperation")
		eni := w.attached(0, 1)
		refuse("RequestLimitExceeded")
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		_, err := w.Do(ctx, w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
		if !errors.Is(err, ec2.ErrOpen) {
			t.Errorf("attach: %v, want ErrOpen: the interface is attached and would leak with the instance", err)
		}
	})
}
