package hostnet

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Leftovers returns the steps that delete the rules that AWS's plugin made for a pod that has
// ended. They precede ours of the same priority: when another pod gets the address, its
// packets would leave by the interface of the earlier one.
//
// Only rules without a protocol count, with the priority and selector of a pod, of an address
// of the subnets. The pod has ended when Foreign does not list its address, and inUse reports
// that no pod of another CNI claims it. An equal rule that stands in for one of ours stays.
func (a *Actual) Leftovers(parts []Part, enis Interfaces, inUse func(netip.Addr) bool) (ops []Op) {
	wired := a.Foreign(enis)
	own := map[string]bool{}
	for _, r := range a.have.Rules {
		own[r.Key()] = own[r.Key()] || r.Ours()
	}
	desired := objectsOf(parts)
	for _, r := range a.have.Rules {
		addr, pod := r.ofPod()
		if r.Protocol != ProtocolUnspecified || !pod || wired[addr] || inUse(addr) || !enis.Hold(addr) {
			continue
		}
		if desired.keys[r.Key()] && !own[r.Key()] {
			continue
		}
		ops = append(ops, Op{Delete, r, "its pod, which another CNI wired, has ended"})
	}
	return ops
}

// Foreign returns the addresses of the subnets that pods of another CNI have.
func (a *Actual) Foreign(enis Interfaces) map[netip.Addr]bool {
	wired := map[netip.Addr]bool{}
	for addr := range a.have.ForeignPods(enis.MACs) {
		if enis.Hold(addr) {
			wired[addr] = true
		}
	}
	return wired
}

// ForeignPods returns the addresses of pods that another CNI wired, with the names of their
// links: those of the routes to one address by a link which is neither ours nor an interface
// of the instance, by the MACs in enis.
//
// AWS's plugin makes such a route without protocol. Those of DHCP clients are of the node's
// own network: systemd-networkd adds one to the subnet's router, and one to each DNS server of
// the subnet, by the instance's interface. Source: systemd.network(5), RoutesToDNS=, and
// `ip route` of EKS nodes with Amazon Linux 2023: "192.168.0.1 dev ens5 proto dhcp scope link".
// The scripts of dhclient, and AWS's daemon in its tables, make theirs without protocol.
func (s State) ForeignPods(enis []vpc.MAC) map[netip.Addr]string {
	other := map[string]bool{}
	for _, l := range s.Links {
		other[l.Name] = !l.Ours() && !slices.Contains(enis, l.MAC)
	}
	wired := map[netip.Addr]string{}
	for _, r := range s.Routes {
		if other[r.Link] && r.toHost() {
			wired[r.To.Addr()] = r.Link
		}
	}
	return wired
}

// toHost reports whether a route leads to one address by its link, and no daemon owns it.
func (r Route) toHost() bool {
	return r.To.IsSingleIP() && !r.Via.IsValid() && (r.Protocol == ProtocolBoot || r.Protocol == ProtocolUnspecified)
}

// Interfaces are the network interfaces of the instance, also those that Trunkline does not
// manage.
type Interfaces struct {
	MACs    []vpc.MAC
	Subnets []netip.Prefix
}

// Hold reports whether an address is of the interfaces' subnets and can be a pod's: EC2 reserves
// the router's and others.
func (i Interfaces) Hold(addr netip.Addr) bool {
	return slices.ContainsFunc(i.Subnets, func(p netip.Prefix) bool { return p.Contains(addr) && !vpc.Reserved(p, addr) })
}

// Replaced lists the rules, of any owner and with any table, that rules of a pod take the place
// of, because they would precede them. Some have further selectors: earlier releases of AWS's
// plugin made a rule 1536 from the pod to each range of the VPC. Source:
// aws/amazon-vpc-cni-k8s, driver.go, "list of from <podIP> to <vpcCIDR>".
func (s State) Replaced(by []Rule) (list []Rule) {
	selectors := Selectors(by)
	for _, r := range s.Rules {
		if !slices.Contains(by, r) && slices.ContainsFunc(selectors, r.within) {
			list = append(list, r)
		}
	}
	return list
}

// Selectors returns what the rules for the address of a pod select, those of the given rules
// among them, without tables and protocols. A pod on the primary interface has no rule 1536;
// that of an earlier pod would send its packets out by another one.
func Selectors(rules []Rule) (selectors []Rule) {
	for _, r := range rules {
		if r.ToPod() {
			selectors = append(
				selectors,
				Rule{Family: r.Family, Priority: RuleToPod, To: r.To}, Rule{Family: r.Family, Priority: RuleFromPod, From: r.To},
			)
		}
	}
	return selectors
}

// within reports whether a rule of o's priority is for packets that o is for.
func (r Rule) within(o Rule) bool {
	return r.Family == o.Family && r.Priority == o.Priority && !r.selectsMore() && (!o.From.IsValid() || r.From == o.From) && (!o.To.IsValid() || r.To == o.To)
}

// ofPod returns the address of the pod that a rule of AWS's plugin, or of ours, is for.
func (r Rule) ofPod() (addr netip.Addr, ok bool) {
	switch {
	case r.Family != vpc.IPv4 || r.Mask != 0 || r.selectsMore():
	case r.Priority == RuleToPod && r.To.IsSingleIP() && !r.From.IsValid() && r.Table == TableMain:
		return r.To.Addr(), true
	case r.Priority == RuleFromPod && r.From.IsSingleIP(): // to any address, or to a range of the VPC
		return r.From.Addr(), true
	}
	return netip.Addr{}, false
}
