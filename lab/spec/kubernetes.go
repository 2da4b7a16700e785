package spec

import (
	"net/netip"
	"strconv"
)

// cluster checks the version, the port and the proxy's mode.
func cluster(p *problems, k Kubernetes) {
	if k.Version != KubernetesVersion {
		p.add("kubernetes.version", k.Version, "must be %s, the version of this build", KubernetesVersion)
	}
	if k.APIPort < 0 || k.APIPort > 65535 {
		p.add("kubernetes.apiPort", strconv.Itoa(k.APIPort), "must be a port, or 0 for any free one")
	}
	if k.Proxy != ProxyNftables && k.Proxy != ProxyIptables {
		p.add("kubernetes.proxy", k.Proxy, "must be %s or %s", ProxyNftables, ProxyIptables)
	}
}

// services returns the range of the ClusterIPs, and the address of the cluster's DNS in it.
func services(p *problems, k Kubernetes, vpcCIDR netip.Prefix) (cidr netip.Prefix, dns netip.Addr) {
	cidr, ok := p.prefix4("kubernetes.serviceCIDR", k.ServiceCIDR, 12, 28)
	if !ok {
		return cidr, dns
	}
	clearOfPlatform(p, "kubernetes.serviceCIDR", cidr)
	if vpcCIDR.IsValid() && vpcCIDR.Overlaps(cidr) {
		p.add("kubernetes.serviceCIDR", k.ServiceCIDR, "overlaps vpc.cidr %s", vpcCIDR)
	}
	dns = p.address("kubernetes.clusterDNS", k.ClusterDNS, cidr)
	switch dns {
	case nth(cidr, 1):
		p.add("kubernetes.clusterDNS", k.ClusterDNS, "the first address is reserved for the API server's Service")
	case nth(cidr, 0), nth(cidr, 1<<(32-cidr.Bits())-1):
		p.add("kubernetes.clusterDNS", k.ClusterDNS, "Kubernetes assigns neither the first nor the last address of %s to a Service", cidr)
	}
	return cidr, dns
}

// podCIDR returns the range that nodes without a cloud get the ranges of their pods from;
// zero in a lab with a cloud.
func podCIDR(p *problems, s Spec, vpcCIDR netip.Prefix) netip.Prefix {
	const field = "kubernetes.podCIDR"
	text := s.Kubernetes.PodCIDR
	if s.Cloud != CloudNone {
		if text != "" {
			p.add(field, text, "only a lab without a cloud has pod CIDRs (cloud: %s)", CloudNone)
		}
		return netip.Prefix{}
	}
	cidr, ok := p.prefix4(field, text, 12, nodePodBits)
	if !ok {
		return cidr
	}
	clearOfPlatform(p, field, cidr)
	if vpcCIDR.IsValid() && vpcCIDR.Overlaps(cidr) {
		p.add(field, text, "overlaps vpc.cidr %s", vpcCIDR)
	}
	if services, err := netip.ParsePrefix(s.Kubernetes.ServiceCIDR); err == nil && services.Overlaps(cidr) {
		p.add(field, text, "overlaps kubernetes.serviceCIDR %s", services)
	}
	if most := 1 << (nodePodBits - cidr.Bits()); len(s.Nodes) > most {
		p.add(field, text, "has ranges of /%d for %d nodes, and the lab has %d", nodePodBits, most, len(s.Nodes))
	}
	return cidr
}
