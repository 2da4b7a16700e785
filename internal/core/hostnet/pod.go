package hostnet

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Pod is one attachment of a pod: a link between its namespace and the node's.
type Pod struct {
	Namespace   string
	Name        string
	ContainerID string // of the sandbox
	IfName      string // in the pod, "eth0"
	// Addresses of the pod, one per family at most.
	Addresses []netip.Addr
	// Table is the route table of the ENI that holds the addresses.
	Table uint32
	MTU   int // bytes; 0: vpc.MTU
	// Link is the name of the host's end; empty: LinkName with LinkPrefix.
	Link string
	// Held pods are wired but not yet let out: the host's end stays down, and
	// routes and neighbours, which need it up, are not wanted yet.
	Held bool
}

// HostLink is the name of the host's end.
func (p Pod) HostLink() string {
	if p.Link != "" {
		return p.Link
	}
	return LinkName(LinkPrefix, p.Namespace, p.Name)
}

// Attachment is what the link's alias keeps.
func (p Pod) Attachment() Attachment {
	return Attachment{ContainerID: p.ContainerID, IfName: p.IfName, Addresses: p.Addresses}
}

func (p Pod) mtu() int {
	if p.MTU == 0 {
		return vpc.MTU
	}
	return p.MTU
}

// ForPod is the host's side of a pod: a route to each address by the link, a
// permanent neighbour there, the rule that finds the route before any other, and
// for pods on a secondary ENI the rule that sends them out by it.
func ForPod(p Pod) State {
	hostMAC, podMAC := PodMACs(p.ContainerID, p.IfName)
	link := Link{Name: p.HostLink(), MAC: hostMAC, MTU: p.mtu(), Admin: AdminUp, Alias: p.Attachment().Alias(), Group: LinkGroupPod}
	if p.Held {
		link.Admin, link.Pending = AdminAny, true
	}
	s := State{Links: []Link{link}}
	for _, a := range p.Addresses {
		s.Rules = append(s.Rules, Rule{
			Family: vpc.FamilyOf(a), Priority: RuleToPod, To: host(a), Table: TableMain, Protocol: RouteProtocol,
		})
		if p.Table != TableMain {
			s.Rules = append(s.Rules, Rule{
				Family: vpc.FamilyOf(a), Priority: RuleFromPod, From: host(a), Table: p.Table, Protocol: RouteProtocol,
			})
		}
		if p.Held {
			continue
		}
		s.Routes = append(s.Routes, Route{Table: TableMain, To: host(a), Link: link.Name, Scope: linkScope(a), Protocol: RouteProtocol})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: link.Name, Address: a, MAC: podMAC})
	}
	return s
}

// PodSide is the network inside the pod's namespace: its addresses alone in
// their subnet, and a router 169.254.1.1 (fe80::1) that nobody answers for: the
// permanent neighbour entry leads to the host's end.
func PodSide(p Pod) State {
	hostMAC, podMAC := PodMACs(p.ContainerID, p.IfName)
	s := State{Links: []Link{{Name: p.IfName, MAC: podMAC, MTU: p.mtu(), Admin: AdminUp}}}
	for _, a := range p.Addresses {
		gw := netip.MustParseAddr(PodGateway4)
		if a.Is6() {
			gw = netip.MustParseAddr(PodGateway6)
		}
		s.Addresses = append(s.Addresses, Address{Link: p.IfName, Prefix: host(a)})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: p.IfName, Address: gw, MAC: hostMAC})
		if a.Is4() {
			s.Routes = append(s.Routes, Route{Table: TableMain, To: host(gw), Link: p.IfName, Scope: ScopeLink, Protocol: RouteProtocol})
		}
		s.Routes = append(s.Routes, Route{Table: TableMain, To: everything(a), Via: gw, Link: p.IfName, Protocol: RouteProtocol})
	}
	return s
}
