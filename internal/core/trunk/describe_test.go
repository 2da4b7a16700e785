package trunk_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

func TestAStateIsShownWithAllThatItWaitsFor(t *testing.T) {
	s := trunk.New(instance)
	if got := s.String(); got != "trunk: none\n" {
		t.Errorf("a new state: %q", got)
	}
	create := trunk.Action{Kind: trunk.CreateTrunk, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-a")}
	s.Trunk = trunk.Trunk{Stage: trunk.Creating, Intent: &trunk.Intent{Action: create, Tries: 1}}
	set := trunk.Action{Kind: trunk.SetGroups, ENI: "eni-2", Groups: trunk.NewGroups("sg-b"), Pod: "pod-1"}
	s.Branches = map[trunk.BranchID]trunk.Branch{
		"b-2": {ID: "b-2", Stage: trunk.Creating, Since: epoch},
		"b-1": {ID: "b-1", ENI: "eni-2", Stage: trunk.Bound, VLAN: 7, Groups: trunk.NewGroups("sg-a"), Pod: "pod-1", Since: epoch, Intent: &trunk.Intent{Action: set, Tries: 3, Lost: true}},
	}
	s.VLANs = map[int]trunk.VLAN{7: {Owner: "b-1"}, 8: {Owner: "b-0", Until: epoch.Add(time.Minute)}, 9: {Owner: "eni-9"}, 10: {}}
	s.Unowned["eni-9"] = trunk.Unowned{Seen: trunk.Seen{ENI: "eni-9", VLAN: 9}, First: epoch, Passes: 2}
	s.Backoffs["warm"] = trunk.Backoff{Until: epoch.Add(time.Second), Tries: 1, Reason: trunk.FailThrottled}
	s.Backoffs["trunk"] = trunk.Backoff{Until: epoch.Add(time.Second), Tries: 2, Reason: trunk.FailOther, Message: "no"}
	const want = `trunk: no interface creating device 0; in flight: CreateTrunk in subnet-a with sg-a
b-1: eni-2 bound VLAN 7 with sg-a for pod-1 since 12:00:00; outcome not known after 3 tries: SetGroups eni-2 to sg-b for pod-1
b-2: no interface creating with no groups since 12:00:00
VLAN 8: was that of b-0, cools down until 12:01:00
VLAN 9: in use by eni-9
VLAN 10: in use by a branch that is not known
unowned: eni-9, VLAN 9, observed 2 times since 12:00:00
back-off: trunk until 12:00:01 after 2 tries: no
back-off: warm until 12:00:01 after 1 tries: throttled
`
	if got := s.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestADecisionIsShownWithItsReasons(t *testing.T) {
	d := trunk.Decision{
		Numbers:  trunk.Numbers{Limit: 18, Bound: 1, Reserved: 2, Warm: 3, Cooling: 4, Incoming: 5, Leaving: 6, VLANs: 99},
		Actions:  []trunk.Action{{Kind: trunk.DeleteBranch, ENI: "eni-1", Why: "it is not associated any more"}},
		Problems: []trunk.Problem{{Pod: "pod-1", Why: "no subnet"}, {Why: "no trunk"}},
		Confirm:  []trunk.PodUID{"pod-2"}, Observe: "the state is new", Next: epoch,
	}
	const want = `21 of 18 branches: 1 bound, 2 reserved, 3 warm, 4 cooling, 5 incoming, 6 leaving; 99 VLANs free
do: DeleteBranch eni-1
    because it is not associated any more
waits: pod-1: no subnet
waits: the node: no trunk
confirm: has the pod pod-2 ended?
observe: the state is new
plan again: 12:00:00
`
	if got := d.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	const nothing = "0 of 0 branches: 0 bound, 0 reserved, 0 warm, 0 cooling, 0 incoming, 0 leaving; 0 VLANs free\ndo: nothing\n"
	if got := (trunk.Decision{}).String(); got != nothing {
		t.Errorf("%s\nwant\n%s", got, nothing)
	}
}
