// Package imds is the instance metadata service of the embedded VPC, version 2
// with version 1 switchable, as the EC2 user guide documents it.
//
// One server serves the whole VPC and identifies the instance by the source address
// of the connection. It decides nothing about EC2: Source describes the instance at
// every request. sim/world passes it listeners.
package imds

import (
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Source describes instances to the service.
type Source interface {
	// ByAddress returns the instance that holds a on any of its interfaces, delegated
	// prefixes included.
	ByAddress(a netip.Addr) (Instance, bool)
	// Credentials returns the credentials of the instance's role; false if it has
	// none.
	Credentials(id vpc.InstanceID) (Credentials, bool)
}

// Instance is the metadata of one instance. Lists are in the order of the service's
// documents.
type Instance struct {
	ID           vpc.InstanceID
	Type         string // "m5.xlarge"
	Image        string // "ami-…"
	Architecture string // of the identity document; empty: "x86_64"
	Account      string
	Placement    Placement
	Reservation  string // "r-…"
	Launched     time.Time
	// Hostname is the private DNS name, "ip-10-0-1-5.us-west-2.compute.internal".
	Hostname string
	// Domain of AWS's services; empty: "amazonaws.com".
	Domain string
	// Partition of the region; empty: "aws".
	Partition string
	// Role is that of the instance profile; its zero value is none.
	Role     Role
	UserData string
	Tags     map[string]string // shown when not nil
	// Interfaces in order of device index; the first is the primary.
	Interfaces []Interface
	Options    Options
}

// Placement is where an instance runs: the category meta-data/placement.
type Placement struct {
	Region string // "us-west-2"
	Zone   string // "us-west-2a"
	ZoneID string // "usw2-az1"
}

// Role is an instance's IAM role with its instance profile: the category
// meta-data/iam.
type Role struct {
	Name                  string // empty: the instance has none
	ProfileARN, ProfileID string
}

// Interface is one attached interface.
type Interface struct {
	ID           vpc.ENIID
	MAC          vpc.MAC
	DeviceNumber int
	NetworkCard  int
	VPC          VPC
	Subnet       Subnet
	Hostname     string // its private DNS name
	Owner        string // account
	Groups       []Group
	// Addresses, primary first, and delegated prefixes.
	IPv4         []netip.Addr
	IPv6         []netip.Addr
	IPv4Prefixes []netip.Prefix
	IPv6Prefixes []netip.Prefix
	// Public is the public address of a private one, and PublicNames its DNS name.
	Public      map[netip.Addr]netip.Addr
	PublicNames map[netip.Addr]string
}

// VPC is the VPC of an interface, with its ranges of both families, primary first.
type VPC struct {
	ID    vpc.ID
	CIDRs []netip.Prefix
}

// Subnet is the subnet of an interface, with its ranges of both families.
type Subnet struct {
	ID    vpc.SubnetID
	CIDRs []netip.Prefix
}

// Group is a security group of an interface.
type Group struct {
	ID   vpc.SecurityGroupID
	Name string
}

// Options are an instance's metadata options.
type Options struct {
	// Disabled is HttpEndpoint=disabled.
	Disabled bool
	// TokensRequired is HttpTokens=required: version 1 is refused.
	TokensRequired bool
	// HopLimit is HttpPutResponseHopLimit, 1 to 64; 0 means 1.
	HopLimit int
	// IPv6 is HttpProtocolIpv6=enabled: the service also answers at
	// fd00:ec2::254.
	IPv6 bool
}

// Credentials of a role, as iam/security-credentials prints them.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	Token           string
	Updated         time.Time
	Expires         time.Time
}
