package ec2

import (
	"errors"
	"maps"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// This file translates between the address room's words and EC2's; it decides
// nothing.

// Node is what every interface of a node is made and found with.
type Node struct {
	Instance vpc.InstanceID
	Cluster  string // name of the cluster, for tags; may be empty
	// Tags the operator adds to every interface.
	Tags map[string]string
}

// tags of an interface made at t. Names and values are AWS's, so that AWS's own
// collectors and ours read each other's.
func (n Node) tags(t time.Time) map[string]string {
	out := maps.Clone(n.Tags)
	if out == nil {
		out = make(map[string]string)
	}
	out[vpc.TagInstanceID] = string(n.Instance)
	out[vpc.TagCreatedAt] = t.UTC().Format(time.RFC3339)
	out[vpc.TagManagedBy] = "trunkline"
	if n.Cluster != "" {
		out[vpc.TagClusterName] = n.Cluster
		out[vpc.TagOwner] = vpc.OwnerVPCCNI
	}
	return out
}

// IntentOf translates an action that has begun. ok is false for SetUp, which is
// not EC2's business.
func IntentOf(a ipam.Action, n Node) (in Intent, ok bool) {
	in = Intent{
		ID: string(a.ID), Room: "addresses", Began: a.Began, Instance: n.Instance, ENI: a.ENI,
		Subnet: a.Subnet, Count: a.Count, Attachment: a.Attachment, Device: a.Device,
		Addresses: a.Addresses, Held: a.Held, Recent: a.Recent,
	}
	switch a.Kind {
	case ipam.CreateENI:
		in.Kind, in.Groups = Create, a.Groups
		in.Description = vpc.DescriptionHead + string(n.Instance)
		in.Tags = n.tags(a.Began)
	case ipam.Attach:
		in.Kind = Attach
	case ipam.AssignAddresses:
		in.Kind = Assign
	case ipam.RestoreAddresses:
		in.Kind = Restore
	case ipam.UnassignAddresses:
		in.Kind = Unassign
	case ipam.Detach:
		in.Kind = Detach
	case ipam.DeleteENI:
		in.Kind = Delete
	case ipam.SetUp:
		return Intent{}, false
	}
	return in, true
}

// ResultOf translates an outcome that is done.
func ResultOf(out Outcome) ipam.Result {
	r := ipam.Result{Addresses: out.Addresses, Attachment: out.Attachment, Device: out.Device}
	if out.Interface != nil {
		r.ENI = rowOf(*out.Interface)
	}
	return r
}

func rowOf(i Interface) ipam.ENI {
	row := ipam.ENI{
		ID: i.ID, Type: i.Type, Device: -1, MAC: i.MAC, Subnet: i.Subnet,
		PrimaryIP: i.Primary, Groups: i.Groups, Created: i.Created(),
	}
	if a := i.Attachment; a != nil {
		row.Device, row.Attachment = a.Device, a.ID
	}
	return row
}

// FailureOf translates an error of Do or Recover.
func FailureOf(err error) ipam.Failure {
	f := ipam.Failure{Reason: ipam.FailOther, Definite: !errors.Is(err, ErrOpen), Message: err.Error()}
	switch {
	case errors.Is(err, ErrFrozen):
		f.Reason = ipam.FailFrozen
	case IsSubnetExhausted(err):
		f.Reason = ipam.FailSubnetExhausted
	case IsAddressLimit(err):
		f.Reason = ipam.FailAddressLimit
	case IsInterfaceLimit(err):
		f.Reason = ipam.FailENILimit
	case IsThrottled(err):
		f.Reason = ipam.FailThrottled
	case IsUnauthorized(err):
		f.Reason = ipam.FailUnauthorized
	case IsNotFound(err):
		f.Reason = ipam.FailNotFound
	}
	return f
}

// ObservedOf translates a described interface. subnets gives the CIDR of its
// subnet.
func ObservedOf(i Interface, n Node, subnets []Subnet) ipam.Observed {
	row := rowOf(i)
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
		ENI: row, Attached: attached, Intent: ipam.ActionID(i.Tags[vpc.TagIntent]), Addresses: i.Addresses,
	}
}

// BrakeOf translates the executor's brake.
func BrakeOf(b Brake) ipam.Brake { return ipam.Brake(b) }

// SubnetsOf translates the subnets that the node may make interfaces in (see
// ipam.SubnetAllowed). home is the subnet of its primary interface; of and main are
// those of RouteTables.
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
			out = append(out, ipam.Subnet{ID: s.ID, CIDR: s.CIDR, Free: s.Free, SameRoutes: table(s.ID) == table(home)})
		}
	}
	return out
}
