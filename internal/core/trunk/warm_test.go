package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestAPodGetsAnExactBranchByNoCallAGenericByOneAColdByThree(t *testing.T) {
	tests := []struct {
		name, group, want string
		config            trunk.Config
	}{
		{"exact", "sg-a", "", warmConfig(0, trunk.Exact{Groups: trunk.NewGroups("sg-a"), Count: 1})},
		{"generic", "sg-a", "1 SetGroups", warmConfig(1)},
		{"cold", "sg-a", "1 Associate, 1 CreateBranch, 1 TagBranch", trunk.DefaultConfig()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.config, 18)
			w.settle()
			w.c.Warm, w.c.Exact = 0, nil // nothing is made in place of what the pod gets
			p := w.start(1, vpc.SecurityGroupID(tt.group))
			if got := calls(w, w.settle); got != tt.want {
				t.Errorf("calls %q, want %q", got, tt.want)
			}
			bound(t, w, p)
		})
	}
}

func TestWarmBranchesLeaveTheLastThirdToPods(t *testing.T) {
	tests := []struct {
		name        string
		limit, pods int
		total, free int
		want        int
	}{
		{"as many as configured", 54, 0, 1000, 1000, 10},
		{"none on a small instance", 9, 0, 1000, 1000, 0},
		{"none of the last third of the branches", 18, 8, 1000, 1000, 4},
		{"none beside pods in the last third", 18, 15, 1000, 1000, 0},
		{"none of the last third of the VLANs", 120, 75, 1000, 1000, 5},
		{"none of the last third of the subnet", 54, 0, 30, 16, 5}, // the trunk takes one
		{"none in a subnet that is not known", 54, 0, 30, -1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, warmConfig(10), tt.limit, trunk.Subnet{ID: "subnet-a", Total: tt.total, Free: max(tt.free, 1)})
			w.begin()
			w.finishAll()
			for n := range tt.pods {
				w.start(n, "sg-a")
			}
			w.ec2.subnets[0].Free = min(w.ec2.subnets[0].Free, tt.free)
			w.settle()
			w.pass(30*time.Minute, time.Minute)
			if got := w.plan().Numbers.Warm; got != tt.want {
				t.Errorf("%d warm branches, want %d\n%s", got, tt.want, w.decided)
			}
		})
	}
}

func TestABranchIsUsedAgainOnlyAfterACoolDownInQuarantine(t *testing.T) {
	w := newWorld(t, warmConfig(0), 1)
	p := w.start(1, "sg-a")
	w.settle()
	eni := bound(t, w, p).ENI
	q := w.start(2, "sg-a") // waits: the node has one branch
	w.settle()
	w.end(p)
	w.settle()
	if e := w.ec2.enis[eni]; !e.Groups.Equal(w.c.Quarantine) {
		t.Fatalf("it carries %s", e.Groups)
	}
	w.now = w.now.Add(w.c.CoolDown - time.Second)
	w.settle()
	if b, ok := w.state.Of(q.UID); ok {
		t.Fatalf("used again before its cool-down has ended: %s", b)
	}
	w.now = w.now.Add(time.Second)
	if got := calls(w, w.settle); got != "1 SetGroups" || bound(t, w, q).ENI != eni {
		t.Errorf("calls %q", got)
	}
}

// EC2 refuses the quarantine groups, as they are in another VPC. A pod that waits on a full node gets a branch
// by way of a new one.
func TestQuarantineGroupsThatEC2RefusesKeepNoPodWaiting(t *testing.T) {
	for _, warm := range []int{0, 4} {
		w := newWorld(t, warmConfig(warm), 18)
		w.ec2.unknown = w.c.Quarantine
		for n := range 18 {
			w.start(n, "sg-a")
		}
		w.settle()
		q := w.start(18, "sg-b")
		w.settle()
		w.end(w.pods[0])
		w.settle()
		if got := problems(w); !strings.Contains(got, "EC2 refuses the quarantine groups sg-deny") {
			t.Errorf("%d warm: problems %q", warm, got)
		}
		w.pass(10*time.Minute, 5*time.Second)
		bound(t, w, q)
		for _, p := range w.pods[1:10] {
			w.end(p)
		}
		w.pass(10*time.Minute, 5*time.Second)
		if n := w.plan().Numbers; n.Cooling > 0 {
			t.Errorf("%d warm: %d branches of ended pods are left\n%s", warm, n.Cooling, w.state)
		}
		before := w.ec2.calls[trunk.SetGroups] + w.ec2.calls[trunk.CreateBranch]
		w.ec2.unknown = nil // it was created
		w.pass(10*time.Minute, 5*time.Second)
		if n := w.plan().Numbers; n.Warm != min(warm, 3) || strings.Contains(problems(w), "quarantine") {
			t.Errorf("%d warm: %d branches are warm after %d calls, problems %q", warm, n.Warm, w.ec2.calls[trunk.SetGroups]+w.ec2.calls[trunk.CreateBranch]-before, problems(w))
		}
	}
}

func TestWarmBranchesAreMadeOnceNoPodGetsOne(t *testing.T) {
	tests := []struct {
		name   string
		config trunk.Config
		pods   int
		want   int // branches that are made meanwhile
	}{
		{"exact ones", warmConfig(0, trunk.Exact{Groups: trunk.NewGroups("sg-a"), Count: 8}), 6, 0},
		{"generic ones", warmConfig(8), 6, 0},
		{"less than a quarter is left", warmConfig(0, trunk.Exact{Groups: trunk.NewGroups("sg-a"), Count: 8}), 7, 1},
		{"less than a quarter of the generic ones is left", warmConfig(8), 7, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.config, 54)
			w.settle()
			before := len(w.ec2.branches())
			for n := range tt.pods {
				w.start(n, "sg-a")
				w.settle()
				w.now = w.now.Add(time.Second)
			}
			if made := len(w.ec2.branches()) - before; made != tt.want {
				t.Errorf("%d branches made while pods start, want %d\n%s", made, tt.want, w.decided)
			}
			last := w.now.Add(-time.Second)
			if tt.want == 0 && !w.decided.Next.Equal(last.Add(5*time.Second)) {
				t.Errorf("planned again at %s, want 5s after %s", w.decided.Next, last)
			}
			w.now = last.Add(5 * time.Second)
			w.settle()
			if n := w.plan().Numbers; n.Warm != 8 || n.Bound != tt.pods {
				t.Errorf("%d warm and %d bound branches 5s later, want 8 and %d\n%s", n.Warm, n.Bound, tt.pods, w.decided)
			}
		})
	}
}
