package ipam_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestAFreshNodeFillsThePrimaryInterfaceWithOneCall(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.settle()
	if got := w.ec2.calls[cloud.AssignAddresses]; got != 1 || len(w.ec2.enis) != 1 {
		t.Errorf("%d assign calls, %d interfaces, want one call and the primary only", got, len(w.ec2.enis))
	}
	if !w.decided.Condition.CanAdd {
		t.Errorf("condition = %s, want the next ADD served", w.decided.Condition)
	}
}

func TestABurstOfAHundredPodsUsesTheFewestCalls(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 100 {
		w.bind(n)
	}
	// The first plan requests everything, before any outcome is known.
	w.begin()
	var creates, assigns, requested int
	for _, a := range w.decided.Actions {
		switch a.Kind {
		case cloud.CreateENI:
			creates++
		case cloud.AssignAddresses:
			assigns++
		default:
			t.Errorf("unexpected %s", a)
		}
		requested += a.Count
	}
	if creates != 3 || assigns != 1 || requested != 56 {
		t.Errorf("%d creates, %d assigns, %d addresses; want 3, 1 and 56\n%s", creates, assigns, requested, w.decided)
	}
	w.finishAll()
	w.settle()
	if w.ec2.calls[cloud.CreateENI] != 3 || w.ec2.calls[cloud.Attach] != 3 || w.ec2.calls[cloud.AssignAddresses] != 1 {
		t.Errorf("calls = %v, want 3 creates, 3 attaches and 1 assign", w.ec2.calls)
	}
	served := 0
	for n := range 100 {
		if _, err := w.add(n); err == nil {
			served++
		}
	}
	if served != 56 {
		t.Errorf("%d pods served, want the 56 that the type allows", served)
	}
	w.settle()
	c := w.decided.Condition
	if c.Reason != ipam.ReasonNodeFull || !errors.Is(c.Err(), ipam.ErrNodeFull) || !errors.Is(c.Err(), ipam.ErrNoAddress) {
		t.Errorf("condition = %s, want %s", c, ipam.ReasonNodeFull)
	}
	if w.decided.Numbers.Unmet != 44 {
		t.Errorf("unmet = %d, want 44", w.decided.Numbers.Unmet)
	}
}

func TestPodsWithoutAnADDCountAsDemandForALimitedTime(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 20 {
		w.bind(n)
	}
	w.settle()
	if got := w.decided.Numbers.Demand; got != 20 {
		t.Fatalf("demand = %d, want 20", got)
	}
	w.now = w.now.Add(w.config.DemandFor)
	w.begin()
	if got := w.decided.Numbers.Demand; got != 0 {
		t.Errorf("demand = %d after %s, want 0", got, w.config.DemandFor)
	}
	w.pending[0].Waiting = true
	w.begin()
	if got := w.decided.Numbers.Demand; got != 1 {
		t.Errorf("demand = %d with one ADD waiting, want 1", got)
	}
}

func TestAFullSubnetDoesNotStopAnother(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil, 12, 100)
	for n := range 20 {
		w.bind(n)
	}
	w.settle()
	for n := range 20 {
		if _, err := w.add(n); err != nil {
			t.Fatalf("pod %d: %v\n%s\n%s", n, err, w.snapshot(), w.decided)
		}
	}
}

func TestAnExhaustedNodeRecoversWithoutARestart(t *testing.T) {
	w := testWorld(t, t3medium(), nil, 8)
	for n := range 7 {
		w.bind(n)
	}
	w.settle()
	served := 0
	for n := range 7 {
		if _, err := w.add(n); err == nil {
			served++
		}
	}
	w.pass(3*time.Minute, 5*time.Second)
	c := w.decided.Condition
	if c.Reason != ipam.ReasonSubnetExhausted {
		t.Errorf("condition = %s, want %s\n%s", c, ipam.ReasonSubnetExhausted, w.decided)
	}
	w.ec2.subnets[0].size = 100 // another node releases addresses
	w.pass(3*time.Minute, 5*time.Second)
	for n := range 7 {
		if _, err := w.add(n); err != nil {
			t.Errorf("pod %d after recovery: %v\n%s", n, err, w.decided)
		}
	}
	if served == 0 {
		t.Errorf("no pod was served before the recovery")
	}
}

func TestASubnetExhaustedErrorBacksOffThatSubnetOnly(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil, 100, 100)
	w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
		if a.Subnet == "subnet-0" {
			return failed(cloud.FailSubnetExhausted, "InsufficientFreeAddressesInSubnet")
		}
		return nil
	}
	for n := range 10 {
		w.bind(n)
	}
	w.settle()
	for n := range 10 {
		if _, err := w.add(n); err != nil {
			t.Fatalf("pod %d: %v\n%s", n, err, w.decided)
		}
	}
	if got := w.ec2.calls[cloud.AssignAddresses]; got != 1 {
		t.Errorf("%d assigns in the full subnet, want 1 and then a back-off", got)
	}
}

func TestIdleAddressesAreReleasedAfterTheIdleTimeAndNotBefore(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 50 {
		w.bind(n)
	}
	w.settle()
	for n := range 50 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(10*time.Minute, 10*time.Second)
	for n := range 50 {
		w.del(n)
	}
	w.pass(w.config.IdleAfter-10*time.Second, 10*time.Second)
	if len(w.ec2.enis) != 4 {
		t.Fatalf("%d interfaces before the idle time is over, want all 4", len(w.ec2.enis))
	}
	w.pass(15*time.Minute, 10*time.Second)
	if len(w.ec2.enis) != 2 && len(w.ec2.enis) != 1 {
		t.Errorf("%d interfaces long after, want 1 or 2\n%s", len(w.ec2.enis), w.snapshot())
	}
	if got, most := w.decided.Numbers.Have, w.config.WarmIPs+w.config.Headroom+w.config.Headroom/2; got > most {
		t.Errorf("%d addresses held for no pods, want at most %d", got, most)
	}
}

func TestACoolingAddressIsNeitherAssignedNorReleased(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 1, AddressesPerENI: 3, MaxPods: 10}, nil)
	w.settle()
	first, err := w.add(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.del(0)
	_, err = w.add(2)
	if !errors.Is(err, ipam.ErrAllCooling) {
		t.Fatalf("ADD right after a DEL: %v, want ErrAllCooling", err)
	}
	w.settle()
	if c := w.decided.Condition; c.Reason != ipam.ReasonCooling || !c.RetryAt.Equal(w.now.Add(30*time.Second)) {
		t.Errorf("condition = %s until %s, want cooling for 30 s", c, c.RetryAt)
	}
	w.now = w.now.Add(30 * time.Second)
	again, err := w.add(2)
	if err != nil || again.Addr != first.Addr {
		t.Errorf("ADD after the cool-down = %v, %v; want %s", again.Addr, err, first.Addr)
	}
}

func TestBrakes(t *testing.T) {
	t.Run("freeze all stops EC2 calls and not SetUp", func(t *testing.T) {
		w := testWorld(t, m5xlarge(), nil)
		for n := range 20 {
			w.bind(n)
		}
		w.begin()
		w.finishAll() // created
		w.begin()
		w.finishAll() // attached
		w.brake = cloud.FreezeAll
		for n := 20; n < 60; n++ {
			w.bind(n)
		}
		w.begin()
		for _, a := range w.decided.Actions {
			if a.Kind != cloud.SetUp {
				t.Errorf("planned under freeze all: %s", a)
			}
		}
		if len(w.decided.Actions) == 0 {
			t.Error("the attached interface is not set up")
		}
	})
	for _, brake := range []cloud.Brake{cloud.FreezeRelease, cloud.AllocateOnly} {
		t.Run(string(brake)+" stops releases and not growth", func(t *testing.T) {
			w := testWorld(t, m5xlarge(), func(c *ipam.Config) { c.WarmIPs, c.Headroom = 1, 0 })
			w.brake = brake
			for n := range 30 {
				w.bind(n)
			}
			w.settle()
			if w.decided.Numbers.Have < 30 {
				t.Errorf("have %d, want 30 and more", w.decided.Numbers.Have)
			}
			w.pending = nil
			w.pass(time.Hour, time.Minute)
			if w.ec2.calls[cloud.Detach]+w.ec2.calls[cloud.UnassignAddresses] != 0 {
				t.Errorf("calls = %v", w.ec2.calls)
			}
			w.brake = cloud.BrakeOff
			w.pass(time.Hour, time.Minute)
			if w.decided.Numbers.Have > 2 {
				t.Errorf("have %d after the brake ended, want at most 2", w.decided.Numbers.Have)
			}
		})
	}
}

func TestWarmTargetsOfAWS(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     func(*ipam.Config)
		pods       int
		have, enis int
	}{
		{"WARM_ENI_TARGET=1 keeps a whole interface free", func(c *ipam.Config) { c.WarmENIs, c.WarmIPs, c.Headroom = 1, 0, 0 }, 0, 14, 1},
		{"WARM_ENI_TARGET=1 adds one with the first pod", func(c *ipam.Config) { c.WarmENIs, c.WarmIPs, c.Headroom = 1, 0, 0 }, 1, 28, 2},
		{"WARM_IP_TARGET=2 holds two more than pods", func(c *ipam.Config) { c.WarmIPs, c.Headroom = 2, 0 }, 5, 7, 1},
		{"MINIMUM_IP_TARGET=20 holds twenty before any pod", func(c *ipam.Config) { c.WarmIPs, c.Headroom, c.MinIPs = 2, 0, 20 }, 0, 20, 2},
		{"MAX_ENI=1 stays on the primary", func(c *ipam.Config) { c.MaxENIs = 1 }, 30, 14, 1},
		{"with all slots", func(*ipam.Config) {}, 56, 56, 4},
		{"a slot is left for a trunk", func(c *ipam.Config) { c.KeepTrunkSlot = true }, 56, 42, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := testWorld(t, m5xlarge(), c.change)
			for n := range c.pods {
				w.bind(n)
			}
			w.settle()
			for n := range c.pods {
				_, _ = w.add(n) // fails for the last pods with MAX_ENI
			}
			w.settle()
			if w.decided.Numbers.Have != c.have || len(w.ec2.enis) != c.enis {
				t.Errorf("have %d on %d interfaces, want %d on %d\n%s", w.decided.Numbers.Have, len(w.ec2.enis), c.have, c.enis, w.decided)
			}
		})
	}
}

func TestMaxPodsCapsThePool(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 4, AddressesPerENI: 15, MaxPods: 5}, nil)
	w.settle()
	if got := w.decided.Numbers.Have; got != 5 {
		t.Errorf("have %d, want the 5 that the kubelet can use", got)
	}
}

// The kubelet has admitted the pod of an ADD: one of the five has a second interface.
func TestMaxPodsDoesNotCapWhatAnADDWaitsFor(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 4, AddressesPerENI: 15, MaxPods: 5}, nil)
	w.settle()
	for n := range 5 {
		w.bind(n)
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	s := w.snapshot()
	if d := ipam.Plan(s, w.config, w.now); len(d.Actions) > 0 {
		t.Errorf("without an ADD that waits: %s", d)
	}
	s.Pending = []ipam.Pending{{UID: "further", Waiting: true}}
	if d := ipam.Plan(s, w.config, w.now); d.Numbers.Want != 6 || len(d.Actions) == 0 || d.Numbers.Attainable < 1 {
		t.Errorf("with one: %s", d)
	}
}

func TestASubnetWithTheNodesRouteTableIsPreferred(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil, 20, 30, 4000)
	s := w.snapshot()
	s.Subnets[0].Free, s.Subnets[2].SameRoutes = 0, false
	for n := range 30 {
		w.bind(n)
	}
	s.Pending = w.pending
	d := ipam.Plan(s, w.config, w.now)
	if len(d.Actions) < 2 || d.Actions[0].Subnet != "subnet-1" {
		t.Fatalf("want subnet-1 first:\n%s", d)
	}
	last := d.Actions[len(d.Actions)-1]
	if last.Subnet != "subnet-2" || !strings.Contains(last.Why, "route table") {
		t.Errorf("want subnet-2 after subnet-1 is used up, with its route table in the reason:\n%s", d)
	}
}

func TestUnsupportedOrInvalidInputHasNoActionsAndANamedCause(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	good := w.snapshot()
	for _, c := range []struct {
		name   string
		change func(*ipam.Snapshot, *ipam.Config)
		words  string
	}{
		{"prefix mode", func(_ *ipam.Snapshot, c *ipam.Config) { c.Mode = ipam.ModePrefixIPv4 }, "prefix-ipv4"},
		{"IPv6", func(_ *ipam.Snapshot, c *ipam.Config) { c.Families = []vpc.Family{vpc.IPv6} }, "ipv6"},
		{"unknown limits", func(s *ipam.Snapshot, _ *ipam.Config) { s.Limits = ipam.Limits{} }, "limits"},
		{"a negative target", func(_ *ipam.Snapshot, c *ipam.Config) { c.WarmIPs = -1 }, "warm IP target -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, config := good, w.config
			c.change(&s, &config)
			d := ipam.Plan(s, config, w.now)
			if len(d.Actions) != 0 || d.Condition.CanAdd || !strings.Contains(d.Condition.Message, c.words) {
				t.Errorf("decision = %s, want no action and a message with %q", d, c.words)
			}
		})
	}
}

func TestUnmanagedInterfacesTakeASlotAndAreNotUsed(t *testing.T) {
	w := testWorld(t, t3medium(), nil)
	other := w.ec2.makeENI(w.ec2.subnets[0], 3, w.now)
	other.attached, other.device = true, 1
	row := other.row()
	row.Unmanaged = true
	records, _ := w.ledger.Observe([]ipam.Observed{
		{ENI: w.ec2.enis["eni-00"].row(), Attached: true, Addresses: addrs(w.ec2.enis["eni-00"].addrs)},
		{ENI: row, Attached: true, Addresses: addrs(other.addrs)},
	}, w.now)
	w.journal(records)
	for n := range 15 {
		w.bind(n)
	}
	w.settle()
	w.pass(10*time.Minute, 10*time.Second)
	if w.decided.Numbers.Capacity != 10 || len(w.ec2.enis) != 3 {
		t.Errorf("capacity %d on %d interfaces, want 10 on 3", w.decided.Numbers.Capacity, len(w.ec2.enis))
	}
	for _, lease := range w.ledger.Leases() {
		if lease.ENI == other.id {
			t.Errorf("%s of the unmanaged interface was assigned", lease.Addr)
		}
	}
}

func TestAnInterfaceThatTheInstanceCannotAttachIsDeleted(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
		if a.Kind == cloud.Attach {
			return failed(cloud.FailENILimit, "AttachmentLimitExceeded")
		}
		return nil
	}
	for n := range 20 {
		w.bind(n)
	}
	w.settle()
	if w.decided.Observe == "" {
		t.Error("no observation of EC2 is requested although its attachment limit differs from ours")
	}
	w.pending = nil
	w.pass(10*time.Minute, 5*time.Second)
	if len(w.ec2.enis) != 1 {
		t.Errorf("%d interfaces, want the unattachable one deleted\n%s", len(w.ec2.enis), w.snapshot())
	}
}

func TestConditionErrorsWrapErrNoAddress(t *testing.T) {
	for _, reason := range []ipam.Reason{
		ipam.ReasonGrowing, ipam.ReasonCooling, ipam.ReasonNodeFull, ipam.ReasonSubnetExhausted,
		ipam.ReasonFrozen, ipam.ReasonRefused, ipam.ReasonInvalid,
	} {
		err := ipam.Condition{Reason: reason, Message: "because"}.Err()
		if !errors.Is(err, ipam.ErrNoAddress) || !strings.HasSuffix(fmt.Sprint(err), "because") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}
