package hostnet

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ForEndpoint returns the host's side of an endpoint: per address a route by the link, a
// permanent neighbour on it and a rule that precedes all others to that route; for
// endpoints on a secondary ENI also the rule that sends their packets out by it. The
// link of a held endpoint stays down; routes and neighbours, which need it up, are not
// desired yet.
func ForEndpoint(e endpoint.Endpoint) State {
	link := Link{Name: e.Link, MAC: e.HostMAC, MTU: e.MTU, Admin: AdminUp, Alias: AliasOf(e).String(), Group: LinkGroupPod}
	if e.Held() {
		link.Admin, link.Pending = AdminAny, true
	}
	s := State{Links: []Link{link}}
	for _, a := range e.Addresses.List() {
		s.Rules = append(s.Rules, Rule{
			Family: vpc.FamilyOf(a), Priority: RuleToPod, To: host(a), Table: TableMain, Protocol: RouteProtocol,
		})
		if e.Attachment.Table != TableMain {
			s.Rules = append(s.Rules, Rule{
				Family: vpc.FamilyOf(a), Priority: RuleFromPod, From: host(a), Table: e.Attachment.Table, Protocol: RouteProtocol,
			})
		}
		if e.Held() {
			continue
		}
		s.Routes = append(s.Routes, Route{Table: TableMain, To: host(a), Link: link.Name, Scope: linkScope(a), Protocol: RouteProtocol})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: link.Name, Address: a, MAC: e.PodMAC})
	}
	return s
}

// PodSide returns the network inside the pod's namespace: its addresses with full
// prefix length, and the gateway 169.254.1.1 (fe80::1), which no device has: its
// permanent neighbour entry holds the MAC of the host's end.
func PodSide(e endpoint.Endpoint) State {
	ifName := e.Key.IfName
	s := State{Links: []Link{{Name: ifName, MAC: e.PodMAC, MTU: e.MTU, Admin: AdminUp}}}
	for _, a := range e.Addresses.List() {
		gw := netip.MustParseAddr(PodGateway4)
		if a.Is6() {
			gw = netip.MustParseAddr(PodGateway6)
		}
		s.Addresses = append(s.Addresses, Address{Link: ifName, Prefix: host(a)})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: ifName, Address: gw, MAC: e.HostMAC})
		if a.Is4() {
			s.Routes = append(s.Routes, Route{Table: TableMain, To: host(gw), Link: ifName, Scope: ScopeLink, Protocol: RouteProtocol})
		}
		s.Routes = append(s.Routes, Route{Table: TableMain, To: defaultRoute(a), Via: gw, Link: ifName, Protocol: RouteProtocol})
	}
	return s
}
