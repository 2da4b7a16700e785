package grouprules_test

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// oracle says what the VPC would do if each pod with groups had a branch: rule by rule, without
// labels, classes or policies. With all, rules of every protocol count; without, only those that
// the node can enforce.
type oracle struct {
	*world
	all bool
}

// allows judges both ends of a connection by groups.
func (o oracle) allows(f policy.Flow) bool {
	return o.end(f, policy.Egress, f.Source, f.Destination) && o.end(f, policy.Ingress, f.Destination, f.Source)
}

func (o oracle) end(f policy.Flow, d policy.Direction, self, peer netip.Addr) bool {
	for _, p := range o.pods {
		switch {
		case !slices.Contains(p.Addresses, self):
			continue
		case p.own == nil:
			return true // its node's groups are the VPC's to enforce
		case slices.Contains(p.Addresses, peer), o.resident(p, peer):
			return true
		case d == policy.Egress && unfiltered(f):
			return true
		}
		for _, id := range p.own {
			for _, rule := range o.rules[id] {
				if rule.Direction == d && o.traffic(rule, f) && o.peer(rule, peer) {
					return true
				}
			}
		}
		return false
	}
	return true
}

func (o oracle) resident(p vpod, a netip.Addr) bool {
	for _, n := range o.base.Nodes {
		if n.Name == p.Node && slices.Contains(n.Addresses, a) {
			return true
		}
	}
	return false
}

func unfiltered(f policy.Flow) bool {
	switch f.Destination.String() {
	case "169.254.169.253", "fd00:ec2::253":
		return f.Port == 53 && f.Protocol != policy.SCTP
	case "169.254.169.123", "fd00:ec2::123":
		return f.Port == 123 && f.Protocol == policy.UDP
	}
	return false
}

func (o oracle) traffic(r grouprules.Rule, f policy.Flow) bool {
	switch r.Protocol {
	case -1:
		return true
	case 6, 17:
		return int(f.Protocol) == r.Protocol && r.From <= int(f.Port) && int(f.Port) <= r.To
	case 132:
		return f.Protocol == policy.SCTP
	}
	return o.all && int(f.Protocol) == r.Protocol
}

func (o oracle) peer(r grouprules.Rule, peer netip.Addr) bool {
	if r.Group == "" {
		return slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Contains(peer) })
	}
	_, exists := o.rules[r.Group]
	return exists && slices.Contains(o.groupsOf(peer), r.Group)
}

// groupsOf are the groups of the interface with an address.
func (o oracle) groupsOf(a netip.Addr) []vpc.SecurityGroupID {
	for _, p := range o.pods {
		if slices.Contains(p.Addresses, a) && p.own != nil {
			return p.own
		}
	}
	for _, n := range o.nics {
		ofPod := slices.ContainsFunc(o.pods, func(p vpod) bool { return slices.Contains(p.Addresses, a) }) &&
			slices.ContainsFunc(n.pools, func(p netip.Prefix) bool { return p.Contains(a) })
		if ofPod || slices.Contains(n.addresses, a) {
			return n.groups
		}
	}
	return nil
}
