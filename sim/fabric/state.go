// Package fabric is the wire of the embedded VPC: one network namespace per VPC
// that routes between the interfaces plugged into it, enforces security groups
// and source checks outside the guest, and knows no bridge.
//
// It is given a State, the whole of what should be, and makes the kernel agree:
// applying twice is applying once. It decides nothing about EC2 (limits,
// addresses, permissions); sim/cloud does.
package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// State is everything one VPC's wire should be. It is a value: the caller makes
// a new one for every change.
type State struct {
	// CIDRs of the VPC, both families. Inside them an address that no port
	// holds is unreachable and not answered for.
	CIDRs []netip.Prefix
	// Subnets by id; a port names its subnet.
	Subnets []Subnet
	// Ports are the plugged interfaces.
	Ports []Port
	// Groups are the security groups that ports name, by id.
	Groups []Group
	// Internet, when set, is the internet gateway and what lies behind it.
	Internet *Internet
	// Services are addresses the platform itself answers from inside the
	// fabric's namespace to every port, past groups and route tables: instance
	// metadata, the resolver, the API's endpoint.
	Services []Service
}

// Subnet is a range whose gateway the fabric answers for.
type Subnet struct {
	ID       vpc.SubnetID
	Prefixes []netip.Prefix // one per family at most
	// Routes of the subnet's route table but the local ones. One inside the VPC's
	// CIDRs leads traffic to other subnets elsewhere, such as to an inspecting machine.
	Routes []Route
}

// Route is one entry of a route table.
type Route struct {
	Destination netip.Prefix
	Target      Target
}

// Target is where a route leads. Exactly one field is set.
type Target struct {
	Internet  bool      // the internet gateway
	Port      vpc.ENIID // an interface, whose source/dest check must be off to pass
	Blackhole bool      // the target is gone
}

// PortKey is where a packet of a port enters and leaves: the link and, on a
// trunk, the VLAN.
type PortKey struct {
	ENI  vpc.ENIID // the interface that owns the link: itself, or its trunk
	VLAN uint16    // 0: untagged
}

// Port is an interface plugged into the fabric.
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
	// Public addresses may talk through the internet gateway; on EC2 they are
	// the private addresses a public one is mapped to.
	Public []netip.Addr
	// Guest is the name of the network namespace that holds the guest's end,
	// and Device the name the link has there: eth<device index>. A guest may
	// rename or down its link; the fabric finds it by MAC.
	Guest  string
	Device string
	// Down cuts the carrier, as an injected fault.
	Down bool
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
// with hosts in it. Only a port's Public addresses pass, both ways.
type Internet struct {
	Hosts []netip.Addr // addresses of the outside host's namespace
}

// Service is an address and the transport ports the platform listens on there.
type Service struct {
	Address netip.Addr
	TCP     []uint16
	UDP     []uint16
}
