package trunk_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
)

func warmConfig(warm int, exact ...trunk.Exact) trunk.Config {
	c := trunk.DefaultConfig()
	c.Quarantine, c.Warm, c.Exact = trunk.NewGroups("sg-deny"), warm, exact
	return c
}

// calls are those to EC2 that f causes.
func calls(w *world, f func()) string {
	w.t.Helper()
	w.ec2.calls = make(map[trunk.Kind]int)
	f()
	delete(w.ec2.calls, trunk.Bind)
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(w.ec2.calls)) {
		out = append(out, fmt.Sprintf("%d %s", w.ec2.calls[kind], kind))
	}
	return strings.Join(out, ", ")
}

func bound(t *testing.T, w *world, p *pod) trunk.Branch {
	t.Helper()
	b, _ := w.state.Of(p.UID)
	if b.Stage != trunk.Bound || !b.Groups.Equal(p.Groups) {
		t.Fatalf("%s is not bound with %s\n%s\n%s", p.UID, p.Groups, w.state, w.decided)
	}
	return b
}

func problems(w *world) string {
	var out []string
	for _, p := range w.plan().Problems {
		out = append(out, fmt.Sprintf("%s: %s", p.Pod, p.Why))
	}
	return strings.Join(out, "\n")
}

func TestNewGroupsOfALivePodAreSetByOneCall(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	before := bound(t, w, p)
	w.change(p, "sg-b", "sg-a")
	if got := calls(w, w.settle); got != "1 SetGroups" {
		t.Errorf("calls %q, want one SetGroups", got)
	}
	if after := bound(t, w, p); after.ENI != before.ENI {
		t.Errorf("the pod moved from %s to %s", before.ENI, after.ENI)
	}
	w.change(p)
	if got := calls(w, w.settle); got != "" || !w.of(p).Groups.Equal(before.Groups) && len(w.of(p).Groups) != 2 {
		t.Errorf("a pod that no policy selects any more: calls %q, groups %s", got, w.of(p).Groups)
	}
}

func TestAPodThatEndsWhileItsBranchIsCreatedLeavesNothing(t *testing.T) {
	for steps, want := range []string{"1 CreateBranch, 1 DeleteBranch", "1 DeleteBranch, 1 TagBranch", "1 Associate, 1 DeleteBranch, 1 Disassociate"} {
		w := newWorld(t, trunk.DefaultConfig(), 9)
		w.settle()
		p := w.start(1, "sg-a")
		for range steps {
			w.begin()
			w.finishAll()
		}
		got := calls(w, func() {
			w.begin() // the next call is in flight
			w.end(p)
			p.asked = true
			w.begin()
			w.pass(10*time.Minute, time.Minute)
		})
		if got != want || len(w.ec2.branches()) > 0 {
			t.Errorf("after %d steps: calls %q, want %q; %d branches left", steps, got, want, len(w.ec2.branches()))
		}
	}
}

func TestAVLANIsNotGivenAgainBeforeItsCoolDownEndsAndRoundRobinThen(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 120)
	p := w.start(1, "sg-a")
	w.settle()
	w.end(p)
	for b, ok := w.state.Branches["act-003"]; ok; b, ok = w.state.Branches["act-003"] {
		if v := w.state.VLANs[1]; v.Owner != b.ID {
			t.Fatalf("VLAN 1 is that of %q while the branch is %s", v.Owner, b.Stage)
		}
		w.settle()
		w.now = w.now.Add(10 * time.Second)
	}
	if v := w.state.VLANs[1]; !v.Until.After(w.now) {
		t.Errorf("the VLAN of a deleted branch cools down until %s, now is %s", v.Until, w.now)
	}
	w.now = w.now.Add(time.Hour)
	q := w.start(2, "sg-a")
	w.settle()
	if got := bound(t, w, q).VLAN; got != 2 {
		t.Errorf("the next branch has VLAN %d, want 2", got)
	}
	for n := range 119 { // VLAN 1 is the last one that is free
		w.start(3+n, "sg-a")
	}
	w.settle()
	if got := bound(t, w, w.pods[len(w.pods)-1]).VLAN; got != 1 {
		t.Errorf("the last branch has VLAN %d, want 1", got)
	}
}

func TestAnExhaustedSubnetPausesOnlyItself(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9, trunk.Subnet{ID: "subnet-a", Total: 9, Free: 1}, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
	w.settle()
	w.ec2.subnets[0].Free = -1 // the count is not known, and EC2 has none
	p := w.start(1, "sg-a")
	w.settle()
	if b := bound(t, w, p); b.Subnet != "subnet-b" {
		t.Errorf("the branch is in %s", b.Subnet)
	}
	w.state.Backoffs["subnet/subnet-b"] = w.state.Backoffs["subnet/subnet-a"]
	w.start(2, "sg-a")
	if got := problems(w); !strings.Contains(got, "pod-2: subnet subnet-b: subnet exhausted, tried again at") {
		t.Errorf("problems %q", got)
	}
	if next := w.state.Backoffs["subnet/subnet-a"].Until; !w.decided.Next.Equal(next) {
		t.Errorf("plan again at %s, want %s", w.decided.Next, next)
	}
}

func TestGroupsThatEC2RefusesAreNamedAndNotTriedAgain(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	w.ec2.unknown = trunk.NewGroups("sg-typo")
	cold, live := w.start(1, "sg-typo"), w.start(2, "sg-a")
	w.settle()
	w.change(live, "sg-typo")
	w.settle()
	if got := calls(w, func() { w.pass(time.Hour, time.Minute) }); got != "" {
		t.Errorf("calls %q", got)
	}
	got := problems(w)
	for _, uid := range []string{"pod-1", "pod-2"} {
		if !strings.Contains(got, uid+": EC2 refuses sg-typo: EC2 says: groups refused") {
			t.Errorf("problems %q, want one of %s", got, uid)
		}
	}
	if g := w.of(live).Groups; !g.Equal(trunk.NewGroups("sg-a")) {
		t.Errorf("the running pod has %s", g)
	}
	w.change(cold, "sg-b")
	w.change(live, "sg-b")
	w.settle()
	bound(t, w, cold)
	bound(t, w, live)
	w.change(cold, "sg-typo")
	w.settle()
	w.end(cold)
	w.pass(5*time.Minute, time.Minute)
	if len(w.state.Refused) != 1 {
		t.Errorf("refusals %v, want that of the live pod", w.state.Refused)
	}
}

// TestARestartRepeatsEachIntentUnderItsTokenWithoutADescribe ends the process at every call, with
// the call carried out and not.
func TestAPodThatTheWatchDoesNotShowKeepsItsBranchUntilItIsConfirmed(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	p.hidden = true
	if d := w.plan(); len(d.Actions) > 0 || !slices.Equal(d.Confirm, []trunk.PodUID{p.UID}) {
		t.Errorf("decided %s", d)
	}
	w.pass(time.Hour, time.Minute)
	bound(t, w, p)
}

func TestCustomNetworkingTakesSubnetAndGroupsOfTheENIConfig(t *testing.T) {
	w := newWorld(t, warmConfig(2), 18, trunk.Subnet{ID: "subnet-a", Total: 90, Free: 90}, trunk.Subnet{ID: "subnet-b", Total: 90, Free: 90})
	s := w.snapshot()
	s.CustomNetworking, s.WithoutCustom = true, "ENIConfig a does not exist"
	if d := trunk.Plan(s, w.c, w.now); len(d.Actions) > 0 || len(d.Problems) != 1 || !strings.Contains(d.Problems[0].Why, "ENIConfig a does not exist") {
		t.Errorf("without the ENIConfig: %s", d)
	}
	w.custom = &trunk.Placement{Subnets: w.ec2.subnets[1:], Groups: trunk.NewGroups("sg-custom")}
	p := w.start(1, "sg-a")
	w.settle()
	if b := bound(t, w, p); b.Subnet != "subnet-b" || w.state.Trunk.Subnet != "subnet-b" || !w.state.Trunk.Groups.Equal(trunk.NewGroups("sg-custom")) {
		t.Errorf("the branch is in %s, the trunk in %s with %s", b.Subnet, w.state.Trunk.Subnet, w.state.Trunk.Groups)
	}
	w.custom = &trunk.Placement{Subnets: w.ec2.subnets[:1], Groups: trunk.NewGroups("sg-custom")}
	w.pass(10*time.Minute, time.Minute)
	if b := bound(t, w, p); b.Subnet != "subnet-b" {
		t.Errorf("the running pod moved to %s", b.Subnet)
	}
	if got := problems(w); !strings.Contains(got, "the trunk is in subnet subnet-b") {
		t.Errorf("problems %q", got)
	}
	for _, e := range w.ec2.branches() {
		if e.user == "" && e.Subnet != "subnet-a" {
			t.Errorf("the warm branch %s is still in %s", e.ENI, e.Subnet)
		}
	}
}

func TestATerminatedInstanceLeavesNothing(t *testing.T) {
	w := newWorld(t, warmConfig(3), 18)
	for n := range 4 {
		w.start(n, "sg-a")
	}
	w.settle()
	w.ec2.ended = true
	for _, p := range w.pods {
		w.end(p)
	}
	w.settle()
	if n := len(w.ec2.branches()); n > 0 || len(w.state.Branches) > 0 {
		t.Errorf("%d branches are left\n%s", n, w.state)
	}
	w = newWorld(t, trunk.DefaultConfig(), 18)
	w.begin()
	w.finishAll()
	w.ec2.ended = true
	w.settle()
	if len(w.ec2.enis) > 0 || w.state.Trunk.Stage != trunk.Absent {
		t.Errorf("a trunk that was not attached is left: %s", w.state)
	}
}

func TestTheTrunkTakesTheHighestFreeDeviceIndex(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	w.settle()
	if w.state.Trunk.Stage != trunk.Ready || w.state.Trunk.Device != 2 {
		t.Errorf("%s", w.state)
	}
	w = newWorld(t, trunk.DefaultConfig(), 9)
	w.devices = []int{0, 1, 2}
	if got := problems(w); len(w.decided.Actions) > 0 || !strings.Contains(got, "device index") {
		t.Errorf("without a free device index: %s", w.decided)
	}
	w.devices = []int{0}
	w.fault = func(a trunk.Action) string {
		if a.Kind == trunk.AttachTrunk && a.Device == 2 {
			return string(trunk.FailDevice)
		}
		return ""
	}
	w.settle()
	w.devices = []int{0, 2}
	w.now = w.now.Add(time.Minute)
	w.settle()
	if w.state.Trunk.Device != 1 {
		t.Errorf("after a refusal of device 2: %s", w.state)
	}
	w = newWorld(t, trunk.DefaultConfig(), 0)
	w.start(1, "sg-a")
	if n := w.begin(); n > 0 {
		t.Errorf("a type without branches: %s", w.decided)
	}
}

func TestBrakesHoldCallsBack(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	w.brake = cloud.FreezeAll
	w.change(p, "sg-b")
	w.start(2, "sg-a")
	if n := w.begin(); n > 0 || !strings.Contains(w.decided.String(), "brake: freeze all") {
		t.Errorf("with %s: %s", w.brake, w.decided)
	}
	w.brake = cloud.FreezeRelease
	w.end(p)
	if got := calls(w, func() { w.pass(10*time.Minute, time.Minute) }); got != "1 Associate, 1 CreateBranch, 1 TagBranch" {
		t.Errorf("with %s: calls %q", w.brake, got)
	}
}

func TestAConfigurationThatCannotWorkPlansNothingAndNamesTheValue(t *testing.T) {
	tests := map[string]func(*trunk.Config){
		"warm branches need a quarantine group": func(c *trunk.Config) { c.Quarantine = nil },
		"warm branches -1: must be at least 0":  func(c *trunk.Config) { c.Warm = -1 },
		"cool-down of branches 29s":             func(c *trunk.Config) { c.CoolDown = 29 * time.Second },
		"warm branches with no groups: 1":       func(c *trunk.Config) { c.Exact = []trunk.Exact{{Count: 1}} },
		"branches given up at once 0":           func(c *trunk.Config) { c.Collect = 0 },
	}
	for want, edit := range tests {
		w := newWorld(t, warmConfig(1), 18)
		edit(&w.c)
		if d := w.plan(); len(d.Actions) > 0 || len(d.Problems) != 1 || !strings.Contains(d.Problems[0].Why, want) {
			t.Errorf("%s, want %s", d, want)
		}
	}
}
