package world_test

import (
	"net/netip"

	"github.com/trunkline/trunkline/sim/cloud"
)

func smallSpec() cloud.Spec {
	prefix := netip.MustParsePrefix
	return cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 1,
		VPC: cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}, InternetGateway: true},
		RouteTables: []cloud.RouteTableSpec{
			{Name: "public", Routes: []cloud.RouteSpec{{Destination: prefix("0.0.0.0/0"), Gateway: "igw"}}},
		},
		Subnets: []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: prefix("10.0.0.0/19"), Public: true}},
		Groups:  []cloud.GroupSpec{{Name: "node", Ingress: []cloud.RuleSpec{{Protocol: "-1", Groups: []string{"node"}}}}},
		Instances: []cloud.InstanceSpec{{
			Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Role: "node", Metadata: cloud.DefaultMetadata(),
		}},
	}
}
