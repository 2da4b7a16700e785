// Package vpc is the vocabulary of an AWS VPC: named identifiers, interface
// kinds, the addresses a subnet reserves, the limits of an instance type and the
// names AWS components write on the wire.
//
// It decides nothing and has no effects. Product and embedded VPC share these types
// and nothing else: a rule of EC2 that the product relies on is implemented on each
// side, so that a mistake in one fails against the other.
package vpc

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

type (
	// ID is a VPC's identifier as EC2 prints it: vpc-…
	ID string
	// SubnetID is a subnet's: subnet-…
	SubnetID string
	// ENIID is a network interface's: eni-…
	ENIID string
	// AttachmentID is that of an interface in an instance: eni-attach-…
	AttachmentID string
	// InstanceID is an instance's: i-…
	InstanceID string
	// SecurityGroupID is a security group's: sg-…
	SecurityGroupID string
	// RouteTableID is a route table's: rtb-…
	RouteTableID string
	// GatewayID is a gateway's: igw-…, or "local".
	GatewayID string
)

// InterfaceType is EC2's networkInterface.interfaceType.
type InterfaceType string

// Interface types. A trunk carries branches by VLAN; pods' secondary addresses
// sit on plain interfaces. An EFA is a plain interface with a second device that
// bypasses the kernel, and an EFA-only interface is that device alone: it has no IP
// address and is never the primary one. Source: EC2 user guide, "Elastic Fabric Adapter".
const (
	TypeInterface InterfaceType = "interface"
	TypeEFA       InterfaceType = "efa"
	TypeEFAOnly   InterfaceType = "efa-only"
	TypeTrunk     InterfaceType = "trunk"
	TypeBranch    InterfaceType = "branch"
)

// DefaultCard is the network card of an instance's primary interface, and of an
// interface that is attached without naming a card. Source: EC2 API reference,
// AttachNetworkInterface, NetworkCardIndex.
const DefaultCard = 0

// Family is an address family.
type Family uint8

// Address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of a; IPv4-mapped IPv6 counts as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string {
	if f == IPv4 {
		return "ipv4"
	}
	return "ipv6"
}

// Sizes EC2 fixes.
const (
	// DelegatedPrefix4 is the length of an IPv4 prefix delegated to an ENI.
	DelegatedPrefix4 = 28
	// DelegatedPrefix6 is the length of an IPv6 prefix delegated to an ENI.
	DelegatedPrefix6 = 80
	// MTU is the largest packet inside a VPC, in bytes.
	MTU = 9001
	// InternetMTU is the largest packet through an internet gateway, in bytes.
	InternetMTU = 1500
)

// Addresses of instance metadata, which every instance reaches without a route.
var (
	MetadataV4 = netip.MustParseAddr("169.254.169.254")
	MetadataV6 = netip.MustParseAddr("fd00:ec2::254")
)

// Gateway returns the router of an IPv4 subnet: its base address plus one.
func Gateway(subnet netip.Prefix) netip.Addr {
	return subnet.Masked().Addr().Next()
}

// Resolver returns the DNS resolver of a VPC: the base address of its primary
// CIDR plus two.
func Resolver(vpcCIDR netip.Prefix) netip.Addr {
	return vpcCIDR.Masked().Addr().Next().Next()
}

// Reserved reports whether EC2 reserves a in an IPv4 subnet: the first four
// addresses and the last. In an IPv6 subnet the same five are reserved.
// Source: VPC user guide, "Subnet sizing".
func Reserved(subnet netip.Prefix, a netip.Addr) bool {
	first := subnet.Masked().Addr()
	for range 4 {
		if a == first {
			return true
		}
		first = first.Next()
	}
	return a == Last(subnet)
}

// Last returns the highest address of p.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// PrivateDNSName is the name EC2 gives an instance by its primary IPv4 address,
// such as "ip-10-0-1-5.us-west-2.compute.internal". In us-east-1 the domain is
// "ec2.internal".
func PrivateDNSName(primary netip.Addr, region string) string {
	domain := region + ".compute.internal"
	if region == "us-east-1" {
		domain = "ec2.internal"
	}
	return "ip-" + strings.ReplaceAll(primary.String(), ".", "-") + "." + domain
}

// ProviderID is the Kubernetes node's spec.providerID on AWS.
func ProviderID(zone string, id InstanceID) string {
	return fmt.Sprintf("aws:///%s/%s", zone, id)
}

// MAC is a 48-bit hardware address usable as a map key.
type MAC [6]byte

// ParseMAC reads the colon form, such as "02:00:00:00:00:01".
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != 6 {
		return MAC{}, fmt.Errorf("address %s: %d bytes, want 6", s, len(hw))
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// HardwareAddr returns m as the standard library's type.
func (m MAC) HardwareAddr() net.HardwareAddr { return net.HardwareAddr(m[:]) }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMAC(string(text))
	return err
}
