package cloud_test

import (
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Source: pkg/aws/vpc/limits.go of github.com/aws/amazon-vpc-resource-controller-k8s, as
// a list of facts.
func TestBranchLimitsOfTypes(t *testing.T) {
	limits := newCloud(t, cloud.Options{}).TypeLimits()
	for name, want := range map[string]int{
		"m5.large": 9, "m5.8xlarge": 54, "m6i.8xlarge": 84, "c6i.8xlarge": 84, "r6i.8xlarge": 84, "m6g.8xlarge": 54,
		"m6i.12xlarge": 114, "c6i.12xlarge": 114, "r6i.12xlarge": 114, "r5.metal": 120, "c5.metal": 107, "t3.medium": 0,
	} {
		if got := limits[name].Branches; got != want {
			t.Errorf("%s: %d branches, want %d", name, got, want)
		}
	}
}
