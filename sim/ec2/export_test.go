package ec2

import (
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

// ClaimedFilters returns the filters of each describe, except tag filters.
func ClaimedFilters(s *cloud.State) map[string][]string {
	c := &query.Call{State: s}
	return map[string][]string{
		"DescribeNetworkInterfaces":  sortedKeys(interfaceAttributes(s)),
		"DescribeInstances":          sortedKeys(instanceAttributes(s)),
		"DescribeInstanceTypes":      sortedKeys(typeAttributes()),
		"DescribeSubnets":            sortedKeys(subnetAttributes(c)),
		"DescribeVpcs":               sortedKeys(vpcAttributes(s)),
		"DescribeAvailabilityZones":  sortedKeys(zoneAttributes()),
		"DescribeSecurityGroups":     sortedKeys(groupAttributes(s)),
		"DescribeSecurityGroupRules": sortedKeys(ruleAttributes()),
		"DescribeRouteTables":        sortedKeys(tableAttributes(s)),
		"DescribeTags":               sortedKeys(tagAttributes()),

		"DescribeNetworkInterfacePermissions": sortedKeys(permissionFilters()),
		"DescribeAddresses":                   sortedKeys(addressAttributes(s)),
		"DescribeInstanceStatus":              sortedKeys(statusAttributes()),
		"DescribeInstanceTopology":            sortedKeys(topologyAttributes()),
		"DescribeRegions":                     sortedKeys(regionAttributes()),
		"DescribeInternetGateways":            sortedKeys(gatewayAttributes()),
		"DescribeTrunkInterfaceAssociations":  sortedKeys(trunkAttributes()),
		"GetSubnetCidrReservations":           sortedKeys(reservationAttributes("")),
	}
}
