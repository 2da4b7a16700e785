package bench

import (
	"fmt"
	"testing"
	"time"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestARestartOfASmallClusterIsMeasured(t *testing.T) {
	results, err := supervise(t.Context(), t.Output(), func(r *run) []Result {
		return restart(r, fleetSize{nodes: 20, branches: 700, watched: time.Second})
	})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, r := range results {
		names += r.Name + " "
	}
	if names != "sgp.restart2600.calls sgp.restart2600.s " || results[0].Value != 0 || results[1].Value <= 0 {
		t.Errorf("%+v", results)
	}
}

// The check for wrong deletions is not true by itself.
func TestABranchThatARestartGivesUpIsCounted(t *testing.T) {
	s := kubetest.New(t)
	putFleet(s, fleetSize{nodes: 3, branches: 100})
	if n := bound(s, 3); n != 100 {
		t.Fatalf("%d branches, want 100", n)
	}
	var of vpcresources.CNINode
	if !s.Get(cniNodesPath, fmt.Sprintf("node-%d", 1), &of) {
		t.Fatal("no node-1")
	}
	of.Status.Trunkline.Branches[4].Phase = vpcresources.BranchCooling
	s.Put(cniNodesPath, &of)
	if n := bound(s, 3); n != 99 {
		t.Errorf("%d branches, want 99", n)
	}
}
