package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/sim/faults"
)

// Default returns the lab without a file: one VPC with three zones, three nodes, the security
// groups of an EKS cluster, and security groups for pods, which a file has to ask for.
func Default() Spec {
	return Spec{SecurityGroupsForPods: PodGroupsOwn, Quotas: Quotas{TrunkCalls: true}}.withDefaults()
}

// withDefaults sets fields that the file omits. A list in the file replaces the default
// list; fields of its entries get defaults one by one.
func (s Spec) withDefaults() Spec {
	setDefault(&s.Name, DefaultName)
	setDefault(&s.Region, DefaultRegion)
	setDefault(&s.Account, DefaultAccount)
	setDefault(&s.Seed, DefaultSeed)
	setDefault(&s.Cloud, CloudAWS)
	if s.Cloud == CloudNone {
		setDefault(&s.Kubernetes.PodCIDR, DefaultPodCIDR)
	}
	setDefault(&s.Kubernetes.Version, KubernetesVersion)
	setDefault(&s.Kubernetes.ServiceCIDR, DefaultServiceCIDR)
	setDefault(&s.Kubernetes.Proxy, ProxyNftables)
	if services, err := netip.ParsePrefix(s.Kubernetes.ServiceCIDR); err == nil {
		setDefault(&s.Kubernetes.ClusterDNS, nth(services, 10).String())
	}
	setDefault(&s.VPC.CIDR, DefaultCIDR)
	if s.VPC.InternetGateway == nil {
		s.VPC.InternetGateway = new(true)
	}
	if s.Latency == nil {
		s.Latency = new(faults.Duration(DefaultLatency))
	}
	if s.Subnets == nil {
		s.Subnets = defaultSubnets(s.Region, s.VPC.CIDR)
	}
	if s.RouteTables == nil {
		s.RouteTables = defaultRouteTables(*s.VPC.InternetGateway, s.VPC.CIDR6 != "")
	}
	if s.SecurityGroups == nil {
		s.SecurityGroups = defaultGroups()
	}
	return s.withSubnetDefaults().withNodeDefaults().withServiceDefaults()
}

func (s Spec) withSubnetDefaults() Spec {
	s.Subnets = slices.Clone(s.Subnets)
	for i := range s.Subnets {
		if s.Subnets[i].Public == nil {
			s.Subnets[i].Public = new(*s.VPC.InternetGateway)
		}
	}
	if for4 := s.subnets4(); len(for4) > 0 {
		setDefault(&s.ControlPlane.Subnet, for4[0].Name)
	}
	if s.ControlPlane.Groups == nil {
		s.ControlPlane.Groups = []string{groupCluster}
	}
	return s
}

// subnets4 are the subnets in which machines can be: not those that are IPv6-only.
func (s Spec) subnets4() []Subnet {
	return slices.DeleteFunc(slices.Clone(s.Subnets), func(n Subnet) bool { return n.CIDR == "" && n.CIDR6 != "" })
}

func (s Spec) withNodeDefaults() Spec {
	if s.Nodes == nil {
		s.Nodes = make([]Node, DefaultNodes)
	}
	s.Nodes = slices.Clone(s.Nodes)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		setDefault(&n.Name, fmt.Sprintf("node%d", i+1))
		setDefault(&n.Type, DefaultInstanceType)
		if s.Cloud != CloudNone {
			setDefault(&n.Role, DefaultRole)
		}
		setImageDefaults(n)
		if for4 := s.subnets4(); len(for4) > 0 {
			setDefault(&n.Subnet, for4[i%len(for4)].Name)
		}
		if n.Groups == nil {
			n.Groups = []string{GroupNodes}
		}
	}
	return s
}

// smallestCut is the prefix length of the smallest VPC with eighths that are valid
// subnets (/28 or larger).
const smallestCut = 25

// defaultSubnets returns one subnet per zone, each an eighth of the VPC. It returns none
// for an invalid VPC, which Resolve reports.
func defaultSubnets(region, vpcCIDR string) []Subnet {
	whole, err := netip.ParsePrefix(vpcCIDR)
	if err != nil || !whole.Addr().Is4() || whole.Bits() > smallestCut {
		return []Subnet{}
	}
	bits := whole.Bits() + 3
	next := whole.Masked().Addr()
	var out []Subnet
	for i := range defaultZones {
		letter := string(rune('a' + i))
		out = append(out, Subnet{
			Name: letter, Zone: region + letter, CIDR: netip.PrefixFrom(next, bits).String(),
		})
		next = nth(netip.PrefixFrom(next, bits), 1<<(32-bits))
	}
	return out
}

func defaultRouteTables(internet, ipv6 bool) []RouteTable {
	main := RouteTable{Name: "main", Main: true}
	if internet {
		main.Routes = append(main.Routes, Route{Destination: "0.0.0.0/0", Target: targetInternet})
	}
	if internet && ipv6 {
		main.Routes = append(main.Routes, Route{Destination: "::/0", Target: targetInternet})
	}
	return []RouteTable{main}
}

// defaultGroups returns the security groups of an EKS cluster, and two for pods. Nodes accept
// traffic from nodes and the control plane, and DNS queries from pods of the two; the control
// plane accepts traffic from nodes on 443, and the database from clients on 8080.
func defaultGroups() []SecurityGroup {
	pods := []string{GroupClients, GroupDatabase}
	return []SecurityGroup{
		{Name: GroupNodes, Description: "Nodes and their pods", Ingress: []Rule{
			{Protocol: "all", Groups: []string{GroupNodes}, Note: "nodes and pods among themselves"},
			{Protocol: "all", Groups: []string{groupCluster}, Note: "API server to kubelets, webhooks and aggregated APIs"},
			{Protocol: "udp", Ports: intstr.FromInt32(53), Groups: pods, Note: "CoreDNS runs on any node"},
			{Protocol: "tcp", Ports: intstr.FromInt32(53), Groups: pods},
		}},
		{Name: groupCluster, Description: "Control plane", Ingress: []Rule{
			{Protocol: "tcp", Ports: intstr.FromInt32(443), Groups: []string{GroupNodes}, Note: "API"},
		}},
		{Name: GroupClients, Description: "Of pods that may use the database", Ingress: []Rule{
			{Protocol: "all", Groups: []string{GroupNodes}, Note: "probes of the kubelet"},
		}},
		{Name: GroupDatabase, Description: "Called on 8080 by clients only, not by the nodes either", Ingress: []Rule{
			{Protocol: "tcp", Ports: intstr.FromInt32(8080), Groups: []string{GroupClients}},
		}},
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// nth returns the n-th address of an IPv4 prefix, counted from 0.
func nth(p netip.Prefix, n uint32) netip.Addr {
	if !p.Addr().Is4() {
		return p.Addr()
	}
	b := p.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
