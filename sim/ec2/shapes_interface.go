package ec2

import (
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// Tag is a tag of a request; responses have tagXML.
type Tag struct {
	Key   string  `q:"Key"`
	Value *string `q:"Value"`
}

// TagSpecification lists the tags of a resource that the request creates.
type TagSpecification struct {
	ResourceType string `q:"ResourceType"`
	Tags         []Tag  `q:"Tag"`
}

type tagXML struct {
	Key   string `q:"key"`
	Value string `q:"value"`
}

type groupXML struct {
	ID   string `q:"groupId"`
	Name string `q:"groupName"`
}

type attachmentXML struct {
	AttachmentID        string    `q:"attachmentId"`
	Instance            string    `q:"instanceId,omitempty"`
	InstanceOwner       string    `q:"instanceOwnerId"`
	DeviceIndex         int       `q:"deviceIndex"`
	NetworkCard         int       `q:"networkCardIndex"`
	Status              string    `q:"status"`
	AttachTime          time.Time `q:"attachTime"`
	DeleteOnTermination bool      `q:"deleteOnTermination"`
}

type trackingXML struct {
	TCPEstablished *int `q:"tcpEstablishedTimeout"`
	UDPStream      *int `q:"udpStreamTimeout"`
	UDP            *int `q:"udpTimeout"`
}

type privateAddressXML struct {
	Address string      `q:"privateIpAddress"`
	DNSName string      `q:"privateDnsName,omitempty"`
	Primary bool        `q:"primary"`
	Public  *elasticXML `q:"association"`
}

type ipv6AddressXML struct {
	Address string `q:"ipv6Address"`
	Primary bool   `q:"isPrimaryIpv6"`
}

type ipv4PrefixXML struct {
	Prefix string `q:"ipv4Prefix"`
}

type ipv6PrefixXML struct {
	Prefix string `q:"ipv6Prefix"`
}

// operatorXML is OperatorResponse: the service provider that manages a resource.
type operatorXML struct {
	Managed   bool   `q:"managed"`
	Principal string `q:"principal,omitempty"`
}

func newOperatorXML(i *cloud.Interface) operatorXML {
	return operatorXML{i.Requester.Operator != "", i.Requester.Operator}
}

// interfaceXML is NetworkInterface.
// Source: API_NetworkInterface.html.
type interfaceXML struct {
	ID               string              `q:"networkInterfaceId"`
	Subnet           string              `q:"subnetId"`
	VPC              string              `q:"vpcId"`
	Zone             string              `q:"availabilityZone"`
	ZoneID           string              `q:"availabilityZoneId"`
	Description      string              `q:"description"`
	Owner            string              `q:"ownerId"`
	Requester        string              `q:"requesterId,omitempty"`
	RequesterManaged bool                `q:"requesterManaged"`
	OnlyIPv6         *bool               `q:"ipv6Native"` // absent unless true
	Status           string              `q:"status"`
	MAC              string              `q:"macAddress"`
	PrivateIP        string              `q:"privateIpAddress,omitempty"`
	PrivateDNSName   string              `q:"privateDnsName,omitempty"`
	SourceDestCheck  bool                `q:"sourceDestCheck"`
	Groups           []groupXML          `q:"groupSet"`
	Public           *elasticXML         `q:"association"`
	Attachment       *attachmentXML      `q:"attachment"`
	Tracking         *trackingXML        `q:"connectionTrackingConfiguration"`
	Tags             []tagXML            `q:"tagSet"`
	PrivateIPs       []privateAddressXML `q:"privateIpAddressesSet"`
	IPv4Prefixes     []ipv4PrefixXML     `q:"ipv4PrefixSet,omitempty"`
	IPv6             []ipv6AddressXML    `q:"ipv6AddressesSet"`
	IPv6Prefixes     []ipv6PrefixXML     `q:"ipv6PrefixSet,omitempty"`
	Type             string              `q:"interfaceType"`
	Operator         operatorXML         `q:"operator"`
}

func newInterfaceXML(s *cloud.State, i *cloud.Interface) interfaceXML {
	n := s.Subnets[i.Subnet]
	x := interfaceXML{
		ID: string(i.ID), Subnet: string(i.Subnet), VPC: string(s.VPC.ID),
		Zone: n.Zone, ZoneID: ZoneID(n.Zone), Description: i.Description, Owner: s.Account,
		Requester: i.Requester.ID, RequesterManaged: i.Requester.Managed, Status: i.Status(),
		MAC: i.MAC.String(), PrivateIP: addressText(i.PrimaryIPv4()), PrivateDNSName: DNSName(i.PrimaryIPv4(), s.Region),
		SourceDestCheck: i.SourceDestCheck, Groups: groupsXML(s, i.Groups), Tags: tagsXML(i.Tags),
		PrivateIPs: privateAddresses(s, i), IPv6: ipv6Addresses(i),
		IPv4Prefixes: ipv4Prefixes(i.IPv4.Prefixes), IPv6Prefixes: ipv6Prefixes(i.IPv6.Prefixes),
		Type: string(i.Type), Operator: newOperatorXML(i), Public: newElasticXML(s, i, i.PrimaryIPv4()),
	}
	if a := i.Attachment; a != nil {
		x.Attachment = newAttachmentXML(s, a)
	}
	if !n.CIDR.IsValid() {
		x.OnlyIPv6 = new(true)
	}
	if t := i.Tracking; t != nil {
		x.Tracking = &trackingXML{unlessZero(t.TCPEstablished), unlessZero(t.UDPStream), unlessZero(t.UDP)}
	}
	return x
}

// addressText is an address in EC2's form; empty without one.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// DNSName is the private DNS name of a primary private address; empty without one.
func DNSName(a netip.Addr, region string) string {
	if !a.IsValid() {
		return ""
	}
	return vpc.PrivateDNSName(a, region)
}

// serviceOwner is the account that EC2 reports for machines operated by AWS.
const serviceOwner = "amazon-aws"

func newAttachmentXML(s *cloud.State, a *cloud.Attachment) *attachmentXML {
	x := &attachmentXML{
		AttachmentID: string(a.ID), Instance: string(a.Instance), InstanceOwner: s.Account,
		DeviceIndex: a.DeviceIndex, NetworkCard: a.NetworkCard, Status: string(a.Status),
		AttachTime: a.Since.Truncate(time.Second), DeleteOnTermination: a.DeleteOnTermination,
	}
	if a.Host != "" {
		x.InstanceOwner = serviceOwner
	}
	return x
}

func privateAddresses(s *cloud.State, i *cloud.Interface) []privateAddressXML {
	var out []privateAddressXML
	for n, a := range i.IPv4.Addresses {
		out = append(out, privateAddressXML{a.String(), vpc.PrivateDNSName(a, s.Region), n == 0, newElasticXML(s, i, a)})
	}
	return out
}

func ipv6Addresses(i *cloud.Interface) []ipv6AddressXML {
	var out []ipv6AddressXML
	for n, a := range i.IPv6.Addresses {
		out = append(out, ipv6AddressXML{Address: a.String(), Primary: n == 0 && i.IPv6.Primary})
	}
	return out
}

func ipv4Prefixes(list []netip.Prefix) []ipv4PrefixXML {
	var out []ipv4PrefixXML
	for _, p := range list {
		out = append(out, ipv4PrefixXML{p.String()})
	}
	return out
}

func ipv6Prefixes(list []netip.Prefix) []ipv6PrefixXML {
	var out []ipv6PrefixXML
	for _, p := range list {
		out = append(out, ipv6PrefixXML{p.String()})
	}
	return out
}

func groupsXML(s *cloud.State, ids []vpc.SecurityGroupID) []groupXML {
	var out []groupXML
	for _, id := range ids {
		x := groupXML{ID: string(id)}
		if g := s.Groups[id]; g != nil {
			x.Name = g.Name
		}
		out = append(out, x)
	}
	return out
}

func tagsXML(tags cloud.Tags) []tagXML {
	var out []tagXML
	for _, k := range sortedKeys(tags) {
		out = append(out, tagXML{k, tags[k]})
	}
	return out
}

func unlessZero(v int) *int {
	if v == 0 {
		return nil
	}
	return &v
}

// ZoneID returns the id of a zone that is the same in every account, such as
// "usw2-az1" for "us-west-2a" here.
func ZoneID(zone string) string {
	region, letter := zone[:len(zone)-1], zone[len(zone)-1]
	parts := strings.Split(region, "-")
	short := parts[0]
	for _, p := range parts[1:] {
		for _, word := range []string{"north", "south", "east", "west", "central"} {
			if rest, ok := strings.CutPrefix(p, word); ok {
				short += word[:1]
				p = rest
			}
		}
		if p != "" {
			short += p[:1]
		}
	}
	return short + "-az" + string('1'+letter-'a')
}
