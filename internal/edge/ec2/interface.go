package ec2

import (
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
	Prefixes    []netip.Prefix        `json:"prefixes,omitempty"`  // delegated, both families
	Groups      []vpc.SecurityGroupID `json:"groups,omitempty"`
	Tags        map[string]string     `json:"tags,omitempty"`
	// Requester is the id of the principal that created it, such as "AROA…:i-…" for the
	// role of an instance; for others the alias or the account of a service.
	Requester string `json:"requester,omitempty"`
	// Attachment is nil when the interface is attached to no instance.
	Attachment *Attachment `json:"attachment,omitempty"`
}

// Attachment is how an interface is attached to an instance.
type Attachment struct {
	ID                  vpc.AttachmentID `json:"id"`
	Instance            vpc.InstanceID   `json:"instance"`
	Device              int              `json:"device"`
	Card                int              `json:"card"`
	Status              string           `json:"status"` // attaching, attached, detaching, detached
	DeleteOnTermination bool             `json:"deleteOnTermination"`
}

// On reports whether the interface is attached or attaching to the instance.
func (i Interface) On(id vpc.InstanceID) bool {
	return i.Attachment != nil && i.Attachment.Instance == id &&
		(i.Attachment.Status == "attached" || i.Attachment.Status == "attaching")
}

// Created is when the interface was created, from its tag; zero without one.
func (i Interface) Created() time.Time {
	t, err := time.Parse(time.RFC3339, i.Tags[vpc.TagCreatedAt])
	if err != nil {
		return time.Time{}
	}
	return t
}

func readInterface(n types.NetworkInterface) (Interface, error) {
	id := aws.ToString(n.NetworkInterfaceId)
	mac, err := vpc.ParseMAC(aws.ToString(n.MacAddress))
	if err != nil {
		return Interface{}, fmt.Errorf("read interface %s: %w", id, err)
	}
	out := Interface{
		ID: vpc.ENIID(id), Type: vpc.InterfaceType(n.InterfaceType), Status: string(n.Status),
		Description: aws.ToString(n.Description), Subnet: vpc.SubnetID(aws.ToString(n.SubnetId)),
		VPC: vpc.ID(aws.ToString(n.VpcId)), Zone: aws.ToString(n.AvailabilityZone), MAC: mac,
		Tags: readTags(n.TagSet), Requester: aws.ToString(n.RequesterId),
	}
	if out.Type == "" {
		out.Type = vpc.TypeInterface
	}
	for _, a := range n.PrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		if err != nil {
			return Interface{}, fmt.Errorf("read interface %s: %w", id, err)
		}
		if aws.ToBool(a.Primary) {
			out.Primary = addr
		} else {
			out.Addresses = append(out.Addresses, addr)
		}
	}
	for _, p := range prefixes(n) {
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return Interface{}, fmt.Errorf("read interface %s: %w", id, err)
		}
		out.Prefixes = append(out.Prefixes, prefix)
	}
	for _, g := range n.Groups {
		out.Groups = append(out.Groups, vpc.SecurityGroupID(aws.ToString(g.GroupId)))
	}
	if a := n.Attachment; a != nil {
		out.Attachment = &Attachment{
			ID: vpc.AttachmentID(aws.ToString(a.AttachmentId)), Instance: vpc.InstanceID(aws.ToString(a.InstanceId)),
			Device: int(aws.ToInt32(a.DeviceIndex)), Card: int(aws.ToInt32(a.NetworkCardIndex)),
			Status: string(a.Status), DeleteOnTermination: aws.ToBool(a.DeleteOnTermination),
		}
	}
	return out, nil
}

func prefixes(n types.NetworkInterface) []string {
	var out []string
	for _, p := range n.Ipv4Prefixes {
		out = append(out, aws.ToString(p.Ipv4Prefix))
	}
	for _, p := range n.Ipv6Prefixes {
		out = append(out, aws.ToString(p.Ipv6Prefix))
	}
	return out
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
	CIDR netip.Prefix
	Free int // free IPv4 addresses when it was read; -1: not known
	Tags map[string]string
}

func readSubnet(n types.Subnet) (Subnet, error) {
	cidr, err := netip.ParsePrefix(aws.ToString(n.CidrBlock))
	if err != nil {
		return Subnet{}, fmt.Errorf("read subnet %s: %w", aws.ToString(n.SubnetId), err)
	}
	free := -1
	if n.AvailableIpAddressCount != nil {
		free = int(*n.AvailableIpAddressCount)
	}
	return Subnet{
		ID: vpc.SubnetID(aws.ToString(n.SubnetId)), VPC: vpc.ID(aws.ToString(n.VpcId)),
		Zone: aws.ToString(n.AvailabilityZone), CIDR: cidr, Free: free, Tags: readTags(n.Tags),
	}, nil
}
