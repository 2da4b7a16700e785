package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestAnUnownedBranchIsGivenUpAfterTwoObservationsApart(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	w.ec2.subnets = append(w.ec2.subnets, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
	w.settle()
	w.leak(7)
	w.observe(0)
	w.settle()
	w.observe(0)
	w.settle()
	if len(w.ec2.branches()) != 1 {
		t.Fatalf("a branch was given up after two observations at one time")
	}
	w.now = w.now.Add(w.c.MinAge)
	if d := w.plan(); len(d.Actions) > 0 || !strings.Contains(d.Observe, "not in the state") {
		t.Errorf("before the confirmation: %s", d)
	}
	w.observe(0)
	w.settle()
	if len(w.ec2.branches()) > 0 || len(w.state.Branches) > 0 {
		t.Errorf("the branch is left: %s", w.state)
	}
	if v := w.state.VLANs[7]; v.Until.IsZero() {
		t.Errorf("its VLAN does not cool down: %s", w.state)
	}
}

func TestUnownedBranchesAreGivenUpAFewAtATimeAndNoneInADryRun(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 54)
	for n := range 20 {
		w.start(n, "sg-a")
	}
	w.settle()
	for n := range 12 {
		e := w.ec2.make(vpc.TypeBranch, "subnet-a", "", trunk.NewGroups("sg-a"), w.now)
		e.Association, e.VLAN, e.leaked = trunk.AssociationID("trunk-assoc-leaked"+string(e.ENI)), 100+n, true
	}
	w.c.DryRun = true
	w.pass(15*time.Minute, time.Minute)
	if n := len(w.ec2.branches()); n != 32 || !strings.Contains(problems(w), "dry run: 12 branches") {
		t.Fatalf("dry run: %d branches, want 32; problems %q", n, problems(w))
	}
	w.c.DryRun = false
	for _, want := range []int{27, 22, 20, 20} {
		w.settle()
		if n := len(w.ec2.branches()); n != want {
			t.Errorf("%d branches, want %d\n%s", n, want, w.decided)
		}
		if n := len(w.ec2.branches()); n > 20 && !w.decided.Next.Equal(w.now.Add(w.c.MinAge)) {
			t.Errorf("planned again at %s, want at the end of the interval", w.decided.Next)
		}
		w.now = w.now.Add(w.c.MinAge)
		w.observe(0)
	}
}

func TestALostStateDeletesNoBranchOfAPod(t *testing.T) {
	for _, shared := range []bool{false, true} { // with the branches of another controller
		w := newWorld(t, trunk.DefaultConfig(), 18)
		for n := range 8 {
			w.start(n, "sg-a")
		}
		w.settle()
		for _, p := range w.pods {
			p.hidden = true
		}
		w.state, w.shared = trunk.New(instance), shared
		w.pass(30*time.Minute, time.Minute)
		if n := len(w.ec2.branches()); n < 8 || !strings.Contains(problems(w), "none is deleted") {
			t.Fatalf("shared %v: %d branches, problems %q", shared, n, problems(w))
		}
	}
	w := newWorld(t, trunk.DefaultConfig(), 18)
	for n := range 3 {
		w.start(n, "sg-a")
	}
	w.settle()
	w.state = trunk.New(instance)
	if got := calls(w, func() { w.pass(30*time.Minute, time.Minute) }); got != "" {
		t.Errorf("calls %q, want none", got)
	}
	for _, p := range w.pods {
		bound(t, w, p)
	}
}

// A branch that was used again is named by two pods: by one that has ended and is not deleted, and by
// the one that uses it. The order of the pods is of no influence.
func TestABranchThatAnEndedPodNamesTooIsNotGivenUp(t *testing.T) {
	for _, endedFirst := range []bool{false, true} {
		w := newWorld(t, trunk.DefaultConfig(), 9)
		w.ec2.subnets = append(w.ec2.subnets, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
		w.settle()
		w.leak(7)
		eni := w.ec2.branches()[0].ENI
		ended := trunk.Pod{UID: "pod-1", Name: "shop/job-1", Ended: true, ENI: eni}
		live := trunk.Pod{UID: "pod-2", Name: "shop/web-2", ENI: eni} // no policy selects it any more: it is not adopted
		w.observe(0)
		w.now = w.now.Add(w.c.MinAge)
		w.observe(0)
		s := w.snapshot()
		s.Pods = []trunk.Pod{live, ended}
		if endedFirst {
			s.Pods = []trunk.Pod{ended, live}
		}
		if d := trunk.Plan(s, w.c, w.now); len(d.Actions) > 0 {
			t.Errorf("ended pod first %v: %s", endedFirst, d)
		}
		s.Pods = []trunk.Pod{ended}
		if d := trunk.Plan(s, w.c, w.now); len(d.Actions) != 1 {
			t.Errorf("the only pod that names it has ended: %s", d)
		}
	}
}

func TestExternalChangesOfABranchAreRepaired(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	b := bound(t, w, p)
	e := w.ec2.enis[b.ENI]
	e.Groups, e.tampered = trunk.NewGroups("sg-b"), true
	w.observe(0)
	if n := w.begin(); n > 0 {
		t.Errorf("an observation that may be stale: %s", w.decided)
	}
	w.now = w.now.Add(w.c.MinAge)
	w.observe(0)
	if got := calls(w, w.settle); got != "1 SetGroups" {
		t.Errorf("groups changed: calls %q", got)
	}
	bound(t, w, p)
	w.now = w.now.Add(w.c.MinAge)
	e.Association, e.VLAN = "", 0
	w.observe(0)
	if got := calls(w, w.settle); got != "1 Associate" || bound(t, w, p).VLAN != b.VLAN {
		t.Errorf("association ended: calls %q\n%s", got, w.state)
	}
}

func TestATrunkThatIsGoneIsMadeAgainOnceThatIsConfirmed(t *testing.T) {
	tests := map[string]struct {
		lose func(*simulation, *eni)
		want string
	}{
		"detached": {func(_ *simulation, e *eni) { e.Device = 0 }, "1 Associate, 1 AttachTrunk"},
		"deleted":  {func(s *simulation, e *eni) { delete(s.enis, e.ENI) }, "1 Associate, 1 AttachTrunk, 1 CreateTrunk"},
	}
	for name, tt := range tests {
		w := newWorld(t, trunk.DefaultConfig(), 9)
		p := w.start(1, "sg-a")
		w.settle()
		b := bound(t, w, p)
		e := w.ec2.enis[b.ENI]
		tt.lose(w.ec2, w.ec2.enis[w.state.Trunk.ENI])
		e.Association, e.VLAN, e.tampered = "", 0, true
		w.observe(0)
		w.observe(0)
		if n := w.begin(); n > 0 || !strings.Contains(problems(w), "does not show the trunk") {
			t.Errorf("%s, observed at one time: %s", name, w.decided)
		}
		w.now = w.now.Add(w.c.MinAge)
		w.observe(0)
		if got := calls(w, w.settle); got != tt.want || bound(t, w, p).VLAN != b.VLAN {
			t.Errorf("%s: calls %q, want %q\n%s", name, got, tt.want, w.state)
		}
	}
}

// A trunk is deleted before it was attached, as by AWS's cleaner of leaked interfaces.
func TestATrunkThatIsDeletedBeforeItIsAttachedIsMadeAgain(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	delete(w.ec2.enis, w.state.Trunk.ENI)
	w.state.Trunk.Stage, w.state.Trunk.Device = trunk.Attaching, 0
	w.pass(15*time.Minute, time.Minute)
	if w.state.Trunk.Stage != trunk.Ready {
		t.Errorf("the trunk is not made again: %s\n%s", w.state, w.decided)
	}
	bound(t, w, p)
}

// A trunk that is not attached is of no use on a node that has no branches any more.
func TestATrunkThatIsNotAttachedIsDeletedFromANodeWithoutBranches(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	w.settle()
	w.ec2.enis[w.state.Trunk.ENI].Device = 0
	w.state.Trunk.Stage, w.state.Trunk.Device = trunk.Attaching, 0
	w.ec2.limits.Branches = 0
	w.settle()
	if w.state.Trunk.Stage != trunk.Absent || len(w.ec2.enis) > 0 {
		t.Errorf("%s, %d interfaces", w.state, len(w.ec2.enis))
	}
}

// AWS's controller makes branches on a node that was Trunkline's: they are never given up, and Trunkline's
// own are.
func TestBranchesOfAnotherControllerAreNotGivenUp(t *testing.T) {
	for _, intent := range []cloud.ActionID{"", "br-lost"} {
		w := newWorld(t, trunk.DefaultConfig(), 9)
		w.ec2.subnets = append(w.ec2.subnets, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
		w.settle()
		w.leak(7)
		for _, e := range w.ec2.branches() {
			e.Intent = intent
		}
		w.shared = true
		w.pass(2*time.Hour, 10*time.Minute)
		if left := len(w.ec2.branches()); (left == 1) != (intent == "") {
			t.Errorf("intent %q: %d branches are left", intent, left)
		}
	}
}

// A warm branch that another program has deleted is bound to no pod.
func TestAWarmBranchThatEC2DoesNotShowIsForgotten(t *testing.T) {
	w := newWorld(t, warmConfig(1), 18)
	w.settle()
	for _, b := range w.state.Branches {
		delete(w.ec2.enis, b.ENI)
	}
	w.now = w.now.Add(w.c.MinAge)
	w.observe(0)
	w.pass(10*time.Minute, time.Minute)
	for _, b := range w.state.Branches {
		if w.ec2.enis[b.ENI] == nil {
			t.Errorf("%s is not at EC2", b)
		}
	}
	if len(w.state.Branches) != 1 {
		t.Errorf("%s", w.state)
	}
}

func TestAVLANThatEC2HasInUseIsLeftAndAnotherIsTaken(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	w.ec2.subnets = append(w.ec2.subnets, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
	w.settle()
	w.leak(1)
	p := w.start(1, "sg-a")
	w.settle()
	w.now = w.now.Add(w.c.RetryMin)
	w.settle()
	if b := bound(t, w, p); b.VLAN != 2 {
		t.Errorf("%s, want VLAN 2", b)
	}
	w.pass(15*time.Minute, time.Minute)
	if n := len(w.ec2.branches()); n != 1 || len(w.state.VLANs) != 2 {
		t.Errorf("%d branches\n%s", n, w.state)
	}
}

func TestABranchThatEC2DeletedIsForgottenAndOneOfAPodIsKept(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	w.begin()
	delete(w.ec2.enis, bound(t, w, p).ENI)
	w.now = w.now.Add(w.c.MinAge)
	w.change(p, "sg-b")
	for range 20 {
		w.begin()
		w.finishAll()
		w.now = w.now.Add(time.Minute)
	}
	if b, ok := w.state.Of(p.UID); !ok || b.Stage != trunk.Bound || !strings.Contains(w.plan().Observe, "not found") && w.state.Backoffs["branch/"+string(b.ID)].Reason != trunk.FailNotFound {
		t.Errorf("a running pod: %s\n%s", w.state, w.decided)
	}
	w.end(p)
	w.pass(time.Hour, time.Minute)
	if len(w.state.Branches) > 0 {
		t.Errorf("it is not forgotten: %s", w.state)
	}
}

// TestAnAddressIsOfTheBranchThatEC2GaveItToLast: another program deleted the branch of a running pod,
// and EC2 gives its address to the next one.
func TestAnAddressIsOfTheBranchThatEC2GaveItToLast(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	p := w.start(1, "sg-a")
	w.settle()
	old := bound(t, w, p)
	delete(w.ec2.enis, old.ENI)
	q := w.start(2, "sg-b")
	w.begin()
	b, ok := w.state.Of(q.UID)
	if !ok || b.Intent == nil || b.Intent.Action.Kind != trunk.CreateBranch {
		t.Fatalf("nothing is created: %s", w.decided)
	}
	s := trunk.Settle(w.state, b.Intent.Action.ID, trunk.Outcome{ENI: "eni-099", MAC: old.MAC, IPv4: old.IPv4}, w.c, w.now)
	if got := s.Branches[b.ID]; got.MAC != old.MAC || got.IPv4 != old.IPv4 {
		t.Errorf("the new branch: %+v", got)
	}
	if got := s.Branches[old.ID]; got.MAC != (vpc.MAC{}) || got.IPv4.IsValid() || got.Pod != p.UID || got.ENI != old.ENI {
		t.Errorf("the deleted one: %+v", got)
	}
}

// TestABranchThatIsAssociatedAgainRemembersThatAPodUsedIt: its pod ends before the association is
// made again, and no other pod gets it without quarantine and cool-down.
func TestABranchThatIsAssociatedAgainRemembersThatAPodUsedIt(t *testing.T) {
	w := newWorld(t, warmConfig(0), 18)
	p := w.start(1, "sg-a")
	w.settle()
	e := w.of(p)
	w.now = w.now.Add(w.c.MinAge)
	e.Association, e.VLAN, e.tampered = "", 0, true
	w.observe(0)
	w.begin() // associates it again
	w.end(p)
	p.asked = true
	w.begin()
	w.finishAll()
	q := w.start(2, "sg-b")
	w.settle()
	if b := bound(t, w, q); b.ENI == e.ENI {
		t.Errorf("%s got a branch that %s had used", q.UID, p.UID)
	}
	w.pass(10*time.Minute, time.Minute)
	if n := len(w.ec2.branches()); n != 1 {
		t.Errorf("%d branches are left\n%s", n, w.state)
	}
}
