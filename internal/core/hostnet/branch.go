package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Why a VLAN cannot be a branch's on a node.
var (
	// ErrVLAN: IEEE 802.1Q has no such VLAN.
	ErrVLAN = errors.New("a VLAN is from 1 to 4094")
	// ErrVLANTable: the route table of the VLAN is one of the kernel's.
	ErrVLANTable = errors.New("the route table of the VLAN is one of the kernel's own")
)

const maxVLAN = 4094

// VLANTable returns the route table of the branch of a VLAN.
func VLANTable(vlan int) (uint32, error) {
	if vlan < 1 || vlan > maxVLAN {
		return 0, fmt.Errorf("VLAN %d: %w", vlan, ErrVLAN)
	}
	table := uint32(vlan + TableVLANOffset)
	switch table {
	case TableDefault, TableMain, TableLocal:
		return 0, fmt.Errorf("VLAN %d: table %d: %w", vlan, table, ErrVLANTable)
	}
	return table, nil
}

// BranchDevice is the name of the node's device of a VLAN, as AWS's plugin has it.
func BranchDevice(vlan int) string { return fmt.Sprintf("vlan.eth.%d", vlan) }

// TaggedEnd is the other end of the device of a VLAN where that is a veth pair: what arrives at
// it is tagged and leaves by the trunk.
func TaggedEnd(vlan int) string { return fmt.Sprintf("tag.eth.%d", vlan) }

const branchAlias = LinkAliasPrefix + "branch/"

// BranchAlias is the mark on the device of a branch: enough to rebuild the attachment of a pod, of
// which the pod's own link has the addresses, when the journal was lost.
func BranchAlias(e endpoint.Endpoint) string {
	a := e.Attachment
	gateways := make([]string, 0, 2)
	for _, g := range a.Branch.Gateways.List() {
		gateways = append(gateways, g.String())
	}
	return branchAlias + strings.Join([]string{
		string(a.Interface), string(a.Branch.Trunk), string(a.Branch.Mode), strings.Join(gateways, "+"), e.Key.ContainerID, e.Key.IfName,
	}, "/")
}

// ParseBranch returns the endpoint's key and attachment of the device of a branch. It reports false
// for any other link.
func ParseBranch(l Link) (endpoint.Key, endpoint.Attachment, bool) {
	rest, ours := strings.CutPrefix(l.Alias, branchAlias)
	parts := strings.Split(rest, "/")
	vlan := 0
	if _, err := fmt.Sscanf(l.Name, "vlan.eth.%d", &vlan); err != nil || !ours || len(parts) != 6 {
		return endpoint.Key{}, endpoint.Attachment{}, false
	}
	table, err := VLANTable(vlan)
	if err != nil || l.Name != BranchDevice(vlan) {
		return endpoint.Key{}, endpoint.Attachment{}, false
	}
	var gateways []netip.Addr
	for text := range strings.SplitSeq(parts[3], "+") {
		if g, err := netip.ParseAddr(text); err == nil {
			gateways = append(gateways, g)
		}
	}
	return endpoint.Key{ContainerID: parts[4], IfName: parts[5]}, endpoint.Attachment{
		Kind: endpoint.Branch, Interface: vpc.ENIID(parts[0]), Table: table,
		Branch: endpoint.BranchLink{
			VLAN: vlan, MAC: l.MAC, Trunk: vpc.ENIID(parts[1]), Mode: endpoint.Mode(parts[2]), Gateways: endpoint.AddressesOf(gateways...),
		},
	}, true
}

// OfBranch reports whether a link is the device of a branch, or the tagged end of one.
func (l Link) OfBranch() bool { return strings.HasPrefix(l.Alias, branchAlias) }

// BranchGateways are the routers of a branch with addresses in these subnets; an invalid one is
// none.
func BranchGateways(subnet4, subnet6 netip.Prefix) endpoint.Addresses {
	var g endpoint.Addresses
	if subnet4.IsValid() {
		g.IPv4 = vpc.Gateway(subnet4)
	}
	if subnet6.IsValid() {
		g.IPv6 = netip.MustParseAddr(gateway6)
	}
	return g
}

// IsStrict reports whether all packets of an endpoint pass its branch, in strict mode.
func IsStrict(e endpoint.Endpoint) bool {
	return e.Attachment.Kind == endpoint.Branch && e.Attachment.Branch.Mode == endpoint.Strict
}

// ForBranch returns the device of an endpoint's branch, with the branch's route table: the subnet's
// router, and it as the default gateway. In strict mode what arrives by the device is routed by
// that table too, which has the route to the pod (ForEndpoint). It is the same once the pod's link
// is up and before.
func ForBranch(e endpoint.Endpoint) State {
	a := e.Attachment
	link := Link{Name: BranchDevice(a.Branch.VLAN), MAC: a.Branch.MAC, MTU: e.MTU, Admin: AdminUp, Alias: BranchAlias(e)}
	s := State{Links: []Link{link}}
	for _, ip := range e.Addresses.List() {
		gw := a.Branch.Gateways.IPv4
		if ip.Is6() { // the kernel solicits the router from this address, which it need not check for duplicates
			gw = a.Branch.Gateways.IPv6
			s.Addresses = append(s.Addresses, Address{Link: link.Name, Prefix: linkLocal(link.MAC)})
		}
		s.Routes = append(s.Routes,
			Route{Table: a.Table, To: host(gw), Link: link.Name, Scope: linkScope(gw), Protocol: RouteProtocol},
			Route{Table: a.Table, To: defaultRoute(gw), Via: gw, Link: link.Name, Protocol: RouteProtocol},
		)
		if IsStrict(e) {
			s.Rules = append(s.Rules, branchRule(ip, link.Name, a.Table))
		}
	}
	return s
}

// branchRule sends what arrives by a link to the table of a branch.
func branchRule(ip netip.Addr, link string, table uint32) Rule {
	return Rule{Family: vpc.FamilyOf(ip), Priority: RuleBranch, In: link, Table: table, Protocol: RouteProtocol}
}

// linkLocal6 are the addresses that no router forwards packets from.
const linkLocal6 = "fe80::/10"

// linkLocal is the IPv6 link-local address that the kernel makes of a MAC (EUI-64).
func linkLocal(m vpc.MAC) netip.Prefix {
	b := netip.MustParseAddr("fe80::").As16()
	copy(b[8:], []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	return netip.PrefixFrom(netip.AddrFrom16(b), 64)
}

// protocolICMPv6 is the number of ICMPv6 in IPv6's next header.
const protocolICMPv6 = 58

// LocalRule is the kernel's first rule, which leads to the table of the node's own addresses.
func LocalRule(f vpc.Family) Rule {
	return Rule{Family: f, Priority: RuleLocal, Table: TableLocal, Protocol: ProtocolKernel}
}

// leadsToLocal reports whether a rule is that of the local table behind the rules of branches.
func (r Rule) leadsToLocal() bool {
	return r.Selector() == Rule{Family: r.Family, Table: TableLocal} && r.Priority == RuleLocalStrict
}

// ForStrict returns what a node with strict pods needs: the rule of the local table follows the
// rules of branches. Otherwise a packet of such a pod to its own node would not leave by the branch,
// nor one of the node to such a pod arrive by it: the kernel refuses a source address that its first
// rules call local. Without such pods the rule is the first one,
// where the kernel has it: Actual.Remove puts it back. AWS's daemon moves it once and for all.
//
// For IPv6, messages of neighbours, which the subnet's router is, must find the node's own addresses
// in spite of the rules of branches: the node could not resolve the router. AWS's rule is for the
// router's address fe80:ec2::1 only; a router may send such messages from another one of its
// addresses (RFC 4861, section 7.2.4).
func ForStrict(families []vpc.Family) (s State) {
	for _, f := range families {
		s.Rules = append(s.Rules, Rule{Family: f, Priority: RuleLocalStrict, Table: TableLocal, Protocol: RouteProtocol})
		if f == vpc.IPv6 {
			s.Rules = append(s.Rules, Rule{
				Family: f, Priority: RuleLocal, From: netip.MustParsePrefix(linkLocal6), IPProto: protocolICMPv6, Table: TableLocal, Protocol: RouteProtocol,
			})
		}
		s.Moved = append(s.Moved, LocalRule(f))
	}
	return s
}

// Returned lists the first rules of the kernel that another program has moved behind those of
// branches, as AWS's daemon does for strict pods, and never puts back.
func (s State) Returned() (missing []Rule) {
	all := index(s.Rules)
	for _, r := range s.Rules {
		if _, first := all[LocalRule(r.Family).Key()]; !first && r.leadsToLocal() && !r.Ours() {
			missing = append(missing, LocalRule(r.Family))
		}
	}
	return missing
}

// HasStrict reports whether one of the endpoints is wired, or being wired, in strict mode.
func HasStrict(endpoints []endpoint.Endpoint) bool {
	return slices.ContainsFunc(endpoints, func(e endpoint.Endpoint) bool { return e.Wired() && IsStrict(e) })
}

// ForeignStrict reports whether another CNI has wired a pod in strict mode.
func (s State) ForeignStrict() bool {
	return slices.ContainsFunc(s.Rules, func(r Rule) bool {
		return r.Priority == RuleBranch && r.In != "" && !r.Ours() && r.Table > TableVLANOffset
	})
}
