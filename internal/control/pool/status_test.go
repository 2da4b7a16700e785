package pool

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/ipam"
)

// A STATUS that says no makes the whole node not ready, and its pods are evicted
// after five minutes: a role that lost a right must not do that to a fleet.
func TestStatusSaysNoForAnEmptyPoolOnlyWhileNoPodRuns(t *testing.T) {
	for _, c := range []struct {
		reason   ipam.Reason
		assigned int
		claimed  int // in use beside these, of pods of another CNI on addresses of a prefix
		refused  bool
	}{
		{ipam.ReasonRefused, 14, 0, false},
		{ipam.ReasonRefused, 0, 0, true},
		{ipam.ReasonRefused, 0, 2, false},
		{ipam.ReasonInvalid, 3, 0, false},
		{ipam.ReasonInvalid, 0, 0, true},
		{ipam.ReasonInvalid, 0, 1, false},
		{ipam.ReasonNodeFull, 56, 0, false},
		{ipam.ReasonGrowing, 0, 0, false},
		{ipam.ReasonSubnetExhausted, 0, 0, false},
	} {
		p := &Pool{decision: ipam.Decision{Condition: ipam.Condition{Reason: c.reason, Message: "why"}, Claimed: c.claimed, Numbers: ipam.Numbers{Assigned: c.assigned}}}
		err := p.Backend().Status()
		if (err != nil) != c.refused {
			t.Errorf("%s with %d pods and %d of another CNI: %v, want refused: %v", c.reason, c.assigned, c.claimed, err, c.refused)
		}
	}
	// The first call may come before the conflist is written.
	if err := (&Pool{decision: ipam.Decision{Condition: ipam.Condition{Reason: ipam.ReasonReady, CanAdd: true}}}).Backend().Status(); err != nil {
		t.Errorf("an agent that answers says that it does not serve: %v", err)
	}
}

// Such a node is full for us, and the DELs of its pods must not wait.
func TestANodeWithPodsOfAnotherCNIAloneServes(t *testing.T) {
	theirs := ipam.ENIView{ENI: ipam.ENI{Phase: ipam.Ready}, Claimed: []ipam.Claimed{{}}}
	if !canServe(ipam.View{ENIs: []ipam.ENIView{theirs}}, nil) {
		t.Error("it does not serve")
	}
	theirs.Claimed = nil
	if canServe(ipam.View{ENIs: []ipam.ENIView{theirs}}, nil) {
		t.Error("a node without pods and addresses serves")
	}
}
