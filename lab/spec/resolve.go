package spec

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

// Resolved is a validated lab with all defaults applied.
type Resolved struct {
	Name        string
	Cloud       cloud.Spec // initial state of the embedded EC2
	NoCloud     bool       // nodes reach neither EC2 nor instance metadata
	ServiceCIDR netip.Prefix
	// PodCIDR is the range of the nodes' pod CIDRs; invalid in a lab with a cloud.
	PodCIDR    netip.Prefix
	ClusterDNS netip.Addr
	APIPort    int // 0: any free port
	Nodes      []ResolvedNode
	Faults     faults.Plan
}

// ResolvedNode is the Kubernetes node of the instance with the same name in Cloud.
type ResolvedNode struct {
	Name      string
	Namespace string // network namespace
	Type      string
	Subnet    string
	Cgroup    string // v1 or v2
	Labels    map[string]string
	MaxPods   int
}

// ControlPlaneHost is the name of the control plane in Resolved.Cloud.Hosts.
const ControlPlaneHost = "control-plane"

// targetInternet is the internet gateway as the target of a route.
const targetInternet = "igw"

// AWS's formats of region names, instance types, and the descriptions of security groups
// and rules. Source: EC2 API reference, CreateSecurityGroup.
var (
	regionName  = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]$`)
	typeName    = regexp.MustCompile(`^[a-z0-9-]+\.[a-z0-9-]+$`)
	description = regexp.MustCompile(`^[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}$`)
)

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

// Resolve applies defaults and validates s. It returns the lab, or all problems joined;
// each is a Problem.
func (s Spec) Resolve() (Resolved, error) {
	s = s.withDefaults()
	r := resolver{spec: s, out: Resolved{Name: s.Name}, owners: map[netip.Addr]string{}}
	r.account()
	r.network()
	r.subnets()
	r.routeTables()
	r.groups()
	r.cluster()
	r.hosts()
	r.nodes()
	r.capacity()
	r.faults()
	if err := r.err(); err != nil {
		return Resolved{}, err
	}
	if _, err := cloud.New(r.out.Cloud, cloud.Options{}); err != nil {
		return Resolved{}, fmt.Errorf("create the embedded EC2 for this lab: %w", err)
	}
	return r.out, nil
}

// resolver is the state of one Resolve.
type resolver struct {
	problems
	spec Spec
	out  Resolved

	vpcCIDR     netip.Prefix
	subnetCIDRs []netip.Prefix // by index; zero if invalid
	subnetSet   map[string]int
	tableSet    map[string]int
	groupSet    map[string]int
	used        []int                 // primary addresses needed, by subnet
	owners      map[netip.Addr]string // field that sets an address
	limits      map[string]vpc.Limits
}

func (r *resolver) account() {
	s, c := r.spec, &r.out.Cloud
	r.label("name", s.Name, true)
	if !regionName.MatchString(s.Region) {
		r.add("region", s.Region, "must be the name of a region such as %s", DefaultRegion)
	}
	if len(s.Account) != 12 || !isDigits(s.Account) {
		r.add("account", s.Account, "must be twelve digits in quotes, such as %q", DefaultAccount)
	}
	if s.Cloud != CloudAWS && s.Cloud != CloudNone {
		r.add("cloud", s.Cloud, "must be %s or %s", CloudAWS, CloudNone)
	}
	r.out.NoCloud = s.Cloud == CloudNone
	c.Region, c.Account, c.Seed = s.Region, s.Account, s.Seed
	r.quotas()
	r.limits = builtinTypes()
	c.Limits = r.instanceTypes(s.InstanceTypes)
	maps.Copy(r.limits, c.Limits)
}

func (r *resolver) quotas() {
	q := r.spec.Quotas
	for field, v := range map[string]int{
		"quotas.routesPerTable": q.RoutesPerTable, "quotas.rulesPerGroup": q.RulesPerGroup,
		"quotas.groupsPerInterface": q.GroupsPerInterface, "quotas.interfaces": q.Interfaces,
	} {
		if v < 0 {
			r.add(field, strconv.Itoa(v), "must not be negative; leave it out for EC2's default")
		}
	}
	if q.GroupsPerInterface > 16 {
		r.add("quotas.groupsPerInterface", strconv.Itoa(q.GroupsPerInterface), "must not exceed 16, EC2's maximum")
	}
	r.out.Cloud.Quotas = cloud.Quotas{
		RoutesPerTable: q.RoutesPerTable, RulesPerGroup: q.RulesPerGroup,
		GroupsPerInterface: q.GroupsPerInterface, Interfaces: q.Interfaces,
	}
}

func (r *resolver) network() {
	s, v := r.spec, &r.out.Cloud.VPC
	v.Name = s.Name
	v.InternetGateway = *s.VPC.InternetGateway
	if cidr, ok := r.prefix4("vpc.cidr", s.VPC.CIDR, 16, 28); ok {
		r.vpcCIDR = cidr
		v.CIDRs = []netip.Prefix{cidr}
		r.clearOfPlatform("vpc.cidr", cidr)
	}
	if cidr6, ok := r.prefix6("vpc.cidr6", s.VPC.CIDR6, 56); ok {
		v.CIDR6 = cidr6
	}
}

func (r *resolver) clearOfPlatform(field string, p netip.Prefix) {
	ranges := platformRanges()
	for _, what := range slices.Sorted(maps.Keys(ranges)) {
		if ranges[what].Overlaps(p) {
			r.add(field, p.String(), "overlaps %s, which holds %s", ranges[what], what)
		}
	}
}

func (r *resolver) subnets() {
	s := r.spec
	if len(s.Subnets) == 0 && r.vpcCIDR.IsValid() {
		r.add("subnets", "", "must not be empty; omit the field to get three zones in a VPC of /%d or larger", smallestCut)
	}
	r.subnetSet = names(&r.problems, "subnets", s.Subnets, func(e Subnet) string { return e.Name })
	r.tableSet = names(&r.problems, "routeTables", s.RouteTables, func(e RouteTable) string { return e.Name })
	r.subnetCIDRs = make([]netip.Prefix, len(s.Subnets))
	r.used = make([]int, len(s.Subnets))
	for i, sub := range s.Subnets {
		r.subnet(i, sub)
	}
}

func (r *resolver) subnet(i int, sub Subnet) {
	field := fmt.Sprintf("subnets[%d].", i)
	r.label(field+"name", sub.Name, true)
	zone, ok := cutZone(sub.Zone, r.spec.Region)
	if !ok {
		r.add(field+"zone", sub.Zone, "not a zone of %s: must be %sa to %sf (the suffix is %q)",
			r.spec.Region, r.spec.Region, r.spec.Region, zone)
	}
	if sub.RouteTable != "" {
		known(&r.problems, field+"routeTable", sub.RouteTable, "routeTables", r.tableSet)
	}
	out := cloud.SubnetSpec{
		Name: sub.Name, Zone: sub.Zone, RouteTable: sub.RouteTable, Public: *sub.Public,
	}
	if cidr, ok := r.prefix4(field+"cidr", sub.CIDR, 16, 28); ok {
		r.subnetInside(i, cidr)
		out.CIDR = cidr
	}
	if cidr6, ok := r.prefix6(field+"cidr6", sub.CIDR6, 64); ok {
		out.CIDR6, out.AssignIPv6 = cidr6, true
		r.subnetInside6(i, cidr6)
	}
	if *sub.Public && !*r.spec.VPC.InternetGateway {
		r.add(field+"public", "true", "the VPC has no internet gateway (vpc.internetGateway is false)")
	}
	r.out.Cloud.Subnets = append(r.out.Cloud.Subnets, out)
}

func (r *resolver) subnetInside(i int, cidr netip.Prefix) {
	field := fmt.Sprintf("subnets[%d].cidr", i)
	if r.vpcCIDR.IsValid() && (!r.vpcCIDR.Contains(cidr.Addr()) || cidr.Bits() < r.vpcCIDR.Bits()) {
		r.add(field, cidr.String(), "outside vpc.cidr %s", r.vpcCIDR)
	}
	for j, other := range r.subnetCIDRs[:i] {
		if other.IsValid() && other.Overlaps(cidr) {
			r.add(field, cidr.String(), "overlaps subnets[%d] %s (%s)", j, r.spec.Subnets[j].Name, other)
		}
	}
	r.subnetCIDRs[i] = cidr
}

func (r *resolver) subnetInside6(i int, cidr netip.Prefix) {
	field := fmt.Sprintf("subnets[%d].cidr6", i)
	switch whole := r.out.Cloud.VPC.CIDR6; {
	case !whole.IsValid():
		r.add(field, cidr.String(), "the VPC has no IPv6 range (vpc.cidr6)")
	case !whole.Contains(cidr.Addr()):
		r.add(field, cidr.String(), "outside vpc.cidr6 %s", whole)
	}
	for j, other := range r.out.Cloud.Subnets {
		if other.CIDR6.IsValid() && other.CIDR6.Overlaps(cidr) {
			r.add(field, cidr.String(), "overlaps subnets[%d] %s (%s)", j, other.Name, other.CIDR6)
		}
	}
}

func (r *resolver) routeTables() {
	mains := 0
	for i, t := range r.spec.RouteTables {
		field := fmt.Sprintf("routeTables[%d].", i)
		r.label(field+"name", t.Name, true)
		if t.Main {
			mains++
		}
		out := cloud.RouteTableSpec{Name: t.Name, Main: t.Main}
		for j, route := range t.Routes {
			at := fmt.Sprintf("%sroutes[%d].", field, j)
			if route.Target != targetInternet {
				r.add(at+"target", route.Target, "must be %q; routes to interfaces can be created while the lab runs (CreateRoute)", targetInternet)
			} else if !*r.spec.VPC.InternetGateway {
				r.add(at+"target", route.Target, "the VPC has no internet gateway (vpc.internetGateway is false)")
			}
			if dst, ok := r.destination(at+"destination", route.Destination, out.Routes); ok {
				out.Routes = append(out.Routes, cloud.RouteSpec{Destination: dst, Gateway: targetInternet})
			}
		}
		r.out.Cloud.RouteTables = append(r.out.Cloud.RouteTables, out)
	}
	if mains > 1 {
		r.add("routeTables", "", "%d tables have main: true; a VPC has one main table", mains)
	}
}

// destination parses a route's destination, which must be unique in its table and
// outside the VPC.
func (r *resolver) destination(field, text string, others []cloud.RouteSpec) (_ netip.Prefix, ok bool) {
	dst, ok := r.prefix(field, text)
	if !ok {
		return dst, false
	}
	if slices.ContainsFunc(others, func(o cloud.RouteSpec) bool { return o.Destination == dst }) {
		r.add(field, text, "duplicate: this table already has a route to it")
	}
	for _, local := range []netip.Prefix{r.vpcCIDR, r.out.Cloud.VPC.CIDR6} {
		if local.IsValid() && local.Overlaps(dst) && dst.Bits() >= local.Bits() {
			r.add(field, text, "inside the VPC (%s), to which every table has a local route", local)
		}
	}
	return dst, true
}

// builtinTypes returns the instance types of the embedded EC2.
func builtinTypes() map[string]vpc.Limits {
	empty, err := cloud.New(cloud.Spec{
		Region: DefaultRegion, Account: DefaultAccount,
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix(DefaultCIDR)}},
	}, cloud.Options{})
	if err != nil {
		return map[string]vpc.Limits{} // every type is then reported as unknown
	}
	return maps.Clone(empty.TypeLimits())
}

// cutZone returns the suffix of a zone after its region; ok if it is a letter a–f.
func cutZone(zone, region string) (suffix string, ok bool) {
	if len(zone) <= len(region) || zone[:len(region)] != region {
		return zone, false
	}
	suffix = zone[len(region):]
	return suffix, len(suffix) == 1 && suffix[0] >= 'a' && suffix[0] <= 'f'
}

func isDigits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
