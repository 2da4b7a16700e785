package ec2

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// This file translates EC2's describes into observations of the ledger.

// ObservedOf translates a described interface. subnets gives the CIDR of its
// subnet.
func ObservedOf(i Interface, n cloud.Node, subnets []Subnet) ipam.Observed {
	row := ipam.ENI{
		ID: i.ID, Type: i.Type, Primary: i.primary(n.Instance), Card: i.card(), Device: i.device(), MAC: i.MAC, Subnet: i.Subnet,
		PrimaryIP: i.Primary, Groups: i.Groups, Prefixes: ipam.PrefixesOf(i.Prefixes), Created: i.Created(),
	}
	if a := i.Attachment; a != nil {
		row.Attachment = a.ID
	}
	for _, s := range subnets {
		if s.ID == i.Subnet {
			row.SubnetCIDR = s.CIDR
		}
	}
	row.WhyUnmanaged = cmp.Or(ipam.WhyUnmanaged(row, i.Tags, n.Instance), i.whyUnusable(row.Primary))
	row.Unmanaged = row.WhyUnmanaged != ""
	return ipam.Observed{
		ENI: row, Attached: i.On(n.Instance), NotOurs: ipam.Provenance(i.Tags, i.Requester, n),
		Intent: cloud.ActionID(i.Tags[vpc.TagIntent]), Addresses: i.Addresses,
	}
}

// whyUnusable is why the node cannot use an interface, by its description; empty if it can.
// EC2 decides which changes of the primary interface it allows, and it is never removed: it
// is used as far as it is described.
func (i Interface) whyUnusable(primary bool) string {
	switch {
	case !i.Primary.IsValid():
		return "it has no private IPv4 address"
	case i.MAC == vpc.MAC{}, len(i.Unreadable) > 0 && !primary:
		return "its description cannot be read: " + strings.Join(i.Unreadable, "; ")
	case i.Manager != "" && !primary:
		return i.Manager + " manages it"
	}
	return ""
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
		if s.Unusable == "" && ipam.SubnetAllowed(s.Tags, s.ID == home, cluster) {
			out = append(out, ipam.Subnet{ID: s.ID, CIDR: s.CIDR, Free: s.Free, SameRoutes: s.ID == home || main != "" && table(s.ID) == table(home)})
		}
	}
	return out
}

// Skipped is an object that EC2 describes and that the node does not use because of its
// description, with the reason.
type Skipped struct{ Object, Why string }

// SkippedOf lists what of the described objects is not used, subnets first.
func SkippedOf(interfaces []Interface, subnets []Subnet) (out []Skipped) {
	for _, s := range subnets {
		if s.Unusable != "" {
			out = append(out, Skipped{"subnet " + string(s.ID), s.Unusable})
		}
	}
	for _, i := range interfaces {
		object := "interface " + string(i.ID)
		switch {
		case i.ID == "":
			out = append(out, Skipped{fmt.Sprintf("interface with MAC %s", i.MAC), "EC2 described it without an id"})
		case len(i.Unreadable) > 0:
			out = append(out, Skipped{object, "cannot be read: " + strings.Join(i.Unreadable, "; ")})
		case !i.Primary.IsValid() && i.Type != vpc.TypeEFAOnly: // such an interface never has one
			out = append(out, Skipped{object, "it has no private IPv4 address"})
		}
	}
	return out
}
