package ec2_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestTheLifeOfAnInterfaceFromCreateToDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(5)
		if len(eni.Addresses) != 5 || eni.Attachment != nil || eni.MAC == (vpc.MAC{}) || !eni.Primary.IsValid() {
			t.Fatalf("created %+v, want 5 secondary addresses and no attachment", eni)
		}
		out := w.do(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1})
		on := w.describe(eni.ID)
		if !on.On(w.instance) || on.Attachment.ID != out.Attachment || !on.Attachment.DeleteOnTermination {
			t.Fatalf("attachment %+v, want on the instance and deleted with it", on.Attachment)
		}
		more := w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 3, Held: on.Addresses})
		if len(more.Addresses) != 3 || len(w.describe(eni.ID).Addresses) != 8 {
			t.Fatalf("assigned %v, want 3", more.Addresses)
		}
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: more.Addresses})
		w.do(cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: out.Attachment, Instance: w.instance})
		w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
		if left := w.all(); len(left) != 0 {
			t.Errorf("left over: %v", left)
		}
		if open := w.journal.inFlight(); len(open) != 0 {
			t.Errorf("the journal still holds %v", open)
		}
	})
}

// TestAKillAtAnyPointLeaksNoInterfaceAndNoAddress stops the process before a call, after
// its effect with the reply lost, and after the reply but before the journal entry, for
// every call of every kind; then a new process recovers.
func TestAKillAtAnyPointLeaksNoInterfaceAndNoAddress(t *testing.T) {
	kinds := []struct {
		kind    cloud.Kind
		actions []string
		prepare func(*world) cloud.Action
		check   func(*world, cloud.Action, recovered)
	}{
		{cloud.CreateENI, []string{"CreateNetworkInterface"}, func(w *world) cloud.Action { return w.createAction(4) }, checkCreated},
		{cloud.Attach, []string{"AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"}, func(w *world) cloud.Action {
			return cloud.Action{Kind: cloud.Attach, ENI: w.created(2).ID, Instance: w.instance, Device: 1}
		}, checkAttached},
		{cloud.AssignAddresses, []string{"AssignPrivateIpAddresses"}, func(w *world) cloud.Action {
			eni := w.attached(2, 1)
			return cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 3, Held: eni.Addresses}
		}, checkAssigned},
		{cloud.UnassignAddresses, []string{"UnassignPrivateIpAddresses"}, func(w *world) cloud.Action {
			eni := w.attached(4, 1)
			return cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]}
		}, func(w *world, in cloud.Action, r recovered) {
			for _, a := range w.describe(in.ENI).Addresses {
				if slices.Contains(in.Addresses, a) || r.Err != nil {
					w.t.Errorf("EC2 still has %s, error %v", a, r.Err)
				}
			}
			if n := len(w.describe(in.ENI).Addresses); n != 2 {
				w.t.Errorf("%d addresses left, want the other 2", n)
			}
		}},
		{cloud.Detach, []string{"DetachNetworkInterface"}, func(w *world) cloud.Action {
			eni := w.attached(1, 1)
			return cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: eni.Attachment.ID, Instance: w.instance}
		}, func(w *world, in cloud.Action, r recovered) {
			if eni := w.describe(in.ENI); eni.On(w.instance) || r.Err != nil {
				w.t.Errorf("attachment %+v, error %v, want detached and done", eni.Attachment, r.Err)
			}
		}},
		{cloud.DeleteENI, []string{"DeleteNetworkInterface"}, func(w *world) cloud.Action {
			return cloud.Action{Kind: cloud.DeleteENI, ENI: w.created(1).ID}
		}, func(w *world, _ cloud.Action, r recovered) {
			if left := w.all(); len(left) != 0 || r.Err != nil {
				w.t.Errorf("left %v, error %v, want nothing and done", left, r.Err)
			}
		}},
	}
	for _, lag := range []time.Duration{0, 5 * time.Second} {
		for _, k := range kinds {
			for _, action := range k.actions {
				for _, point := range []string{"before the call", "after the effect", "before the journal"} {
					name := string(k.kind) + "/" + action + "/" + point
					if lag > 0 {
						name += "/stale describes"
					}
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := start(t)
							in := w.withID(k.prepare(w))
							w.set(faults.Plan{DescribeLag: faults.Duration(lag)})
							kill(w, in, action, point)
							left := w.journal.inFlight()
							if len(left) != 1 || left[0].ID != in.ID {
								t.Fatalf("the journal holds %v, want the action", left)
							}
							w.boot()
							got := w.recoverAll()
							if len(got) != 1 || errors.Is(got[0].Err, ec2.ErrOpen) {
								t.Fatalf("recovered %+v", got)
							}
							w.set(faults.Plan{})
							k.check(w, in, got[0])
							if open := w.journal.inFlight(); len(open) != 0 {
								t.Errorf("the journal still holds %v", open)
							}
						})
					})
				}
			}
		}
	}
}

// kill runs an action up to the point and ends its process there.
func kill(w *world, in cloud.Action, action, point string) {
	w.t.Helper()
	ctx, die := context.WithCancel(w.t.Context())
	defer die()
	stop := func(got string) error {
		if got != action {
			return nil
		}
		w.journal.die(true)
		if point == "before the journal" {
			return nil
		}
		die()
		return errCut
	}
	if point == "before the call" {
		w.wire.cut(stop, nil)
	} else {
		w.wire.cut(nil, stop)
	}
	_, _ = w.Do(ctx, in) // the killed process loses the result
	w.wire.cut(nil, nil)
	w.journal.die(false)
}

func checkCreated(w *world, in cloud.Action, r recovered) {
	w.t.Helper()
	made := w.all()
	if len(made) != 1 || r.Err != nil || r.Outcome.ENI != made[0].ID {
		w.t.Fatalf("EC2 has %v, outcome %+v, want one interface and that one", made, r.Outcome)
	}
	if !slices.Equal(r.Outcome.Addresses, made[0].Addresses) || len(made[0].Addresses) != in.Count || made[0].Tags[vpc.TagIntent] != string(in.ID) {
		w.t.Errorf("EC2 has %+v, outcome %+v", made[0], r.Outcome)
	}
}

func checkAttached(w *world, in cloud.Action, r recovered) {
	w.t.Helper()
	eni := w.describe(in.ENI)
	if !eni.On(w.instance) || !eni.Attachment.DeleteOnTermination || r.Outcome.Attachment != eni.Attachment.ID || r.Err != nil {
		w.t.Errorf("attachment %+v, outcome %+v, want on the instance, deleted with it, and that as the outcome", eni.Attachment, r.Outcome)
	}
}

func checkAssigned(w *world, in cloud.Action, r recovered) {
	w.t.Helper()
	added := slices.DeleteFunc(w.describe(in.ENI).Addresses, func(a netip.Addr) bool { return slices.Contains(in.Held, a) })
	if !slices.Equal(added, r.Outcome.Addresses) || (r.Err == nil) != (len(added) == in.Count) {
		w.t.Errorf("EC2 added %v, outcome %+v; want the same", added, r.Outcome)
	}
	if r.Err != nil && ec2.Code(r.Err) != ec2.CodeNotCarriedOut {
		w.t.Errorf("error %v, want %s", r.Err, ec2.CodeNotCarriedOut)
	}
}

func TestALostReplyIsResolvedWithoutARestart(t *testing.T) {
	for _, c := range []struct {
		name string
		plan faults.Plan
	}{
		{"reply lost", faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.LoseReply, Count: 1}}}},
		{"no reply", faults.Plan{Calls: []faults.Call{
			{Action: "CreateNetworkInterface", Do: faults.HangAfter},
			{Action: "AttachNetworkInterface", Do: faults.HangAfter},
			{Action: "AssignPrivateIpAddresses", Do: faults.HangAfter},
			{Action: "UnassignPrivateIpAddresses", Do: faults.HangAfter},
			{Action: "DetachNetworkInterface", Do: faults.HangAfter},
			{Action: "DeleteNetworkInterface", Do: faults.HangAfter},
		}}},
		{"server error", faults.Plan{Calls: []faults.Call{
			{Action: "CreateNetworkInterface", Do: faults.Fail, Code: "InternalError", Status: 500, Count: 2},
			{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "Unavailable", Status: 503, Count: 2},
			{Action: "DeleteNetworkInterface", Do: faults.Fail, Code: "InternalError", Status: 500, Count: 2},
		}}},
		{"still detaching", faults.Plan{Calls: []faults.Call{
			{Action: "DeleteNetworkInterface", Do: faults.Fail, Code: "InvalidParameterValue", Message: "Network interface is currently in use.", Count: 3},
		}}},
		{"created and not shown yet", faults.Plan{Calls: []faults.Call{
			{Action: "AttachNetworkInterface", Do: faults.Fail, Code: "InvalidNetworkInterfaceID.NotFound", Count: 2},
			{Action: "ModifyNetworkInterfaceAttribute", Do: faults.Fail, Code: "InvalidNetworkInterfaceID.NotFound", Count: 2},
		}}},
		{"throttled", faults.Plan{Throttle: map[string]faults.Bucket{"*": {Size: 1, Rate: 0.5}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				w.set(c.plan)
				eni := w.created(2)
				on := w.do(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1})
				got := w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 3, Held: eni.Addresses})
				if n := len(w.describe(eni.ID).Addresses); n != 5 || len(got.Addresses) != 3 {
					t.Errorf("EC2 has %d addresses, outcome %v; want 5 and 3 of them", n, got.Addresses)
				}
				w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: got.Addresses})
				w.do(cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: on.Attachment})
				w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
				w.set(faults.Plan{})
				if left := w.all(); len(left) != 0 {
					t.Errorf("left over: %v", left)
				}
			})
		})
	}
}

func TestAReadThatHangsIsSentAgainOnAFreshConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "DescribeNetworkInterfaces", Do: faults.Hang}}})
		began := time.Now()
		found, err := w.Interfaces(t.Context(), w.instance)
		if err != nil || len(found) != 1 {
			t.Fatalf("interfaces = %v, %v", found, err)
		}
		if took := time.Since(began); took > 3*time.Second || w.fresh.count("DescribeNetworkInterfaces") != 1 {
			t.Errorf("took %s with %d fresh reads, want one after 2 s", took, w.fresh.count("DescribeNetworkInterfaces"))
		}
	})
}

func TestIdenticalReadsAreOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{Latency: map[string]faults.Latency{"*": {Fixed: faults.Duration(time.Second)}}})
		before := w.wire.count("DescribeNetworkInterfaces")
		done := make(chan error)
		for range 10 {
			go func() {
				_, err := w.Interfaces(t.Context(), w.instance)
				done <- err
			}()
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := w.wire.count("DescribeNetworkInterfaces") - before; got != 1 {
			t.Errorf("%d calls, want 1", got)
		}
	})
}

func TestBrakesRefuseBeforeAnythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.SetBrake(cloud.FreezeRelease, "")
		_, err := w.Do(t.Context(), cloud.Action{ID: "x", Kind: cloud.DeleteENI, ENI: eni.ID})
		if !errors.Is(err, ec2.ErrFrozen) || !ec2.FailureOf(err).Definite || w.wire.count("DeleteNetworkInterface") != 0 {
			t.Errorf("delete with releases frozen: %v, want ErrFrozen and no call", err)
		}
		w.created(1) // allowed by freeze release
		w.SetBrake(cloud.FreezeAll, "")
		if _, err := w.Do(t.Context(), w.withID(w.createAction(1))); !errors.Is(err, ec2.ErrFrozen) {
			t.Errorf("create with all frozen: %v, want ErrFrozen", err)
		}
		w.SetBrake(cloud.BrakeOff, "")
		w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
	})
}

func TestTheBreakerOpensOnSustainedErrorsAndClosesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: "InternalError", Status: 500, Count: -1}}})
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		if _, err := w.Do(ctx, w.withID(w.createAction(1))); !errors.Is(err, ec2.ErrOpen) {
			t.Fatalf("create: %v, want ErrOpen", err)
		}
		if b, why := w.Brake(); b != cloud.AllocateOnly || why == "" {
			t.Fatalf("brake = %q (%s), want %q", b, why, cloud.AllocateOnly)
		}
		if _, err := w.Do(t.Context(), cloud.Action{ID: "z", Kind: cloud.DeleteENI, ENI: eni.ID}); !errors.Is(err, ec2.ErrFrozen) {
			t.Errorf("delete: %v, want ErrFrozen", err)
		}
		w.set(faults.Plan{})
		for _, r := range w.recoverAll() {
			if r.Err != nil {
				t.Errorf("recover %s: %v", r.Action, r.Err)
			}
		}
		if b, _ := w.Brake(); b != cloud.BrakeOff {
			t.Errorf("brake = %q after a success, want none", b)
		}
		if got := len(w.all()); got != 2 {
			t.Errorf("%d interfaces, want the one from before and the recovered one", got)
		}
	})
}

func TestRefusalsOfEC2AreTypedAndDefinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		subnets, err := w.Subnets(t.Context(), w.vpc(), region+"a")
		if err != nil || len(subnets) != 2 {
			t.Fatalf("subnets of the zone: %v, %v; want 2", subnets, err)
		}
		tiny := subnets[slices.IndexFunc(subnets, func(s ec2.Subnet) bool { return s.ID != w.subnet })]
		eni, full := w.attached(14, 1), w.created(15)
		for _, c := range []struct {
			name string
			in   cloud.Action
			is   func(error) bool
		}{
			{"a subnet without enough addresses", cloud.Action{Kind: cloud.CreateENI, Instance: w.instance, Subnet: tiny.ID, Groups: []vpc.SecurityGroupID{w.group}, Count: 13}, ec2.IsSubnetExhausted},
			{"an interface that is full", cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1, Held: eni.Addresses}, ec2.IsAddressLimit},
			{"an interface with more addresses than the instance takes", cloud.Action{Kind: cloud.Attach, ENI: full.ID, Instance: w.instance, Device: 2}, ec2.IsAddressLimit},
			{"an interface that does not exist", cloud.Action{Kind: cloud.AssignAddresses, ENI: "eni-00000000000000001", Count: 1}, ec2.IsNotFound},
		} {
			_, err := w.Do(t.Context(), w.withID(c.in))
			if err == nil || !c.is(err) || errors.Is(err, ec2.ErrOpen) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if open := w.journal.inFlight(); len(open) != 0 {
			t.Errorf("the journal still holds %v", open)
		}
	})
}

func (w *world) vpc() vpc.ID {
	eni, err := w.Interfaces(w.t.Context(), w.instance)
	if err != nil {
		w.t.Fatal(err)
	}
	return eni[0].VPC
}

func TestLimitsAreReadOncePerType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for range 3 {
			got, err := w.InstanceLimits(t.Context(), "m5.xlarge")
			if err != nil || got.ENIs != 4 || got.IPv4 != 15 || got.MaxPods() != 58 {
				t.Fatalf("limits = %+v, %v; want 4 x 15", got, err)
			}
		}
		if n := w.wire.count("DescribeInstanceTypes"); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

func TestSubnetsOfAnotherRouteTableAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		of, main, err := w.RouteTables(t.Context(), w.vpc())
		if err != nil || main == "" || len(of) != 1 {
			t.Fatalf("tables = %v, main %s, %v; want one association and a main table", of, main, err)
		}
		all, err := w.Subnets(t.Context(), w.vpc(), region+"a")
		if err != nil {
			t.Fatal(err)
		}
		usable := ec2.SubnetsOf(all, w.subnet, "", of, main)
		if len(usable) != 2 {
			t.Fatalf("usable = %+v, want both of the zone", usable)
		}
		for _, s := range usable {
			if s.SameRoutes != (s.ID == w.subnet) {
				t.Errorf("%s: same routes %v", s.ID, s.SameRoutes)
			}
		}
	})
}

func TestCallsKeepToTheirBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		w := start(t, func(o *ec2.Options) {
			o.Budget = func(string) ec2.Budget { return ec2.Budget{PerSecond: 1, Burst: 2} }
			o.Registry = registry
		})
		began := time.Now()
		for range 6 {
			w.created(0)
		}
		if took := time.Since(began); took < 4*time.Second {
			t.Errorf("6 calls took %s with a burst of 2 and 1/s, want 4 s", took)
		}
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
	})
}
