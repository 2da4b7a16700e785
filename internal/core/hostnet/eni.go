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
	// Addresses are the ENI's primary addresses with the prefix length of their
	// subnet, at most one per family. The operating system configures those of the
	// primary ENI.
	Addresses []netip.Prefix
	// Gateways are the subnet's routers, at most one per family. The default is
	// vpc.Gateway of the subnet (IPv4) or fe80:ec2::1 (IPv6).
	Gateways []netip.Addr
	MTU      int // bytes; 0: vpc.MTU
}

// gateway6 is the router of every IPv6 subnet of a VPC.
// Source: VPC user guide, "Subnet route tables".
const gateway6 = "fe80:ec2::1"

// Table returns the route table of pods on the ENI: main for the primary, device
// index plus one for the others, as in AWS VPC CNI.
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

// ForENI returns the desired state of one ENI. For the primary, only MTU and admin
// state of the link are set. A secondary ENI gets its primary address, a route table
// with the subnet's router as default gateway, and a rule that selects the table for
// packets from that address. The kernel's route to the subnet is absent: the subnet is
// reached by the primary ENI. A device of that name with another MAC belongs to another
// ENI and is left unchanged.
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
			Route{Table: e.Table(), To: defaultRoute(gw), Via: gw, Link: e.Link, Protocol: RouteProtocol},
		)
		s.Rules = append(s.Rules, Rule{
			Family: vpc.FamilyOf(gw), Priority: RuleFromENI, From: host(p.Addr()), Table: e.Table(), Protocol: RouteProtocol,
		})
		s.Absent = append(s.Absent, Route{Table: TableMain, To: p.Masked(), Link: e.Link, Protocol: ProtocolKernel})
	}
	return s
}

// ForNode returns the state that does not depend on ENIs and pods: the rule that sends
// marked packets out by the primary ENI, and one rule for each CIDR outside the VPC
// that is reached by it.
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

func defaultRoute(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// linkScope is the scope of a route without gateway. IPv6 routes have no scope.
func linkScope(a netip.Addr) Scope {
	if a.Is4() {
		return ScopeLink
	}
	return ScopeGlobal
}
