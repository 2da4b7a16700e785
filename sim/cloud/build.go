package cloud

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// defaultGroup is the name of the group that EC2 creates with every VPC.
const defaultGroup = "default"

// New makes the account that a Spec describes. Its errors name the invalid part of
// the Spec.
func New(spec Spec, opts Options) (*Cloud, error) {
	c := &Cloud{
		now: opts.Now, instant: opts.Instant, detach: opts.DetachTime,
		rng:      rand.New(rand.NewPCG(spec.Seed, 0x7472756e6b6c696e)),
		watchers: map[chan struct{}]struct{}{},
		types:    typeLimits(),
	}
	if c.now == nil {
		c.now = time.Now
	}
	for name, l := range spec.Limits {
		c.types[name] = l
	}
	s := &State{
		Region: spec.Region, Account: spec.Account, Quotas: spec.Quotas.withDefaults(),
		Subnets: map[vpc.SubnetID]*Subnet{}, RouteTables: map[vpc.RouteTableID]*RouteTable{},
		Groups: map[vpc.SecurityGroupID]*Group{}, Instances: map[vpc.InstanceID]*Instance{},
		Hosts: map[string]*Host{}, Interfaces: map[vpc.ENIID]*Interface{},
		Addresses: map[AllocationID]*Address{}, Permissions: map[string]*Permission{},
	}
	b := builder{&change{State: s, cloud: c, now: c.now()}}
	if err := b.build(spec); err != nil {
		return nil, err
	}
	c.publish(s, b.now)
	return c, nil
}

// builder is the first change of an account: it makes what a Spec describes, and
// resolves the names by which the parts of a Spec refer to one another.
type builder struct{ *change }

// build fills an empty account. IDs are drawn in the order of the Spec.
func (b builder) build(spec Spec) error {
	stages := []func() error{
		func() error { return checkIdentity(spec) },
		func() error { return b.addVPC(spec.VPC) },
		func() error { return b.addTables(spec.RouteTables) },
		func() error {
			return each("subnet", spec.Subnets, func(n SubnetSpec) string { return n.Name }, b.addSubnet)
		},
		func() error { return b.addGroups(spec.Groups) },
		func() error {
			return each("instance", spec.Instances, func(n InstanceSpec) string { return n.Name }, b.addInstance)
		},
		func() error {
			return each("host", spec.Hosts, func(h HostSpec) string { return h.Name }, b.addHost)
		},
		func() error {
			return each("elastic address", spec.Addresses, func(a AddressSpec) string { return a.Name }, b.addAddress)
		},
	}
	for _, stage := range stages {
		if err := stage(); err != nil {
			return err
		}
	}
	return nil
}

func (b builder) addInstance(spec InstanceSpec) error {
	_, err := b.launch(spec)
	return err
}

// each builds the parts of one kind, refuses duplicate names, and names the part in
// each error.
func each[T any](kind string, parts []T, name func(T) string, build func(T) error) error {
	seen := map[string]bool{}
	for _, p := range parts {
		if seen[name(p)] {
			return fmt.Errorf("%s %q: the name is given twice", kind, name(p))
		}
		seen[name(p)] = true
		if err := build(p); err != nil {
			return fmt.Errorf("%s %q: %w", kind, name(p), err)
		}
	}
	return nil
}

func checkIdentity(spec Spec) error {
	if spec.Region == "" {
		return errors.New("region: missing")
	}
	if len(spec.Account) != 12 {
		return fmt.Errorf("account %q: want twelve digits", spec.Account)
	}
	return nil
}

func (b builder) addVPC(spec VPCSpec) error {
	if len(spec.CIDRs) == 0 {
		return errors.New("vpc: no CIDR")
	}
	for _, p := range spec.CIDRs {
		if !p.Addr().Is4() || p != p.Masked() || p.Bits() < 16 || p.Bits() > 28 {
			return fmt.Errorf("vpc: CIDR %s: want an IPv4 network between /16 and /28", p)
		}
	}
	if spec.CIDR6.IsValid() && (spec.CIDR6.Bits() != 56 || spec.CIDR6 != spec.CIDR6.Masked()) {
		return fmt.Errorf("vpc: CIDR %s: want an IPv6 /56", spec.CIDR6)
	}
	b.VPC = VPC{ID: vpc.ID(b.newID("vpc-")), CIDRs: spec.CIDRs, CIDR6: spec.CIDR6, Tags: Tags{}}
	if spec.InternetGateway {
		b.Gateway, b.GatewayTags = vpc.GatewayID(b.newID("igw-")), Tags{}
	}
	return nameTags(b.VPC.Tags, spec.Name, spec.Tags)
}

func (b builder) addTables(specs []RouteTableSpec) error {
	tables := slices.Clone(specs)
	if len(tables) == 0 {
		tables = []RouteTableSpec{{Name: "main", Main: true}}
	}
	main := 0
	for n, t := range tables {
		if t.Main {
			main = n
		}
	}
	for n := range tables {
		tables[n].Main = n == main
	}
	return each("route table", tables, func(t RouteTableSpec) string { return t.Name }, b.addTable)
}

func (b builder) addTable(spec RouteTableSpec) error {
	t := &RouteTable{
		ID: vpc.RouteTableID(b.newID("rtb-")), Name: spec.Name, Main: spec.Main, Routes: localRoutes(b.VPC), Tags: Tags{},
	}
	for _, r := range spec.Routes {
		if r.Gateway != "igw" {
			return fmt.Errorf("route %s: target %q: want igw", r.Destination, r.Gateway)
		}
		if b.Gateway == "" {
			return fmt.Errorf("route %s: the VPC has no internet gateway", r.Destination)
		}
		t.Routes = append(t.Routes, Route{Destination: r.Destination.Masked(), Gateway: b.Gateway, Origin: "CreateRoute"})
	}
	b.RouteTables[t.ID] = t
	return nameTags(t.Tags, spec.Name, spec.Tags)
}

func (b builder) addSubnet(spec SubnetSpec) error {
	n := &Subnet{
		ID: vpc.SubnetID(b.newID("subnet-")), Name: spec.Name, Zone: spec.Zone,
		CIDR: spec.CIDR, CIDR6: spec.CIDR6, Public: spec.Public, AssignIPv6: spec.AssignIPv6 || !spec.CIDR.IsValid(), Tags: Tags{},
	}
	if n.CIDR.IsValid() || !n.CIDR6.IsValid() {
		if err := checkRange4(n.CIDR, b.VPC); err != nil {
			return err
		}
	}
	if err := errors.Join(checkRange6(n.CIDR6, b.VPC), checkOverlap(n, b.Subnets)); err != nil {
		return err
	}
	if len(spec.Zone) != len(b.Region)+1 || spec.Zone[:len(b.Region)] != b.Region {
		return fmt.Errorf("zone %q: want %s and one letter", spec.Zone, b.Region)
	}
	for _, t := range Sorted(b.RouteTables) {
		if t.Name == spec.RouteTable || (spec.RouteTable == "" && t.Main) {
			n.Table = t.ID
		}
	}
	if n.Table == "" {
		return fmt.Errorf("route table %q: no such table", spec.RouteTable)
	}
	if spec.RouteTable != "" {
		n.Association = RouteAssociationID("rtbassoc-" + n.ID[len("subnet-"):])
	}
	b.Subnets[n.ID] = n
	return nameTags(n.Tags, spec.Name, spec.Tags)
}

// checkRange4 refuses a subnet's IPv4 range that is outside its VPC.
func checkRange4(p netip.Prefix, in VPC) error {
	if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() || p.Bits() > 28 {
		return fmt.Errorf("CIDR %s: want an IPv4 network between /16 and /28", p)
	}
	for _, whole := range in.CIDRs {
		if whole.Contains(p.Addr()) && whole.Bits() <= p.Bits() {
			return nil
		}
	}
	return fmt.Errorf("CIDR %s: outside the VPC", p)
}

// checkRange6 refuses an IPv6 range that is not a /64 of the VPC's.
func checkRange6(p netip.Prefix, in VPC) error {
	if p.IsValid() && (p.Bits() != 64 || p != p.Masked() || !in.CIDR6.IsValid() || !in.CIDR6.Contains(p.Addr())) {
		return fmt.Errorf("CIDR %s: want a /64 of the VPC's IPv6 range", p)
	}
	return nil
}

// checkOverlap refuses a subnet that overlaps another one.
func checkOverlap(n *Subnet, others map[vpc.SubnetID]*Subnet) error {
	for _, o := range others {
		for _, pair := range [][2]netip.Prefix{{o.CIDR, n.CIDR}, {o.CIDR6, n.CIDR6}} {
			if pair[0].IsValid() && pair[1].IsValid() && pair[0].Overlaps(pair[1]) {
				return fmt.Errorf("CIDR %s: overlaps subnet %q (%s)", pair[1], o.Name, pair[0])
			}
		}
	}
	return nil
}

// addGroups makes all groups before their rules, because rules refer to groups by
// name.
func (b builder) addGroups(specs []GroupSpec) error {
	all := []GroupSpec{{Name: defaultGroup, Description: "default VPC security group", Ingress: []RuleSpec{
		{Protocol: "-1", Groups: []string{defaultGroup}},
	}}}
	for _, g := range specs {
		if g.Name == defaultGroup {
			g.Description = all[0].Description
			all[0] = g
			continue
		}
		all = append(all, g)
	}
	name := func(g GroupSpec) string { return g.Name }
	err := each("group", all, name, func(g GroupSpec) error {
		made := &Group{ID: vpc.SecurityGroupID(b.newID("sg-")), Name: g.Name, Description: g.Description, Tags: Tags{}}
		b.Groups[made.ID] = made
		return mergeTags(made.Tags, g.Tags)
	})
	if err != nil {
		return err
	}
	return each("group", all, name, b.addRules)
}

func (b builder) addRules(spec GroupSpec) error {
	g := b.GroupNamed(spec.Name)
	if spec.Egress == nil {
		spec.Egress = []RuleSpec{{Protocol: "-1", CIDRs: everywhere(b.VPC)}}
	}
	for d, specs := range map[Direction][]RuleSpec{Ingress: spec.Ingress, Egress: spec.Egress} {
		rules, err := b.rulesOf(specs)
		if err != nil {
			return err
		}
		*g.rules(d) = rules
	}
	for n := range g.Ingress {
		g.Ingress[n].ID = b.newID("sgr-")
	}
	for n := range g.Egress {
		g.Egress[n].ID = b.newID("sgr-")
	}
	return nil
}

func (b builder) rulesOf(specs []RuleSpec) ([]Rule, error) {
	var out []Rule
	for _, s := range specs {
		r := Rule{From: s.From, To: s.To, Note: s.Note}
		var err error
		if r.Protocol, err = ParseProtocol(s.Protocol); err != nil {
			return nil, err
		}
		if (r.Protocol == protocolTCP || r.Protocol == protocolUDP) && r.From == -1 && r.To == -1 {
			r.From, r.To = 0, 65535
		}
		if r, err = r.withPorts(); err != nil {
			return nil, err
		}
		for _, p := range s.CIDRs {
			r.Peer = p.Masked()
			out = append(out, r)
		}
		r.Peer = netip.Prefix{}
		for _, name := range s.Groups {
			peer := b.GroupNamed(name)
			if peer == nil {
				return nil, fmt.Errorf("rule: group %q: no such group", name)
			}
			r.Group = peer.ID
			out = append(out, r)
		}
	}
	return out, nil
}

func (b builder) addHost(spec HostSpec) error {
	n := b.SubnetNamed(spec.Subnet)
	if n == nil {
		return KindSubnet.NotFound(spec.Subnet)
	}
	groups, err := b.groupIDs(spec.Groups)
	if err != nil {
		return err
	}
	i, err := b.createInterface(NewInterface{
		Subnet: n.ID, Groups: groups, Primary: spec.Address, Type: spec.Type,
		Description: spec.Description, Tags: spec.Tags,
	})
	if err != nil {
		return err
	}
	b.Hosts[spec.Name] = &Host{Name: spec.Name, Namespace: spec.Namespace}
	i.Requester = Requester{ID: cmp.Or(spec.Requester, requester(b.newID(""))), Managed: true, Operator: spec.Operator}
	if spec.Type == typeNATGateway {
		i.Groups, i.SourceDestCheck = nil, false
	}
	i.Attachment = &Attachment{
		ID: vpc.AttachmentID(b.newID("ela-attach-")), Host: spec.Name, DeviceIndex: 1,
		Status: Attaching, Since: b.now,
	}
	if b.cloud.instant || spec.Namespace == "" {
		i.Attachment.Status = Attached
	}
	return nil
}

// typeNATGateway is the type of a NAT gateway's interface, which has no groups and no source
// and destination check.
const typeNATGateway vpc.InterfaceType = "nat_gateway"

// addAddress allocates an elastic address and associates it with a machine.
func (b builder) addAddress(spec AddressSpec) error {
	a, err := allocate(b.change, Tags{})
	if err != nil {
		return err
	}
	if err := nameTags(a.Tags, spec.Name, spec.Tags); err != nil || spec.Of == "" {
		return err
	}
	i := b.HostInterface(spec.Of)
	if n := b.InstanceNamed(spec.Of); n != nil {
		i = b.Primary(n.ID)
	}
	if i == nil {
		return fmt.Errorf("%q: no such instance or host", spec.Of)
	}
	_, err = associateAddress(b.change, Association{Address: a.ID, Interface: i.ID})
	return err
}

// requester makes the principal id of the AWS service that made an interface.
func requester(digits string) string {
	return "AROA" + strings.ToUpper(digits[1:]) + ":AmazonEKS"
}
