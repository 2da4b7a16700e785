package world

import "github.com/trunkline/trunkline/sim/cloud"

// Endpoints returns the host names of EC2 and STS in a region.
func Endpoints(region string) []string { return cloud.PartitionOf(region).Endpoints(region) }
