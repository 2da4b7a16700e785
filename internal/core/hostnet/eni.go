package hostnet

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ENI is a network interface as the node's network needs it.
type ENI struct {
	ID   vpc.ENIID
	Link string // name of the device, found by its MAC
	MAC  vpc.MAC
	// Device is EC2's device index; 0 is the primary ENI.
	Device int
	// Addresses are the ENI's primary addresses with the length of their subnet,
	// one per family at most. The primary ENI's are the operating system's.
	Addresses []netip.Prefix
	// Gateways are the subnet's routers, one per family at most. A family without
	// one gets vpc.Gateway of its subnet (IPv4) or fe80:ec2::1 (IPv6).
	Gateways []netip.Addr
	MTU      int // bytes; 0: vpc.MTU
}

// gateway6 is the router of every IPv6 subnet of a VPC.
// Source: VPC user guide, "Subnet route tables".
const gateway6 = "fe80:ec2::1"

// Table is the route table of pods on the ENI: main for the primary, device
// index plus one for the others, as AWS numbers them.
func (e ENI) Table() uint32 {
	if e.Device == 0 {
		return TableMain
	}
	return uint32(e.Device + TableENIOffset)
}

func (e ENI) mtu() int {
	if e.MTU == 0 {
		return vpc.MTU
	}
	return e.MTU
}

func (e ENI) gateway(p netip.Prefix) netip.Addr {
	for _, g := range e.Gateways {
		if g.Is4() == p.Addr().Is4() {
			return g
		}
	}
	if p.Addr().Is4() {
		return vpc.Gateway(p)
	}
	return netip.MustParseAddr(gateway6)
}

// ForENI is the network of one ENI. Of the primary only size and state of the
// link are ours; a secondary gets its primary address, a table of its own that
// leads to the subnet's router, and the rule for packets from that address. The
// kernel's route to the subnet is unwanted: the primary ENI's serves the subnet.
// A device of that name with another MAC is another ENI's and left alone.
func ForENI(e ENI) State {
	link := Link{Name: e.Link, MAC: e.MAC, MTU: e.mtu(), Admin: AdminUp}
	if e.Device == 0 {
		return State{Links: []Link{link}}
	}
	link.Alias = ENIAlias(e.ID)
	s := State{Links: []Link{link}}
	for _, p := range e.Addresses {
		gw := e.gateway(p)
		s.Addresses = append(s.Addresses, Address{Link: e.Link, Prefix: p, NoPrefixRoute: true})
		s.Routes = append(s.Routes,
			Route{Table: e.Table(), To: host(gw), Link: e.Link, Scope: linkScope(gw), Protocol: RouteProtocol},
			Route{Table: e.Table(), To: everything(gw), Via: gw, Link: e.Link, Protocol: RouteProtocol},
		)
		s.Rules = append(s.Rules, Rule{
			Family: vpc.FamilyOf(gw), Priority: RuleFromENI, From: host(p.Addr()), Table: e.Table(), Protocol: RouteProtocol,
		})
		s.Absent = append(s.Absent, Route{Table: TableMain, To: p.Masked(), Link: e.Link, Protocol: ProtocolKernel})
	}
	return s
}

// ForNode is what a node has once, whatever its ENIs and pods: the rule that
// sends marked packets out by the primary ENI, one for each CIDR that is reached
// by it although it is outside the VPC.
func ForNode(families []vpc.Family, externalCIDRs []netip.Prefix) State {
	var s State
	for _, f := range families {
		s.Rules = append(s.Rules, Rule{
			Family: f, Priority: RuleMark, Mark: MarkPrimary, Mask: MarkPrimary, Table: TableMain, Protocol: RouteProtocol,
		})
	}
	for _, c := range externalCIDRs {
		s.Rules = append(s.Rules, Rule{
			Family: vpc.FamilyOf(c.Addr()), Priority: RuleExternalCIDR, To: c.Masked(), Table: TableMain, Protocol: RouteProtocol,
		})
	}
	return s
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func everything(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// linkScope is the scope of a route without gateway: IPv6 has no scopes.
func linkScope(a netip.Addr) Scope {
	if a.Is4() {
		return ScopeLink
	}
	return ScopeGlobal
}
