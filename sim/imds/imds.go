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
	Region       string
	Zone         string // "us-west-2a"
	ZoneID       string // "usw2-az1"
	Reservation  string // "r-…"
	Launched     time.Time
	// Hostname is the private DNS name, "ip-10-0-1-5.us-west-2.compute.internal".
	Hostname string
	// Domain of AWS's services; empty: "amazonaws.com".
	Domain string
	// Role is the name of the instance profile's role; empty: none.
	Role string
	// Profile is the instance profile's ARN and id.
	ProfileARN, ProfileID string
	UserData              string
	Tags                  map[string]string // shown when not nil
	// Interfaces in order of device index; the first is the primary.
	Interfaces []Interface
	Options    Options
}

// Interface is one attached interface.
type Interface struct {
	ID           vpc.ENIID
	MAC          vpc.MAC
	DeviceNumber int
	NetworkCard  int
	VPC          vpc.ID
	Subnet       vpc.SubnetID
	Hostname     string // its private DNS name
	Owner        string // account
	// Groups and their names, index by index.
	Groups     []vpc.SecurityGroupID
	GroupNames []string
	// Addresses, primary first, and delegated prefixes.
	IPv4         []netip.Addr
	IPv6         []netip.Addr
	IPv4Prefixes []netip.Prefix
	IPv6Prefixes []netip.Prefix
	// Public is the public address of a private one.
	Public map[netip.Addr]netip.Addr
	// Ranges of the subnet and the VPC, both families, primary first.
	SubnetCIDRs []netip.Prefix
	VPCCIDRs    []netip.Prefix
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
