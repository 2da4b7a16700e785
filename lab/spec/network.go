package spec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
)

// targetInternet is the internet gateway as the target of a route.
const targetInternet = "igw"

// platformRanges returns the CIDRs that the lab itself uses; a VPC must not overlap them.
func platformRanges() map[string]netip.Prefix {
	return map[string]netip.Prefix{
		"the embedded EC2 API":                    netip.MustParsePrefix("198.51.100.0/24"),
		"the outside host":                        netip.MustParsePrefix("203.0.113.0/24"),
		"link-local addresses and IMDS":           netip.MustParsePrefix("169.254.0.0/16"),
		"loopback":                                netip.MustParsePrefix("127.0.0.0/8"),
		"addresses of this network":               netip.MustParsePrefix("0.0.0.0/8"),
		"multicast groups and reserved addresses": netip.MustParsePrefix("224.0.0.0/3"),
	}
}

// clearOfPlatform reports a range that overlaps one of the lab's own.
func clearOfPlatform(p *problems, field string, cidr netip.Prefix) {
	ranges := platformRanges()
	for _, what := range slices.Sorted(maps.Keys(ranges)) {
		if ranges[what].Overlaps(cidr) {
			p.add(field, cidr.String(), "overlaps %s, which holds %s", ranges[what], what)
		}
	}
}

// network resolves the VPC with its subnets and route tables, and then the addresses of
// interfaces in the subnets. No two subnets overlap, and no address is assigned twice.
type network struct {
	*problems
	vpc     cloud.VPCSpec
	subnets []cloud.SubnetSpec // in the order of the file; with a zero CIDR if it is invalid
	tables  []cloud.RouteTableSpec

	byName  map[string]int        // indexes of subnets
	needed  []int                 // primary addresses needed, by subnet
	setters map[netip.Addr]string // the object that sets an address
}

func resolveNetwork(p *problems, s Spec) *network {
	n := &network{problems: p, needed: make([]int, len(s.Subnets)), setters: map[netip.Addr]string{}}
	n.vpc = cloud.VPCSpec{Name: s.Name, InternetGateway: *s.VPC.InternetGateway}
	if cidr, ok := n.prefix4("vpc.cidr", s.VPC.CIDR, 16, 28); ok {
		n.vpc.CIDRs = []netip.Prefix{cidr}
		clearOfPlatform(p, "vpc.cidr", cidr)
	}
	if cidr6, ok := n.prefix6("vpc.cidr6", s.VPC.CIDR6, 56); ok {
		n.vpc.CIDR6 = cidr6
	}
	if len(s.Subnets) == 0 && n.cidr().IsValid() {
		n.add("subnets", "", "must not be empty; omit the field to get three zones in a VPC of /%d or larger", smallestCut)
	}
	n.byName = names(p, "subnets", s.Subnets, func(e Subnet) string { return e.Name })
	tables := names(p, "routeTables", s.RouteTables, func(e RouteTable) string { return e.Name })
	for i, sub := range s.Subnets {
		field := fmt.Sprintf("subnets[%d].", i)
		n.label(field+"name", sub.Name, true)
		zone(p, field+"zone", sub.Zone, s.Region)
		if sub.RouteTable != "" {
			known(p, field+"routeTable", sub.RouteTable, "routeTables", tables)
		}
		n.subnets = append(n.subnets, n.subnet(field, sub))
	}
	n.routeTables(s.RouteTables)
	return n
}

// cidr returns the VPC's IPv4 range; zero if it is invalid.
func (n *network) cidr() netip.Prefix {
	if len(n.vpc.CIDRs) == 0 {
		return netip.Prefix{}
	}
	return n.vpc.CIDRs[0]
}

// subnet resolves a subnet, of which n.subnets has the earlier ones.
func (n *network) subnet(field string, sub Subnet) cloud.SubnetSpec {
	out := cloud.SubnetSpec{
		Name: sub.Name, Zone: sub.Zone, RouteTable: sub.RouteTable, Public: *sub.Public,
	}
	if sub.CIDR != "" || sub.CIDR6 == "" {
		if cidr, ok := n.prefix4(field+"cidr", sub.CIDR, 16, 28); ok {
			n.fits(field+"cidr", cidr)
			out.CIDR = cidr
		}
	}
	if cidr6, ok := n.prefix6(field+"cidr6", sub.CIDR6, 64); ok {
		n.fits6(field+"cidr6", cidr6)
		out.CIDR6, out.AssignIPv6 = cidr6, true
	}
	if *sub.Public && !n.vpc.InternetGateway {
		n.add(field+"public", "true", "the VPC has no internet gateway (vpc.internetGateway is false)")
	}
	return out
}

// fits reports a subnet's range that is outside the VPC or overlaps an earlier subnet.
func (n *network) fits(field string, cidr netip.Prefix) {
	if whole := n.cidr(); whole.IsValid() && (!whole.Contains(cidr.Addr()) || cidr.Bits() < whole.Bits()) {
		n.add(field, cidr.String(), "outside vpc.cidr %s", whole)
	}
	for j, other := range n.subnets {
		if other.CIDR.IsValid() && other.CIDR.Overlaps(cidr) {
			n.add(field, cidr.String(), "overlaps subnets[%d] %s (%s)", j, other.Name, other.CIDR)
		}
	}
}

// fits6 is fits for the IPv6 range.
func (n *network) fits6(field string, cidr netip.Prefix) {
	switch whole := n.vpc.CIDR6; {
	case !whole.IsValid():
		n.add(field, cidr.String(), "the VPC has no IPv6 range (vpc.cidr6)")
	case !whole.Contains(cidr.Addr()):
		n.add(field, cidr.String(), "outside vpc.cidr6 %s", whole)
	}
	for j, other := range n.subnets {
		if other.CIDR6.IsValid() && other.CIDR6.Overlaps(cidr) {
			n.add(field, cidr.String(), "overlaps subnets[%d] %s (%s)", j, other.Name, other.CIDR6)
		}
	}
}

func (n *network) routeTables(tables []RouteTable) {
	mains := 0
	for i, t := range tables {
		field := fmt.Sprintf("routeTables[%d].", i)
		n.label(field+"name", t.Name, true)
		if t.Main {
			mains++
		}
		out := cloud.RouteTableSpec{Name: t.Name, Main: t.Main}
		for j, route := range t.Routes {
			at := fmt.Sprintf("%sroutes[%d].", field, j)
			if route.Target != targetInternet {
				n.add(at+"target", route.Target, "must be %q; routes to interfaces can be created while the lab runs (CreateRoute)", targetInternet)
			} else if !n.vpc.InternetGateway {
				n.add(at+"target", route.Target, "the VPC has no internet gateway (vpc.internetGateway is false)")
			}
			if dst, ok := n.destination(at+"destination", route.Destination, out.Routes); ok {
				out.Routes = append(out.Routes, cloud.RouteSpec{Destination: dst, Gateway: targetInternet})
			}
		}
		n.tables = append(n.tables, out)
	}
	if mains > 1 {
		n.add("routeTables", "", "%d tables have main: true; a VPC has one main table", mains)
	}
}

// destination parses a route's destination, which must be unique in its table and
// outside the VPC.
func (n *network) destination(field, text string, others []cloud.RouteSpec) (_ netip.Prefix, ok bool) {
	dst, ok := n.prefix(field, text)
	if !ok {
		return dst, false
	}
	if slices.ContainsFunc(others, func(o cloud.RouteSpec) bool { return o.Destination == dst }) {
		n.add(field, text, "duplicate: this table already has a route to it")
	}
	for _, local := range []netip.Prefix{n.cidr(), n.vpc.CIDR6} {
		if local.IsValid() && local.Overlaps(dst) && dst.Bits() >= local.Bits() {
			n.add(field, text, "inside the VPC (%s), to which every table has a local route", local)
		}
	}
	return dst, true
}

// primaryAddress returns the address of a primary interface, which must be in its subnet;
// zero if EC2 chooses it.
func (n *network) primaryAddress(field, text, subnet string) netip.Addr {
	i, ok := n.byName[subnet]
	if !ok {
		return n.address(field, text, netip.Prefix{})
	}
	n.needed[i]++
	cidr := n.subnets[i].CIDR
	if !cidr.IsValid() && n.subnets[i].CIDR6.IsValid() {
		n.add(strings.TrimSuffix(field, "address")+"subnet", subnet, "is an IPv6-only subnet: the lab's machines need an IPv4 address")
	}
	a := n.address(field, text, cidr)
	if !a.IsValid() || !cidr.IsValid() {
		return a
	}
	if first, taken := n.setters[a]; taken {
		n.add(field, text, "already the address of %s", first)
	} else {
		n.setters[a] = strings.TrimSuffix(field, ".address")
	}
	if a.Compare(nth(cidr, 4)) < 0 || a == nth(cidr, 1<<(32-cidr.Bits())-1) {
		n.add(field, text, "EC2 reserves the first four and the last address of %s", cidr)
	}
	return a
}

// capacity reports subnets that are too small for the primary addresses.
func (n *network) capacity() {
	for i, sub := range n.subnets {
		if !sub.CIDR.IsValid() {
			continue
		}
		if free := 1<<(32-sub.CIDR.Bits()) - 5; n.needed[i] > free {
			n.add(fmt.Sprintf("subnets[%d].cidr", i), sub.CIDR.String(),
				"%d primary addresses are needed and it has %d (EC2 reserves five)", n.needed[i], free)
		}
	}
}

// zone reports a zone that is not one of the region.
func zone(p *problems, field, name, region string) {
	if suffix, ok := cutZone(name, region); !ok {
		p.add(field, name, "not a zone of %s: must be %sa to %sf (the suffix is %q)", region, region, region, suffix)
	}
}

// cutZone returns the suffix of a zone after its region; ok if it is a letter a–f.
func cutZone(zone, region string) (suffix string, ok bool) {
	if len(zone) <= len(region) || zone[:len(region)] != region {
		return zone, false
	}
	suffix = zone[len(region):]
	return suffix, len(suffix) == 1 && suffix[0] >= 'a' && suffix[0] <= 'f'
}
