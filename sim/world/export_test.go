package world

// Endpoints returns the host names of EC2 and STS in a region.
func Endpoints(region string) []string { return partitionOf(region).endpoints(region) }
