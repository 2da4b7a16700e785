package world

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/imds"
)

// metadata is the account as instance metadata returns it, possibly with a lag.
type metadata struct {
	account *cloud.Cloud
	faults  *faults.Injector
	*profiles
}

// ByAddress implements imds.Source.
func (m metadata) ByAddress(a netip.Addr) (imds.Instance, bool) {
	s := m.account.StateAgo(time.Duration(m.faults.Plan().MetadataLag))
	owner := m.account.State().Owner(a) // the caller is identified without lag
	if owner == nil || owner.Attachment == nil {
		return imds.Instance{}, false
	}
	n := s.Instances[owner.Attachment.Instance]
	if n == nil || n.State == cloud.Terminated {
		return imds.Instance{}, false
	}
	return describe(s, n), true
}

func describe(s *cloud.State, n *cloud.Instance) imds.Instance {
	zone, part := n.Zone, cloud.PartitionOf(s.Region)
	out := imds.Instance{
		ID: n.ID, Type: n.Type, Image: ec2.ImageID, Account: s.Account, Architecture: ec2.Architecture(n.Type),
		Placement: imds.Placement{Region: s.Region, Zone: zone, ZoneID: ec2.ZoneID(zone)},
		Domain:    part.Domain, Partition: part.Name, Reservation: ec2.ReservationID(n.ID), Launched: n.Launched, Tags: maps.Clone(n.Tags),
		Options: imds.Options{TokensRequired: n.Metadata.TokensRequired, HopLimit: n.Metadata.HopLimit, IPv6: n.Metadata.IPv6},
	}
	if n.Role != "" {
		out.Role = imds.Role{Name: n.Role, ProfileARN: ec2.ProfileARN(s, n.Role), ProfileID: ec2.ProfileID(n.Role)}
	}
	for _, i := range s.InterfacesOf(n.ID) {
		// A detaching interface is listed, as on EC2. Source:
		// github.com/aws/amazon-vpc-cni-k8s/issues/732.
		if i.Attachment.Status == cloud.Attaching && !i.Attachment.Primary() {
			continue
		}
		out.Interfaces = append(out.Interfaces, describeInterface(s, i))
	}
	if len(out.Interfaces) > 0 {
		out.Hostname = out.Interfaces[0].Hostname
	}
	return out
}

func describeInterface(s *cloud.State, i *cloud.Interface) imds.Interface {
	n := s.Subnets[i.Subnet]
	out := imds.Interface{
		ID: i.ID, MAC: i.MAC, DeviceNumber: i.Attachment.DeviceIndex, NetworkCard: i.Attachment.NetworkCard,
		VPC: imds.VPC{ID: s.VPC.ID, CIDRs: slices.Clone(s.VPC.CIDRs)}, Subnet: imds.Subnet{ID: n.ID, CIDRs: rangesOf(n)},
		Hostname: ec2.DNSName(i.PrimaryIPv4(), s.Region), Owner: s.Account,
		IPv4: i.IPv4.Addresses, IPv6: i.IPv6.Addresses, IPv4Prefixes: i.IPv4.Prefixes, IPv6Prefixes: i.IPv6.Prefixes,
	}
	if s.VPC.CIDR6.IsValid() {
		out.VPC.CIDRs = append(out.VPC.CIDRs, s.VPC.CIDR6)
	}
	for _, p := range i.Public {
		if out.Public == nil {
			out.Public, out.PublicNames = map[netip.Addr]netip.Addr{}, map[netip.Addr]string{}
		}
		out.Public[p.Private] = p.Public
		out.PublicNames[p.Private] = cloud.PublicDNSName(p.Public, s.Region)
	}
	for _, id := range i.Groups {
		out.Groups = append(out.Groups, imds.Group{ID: id, Name: s.Groups[id].Name})
	}
	return out
}
