package resourcecontroller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestVLANsOfATrunkAreTheLowestFreeOnes(t *testing.T) {
	k := newTrunk(instance{}, maxVLAN)
	for want := 1; want <= maxVLAN; want++ {
		if got := k.reserve(); got != want {
			t.Fatalf("VLAN %d, want %d", got, want)
		}
	}
	if got := k.reserve(); got != 0 {
		t.Errorf("VLAN %d of a trunk with none left", got)
	}
	k.free(7)
	k.free(0) // reserved
	if got := k.reserve(); got != 7 {
		t.Errorf("VLAN %d, want the one that was freed", got)
	}
}

// Branches of pods and those that cool down count; one that is being made does not.
func TestATrunkHasNoMoreBranchesThanItsTypeAllows(t *testing.T) {
	k := newTrunk(instance{}, 2)
	for _, pod := range []types.UID{"a", "b"} {
		vlan := k.reserve()
		k.adopt(pod, &branch{details: details{VLAN: vlan}})
	}
	if got := k.reserve(); got != 0 {
		t.Fatalf("VLAN %d of a full trunk", got)
	}
	k.release("a")
	if got := k.reserve(); got != 0 {
		t.Fatalf("VLAN %d while a branch cools down", got)
	}
	if due := k.due(time.Hour, false); len(due) != 0 {
		t.Fatalf("%d branches before their cool-down", len(due))
	}
	due := k.due(0, false)
	if len(due) != 1 || due[0].VLAN != 1 {
		t.Fatalf("%d branches to delete", len(due))
	}
	k.free(1)
	if got := k.reserve(); got != 1 {
		t.Errorf("VLAN %d after the deletion", got)
	}
}

// AWS's forgets a branch that it cannot delete, and never uses its VLAN again.
func TestABranchThatCannotBeDeletedKeepsItsVLAN(t *testing.T) {
	k := newTrunk(instance{}, 9)
	vlan := k.reserve()
	k.discard("a", &branch{details: details{VLAN: vlan}})
	for try := range deleteTries {
		due := k.due(time.Hour, false)
		if len(due) != 1 {
			t.Fatalf("try %d: %d branches", try, len(due))
		}
		k.again(due[0])
	}
	if due := k.due(0, false); len(due) != 0 {
		t.Errorf("%d branches after %d tries", len(due), deleteTries)
	}
	if got := k.reserve(); got == vlan {
		t.Errorf("VLAN %d is used again", got)
	}
}
