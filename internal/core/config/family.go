package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// RefuseFamily returns why a cluster is not served because its pods need IPv6 addresses, and
// what to do; empty if it is served. service is the address of the Service "kubernetes",
// which is of the cluster's family, and node are the internal addresses of the Node; the zero
// value and none mean that they are not known.
//
// On EKS with ipFamily ipv6, Services have addresses of fc00::/7 (EKS API reference,
// KubernetesNetworkConfigResponse, serviceIpv6Cidr) and the Node's InternalIP is an IPv6
// address; the instance still has an IPv4 address.
func RefuseFamily(service netip.Addr, node []netip.Addr) string {
	isIPv6 := func(a netip.Addr) bool { return a.Unmap().Is6() }
	var found string
	switch {
	case isIPv6(service):
		found = fmt.Sprintf("the Service \"kubernetes\" has the address %s", service)
	case !service.IsValid() && len(node) > 0 && !slices.ContainsFunc(node, func(a netip.Addr) bool { return !isIPv6(a) }):
		found = fmt.Sprintf("the Node has only the addresses %v", node)
	default:
		return ""
	}
	return "this is an IPv6 cluster (" + found + "), and this version gives pods IPv4 addresses only: " +
		"pods would reach no Service. Nothing was changed on the node; remove Trunkline and keep the AWS VPC CNI, or use a cluster with ipFamily ipv4"
}
