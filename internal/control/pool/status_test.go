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
		refused  bool
	}{
		{ipam.ReasonRefused, 14, false},
		{ipam.ReasonRefused, 0, true},
		{ipam.ReasonInvalid, 3, false},
		{ipam.ReasonInvalid, 0, true},
		{ipam.ReasonNodeFull, 56, false},
		{ipam.ReasonGrowing, 0, false},
		{ipam.ReasonSubnetExhausted, 0, false},
	} {
		p := &Pool{decision: ipam.Decision{Condition: ipam.Condition{Reason: c.reason, Message: "why"}, Numbers: ipam.Numbers{Assigned: c.assigned}}}
		err := p.Backend().Status()
		if (err != nil) != c.refused {
			t.Errorf("%s with %d pods: %v, want refused: %v", c.reason, c.assigned, err, c.refused)
		}
	}
	// The first call may come before the conflist is written.
	if err := (&Pool{decision: ipam.Decision{Condition: ipam.Condition{Reason: ipam.ReasonReady, CanAdd: true}}}).Backend().Status(); err != nil {
		t.Errorf("an agent that answers says that it does not serve: %v", err)
	}
}
