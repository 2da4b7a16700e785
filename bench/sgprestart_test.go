package bench

import (
	"testing"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

// The check for wrong deletions is not true by itself.
func TestABranchThatARestartGivesUpIsCounted(t *testing.T) {
	of := make([]vpcresources.CNINode, 4) // the last has no record
	for n := range 3 {
		of[n].Status.Trunkline = &vpcresources.BranchLedger{Branches: []vpcresources.BranchRecord{{Phase: vpcresources.BranchBound}, {Phase: vpcresources.BranchBound}}}
	}
	if n := bound(of); n != 6 {
		t.Fatalf("%d branches, want 6", n)
	}
	of[1].Status.Trunkline.Branches[1].Phase = vpcresources.BranchCooling
	if n := bound(of); n != 5 {
		t.Errorf("%d branches, want 5", n)
	}
}
