package hostnet

import "github.com/trunkline/trunkline/internal/core/vpc"

// Sysctls returns the kernel settings that a node needs, each with its reason. The
// privileged init container writes them before each start of the agent.
func Sysctls(primaryLink string, families []vpc.Family) []Sysctl {
	list := []Sysctl{
		{
			Name: "net/ipv4/ip_forward", Value: "1",
			Why: "the node routes between its pods and its ENIs",
		},
		{
			Name: "net/ipv4/conf/" + primaryLink + "/rp_filter", Value: "2",
			Why: "a NodePort connection can enter by the primary ENI for a pod that replies by another",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh1", Value: "1024", AtLeast: true, Optional: true,
			Why: "all namespaces of the machine share the neighbour table: no garbage collection below this",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh2", Value: "8192", AtLeast: true, Optional: true,
			Why: "soft limit of the neighbour table that all namespaces share",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh3", Value: "16384", AtLeast: true, Optional: true,
			Why: "hard limit: above it, packets to new neighbours fail on the whole machine",
		},
	}
	for _, f := range families {
		if f != vpc.IPv6 {
			continue
		}
		list = append(list,
			Sysctl{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0", Why: "pods have IPv6 addresses"},
			Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1", Why: "the node routes between its pods and its ENIs"},
			Sysctl{
				Name: "net/ipv6/conf/" + primaryLink + "/accept_ra", Value: "2",
				Why: "without it a node that forwards ignores router advertisements and loses its default route",
			},
		)
	}
	return list
}
