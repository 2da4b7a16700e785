package ec2

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Interface is a network interface as EC2 describes it.
type Interface struct {
	ID          vpc.ENIID             `json:"id"`
	Type        vpc.InterfaceType     `json:"type"`
	Status      string                `json:"status"` // available, attaching, in-use, detaching
	Description string                `json:"description,omitempty"`
	Subnet      vpc.SubnetID          `json:"subnet"`
	VPC         vpc.ID                `json:"vpc,omitempty"`
	Zone        string                `json:"zone,omitempty"`
	MAC         vpc.MAC               `json:"mac"`
	Primary     netip.Addr            `json:"primary"`             // its primary IPv4 address
	Addresses   []netip.Addr          `json:"addresses,omitempty"` // secondary IPv4 ones, in EC2's order
	IPv6        []netip.Addr          `json:"ipv6,omitempty"`      // in EC2's order
	Prefixes    []netip.Prefix        `json:"prefixes,omitempty"`  // delegated, both families
	Groups      []vpc.SecurityGroupID `json:"groups,omitempty"`
	Tags        map[string]string     `json:"tags,omitempty"`
	// Manager is the AWS service that manages the interface; empty for the account's own.
	// EC2 refuses changes of such an interface by the account's users.
	Manager string `json:"manager,omitempty"`
	// Requester is the id of the principal that created it, such as "AROA…:i-…" for the
	// role of an instance; for others the alias or the account of a service.
	Requester string `json:"requester,omitempty"`
	// Attachment is nil when the interface is attached to no instance.
	Attachment *Attachment `json:"attachment,omitempty"`
	// Unreadable lists what of the description could not be read. It is left out above.
	Unreadable []string `json:"unreadable,omitempty"`
}

// Attachment is how an interface is attached to an instance.
type Attachment struct {
	ID                  vpc.AttachmentID `json:"id"`
	Instance            vpc.InstanceID   `json:"instance"`
	Card                int              `json:"card"`
	Device              int              `json:"device"` // on the card; -1: not known
	Status              string           `json:"status"` // attaching, attached, detaching, detached
	DeleteOnTermination bool             `json:"deleteOnTermination"`
}

// On reports whether the interface is attached or attaching to the instance. A status that
// is not known counts as attached: the interface is not taken for one that was detached.
func (i Interface) On(id vpc.InstanceID) bool {
	return i.Attachment != nil && i.Attachment.Instance == id &&
		i.Attachment.Status != "detaching" && i.Attachment.Status != "detached"
}

// primary reports whether it is the primary interface of the instance.
func (i Interface) primary(id vpc.InstanceID) bool {
	return i.On(id) && i.Attachment.Device == 0 && i.Attachment.Card == vpc.DefaultCard
}

func (i Interface) card() int {
	if i.Attachment == nil {
		return vpc.DefaultCard
	}
	return i.Attachment.Card
}

func (i Interface) device() int {
	if i.Attachment == nil {
		return -1
	}
	return i.Attachment.Device
}

// Created is when the interface was created, from its tag; zero without one.
func (i Interface) Created() time.Time {
	t, err := time.Parse(time.RFC3339, i.Tags[vpc.TagCreatedAt])
	if err != nil {
		return time.Time{}
	}
	return t
}

// readInterface reads a description. What cannot be read is listed in Unreadable: one
// odd interface must not keep the others from being seen.
func readInterface(n types.NetworkInterface) Interface {
	out := Interface{
		ID: vpc.ENIID(aws.ToString(n.NetworkInterfaceId)), Type: vpc.InterfaceType(n.InterfaceType), Status: string(n.Status),
		Description: aws.ToString(n.Description), Subnet: vpc.SubnetID(aws.ToString(n.SubnetId)),
		VPC: vpc.ID(aws.ToString(n.VpcId)), Zone: aws.ToString(n.AvailabilityZone),
		Tags: readTags(n.TagSet), Manager: manager(n), Requester: aws.ToString(n.RequesterId),
	}
	if out.Type == "" {
		out.Type = vpc.TypeInterface
	}
	var err error
	if out.MAC, err = vpc.ParseMAC(aws.ToString(n.MacAddress)); err != nil {
		out.unreadable("MAC", err)
	}
	out.readAddresses(n)
	out.readPrefixes(n)
	for _, g := range n.Groups {
		out.Groups = append(out.Groups, vpc.SecurityGroupID(aws.ToString(g.GroupId)))
	}
	if a := n.Attachment; a != nil {
		out.Attachment = &Attachment{
			ID: vpc.AttachmentID(aws.ToString(a.AttachmentId)), Instance: vpc.InstanceID(aws.ToString(a.InstanceId)),
			Card: int(aws.ToInt32(a.NetworkCardIndex)), Device: -1,
			Status: string(a.Status), DeleteOnTermination: aws.ToBool(a.DeleteOnTermination),
		}
		if a.DeviceIndex != nil {
			out.Attachment.Device = int(*a.DeviceIndex)
		}
	}
	return out
}

func (i *Interface) unreadable(what string, err error) {
	i.Unreadable = append(i.Unreadable, fmt.Sprintf("%s: %v", what, err))
}

// manager is the AWS service that manages an interface. Source: EC2 API reference,
// NetworkInterface: operator, requesterManaged, requesterId.
func manager(n types.NetworkInterface) string {
	switch {
	case n.Operator != nil && aws.ToBool(n.Operator.Managed):
		return cmp.Or(aws.ToString(n.Operator.Principal), "an AWS service")
	case aws.ToBool(n.RequesterManaged):
		return cmp.Or(aws.ToString(n.RequesterId), "an AWS service")
	}
	return ""
}

// readAddresses reads the addresses. An interface of an IPv6-only subnet and an
// EFA-only interface have no IPv4 ones.
func (i *Interface) readAddresses(n types.NetworkInterface) {
	for _, a := range n.PrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		switch {
		case err != nil:
			i.unreadable("private address", err)
		case aws.ToBool(a.Primary):
			i.Primary = addr
		default:
			i.Addresses = append(i.Addresses, addr)
		}
	}
	for _, a := range n.Ipv6Addresses {
		addr, err := netip.ParseAddr(aws.ToString(a.Ipv6Address))
		if err != nil {
			i.unreadable("IPv6 address", err)
			continue
		}
		i.IPv6 = append(i.IPv6, addr)
	}
}

func (i *Interface) readPrefixes(n types.NetworkInterface) {
	var all []string
	for _, p := range n.Ipv4Prefixes {
		all = append(all, aws.ToString(p.Ipv4Prefix))
	}
	for _, p := range n.Ipv6Prefixes {
		all = append(all, aws.ToString(p.Ipv6Prefix))
	}
	for _, text := range all {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			i.unreadable("prefix", err)
			continue
		}
		i.Prefixes = append(i.Prefixes, prefix.Masked())
	}
}

func readTags(tags []types.Tag) map[string]string {
	if len(tags) == 0 {
		return nil
	}
	out := make(map[string]string, len(tags))
	for _, t := range tags {
		out[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return out
}

// Subnet is a subnet as EC2 describes it.
type Subnet struct {
	ID   vpc.SubnetID
	VPC  vpc.ID
	Zone string
	CIDR netip.Prefix // invalid in an IPv6-only subnet
	IPv6 netip.Prefix // invalid without a range of IPv6
	Free int          // free IPv4 addresses when it was read; -1: not known
	Tags map[string]string
	// Unusable is why no interface for pods can be made in it; empty if one can.
	Unusable string
}

// ipv6Range is the first range of IPv6 of a subnet that can be read; invalid without one.
func ipv6Range(n types.Subnet) netip.Prefix {
	for _, a := range n.Ipv6CidrBlockAssociationSet {
		if cidr, err := netip.ParsePrefix(aws.ToString(a.Ipv6CidrBlock)); err == nil {
			return cidr.Masked()
		}
	}
	return netip.Prefix{}
}

func readSubnet(n types.Subnet) Subnet {
	out := Subnet{
		ID: vpc.SubnetID(aws.ToString(n.SubnetId)), VPC: vpc.ID(aws.ToString(n.VpcId)),
		Zone: aws.ToString(n.AvailabilityZone), Free: -1, Tags: readTags(n.Tags),
	}
	if n.AvailableIpAddressCount != nil {
		out.Free = int(*n.AvailableIpAddressCount)
	}
	out.IPv6 = ipv6Range(n)
	if n.CidrBlock != nil {
		cidr, err := netip.ParsePrefix(*n.CidrBlock)
		if err != nil {
			out.Unusable = fmt.Sprintf("its IPv4 range cannot be read: %v", err)
		}
		out.CIDR = cidr
	}
	switch {
	case out.ID == "":
		out.Unusable = "EC2 described it without an id"
	case out.Unusable != "":
	case aws.ToString(n.CidrBlock) == "":
		out.CIDR, out.Unusable = netip.Prefix{}, "it has no IPv4 range: it is IPv6-only"
	case n.State != "" && n.State != types.SubnetStateAvailable:
		out.Unusable = fmt.Sprintf("its state is %q", n.State)
	}
	return out
}
