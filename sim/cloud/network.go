package cloud

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// VPCHandle adds parts to the VPC.
type VPCHandle struct {
	cloud *Cloud
	id    vpc.ID
}

// VPC returns the handle of a VPC, which need not exist.
func (c *Cloud) VPC(id vpc.ID) VPCHandle { return VPCHandle{c, id} }

// add runs fn if the VPC exists.
func (h VPCHandle) add(fn func(*change) error) error {
	return h.cloud.apply(func(ch *change) error {
		if ch.VPC.ID != h.id {
			return KindVPC.NotFound(string(h.id))
		}
		return fn(ch)
	})
}

// NewSubnet describes the subnet that CreateSubnet makes.
type NewSubnet struct {
	Zone  string       // empty: the first one that has a subnet
	CIDR  netip.Prefix // IPv4, or the zero prefix in an IPv6-only subnet
	CIDR6 netip.Prefix // a /64, or the zero prefix for none
	Tags  Tags
}

// CreateSubnet makes a subnet, which uses the main route table.
func (h VPCHandle) CreateSubnet(w NewSubnet) (*Subnet, error) {
	var made *Subnet
	err := h.add(func(ch *change) error {
		zones := ch.Zones()
		if w.Zone == "" {
			w.Zone = zones[0]
		}
		if !slices.Contains(zones, w.Zone) {
			return InvalidParameter("Value (%s) for parameter availabilityZone is invalid. "+
				"Subnets can currently only be created in the following availability zones: %s.", w.Zone, strings.Join(zones, ", "))
		}
		id := vpc.SubnetID(ch.newID("subnet-"))
		made = &Subnet{
			ID: id, Name: string(id), Zone: w.Zone, CIDR: w.CIDR, CIDR6: w.CIDR6, AssignIPv6: !w.CIDR.IsValid(),
			Table: mainTable(ch.State).ID, Tags: Tags{},
		}
		if err := checkNewSubnet(ch.State, made); err != nil {
			return err
		}
		ch.Subnets[id] = made
		return mergeTags(made.Tags, w.Tags)
	})
	return made, err
}

// Zones are the names of the region's zones: those of the subnets, and the first one if
// there are none.
func (s *State) Zones() []string {
	names := map[string]bool{}
	for _, n := range s.Subnets {
		names[n.Zone] = true
	}
	if len(names) == 0 {
		names[s.Region+"a"] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// checkNewSubnet refuses ranges with EC2's errors. Sources: EC2 API reference, "Error
// codes", InvalidSubnet.Range; github.com/hashicorp/terraform/issues/33470 on a conflict.
func checkNewSubnet(s *State, n *Subnet) error {
	outside := func(p netip.Prefix) error { return Errorf("InvalidSubnet.Range", "The CIDR '%s' is invalid.", p) }
	if n.CIDR.IsValid() && checkRange4(n.CIDR, s.VPC) != nil {
		return outside(n.CIDR)
	}
	if checkRange6(n.CIDR6, s.VPC) != nil {
		return outside(n.CIDR6)
	}
	for _, p := range []netip.Prefix{n.CIDR, n.CIDR6} {
		for _, o := range s.Subnets {
			if p.IsValid() && (o.CIDR.IsValid() && o.CIDR.Overlaps(p) || o.CIDR6.IsValid() && o.CIDR6.Overlaps(p)) {
				return Errorf("InvalidSubnet.Conflict", "The CIDR '%s' conflicts with another subnet", p)
			}
		}
	}
	return nil
}

// CreateRouteTable makes a route table with the VPC's local routes.
func (h VPCHandle) CreateRouteTable(tags Tags) (*RouteTable, error) {
	var made *RouteTable
	err := h.add(func(ch *change) error {
		made = &RouteTable{ID: vpc.RouteTableID(ch.newID("rtb-")), Routes: localRoutes(ch.VPC), Tags: Tags{}}
		ch.RouteTables[made.ID] = made
		return mergeTags(made.Tags, tags)
	})
	return made, err
}

// localRoutes are the routes inside the VPC, which every table has.
func localRoutes(v VPC) []Route {
	var out []Route
	for _, p := range v.ranges() {
		out = append(out, Route{Destination: p, Gateway: LocalGateway, Origin: "CreateRouteTable"})
	}
	return out
}

// ranges are the VPC's CIDRs of both families, the primary one first.
func (v VPC) ranges() []netip.Prefix {
	out := slices.Clone(v.CIDRs)
	if v.CIDR6.IsValid() {
		out = append(out, v.CIDR6)
	}
	return out
}

// AddCIDR adds an IPv4 range, which every route table routes locally.
func (h VPCHandle) AddCIDR(p netip.Prefix) error {
	return h.add(func(ch *change) error {
		if err := checkSecondary(ch.State, p); err != nil {
			return err
		}
		ch.VPC.CIDRs = append(slices.Clone(ch.VPC.CIDRs), p)
		routeLocally(ch, p)
		return nil
	})
}

// AddCIDR6 adds an IPv6 /56 from Amazon's pool, which every route table routes locally.
func (h VPCHandle) AddCIDR6() (netip.Prefix, error) {
	var added netip.Prefix
	err := h.add(func(ch *change) error {
		if ch.VPC.CIDR6.IsValid() {
			return tooManyCIDRs(ch.VPC.ID, 1)
		}
		r := ch.cloud.rng.Uint32()
		b := netip.MustParseAddr("2600:1f14::").As16()
		b[4], b[5], b[6] = byte(r>>16), byte(r>>8), byte(r)
		added = netip.PrefixFrom(netip.AddrFrom16(b), 56)
		ch.VPC.CIDR6 = added
		routeLocally(ch, added)
		return nil
	})
	return added, err
}

// routeLocally adds the local route of a new range to every route table, behind the other
// local ones.
func routeLocally(ch *change, p netip.Prefix) {
	for id, t := range ch.RouteTables {
		n := *t
		at := slices.IndexFunc(t.Routes, func(r Route) bool { return r.Gateway != LocalGateway })
		if at < 0 {
			at = len(t.Routes)
		}
		local := Route{Destination: p, Gateway: LocalGateway, Origin: "CreateRouteTable"}
		n.Routes = slices.Insert(slices.Clone(t.Routes), at, local)
		ch.RouteTables[id] = &n
	}
}

// tooManyCIDRs is EC2's error for one range more than a VPC takes. Source:
// github.com/getmoto/moto, tests/test_ec2/test_vpcs.py, which quotes the response.
func tooManyCIDRs(id vpc.ID, most int) error {
	return Errorf("CidrLimitExceeded", "This network '%s' has met its maximum number of allowed CIDRs: %d", id, most)
}

// checkSecondary refuses an IPv4 range that the VPC cannot have beside the others. The
// text for one that overlaps another is ours. Source: VPC user guide, "VPC CIDR blocks",
// which has the restrictions; the EKS user guide quotes the text for a restricted one.
func checkSecondary(s *State, p netip.Prefix) error {
	switch {
	case p.Bits() < 16 || p.Bits() > 28:
		return Errorf("InvalidVpc.Range", "The CIDR '%s' is invalid.", p)
	case len(s.VPC.CIDRs) >= s.Quotas.RangesPerVPC:
		return tooManyCIDRs(s.VPC.ID, s.Quotas.RangesPerVPC)
	case slices.ContainsFunc(s.VPC.CIDRs, p.Overlaps):
		return Errorf("CidrConflict", "The CIDR '%s' conflicts with another CIDR block of the VPC", p)
	}
	for _, block := range privateBlocks() {
		if block.Overlaps(p) && !block.Overlaps(s.VPC.CIDRs[0]) {
			return Errorf("InvalidVpc.Range", "The CIDR '%s' is restricted. Use a CIDR from the same private address range as the current VPC CIDR, "+
				"or use a publicly-routable CIDR. For additional restrictions, see "+
				"https://docs.aws.amazon.com/vpc/latest/userguide/VPC_Subnets.html#add-cidr-block-restrictions", p)
		}
	}
	for _, t := range s.RouteTables {
		if slices.ContainsFunc(t.Routes, func(r Route) bool { return p.Bits() <= r.Destination.Bits() && p.Contains(r.Destination.Addr()) }) {
			return Errorf("CidrConflict", "The CIDR '%s' is the destination of a route, or larger, in route table %s", p, t.ID)
		}
	}
	return nil
}

// privateBlocks are the ranges of RFC 1918: a VPC has addresses of one of them only.
func privateBlocks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	}
}
