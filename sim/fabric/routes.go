package fabric

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// routeKey identifies a route.
type routeKey struct {
	table int
	dst   netip.Prefix
}

// hop is where a route leads. The zero hop is a blackhole.
type hop struct {
	device string
	via    netip.Addr // on-link
	source netip.Addr // of the fabric's own packets; zero: any
	// onward continues the lookup in the tables of later rules (throw).
	onward bool
}

// lookup is a rule: at a priority, packets with the mark use a table.
type lookup struct{ priority, mark int }

// neighbour is the key of a permanent neighbour entry.
type neighbour struct {
	device string
	addr   netip.Addr
}

// address is an address of the namespace's own.
type address struct {
	device string
	addr   netip.Addr // in full length
}

// layout is the desired network layer of one namespace. Pure.
type layout struct {
	addresses  map[address]bool
	neighbours map[neighbour]vpc.MAC
	routes     map[routeKey]hop
	// tables with the rule that selects each, in both families.
	tables map[int]lookup
}

func newLayout() layout {
	return layout{
		addresses: map[address]bool{}, neighbours: map[neighbour]vpc.MAC{},
		routes: map[routeKey]hop{}, tables: map[int]lookup{},
	}
}

// layout of the fabric's namespace. The main table has the routes inside the VPC: a route
// to the port of each address, and blackholes for the rest of the ranges. A subnet's
// tables have the other routes of its route table.
func (p *plan) layout() layout {
	l := newLayout()
	for a := range p.local {
		l.addresses[address{"lo", a}] = true
	}
	for _, cidr := range p.state.CIDRs {
		l.routes[routeKey{unix.RT_TABLE_MAIN, cidr.Masked()}] = hop{}
	}
	for name, link := range p.links {
		if link.port.Down {
			continue // the kernel deletes addresses and routes of a link that is down
		}
		l.addEnd(name, link.port.MAC)
		for _, dst := range holdings(link.port) {
			family := vpc.FamilyOf(dst.Addr())
			l.routes[routeKey{unix.RT_TABLE_MAIN, dst}] = hop{
				device: name,
				via:    nextHops(family).peer,
				source: p.gatewayOf(link.port.Subnet, family),
			}
		}
	}
	if p.state.Internet != nil {
		l.addEnd(gatewayDevice, outsideMAC())
	}
	for _, subnet := range p.state.Subnets {
		p.subnetRoutes(l, p.number[subnet.ID], subnet)
	}
	return l
}

// subnetRoutes adds a subnet's routes: those beyond the VPC to a table after the main
// table, those inside it to a table before. EC2 does not route a packet inside its own
// subnet, even if the route table has such a route.
// Source: VPC user guide, "Gateway route tables", rules and considerations.
func (p *plan) subnetRoutes(l layout, n int, subnet Subnet) {
	for _, entry := range subnet.Routes {
		dst := entry.Destination.Masked()
		if !p.inside(dst) {
			l.tables[tableBase+n] = lookup{rulePriority, tableBase + n}
			l.routes[routeKey{tableBase + n, dst}] = p.hopTo(entry)
			continue
		}
		l.tables[redirectBase+n] = lookup{redirectPriority, tableBase + n}
		l.routes[routeKey{redirectBase + n, dst}] = p.hopTo(entry)
	}
	if _, redirects := l.tables[redirectBase+n]; redirects {
		for _, own := range subnet.Prefixes {
			l.routes[routeKey{redirectBase + n, own.Masked()}] = hop{onward: true}
		}
	}
}

// addEnd adds the address of a fabric end and the neighbour entries of its peer.
func (l layout) addEnd(device string, peer vpc.MAC) {
	l.addresses[address{device, linkLocal(1)}] = true
	for _, f := range families() {
		l.neighbours[neighbour{device, nextHops(f).peer}] = peer
	}
}

// hopTo resolves a route's target; a target that does not exist or is down is a
// blackhole.
func (p *plan) hopTo(r Route) hop {
	via := nextHops(vpc.FamilyOf(r.Destination.Addr())).peer
	switch {
	case r.Target.Blackhole:
	case r.Target.Internet && p.state.Internet != nil:
		return hop{device: gatewayDevice, via: via}
	case r.Target.Port != "":
		device, ok := p.device[r.Target.Port]
		if ok && !p.links[device].port.Down {
			return hop{device: device, via: via}
		}
	}
	return hop{}
}

// outsideLayout is the network of the namespace behind the internet gateway.
func (i *Internet) outsideLayout() layout {
	l := newLayout()
	for _, host := range i.Hosts {
		l.addresses[address{outsideDevice, host}] = true
	}
	for _, f := range families() {
		router := nextHops(f).router
		l.neighbours[neighbour{outsideDevice, router}] = routerMAC()
		source, ok := i.host(f)
		if !ok {
			continue // without an address it could not reply
		}
		anywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if f == vpc.IPv6 {
			anywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		l.routes[routeKey{unix.RT_TABLE_MAIN, anywhere}] = hop{device: outsideDevice, via: router, source: source}
	}
	return l
}

// host is the first outside address of a family.
func (i *Internet) host(f vpc.Family) (netip.Addr, bool) {
	for _, host := range i.Hosts {
		if vpc.FamilyOf(host) == f {
			return host, true
		}
	}
	return netip.Addr{}, false
}
