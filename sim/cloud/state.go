package cloud

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// State is the whole account at one moment. Neither it nor anything it points to is
// modified after Cloud published it, so readers need no lock and old States stay
// valid.
type State struct {
	Revision uint64
	Region   string
	Account  string
	Quotas   Quotas

	VPC         VPC
	Gateway     vpc.GatewayID // the internet gateway; empty is none
	Subnets     map[vpc.SubnetID]*Subnet
	RouteTables map[vpc.RouteTableID]*RouteTable
	Groups      map[vpc.SecurityGroupID]*Group
	Instances   map[vpc.InstanceID]*Instance
	Hosts       map[string]*Host // by name
	Interfaces  map[vpc.ENIID]*Interface
	Addresses   map[AllocationID]*Address
	Permissions map[string]*Permission // by id
	// GatewayTags are the tags of the internet gateway.
	GatewayTags Tags
}

// Tags of a resource.
type Tags map[string]string

// VPC is the account's VPC.
type VPC struct {
	ID    vpc.ID
	CIDRs []netip.Prefix // primary first
	CIDR6 netip.Prefix   // invalid when the VPC has none
	Tags  Tags
}

// Subnet is a range in one zone.
type Subnet struct {
	ID    vpc.SubnetID
	Name  string
	Zone  string
	CIDR  netip.Prefix // invalid in an IPv6-only subnet
	CIDR6 netip.Prefix // invalid when the subnet has none
	Table vpc.RouteTableID
	// Association of Table; empty if it is the main table by default.
	Association  RouteAssociationID
	Public       bool
	AssignIPv6   bool
	Reservations []Reservation
	Tags         Tags
}

// InstanceState is an instance's lifecycle state, as EC2 names it.
type InstanceState string

// Instance states. "pending" does not occur: the lab's machines are running from the
// start.
const (
	Running      InstanceState = "running"
	ShuttingDown InstanceState = "shutting-down"
	Terminated   InstanceState = "terminated"
	Stopped      InstanceState = "stopped"
)

// Instance is a virtual machine.
type Instance struct {
	ID        vpc.InstanceID
	Name      string
	Type      string
	Limits    vpc.Limits
	Subnet    vpc.SubnetID // a terminated instance's may not exist any more
	Zone      string
	State     InstanceState
	Role      string
	Namespace string
	Metadata  MetadataOptions
	Launched  time.Time
	// Reboots counts the requested reboots; sim/world compares it with the completed
	// ones.
	Reboots int
	// Protected instances cannot be terminated (disableApiTermination).
	Protected bool
	Tags      Tags
}

// Host is a machine operated by AWS that has an interface in the VPC.
type Host struct {
	Name      string
	Namespace string
}

// AttachmentStatus is the state of an attachment, as EC2 names it.
type AttachmentStatus string

// Attachment states.
const (
	Attaching AttachmentStatus = "attaching"
	Attached  AttachmentStatus = "attached"
	Detaching AttachmentStatus = "detaching"
)

// Attachment connects an interface to an instance or to a Host.
type Attachment struct {
	ID                  vpc.AttachmentID
	Instance            vpc.InstanceID // empty for a Host
	Host                string         // empty for an instance
	DeviceIndex         int
	NetworkCard         int
	Status              AttachmentStatus
	Since               time.Time // of the attach call
	Until               time.Time // detaching: when EC2 has detached it, see Options.DetachTime
	DeleteOnTermination bool
}

// Tracking is an interface's connection tracking configuration, in seconds;
// zero is EC2's default.
type Tracking struct {
	TCPEstablished, UDPStream, UDP int
}

// Requester is the caller that made an interface.
type Requester struct {
	ID string // the principal id
	// Managed interfaces are made by an AWS service; the account's users may not modify
	// them.
	Managed bool
	// Operator is the service provider that manages it since; empty without one.
	Operator string
}

// Interface is an elastic network interface (ENI).
type Interface struct {
	ID              vpc.ENIID
	Type            vpc.InterfaceType
	Subnet          vpc.SubnetID
	MAC             vpc.MAC
	Description     string
	IPv4            Assigned // the primary address is first; see PrimaryIPv4
	IPv6            Assigned
	Groups          []vpc.SecurityGroupID
	SourceDestCheck bool
	Requester       Requester
	Tracking        *Tracking
	Public          []PublicAddress // of its private addresses
	Attachment      *Attachment
	Trunk           *TrunkAssociation // of a branch; never together with Attachment
	Tags            Tags
}

// PrimaryIPv4 is the primary private address; invalid for an EFA-only interface and in an
// IPv6-only subnet.
func (i *Interface) PrimaryIPv4() netip.Addr {
	if len(i.IPv4.Addresses) == 0 {
		return netip.Addr{}
	}
	return i.IPv4.Addresses[0]
}

// Primary reports whether the attachment is that of an instance's primary interface.
func (a *Attachment) Primary() bool {
	return a.Instance != "" && a.DeviceIndex == 0 && a.NetworkCard == vpc.DefaultCard
}

// Status is the interface's status as EC2 names it: "available" or "in-use".
func (i *Interface) Status() string {
	if i.Attachment == nil && i.Trunk == nil {
		return "available"
	}
	return "in-use"
}

// Holds reports whether a is one of the interface's addresses or inside one of its
// delegated prefixes.
func (i *Interface) Holds(a netip.Addr) bool {
	return i.IPv4.holds(a) || i.IPv6.holds(a)
}

func (i *Interface) clone() *Interface {
	n := *i
	n.IPv4, n.IPv6 = i.IPv4.clone(), i.IPv6.clone()
	n.Groups = slices.Clone(i.Groups)
	n.Tags = maps.Clone(i.Tags)
	n.Public = slices.Clone(i.Public)
	if i.Attachment != nil {
		a := *i.Attachment
		n.Attachment = &a
	}
	if i.Trunk != nil {
		t := *i.Trunk
		n.Trunk = &t
	}
	return &n
}

// Sorted returns the values of m in the order of their keys, so that responses and
// goldens are deterministic.
func Sorted[K cmp.Ordered, V any](m map[K]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// InterfacesOf returns the interfaces of an instance in any attachment state, ordered by
// network card and device index: the primary one is the first.
func (s *State) InterfacesOf(id vpc.InstanceID) []*Interface {
	var out []*Interface
	for _, i := range s.Interfaces {
		if i.Attachment != nil && i.Attachment.Instance == id {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *Interface) int {
		return cmp.Or(
			cmp.Compare(a.Attachment.NetworkCard, b.Attachment.NetworkCard),
			cmp.Compare(a.Attachment.DeviceIndex, b.Attachment.DeviceIndex),
		)
	})
	return out
}

// Primary returns the primary interface of an instance, or nil.
func (s *State) Primary(id vpc.InstanceID) *Interface {
	for _, i := range s.InterfacesOf(id) {
		if i.Attachment.Primary() {
			return i
		}
	}
	return nil
}

// InstanceNamed returns the instance with a Spec name, or nil. The name of a
// terminated instance may be reused; the instance that is not terminated is
// preferred.
func (s *State) InstanceNamed(name string) *Instance {
	var found *Instance
	for _, i := range s.Instances {
		if i.Name == name && (found == nil || found.State == Terminated) {
			found = i
		}
	}
	return found
}

// SubnetNamed returns the subnet with a Spec name, or nil.
func (s *State) SubnetNamed(name string) *Subnet {
	for _, n := range s.Subnets {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// GroupNamed returns the group with a name, or nil.
func (s *State) GroupNamed(name string) *Group {
	for _, g := range s.Groups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// HostInterface returns the interface of a Host, or nil.
func (s *State) HostInterface(name string) *Interface {
	for _, i := range s.Interfaces {
		if i.Attachment != nil && i.Attachment.Host == name {
			return i
		}
	}
	return nil
}

// Owner returns the interface that holds a, or nil.
func (s *State) Owner(a netip.Addr) *Interface {
	for _, i := range s.Interfaces {
		if i.Holds(a) {
			return i
		}
	}
	return nil
}
