package hostnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// State is the network of a node, desired or actual. It is a value: make a new one
// for every change.
//
// Every object carries a mark of its owner. Ours are routes and rules with
// RouteProtocol, links with an alias that begins with LinkAliasPrefix or in a group of
// ours, and the addresses and permanent neighbours on such links. Diff never changes
// any other object.
type State struct {
	Links      []Link // of an actual state, ordered by age
	Addresses  []Address
	Routes     []Route
	Rules      []Rule
	Neighbours []Neighbour
	Sysctls    []Sysctl
	// Local, in an actual state, are the routes by which the kernel delivers packets to the
	// node itself: one for each address on a link. See Diff.
	Local []Route
	// Absent, in a desired state, are routes that must not exist although the kernel
	// made them: the subnet route of a secondary ENI.
	Absent []Route
	// Moved, in a desired state, are rules of the kernel that must not exist, because rules of
	// the same state take their place: see ForStrict.
	Moved []Rule
	// Leave, in a desired state, are addresses on our links that another program
	// configured: Diff neither adds nor deletes them, because it would do so again.
	Leave []Address
}

// Admin is the administrative state of a link.
type Admin uint8

// Administrative states. AdminAny, in a desired state, leaves it unchanged.
const (
	AdminAny Admin = iota
	AdminUp
	AdminDown
)

func (a Admin) String() string {
	switch a {
	case AdminUp:
		return "up"
	case AdminDown:
		return "down"
	default:
		return "any"
	}
}

// Link is a network interface. Diff changes links and deletes them; it never
// creates one, for the other end is in a namespace that only CNI ADD holds.
type Link struct {
	Name  string
	MAC   vpc.MAC // in a desired link, zero: any
	MTU   int     // bytes; in a desired link, zero: any
	Admin Admin
	Alias string // in a desired link, empty: any
	Group uint32 // in a desired link, zero: any
	// Pending, in a desired link: its ADD is in flight, so it may not exist yet.
	Pending bool
}

// Ours reports whether Trunkline created or adopted the link.
func (l Link) Ours() bool {
	return strings.HasPrefix(l.Alias, LinkAliasPrefix) || l.Group == LinkGroupPod || l.Dying()
}

// Dying reports whether the link waits to be deleted.
func (l Link) Dying() bool { return l.Group == LinkGroupTrash || l.Group == LinkGroupDying }

func (l Link) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "link %s", l.Name)
	if l.MAC != (vpc.MAC{}) {
		fmt.Fprintf(&b, " address %s", l.MAC)
	}
	if l.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", l.MTU)
	}
	if l.Admin != AdminAny {
		fmt.Fprintf(&b, " %s", l.Admin)
	}
	if l.Alias != "" {
		fmt.Fprintf(&b, " alias %q", l.Alias)
	}
	return b.String()
}

// Address is an address on a link. It is ours when its link is.
type Address struct {
	Link   string
	Prefix netip.Prefix // address with the prefix length of its subnet
	// NoPrefixRoute keeps the kernel from making a route to the subnet.
	NoPrefixRoute bool
}

func (a Address) String() string {
	s := fmt.Sprintf("address %s dev %s", a.Prefix, a.Link)
	if a.NoPrefixRoute {
		s += " noprefixroute"
	}
	return s
}

// Scope is the scope of a route. The kernel stores it for IPv4 only.
type Scope uint8

// Scopes: behind a gateway, or on the link itself.
const (
	ScopeGlobal Scope = iota
	ScopeLink
)

// Protocols of routes and rules of other owners.
const (
	ProtocolUnspecified = 0 // given by no owner, as AWS's plugin makes rules (RTPROT_UNSPEC)
	ProtocolKernel      = 2 // made by the kernel with an address (RTPROT_KERNEL)
	ProtocolBoot        = 3 // given by no owner, as AWS's plugin makes routes (RTPROT_BOOT)
)

// Route is a route. Table, destination and metric identify it in the kernel.
type Route struct {
	Table    uint32
	To       netip.Prefix
	Via      netip.Addr // zero: no gateway
	Link     string
	Scope    Scope
	Metric   uint32
	Protocol uint8
}

// Ours reports whether the route carries our protocol number.
func (r Route) Ours() bool { return r.Protocol == RouteProtocol }

func (r Route) String() string {
	var b strings.Builder
	to := r.To.String()
	if r.To.Bits() == 0 {
		to = "default"
		if r.To.Addr().Is6() {
			to = "default(6)"
		}
	}
	fmt.Fprintf(&b, "route %s", to)
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	fmt.Fprintf(&b, " dev %s table %s", r.Link, tableName(r.Table))
	if r.Scope == ScopeLink {
		b.WriteString(" scope link")
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	fmt.Fprintf(&b, " proto %d", r.Protocol)
	return b.String()
}

// Rule is a policy routing rule. All its fields together identify it.
type Rule struct {
	Family   vpc.Family
	Priority int
	From     netip.Prefix // zero: any
	To       netip.Prefix // zero: any
	Mark     uint32       // with Mask; zero: any
	Mask     uint32
	In       string // name of the link that packets arrive by; empty: any
	// IPProto is the protocol of packets, by its number; zero: any.
	IPProto  uint8
	Table    uint32
	Protocol uint8
}

// Ours reports whether the rule carries our protocol number.
func (r Rule) Ours() bool { return r.Protocol == RouteProtocol }

// ToPod reports whether the rule selects the route to a pod, ours or another CNI's.
func (r Rule) ToPod() bool { return r.Priority == RuleToPod && r.To.IsSingleIP() }

func (r Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d:", r.Priority)
	if r.From.IsValid() {
		fmt.Fprintf(&b, " from %s", r.From)
	} else {
		b.WriteString(" from all")
	}
	if r.To.IsValid() {
		fmt.Fprintf(&b, " to %s", r.To)
	}
	if r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x/%#x", r.Mark, r.Mask)
	}
	if r.In != "" {
		fmt.Fprintf(&b, " iif %s", r.In)
	}
	if r.IPProto != 0 {
		fmt.Fprintf(&b, " ipproto %d", r.IPProto)
	}
	fmt.Fprintf(&b, " lookup %s", tableName(r.Table))
	if r.Family == vpc.IPv6 && !r.From.IsValid() && !r.To.IsValid() {
		b.WriteString(" (ipv6)")
	}
	fmt.Fprintf(&b, " proto %d", r.Protocol)
	return b.String()
}

// Neighbour is a permanent neighbour entry. It is ours when its link is.
type Neighbour struct {
	Link    string
	Address netip.Addr
	MAC     vpc.MAC
}

func (n Neighbour) String() string {
	return fmt.Sprintf("neighbour %s lladdr %s dev %s permanent", n.Address, n.MAC, n.Link)
}

// Sysctl is a kernel setting.
type Sysctl struct {
	Name  string // as sysctl(8) has it, with slashes: "net/ipv4/ip_forward"
	Value string
	// AtLeast takes Value as the minimum, so that a value that the operator raised
	// is kept.
	AtLeast bool
	// Optional settings may be missing or unwritable: only the initial namespace has them, or only
	// a kernel with IPv6.
	Optional bool
	Why      string
}

func (s Sysctl) String() string { return fmt.Sprintf("sysctl %s=%s", s.Name, s.Value) }

// Join returns one state with the objects of all.
func Join(states ...State) State {
	var s State
	for _, o := range states {
		s.Links = append(s.Links, o.Links...)
		s.Addresses = append(s.Addresses, o.Addresses...)
		s.Routes = append(s.Routes, o.Routes...)
		s.Rules = append(s.Rules, o.Rules...)
		s.Neighbours = append(s.Neighbours, o.Neighbours...)
		s.Sysctls = append(s.Sysctls, o.Sysctls...)
		s.Local = append(s.Local, o.Local...)
		s.Absent = append(s.Absent, o.Absent...)
		s.Moved = append(s.Moved, o.Moved...)
		s.Leave = append(s.Leave, o.Leave...)
	}
	return s
}

// String lists the objects, one per line, sorted, in the syntax of ip(8).
func (s State) String() string {
	var lines []string
	for _, o := range s.Objects() {
		lines = append(lines, o.String())
	}
	for _, r := range s.Absent {
		lines = append(lines, "no "+r.String())
	}
	for _, r := range s.Moved {
		lines = append(lines, "no "+r.String())
	}
	slices.SortStableFunc(lines, func(a, b string) int { return cmp.Compare(firstWord(a), firstWord(b)) })
	return strings.Join(lines, "\n")
}

// On lists the addresses, neighbours and routes on a link.
func (s State) On(link string) (all []Object) {
	for _, a := range s.Addresses {
		if a.Link == link {
			all = append(all, a)
		}
	}
	for _, n := range s.Neighbours {
		if n.Link == link {
			all = append(all, n)
		}
	}
	for _, r := range s.Routes {
		if r.Link == link {
			all = append(all, r)
		}
	}
	return all
}

// Objects lists everything in the state but Local, Absent, Moved and Leave.
func (s State) Objects() []Object {
	var all []Object
	for _, l := range s.Links {
		all = append(all, l)
	}
	for _, a := range s.Addresses {
		all = append(all, a)
	}
	for _, n := range s.Neighbours {
		all = append(all, n)
	}
	for _, r := range s.Routes {
		all = append(all, r)
	}
	for _, r := range s.Rules {
		all = append(all, r)
	}
	for _, c := range s.Sysctls {
		all = append(all, c)
	}
	return all
}

func firstWord(s string) string {
	w, _, _ := strings.Cut(s, " ")
	return w
}

func tableName(t uint32) string {
	switch t {
	case TableMain:
		return "main"
	case TableLocal:
		return "local"
	}
	return fmt.Sprint(t)
}
