package cloud_test

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// Source: pkg/aws/vpc/limits.go of github.com/aws/amazon-vpc-resource-controller-k8s, as
// a list of facts.
func TestBranchLimitsOfTypes(t *testing.T) {
	limits := newCloud(t, cloud.Options{}).TypeLimits()
	for name, want := range map[string]int{
		"m5.large": 9, "m5.8xlarge": 54, "m6i.8xlarge": 84, "c6i.8xlarge": 84, "r6i.8xlarge": 84, "m6g.8xlarge": 54,
		"m6i.12xlarge": 114, "c6i.12xlarge": 114, "r6i.12xlarge": 114, "r5.metal": 120, "c5.metal": 107, "t3.medium": 0, "trn1.32xlarge": 82,
	} {
		if got := limits[name].Branches; got != want {
			t.Errorf("%s: %d branches, want %d", name, got, want)
		}
	}
}

// Of the types with EFAs, limits are those of one network card. Sources, as a list of facts:
// pkg/vpc/vpc_ip_resource_limit.go of github.com/aws/amazon-vpc-cni-k8s at 01c4ad5afb0c; the
// EFAs of trn1.32xlarge are in the AWS Neuron documentation, those of p5.48xlarge in the EC2
// user guide.
func TestLimitsOfTypesWithSeveralNetworkCards(t *testing.T) {
	limits := newCloud(t, cloud.Options{}).TypeLimits()
	for name, want := range map[string]vpc.Limits{
		"p5.48xlarge":     {ENIs: 2, IPv4: 50, IPv6: 50, Cards: 32, EFAs: 32, Nitro: true},
		"trn1.32xlarge":   {ENIs: 5, IPv4: 50, IPv6: 50, Branches: 82, Cards: 8, EFAs: 8, Nitro: true},
		"hpc7a.12xlarge":  {ENIs: 2, IPv4: 50, IPv6: 50, Cards: 2, EFAs: 2, Nitro: true},
		"hpc7a.24xlarge":  {ENIs: 2, IPv4: 50, IPv6: 50, Cards: 2, EFAs: 2, Nitro: true},
		"hpc7a.48xlarge":  {ENIs: 2, IPv4: 50, IPv6: 50, Cards: 2, EFAs: 2, Nitro: true},
		"hpc7a.96xlarge":  {ENIs: 2, IPv4: 50, IPv6: 50, Cards: 2, EFAs: 2, Nitro: true},
		"c7gn.16xlarge":   {ENIs: 15, IPv4: 50, IPv6: 50, Branches: 107, Cards: 1, EFAs: 1, Nitro: true},
		"c7gn.metal":      {ENIs: 15, IPv4: 50, IPv6: 50, Cards: 1, EFAs: 1, Nitro: true, BareMetal: true},
		"c8gn.metal-48xl": {ENIs: 12, IPv4: 50, IPv6: 50, Cards: 2, EFAs: 2, Nitro: true, BareMetal: true},
		"m5.metal":        {ENIs: 15, IPv4: 50, IPv6: 50, Branches: 120, Nitro: true, BareMetal: true},
	} {
		if got := limits[name]; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
