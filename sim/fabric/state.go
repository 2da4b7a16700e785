// Package fabric is the network of the embedded VPC: one network namespace per VPC that
// routes between the interfaces connected to it and enforces security groups and source
// checks outside the guest. It uses no bridge.
//
// The caller passes the complete desired State, and the fabric makes the kernel equal to
// it, idempotently. sim/cloud makes the decisions of EC2 (limits, addresses,
// permissions).
package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// State is the desired network of one VPC. It is a value: the caller makes a new one for
// every change.
type State struct {
	// CIDRs of the VPC, both families. Inside them an address that no port holds is
	// unreachable, and ARP and neighbour discovery get no reply for it.
	CIDRs []netip.Prefix
	// Subnets by id; a port names its subnet.
	Subnets []Subnet
	// Ports are the connected interfaces.
	Ports []Port
	// Groups are the security groups that ports name, by id.
	Groups []Group
	// Internet, when set, is the internet gateway with its outside hosts.
	Internet *Internet
	// Services are addresses of the platform inside the fabric's namespace. Every port
	// can reach them; groups and route tables do not apply: instance metadata, the
	// resolver, the API's endpoint.
	Services []Service
}

// Subnet is a subnet of the VPC; the fabric has its gateway address.
type Subnet struct {
	ID       vpc.SubnetID
	Prefixes []netip.Prefix // one per family at most
	// Routes of the subnet's route table without the local ones. A route inside the
	// VPC's CIDRs redirects traffic to other subnets, such as to a middlebox.
	Routes []Route
}

// Route is one entry of a route table.
type Route struct {
	Destination netip.Prefix
	Target      Target
}

// Target is the target of a route. Exactly one field is set.
type Target struct {
	Internet  bool      // the internet gateway
	Port      vpc.ENIID // an interface; it forwards only if its source/dest check is off
	Blackhole bool      // the target no longer exists
}

// PortKey identifies a port by its link and, on a trunk, its VLAN. The guest sends and
// receives the frames of a branch on the link of the trunk, with the VLAN's 802.1Q tag and
// the branch's MAC.
type PortKey struct {
	ENI  vpc.ENIID // the interface that owns the link: itself, or its trunk
	VLAN uint16    // 1 to 4094 of a branch; 0: untagged
}

// Port is an interface connected to the fabric.
type Port struct {
	ID     vpc.ENIID
	Key    PortKey
	Subnet vpc.SubnetID
	MAC    vpc.MAC
	// Addresses the port owns, primary first: single addresses and delegated
	// prefixes of either family.
	Addresses []netip.Addr
	Prefixes  []netip.Prefix
	Groups    []vpc.SecurityGroupID
	// SourceDestCheck drops packets from or to an address that is not the port's.
	SourceDestCheck bool
	// Public are the port's private IPv4 addresses that pass the internet gateway.
	Public []Public
	// Guest is the name of the network namespace that holds the guest's end,
	// and Device the name the link has there: eth<device index>. A guest may
	// rename its link or set it down; the fabric finds it by MAC. A branch has
	// neither: it uses its trunk's link.
	Guest  string
	Device string
	// Down cuts the carrier, as an injected fault.
	Down bool
}

// Public is a private address that passes the internet gateway, both ways.
type Public struct {
	Private netip.Addr
	// Address is outside the VPC and replaces Private beyond the gateway: hosts there see
	// it, and reach Private by it alone. Zero: they see and reach Private itself.
	Address netip.Addr
}

// outside is the address that hosts beyond the gateway use.
func (p Public) outside() netip.Addr {
	if p.Address.IsValid() {
		return p.Address
	}
	return p.Private
}

// Group is a security group. A port with several is allowed what any allows.
type Group struct {
	ID      vpc.SecurityGroupID
	Ingress []Rule
	Egress  []Rule
}

// Rule allows what it matches; there is no deny.
type Rule struct {
	// Protocol is an IP protocol number, or -1 for all.
	Protocol int
	// From and To are ports (TCP, UDP), or ICMP type and code; -1 in both is all.
	From, To int
	// Peers: exactly one is set.
	Peer  netip.Prefix        // CIDR
	Group vpc.SecurityGroupID // every address of every port in the group
}

// Internet is the internet gateway: a link of MTU 1500 to a namespace of its own
// with hosts in it. Only a port's Public addresses pass, both ways. Ports do not reach each
// other by the addresses that replace them beyond it, which they do on EC2.
type Internet struct {
	Hosts []netip.Addr // addresses of the outside host's namespace
}

// Service is an address and the transport ports the platform listens on there. TCP and
// UDP to its other ports are refused, as by a host with closed ports.
type Service struct {
	Address netip.Addr
	TCP     []uint16
	UDP     []uint16
}
