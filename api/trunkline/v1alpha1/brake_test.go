package v1alpha1_test

import (
	"testing"

	"github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

func TestTheStrictestBrakeWinsAndUnknownStrengthsStopEverything(t *testing.T) {
	const future = v1alpha1.Freeze("strength-of-a-newer-version")
	tests := []struct {
		name              string
		freezes           []v1alpha1.Freeze
		release, allocate bool
	}{
		{"no brake allows both", nil, true, true},
		{"release keeps allocation going", []v1alpha1.Freeze{v1alpha1.FreezeRelease}, false, true},
		{"all stops both", []v1alpha1.Freeze{v1alpha1.FreezeAll}, false, false},
		{"all is stricter than release in either order", []v1alpha1.Freeze{v1alpha1.FreezeAll, v1alpha1.FreezeRelease}, false, false},
		{"a strength of a newer version stops both", []v1alpha1.Freeze{v1alpha1.FreezeRelease, future}, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := v1alpha1.FreezeNone
			for _, g := range tt.freezes {
				f = f.Stricter(g)
			}
			if f.AllowsRelease() != tt.release || f.AllowsAllocate() != tt.allocate {
				t.Errorf("%q: release %v allocate %v, want %v %v", f, f.AllowsRelease(), f.AllowsAllocate(), tt.release, tt.allocate)
			}
		})
	}
}

func TestABrakeForSelectedNodesDoesNotApplyToOthersOrTheController(t *testing.T) {
	b := &v1alpha1.Brake{Spec: v1alpha1.BrakeSpec{Freeze: v1alpha1.FreezeAll, Nodes: []string{"a", "b"}}}
	for node, want := range map[string]v1alpha1.Freeze{"a": v1alpha1.FreezeAll, "c": v1alpha1.FreezeNone, "": v1alpha1.FreezeNone} {
		if got := b.For(node); got != want {
			t.Errorf("For(%q) = %q, want %q", node, got, want)
		}
	}
}
