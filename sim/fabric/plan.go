package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// plan is a State that was validated, indexed and translated to links, routes and
// neighbours. Pure.
type plan struct {
	state  State
	links  map[string]linkPlan // by the fabric end's name
	device map[vpc.ENIID]string
	subnet map[vpc.SubnetID]int // position in state.Subnets
	number map[vpc.SubnetID]int // of the subnet's route tables; see keepNumbers
	owner  map[netip.Prefix]vpc.ENIID
	branch map[PortKey]vpc.ENIID
	public []Public // of all ports
	// local are the addresses the fabric answers for: to solicitations of the VPC's router too.
	local map[netip.Addr]bool
	// gateways are the local addresses that only reply to pings.
	gateways []netip.Addr
}

// linkPlan is one port's link.
type linkPlan struct {
	port  Port
	name  string // of the fabric end
	trunk string // of a branch: the name of the trunk's fabric end; else empty
}

// alias identifies what the link was made for, so that a link of another port is
// replaced.
func (l linkPlan) alias() string {
	at := l.port.Device
	if l.trunk != "" {
		at = fmt.Sprintf("%s.%d", l.port.Key.ENI, l.port.Key.VLAN)
	}
	return fmt.Sprintf("%s%s %s %s", aliasPrefix, l.port.ID, l.port.MAC, at)
}

// deviceName is the fabric end's name: the id if it fits, else its last eleven
// digits. The kernel takes 15 bytes.
func deviceName(id vpc.ENIID) string {
	const longest = 15
	if len(id) <= longest {
		return string(id)
	}
	return "eni-" + string(id[len(id)-(longest-len("eni-")):])
}

// newPlan rejects an invalid State. It leaves out ports that cannot be wired and returns
// an error for each.
func newPlan(s State) (*plan, []*PortError, error) {
	p := &plan{
		state: s, links: map[string]linkPlan{}, device: map[vpc.ENIID]string{},
		subnet: map[vpc.SubnetID]int{}, number: map[vpc.SubnetID]int{}, owner: map[netip.Prefix]vpc.ENIID{}, local: map[netip.Addr]bool{vpcRouter6(): true},
		branch: map[PortKey]vpc.ENIID{},
	}
	for n, subnet := range s.Subnets {
		if _, twice := p.subnet[subnet.ID]; twice {
			return nil, nil, fmt.Errorf("state names subnet %s twice", subnet.ID)
		}
		p.subnet[subnet.ID], p.number[subnet.ID] = n, n
		for _, prefix := range subnet.Prefixes {
			p.addGateway(vpc.Gateway(prefix))
		}
	}
	for _, service := range s.Services {
		p.local[service.Address] = true
	}
	var refused []*PortError
	for _, port := range trunksFirst(s.Ports) {
		if err := p.addPort(port); err != nil {
			var contradiction *PortError
			if !errors.As(err, &contradiction) {
				return nil, nil, err
			}
			refused = append(refused, contradiction)
		}
	}
	return p, refused, p.disjoint()
}

// keepNumbers gives subnets the numbers that they had before, and the others the lowest free
// ones. With another number, a subnet would lose packets while its mark is that of a table
// which is not written yet.
func (p *plan) keepNumbers(before map[vpc.SubnetID]int) {
	used := map[int]bool{}
	for id := range p.number {
		if n, ok := before[id]; ok {
			used[n] = true
		}
	}
	next := 0
	for _, subnet := range p.state.Subnets {
		if n, ok := before[subnet.ID]; ok {
			p.number[subnet.ID] = n
			continue
		}
		for used[next] {
			next++
		}
		p.number[subnet.ID], used[next] = next, true
	}
}

func (p *plan) addGateway(a netip.Addr) {
	if !p.local[a] {
		p.local[a] = true
		p.gateways = append(p.gateways, a)
	}
}

// trunksFirst puts the ports with a VLAN after the others, because a branch's plan needs that
// of its trunk.
func trunksFirst(ports []Port) []Port {
	sorted := slices.Clone(ports)
	slices.SortStableFunc(sorted, func(a, b Port) int { return int(min(a.Key.VLAN, 1)) - int(min(b.Key.VLAN, 1)) })
	return sorted
}

// addPort plans one port. A *PortError concerns that port alone.
func (p *plan) addPort(port Port) error {
	if _, twice := p.device[port.ID]; twice {
		return fmt.Errorf("state names port %s twice", port.ID)
	}
	for _, prefix := range holdings(port) {
		if by, twice := p.owner[prefix]; twice {
			return fmt.Errorf("%s is held by both %s and %s", prefix, by, port.ID)
		}
		if p.local[prefix.Addr()] {
			return fmt.Errorf("%s of port %s is an address of the VPC itself", prefix, port.ID)
		}
		if !p.inside(prefix) {
			return fmt.Errorf("%s of port %s is outside the VPC's ranges %v", prefix, port.ID, p.state.CIDRs)
		}
		p.owner[prefix] = port.ID
	}
	if err := p.checkPublic(port); err != nil {
		return err
	}
	if err := p.wirable(port); err != nil {
		return &PortError{Port: port.ID, Err: err}
	}
	l := linkPlan{port: port, name: deviceName(port.ID)}
	if port.Key.VLAN != 0 {
		if by, twice := p.branch[port.Key]; twice {
			return fmt.Errorf("VLAN %d on %s is of both %s and %s", port.Key.VLAN, port.Key.ENI, by, port.ID)
		}
		p.branch[port.Key] = port.ID
		l.trunk = p.device[port.Key.ENI]
		l.port.Down = port.Down || p.links[l.trunk].port.Down
	}
	p.links[l.name] = l
	p.device[port.ID] = l.name
	p.public = append(p.public, port.Public...)
	return nil
}

// checkPublic rejects public addresses inside the VPC, and those of two private ones.
func (p *plan) checkPublic(port Port) error {
	for n, public := range port.Public {
		if a := public.Address; a.IsValid() && p.inside(netip.PrefixFrom(a, a.BitLen())) {
			return fmt.Errorf("the public address %s of port %s is inside the VPC's ranges %v", a, port.ID, p.state.CIDRs)
		}
		same := func(o Public) bool { return o.Private == public.Private || o.outside() == public.outside() }
		if slices.ContainsFunc(p.public, same) || slices.ContainsFunc(port.Public[:n], same) {
			return fmt.Errorf("%s of port %s is public as %s, which another private address is as well", public.Private, port.ID, public.outside())
		}
	}
	return nil
}

// ports are the identifiers of the ports by the fabric end's name.
func (p *plan) ports() map[string]vpc.ENIID {
	out := make(map[string]vpc.ENIID, len(p.device))
	for id, name := range p.device {
		out[name] = id
	}
	return out
}

// inside reports whether a prefix lies in the VPC.
func (p *plan) inside(prefix netip.Prefix) bool {
	return slices.ContainsFunc(p.state.CIDRs, func(cidr netip.Prefix) bool {
		return cidr.Contains(prefix.Addr()) && cidr.Bits() <= prefix.Bits()
	})
}

// disjoint rejects prefixes that overlap. In sorted order it is enough to compare each
// with the next.
func (p *plan) disjoint() error {
	held := slices.SortedFunc(maps.Keys(p.owner), func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	for n := 1; n < len(held); n++ {
		if a, b := held[n-1], held[n]; a.Overlaps(b) {
			return fmt.Errorf("%s of port %s overlaps %s of port %s", b, p.owner[b], a, p.owner[a])
		}
	}
	return nil
}

// wirable returns the reason why the port cannot be wired, if there is one.
func (p *plan) wirable(port Port) error {
	if err := p.reachable(port); err != nil {
		return err
	}
	if _, ok := p.subnet[port.Subnet]; !ok {
		return fmt.Errorf("subnet %s is not in the state", port.Subnet)
	}
	for _, id := range port.Groups {
		if !slices.ContainsFunc(p.state.Groups, func(g Group) bool { return g.ID == id }) {
			return fmt.Errorf("security group %s is not in the state", id)
		}
	}
	if other, taken := p.links[deviceName(port.ID)]; taken {
		return fmt.Errorf("its link name %s is that of %s", other.name, other.port.ID)
	}
	if port.Key.VLAN == 0 && (port.Guest == "" || port.Device == "" || strings.ContainsAny(port.Guest, "/\x00")) {
		return fmt.Errorf("guest %q, device %q: both are needed", port.Guest, port.Device)
	}
	return nil
}

// reachable refuses a port on a link that does not carry it.
func (p *plan) reachable(port Port) error {
	own := port.Key.ENI == "" || port.Key.ENI == port.ID
	switch {
	case own && port.Key.VLAN == 0:
		return nil
	case own:
		return fmt.Errorf("VLAN %d on its own link: a branch needs a trunk", port.Key.VLAN)
	case port.Key.VLAN == 0 || port.Key.VLAN > maxVLAN:
		return fmt.Errorf("VLAN %d on the link of %s: must be from 1 to %d", port.Key.VLAN, port.Key.ENI, maxVLAN)
	}
	if trunk, ok := p.links[p.device[port.Key.ENI]]; !ok || trunk.trunk != "" {
		return fmt.Errorf("VLAN %d on %s: %w", port.Key.VLAN, port.Key.ENI, ErrNoTrunk)
	}
	return nil
}

// holdings are all addresses of a port as prefixes, single ones in full length.
func holdings(port Port) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(port.Addresses)+len(port.Prefixes))
	for _, a := range port.Addresses {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, prefix := range port.Prefixes {
		out = append(out, prefix.Masked())
	}
	return out
}

// gatewayOf is the source address of the fabric's own packets to a port of the subnet.
func (p *plan) gatewayOf(id vpc.SubnetID, f vpc.Family) netip.Addr {
	for _, prefix := range p.state.Subnets[p.subnet[id]].Prefixes {
		if vpc.FamilyOf(prefix.Addr()) == f {
			return vpc.Gateway(prefix)
		}
	}
	return netip.Addr{}
}

// lengths of the prefixes that ports hold in a family, single addresses first. A set of
// masked addresses is a hash table; the kernel rebuilds an interval set at each change.
func (p *plan) lengths(f vpc.Family) []int {
	whole := addrBits(f)
	found := map[int]bool{whole: true}
	for held := range p.owner {
		if vpc.FamilyOf(held.Addr()) == f {
			found[held.Bits()] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(found))
	slices.Reverse(sorted)
	return sorted
}

// cidrs are the VPC's ranges of a family.
func (p *plan) cidrs(f vpc.Family) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range p.state.CIDRs {
		if vpc.FamilyOf(cidr.Addr()) == f {
			out = append(out, cidr)
		}
	}
	return out
}
