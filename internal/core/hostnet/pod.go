package hostnet

import (
	"hash/fnv"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ForEndpoint returns the host's side of an endpoint: per address a route by the link, a
// permanent neighbour on it and a rule that precedes all others to that route; for
// endpoints on a secondary ENI also the rule that sends their packets out by it. The
// link of a held endpoint stays down; routes and neighbours, which need it up, are not
// desired yet. A strict pod on a branch has its route in the branch's table, and in place of the
// rules by its address one by its link: its packets and those to it pass the branch's device only.
func ForEndpoint(e endpoint.Endpoint) State {
	link := Link{Name: e.Link, MAC: e.HostMAC, MTU: e.MTU, Admin: AdminUp, Alias: AliasOf(e).String(), Group: LinkGroupPod}
	if e.Held() {
		link.Admin, link.Pending = AdminAny, true
	}
	s := State{Links: []Link{link}}
	table := uint32(TableMain)
	if IsStrict(e) {
		table = e.Attachment.Table
	}
	for _, a := range e.Addresses.List() {
		s.Rules = append(s.Rules, podRules(e, a)...)
		if e.Held() {
			continue
		}
		s.Routes = append(s.Routes, Route{Table: table, To: host(a), Link: link.Name, Scope: linkScope(a), Protocol: RouteProtocol})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: link.Name, Address: a, MAC: e.PodMAC})
	}
	return s
}

// podRules are the node's rules for one address of an endpoint.
func podRules(e endpoint.Endpoint, a netip.Addr) []Rule {
	if IsStrict(e) {
		return []Rule{branchRule(a, e.Link, e.Attachment.Table)}
	}
	rules := []Rule{{Family: vpc.FamilyOf(a), Priority: RuleToPod, To: host(a), Table: TableMain, Protocol: RouteProtocol}}
	if e.Attachment.Table != TableMain {
		rules = append(rules, Rule{
			Family: vpc.FamilyOf(a), Priority: RuleFromPod, From: host(a), Table: e.Attachment.Table, Protocol: RouteProtocol,
		})
	}
	return rules
}

// PodSide returns the network inside the pod's namespace: its addresses with full
// prefix length, and the gateway 169.254.1.1 (fe80::1), which no device has: its
// permanent neighbour entry holds the MAC of the host's end. A further interface of the pod
// has its routes in a table of its own, too.
func PodSide(e endpoint.Endpoint) State {
	ifName := e.Key.IfName
	s := State{Links: []Link{{Name: ifName, MAC: e.PodMAC, MTU: e.MTU, Admin: AdminUp}}}
	table, metric := further(ifName)
	for _, a := range e.Addresses.List() {
		gw := netip.MustParseAddr(PodGateway4)
		if a.Is6() {
			gw = netip.MustParseAddr(PodGateway6)
		}
		s.Addresses = append(s.Addresses, Address{Link: ifName, Prefix: host(a)})
		s.Neighbours = append(s.Neighbours, Neighbour{Link: ifName, Address: gw, MAC: e.HostMAC})
		s.Routes = append(s.Routes, podRoutes(a, gw, Route{Table: TableMain, Metric: metric, Link: ifName, Protocol: RouteProtocol})...)
		if table != TableMain {
			s.Routes = append(s.Routes, podRoutes(a, gw, Route{Table: table, Metric: metric, Link: ifName, Protocol: RouteProtocol})...)
			s.Rules = append(s.Rules, Rule{Family: vpc.FamilyOf(a), Priority: RuleFurther, From: host(a), Table: table, Protocol: RouteProtocol})
		}
	}
	return s
}

// podRoutes are the routes of an address inside the pod, in the table and with the metric of r.
func podRoutes(a, gw netip.Addr, r Route) (routes []Route) {
	if a.Is4() {
		toGateway := r
		toGateway.To, toGateway.Scope = host(gw), ScopeLink
		routes = append(routes, toGateway)
	}
	r.To, r.Via = defaultRoute(a), gw
	return append(routes, r)
}

// further returns the table and the metric of an interface inside its pod: those of the main
// table for the first one.
func further(ifName string) (table, metric uint32) {
	if ifName == endpoint.FirstIfName {
		return TableMain, 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(ifName)) // never fails
	distinct := h.Sum32() & 0xffff
	return TableFurther + distinct, MetricFurther + distinct
}
