package world

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Metadata shows what EC2 shows: the public address of an instance in a public subnet,
// and the architecture of its type.
func TestMetadataShowsPublicAddressAndArchitecture(t *testing.T) {
	c, err := cloud.New(cloud.Spec{
		Region: "us-west-2", Account: "111122223333",
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		Subnets: []cloud.SubnetSpec{
			{Name: "public", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Public: true},
			{Name: "private", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.1.0/24")},
		},
		Instances: []cloud.InstanceSpec{
			{Name: "one", Type: "m6g.large", Subnet: "public", Metadata: cloud.DefaultMetadata()},
			{Name: "two", Type: "m5.large", Subnet: "private", Metadata: cloud.DefaultMetadata()},
		},
	}, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	s := c.State()
	one, two := describe(s, s.InstanceNamed("one")), describe(s, s.InstanceNamed("two"))
	private := one.Interfaces[0].IPv4[0]
	public := one.Interfaces[0].Public[private]
	if public != netip.MustParseAddr("198.18.0.1") || one.Interfaces[0].PublicNames[private] != "ec2-198-18-0-1.us-west-2.compute.amazonaws.com" {
		t.Errorf("public address %v, name %q", public, one.Interfaces[0].PublicNames[private])
	}
	if one.Architecture != "arm64" || two.Architecture != "x86_64" || len(two.Interfaces[0].Public) != 0 {
		t.Errorf("architectures %s and %s, public addresses of the private instance %v", one.Architecture, two.Architecture, two.Interfaces[0].Public)
	}
}
