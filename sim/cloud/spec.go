package cloud

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Spec is the initial account as lab.yaml describes it, with names where EC2 has ids.
// Names are local to the Spec and become the objects' Name tags; New assigns the ids.
type Spec struct {
	Region  string // such as "us-west-2"
	Account string // twelve digits
	// Seed determines ids, MAC addresses and the choice of free addresses, so that
	// the same Spec and the same calls make the same world.
	Seed uint64

	VPC         VPCSpec
	Subnets     []SubnetSpec
	RouteTables []RouteTableSpec
	Groups      []GroupSpec
	Instances   []InstanceSpec
	Hosts       []HostSpec
	Addresses   []AddressSpec
	Quotas      Quotas
	// Limits adds instance types, or replaces those of the built-in table.
	Limits map[string]vpc.Limits
}

// VPCSpec is the one VPC of the account.
type VPCSpec struct {
	Name  string
	CIDRs []netip.Prefix // IPv4, the primary one first
	CIDR6 netip.Prefix   // a /56, or the zero prefix for none
	// InternetGateway attaches an internet gateway.
	InternetGateway bool
	Tags            map[string]string
}

// SubnetSpec is a subnet of one zone.
type SubnetSpec struct {
	Name       string
	Zone       string       // such as "us-west-2a"
	CIDR       netip.Prefix // IPv4, or the zero prefix in an IPv6-only subnet
	CIDR6      netip.Prefix // a /64, or the zero prefix for none
	RouteTable string       // by name; empty is the main table
	// Public routes the primary interface of an instance started here through the
	// internet gateway, as MapPublicIpOnLaunch does.
	Public bool
	// AssignIPv6 assigns an IPv6 address to every new interface, as
	// AssignIpv6AddressOnCreation does.
	AssignIPv6 bool
	Tags       map[string]string
}

// RouteTableSpec is a route table. The VPC's own CIDRs are routed "local" in every
// table and are not listed here. Exactly one table is Main; if none is marked, the
// first is.
type RouteTableSpec struct {
	Name   string
	Main   bool
	Routes []RouteSpec
	Tags   map[string]string
}

// RouteSpec is one route; Gateway is "igw" for the VPC's internet gateway.
type RouteSpec struct {
	Destination netip.Prefix
	Gateway     string
}

// GroupSpec is a security group.
type GroupSpec struct {
	Name        string
	Description string
	Ingress     []RuleSpec
	// Egress is the outbound traffic that the group allows; nil allows everything, as
	// a new group does on EC2. An empty non-nil list allows nothing.
	Egress []RuleSpec
	Tags   map[string]string
}

// RuleSpec allows a protocol and a port range from or to peers.
type RuleSpec struct {
	Protocol string // "tcp", "udp", "icmp", "icmpv6", a number, or "-1" for all
	From, To int    // ports, or ICMP type and code; -1 in both is all, other protocols ignore them
	CIDRs    []netip.Prefix
	Groups   []string // by name; a group may name itself
	Note     string
}

// InstanceSpec is a running instance with its primary interface.
type InstanceSpec struct {
	Name   string
	Type   string // such as "m5.xlarge"
	Subnet string // by name
	Groups []string
	// Address is the primary private address; if it is zero, EC2 chooses one.
	Address netip.Addr
	Role    string // IAM role of its instance profile; empty is none
	// Namespace is the network namespace of the guest, which holds its end of the
	// interfaces.
	Namespace string
	Metadata  MetadataOptions
	Tags      map[string]string
	// PrimaryType is the type of the primary interface; empty is vpc.TypeInterface.
	PrimaryType vpc.InterfaceType
	// Prefixes is how many IPv4 prefixes are delegated to the primary interface.
	Prefixes int
	// Interfaces are the others that it is launched with.
	Interfaces []LaunchInterface
}

// LaunchInterface is an interface that an instance is launched with beside the primary one,
// in the same subnet and groups. EC2 attaches EFAs at launch or to a stopped instance only.
type LaunchInterface struct {
	Card, Device int
	Type         vpc.InterfaceType // empty: vpc.TypeInterface
	Addresses    int               // secondary IPv4 addresses
	Prefixes     int               // delegated IPv4 prefixes
	Tags         map[string]string
}

// HostSpec is a machine operated by AWS that has an interface in the VPC without
// being one of the account's instances, such as the control plane of an EKS cluster, a
// NAT gateway or a Lambda function.
type HostSpec struct {
	Name        string
	Subnet      string // by name
	Groups      []string
	Address     netip.Addr // zero: EC2 chooses
	Namespace   string     // see InstanceSpec.Namespace; empty: the fabric does not have it
	Description string     // such as "Amazon EKS trunkline-lab"
	// Type of the interface, such as nat_gateway or lambda; empty is vpc.TypeInterface.
	Type vpc.InterfaceType
	// Operator is the service provider that manages the interface, as operator.principal
	// names it; empty is none.
	Operator string
	// Requester is the principal that made the interface, such as amazon-elb; empty is a
	// role of EKS.
	Requester string
	Tags      map[string]string
}

// AddressSpec is an elastic address.
type AddressSpec struct {
	Name string
	// Of is the name of an instance or a host: the address is associated with the primary
	// address of its primary interface; empty: with none.
	Of   string
	Tags map[string]string
}

// MetadataOptions are the instance's metadata options. The zero value is not
// usable; DefaultMetadata is what AWS's EKS node images set.
type MetadataOptions struct {
	TokensRequired bool // IMDSv1 is disabled
	HopLimit       int  // TTL of the reply to a token request, 1–64
	IPv6           bool // also listen on fd00:ec2::254
}

// DefaultMetadata is IMDSv2 only, hop limit 1, both families: the token response does
// not reach a pod, one hop further away.
func DefaultMetadata() MetadataOptions {
	return MetadataOptions{TokensRequired: true, HopLimit: 1, IPv6: true}
}

// Quotas are the account's service quotas; zero fields take EC2's defaults.
// Source: VPC user guide, "Amazon VPC quotas".
type Quotas struct {
	RoutesPerTable     int // default 50, local routes not counted, per family
	RulesPerGroup      int // default 60, per direction and family
	GroupsPerInterface int // default 5, at most 16
	Interfaces         int // default 5000 per region
	GroupsPerVPC       int // default 2500
	Addresses          int // elastic addresses, default 5 per region
	RangesPerVPC       int // IPv4, default 5
	// TrunkCalls allows AssociateTrunkInterface, DisassociateTrunkInterface and
	// DescribeTrunkInterfaceAssociations, which AWS refuses to accounts that are not on a list
	// of its own. By default the account is not.
	TrunkCalls bool
}

func (q Quotas) withDefaults() Quotas {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&q.RoutesPerTable, 50)
	set(&q.RulesPerGroup, 60)
	set(&q.GroupsPerInterface, 5)
	set(&q.Interfaces, 5000)
	set(&q.GroupsPerVPC, 2500)
	set(&q.Addresses, 5)
	set(&q.RangesPerVPC, 5)
	return q
}
