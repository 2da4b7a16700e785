package trunk_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// outbound changes the rules of the quarantine group that allow all outbound traffic, as a new group of EC2 has
// them.
func outbound(w *world, change func(cloud.GroupHandle, cloud.Direction, []cloud.Rule) ([]cloud.Rule, error)) {
	w.t.Helper()
	all := []cloud.Rule{{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("0.0.0.0/0")}}
	if _, err := change(w.cloud.Group(vpc.SecurityGroupID(w.groups["quarantine"])), cloud.Egress, all); err != nil {
		w.t.Fatal(err)
	}
}

func TestNoBranchIsKeptInAQuarantineGroupThatAllowsSomething(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 2, 0, "")
		if n := len(w.branches()); n != 2 {
			t.Fatalf("%d warm branches, want 2\n%s", n, w.ledger())
		}
		const why = "has rules"
		outbound(w, cloud.GroupHandle.Authorize)
		w.elapse(30 * time.Minute)
		if n := len(w.branches()); n != 0 {
			t.Errorf("%d branches are in a group that allows outbound traffic\n%s", n, w.ledger())
		}
		if got := saying(w, "n1", why); len(got) != 1 || !strings.Contains(got[0], w.groups["quarantine"]) || !strings.HasPrefix(got[0], "Warning TrunkENIWaiting: ") {
			t.Errorf("events of the node: %q", got)
		}
		w.start("one", "web")
		w.elapse(30 * time.Second)
		w.carries("one", "web") // by a branch of its own
		w.end("one")
		w.elapse(30 * time.Minute)
		if n := len(w.branches()); n != 0 {
			t.Errorf("%d branches after the pod: none may be used again\n%s", n, w.ledger())
		}
		outbound(w, cloud.GroupHandle.Revoke)
		w.elapse(11 * time.Minute)
		if n := len(w.branches()); n != 2 {
			t.Errorf("%d warm branches after the group was corrected, want 2\n%s", n, w.ledger())
		}
	})
}

// A restart while EC2 cannot be reached gives no branch in quarantine up.
func TestBranchesInQuarantineOutliveARestartWithoutEC2(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 2, 0, "")
		w.stop()
		fault := "lost"
		w.wire.inject(func(string) string { return fault })
		w.boot()
		w.elapse(time.Hour)
		fault = ""
		w.elapse(time.Minute)
		if n, made := len(w.branches()), w.wire.count("CreateNetworkInterface"); n != 2 || made != 3 {
			t.Errorf("%d warm branches, %d interfaces were created, want 2 and 3 with the trunk\n%s", n, made, w.ledger())
		}
	})
}
