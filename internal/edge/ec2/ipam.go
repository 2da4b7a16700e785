package ec2

import (
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// This file translates EC2's describes into observations of the ledger.

// ObservedOf translates a described interface. subnets gives the CIDR of its
// subnet.
func ObservedOf(i Interface, n cloud.Node, subnets []Subnet) ipam.Observed {
	row := ipam.ENI{
		ID: i.ID, Type: i.Type, Device: -1, MAC: i.MAC, Subnet: i.Subnet,
		PrimaryIP: i.Primary, Groups: i.Groups, Created: i.Created(),
	}
	if a := i.Attachment; a != nil {
		row.Device, row.Attachment = a.Device, a.ID
	}
	for _, s := range subnets {
		if s.ID == i.Subnet {
			row.SubnetCIDR = s.CIDR
		}
	}
	attached := i.On(n.Instance)
	row.Primary = attached && i.Attachment.Device == 0 && i.Attachment.Card == 0
	otherCard := i.Attachment != nil && i.Attachment.Card > 0
	row.Unmanaged = otherCard || !ipam.Manageable(row, i.Tags, n.Instance)
	return ipam.Observed{
		ENI: row, Attached: attached, Intent: cloud.ActionID(i.Tags[vpc.TagIntent]), Addresses: i.Addresses,
	}
}

// SubnetsOf translates the subnets in which the node may create interfaces (see
// ipam.SubnetAllowed). home is the subnet of its primary interface; of and main are the
// results of RouteTables. Without them (main is empty) only home is known to have the
// node's routes.
func SubnetsOf(all []Subnet, home vpc.SubnetID, cluster string, of map[vpc.SubnetID]vpc.RouteTableID, main vpc.RouteTableID) []ipam.Subnet {
	table := func(id vpc.SubnetID) vpc.RouteTableID {
		if t, ok := of[id]; ok {
			return t
		}
		return main
	}
	var out []ipam.Subnet
	for _, s := range all {
		if ipam.SubnetAllowed(s.Tags, s.ID == home, cluster) {
			out = append(out, ipam.Subnet{ID: s.ID, CIDR: s.CIDR, Free: s.Free, SameRoutes: s.ID == home || main != "" && table(s.ID) == table(home)})
		}
	}
	return out
}
