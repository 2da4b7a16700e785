package trunk

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// Nodes plan warm branches by the same number of free addresses, before either has begun one.
func TestWarmBranchesOfSeveralNodesLeaveTheLastThirdOfASubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubnets(nil, func() {}, slog.New(slog.DiscardHandler))
		in := ec2.Subnet{ID: "subnet-1", CIDR: netip.MustParsePrefix("10.0.0.0/27"), Free: 12} // 27 addresses, 9 of the last third
		s.note(time.Now(), in)
		warm := core.Action{Kind: core.CreateBranch, Subnet: in.ID}
		begun := 0
		for range 2 { // nodes
			for range 3 { // that each of them may make: 12 - 9
				if s.take(warm) {
					begun++
				}
			}
		}
		if begun != 3 {
			t.Errorf("%d warm branches are begun, want 3", begun)
		}
		if free, _ := s.of("vpc-1", in.ID, false); free != 9 {
			t.Errorf("%d addresses are free, want 9", free)
		}
		for _, a := range []core.Action{{Kind: core.CreateBranch, Subnet: in.ID, Pod: "uid"}, {Kind: core.CreateTrunk, Subnet: in.ID}, {Kind: core.Associate}} {
			if !s.take(a) {
				t.Errorf("%s is not begun", a)
			}
		}
		if free, _ := s.of("vpc-1", in.ID, false); free != 7 {
			t.Errorf("%d addresses are free after a branch of a pod and a trunk, want 7", free)
		}
		s.giveBack([]core.Action{{Kind: core.CreateTrunk, Subnet: in.ID}, {Kind: core.Associate, Subnet: in.ID}})
		if free, _ := s.of("vpc-1", in.ID, false); free != 8 {
			t.Errorf("%d addresses are free after one of them was not made, want 8", free)
		}
		if !s.take(core.Action{Kind: core.CreateBranch, Subnet: vpc.SubnetID("subnet-2")}) {
			t.Error("in a subnet that is not known: the plan decides")
		}
	})
}
