package cloud

import (
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// TrunkAssociationID identifies the association of a branch with a trunk: trunk-assoc-…
type TrunkAssociationID string

// TrunkAssociation carries the frames of a branch over a trunk, under a VLAN of its own.
type TrunkAssociation struct {
	ID    TrunkAssociationID
	Trunk vpc.ENIID
	VLAN  int
}

// maxVLAN is the highest VLAN of IEEE 802.1Q; 0 is that of untagged frames.
const maxVLAN = 4094

// BranchesOf returns the branches that are associated with a trunk, ordered by VLAN.
func BranchesOf(s *State, trunk vpc.ENIID) []*Interface {
	var out []*Interface
	for _, i := range s.Interfaces {
		if i.Trunk != nil && i.Trunk.Trunk == trunk {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *Interface) int { return a.Trunk.VLAN - b.Trunk.VLAN })
	return out
}

// BranchOf returns the branch of an association, or nil.
func BranchOf(s *State, id TrunkAssociationID) *Interface {
	for _, i := range s.Interfaces {
		if i.Trunk != nil && i.Trunk.ID == id {
			return i
		}
	}
	return nil
}

// Branches returns the interfaces that are associated with a trunk, ordered by the id of the
// association.
func Branches(s *State) []*Interface {
	all := map[TrunkAssociationID]*Interface{}
	for _, i := range s.Interfaces {
		if i.Trunk != nil {
			all[i.Trunk.ID] = i
		}
	}
	return Sorted(all)
}

// AssociateBranch associates a branch with the trunk under a VLAN. The interface is a branch
// from then on, whatever it was created as. Sources: API_AssociateTrunkInterface.html; for a
// VLAN that is in use, pkg/aws/errors of github.com/aws/amazon-vpc-resource-controller-k8s.
func (h InterfaceHandle) AssociateBranch(branch vpc.ENIID, vlan int) (*Interface, error) {
	var made *Interface
	err := h.cloud.apply(func(ch *change) error {
		trunk, i := ch.Interfaces[h.id], ch.Interfaces[branch]
		switch {
		case trunk == nil:
			return KindInterface.NotFound(string(h.id))
		case i == nil:
			return KindInterface.NotFound(string(branch))
		}
		if err := ch.canBranch(trunk, i, vlan); err != nil {
			return err
		}
		made = i.clone()
		made.Type = vpc.TypeBranch
		made.Trunk = &TrunkAssociation{ID: TrunkAssociationID(ch.newID("trunk-assoc-")), Trunk: trunk.ID, VLAN: vlan}
		ch.Interfaces[made.ID] = made
		return nil
	})
	return made, err
}

// canBranch refuses an association that EC2 does not make. Of the errors, that of a VLAN in
// use is EC2's, and that of an interface in use is the one EC2 has for attachments; the
// others are ours.
func (ch *change) canBranch(trunk, i *Interface, vlan int) error {
	switch {
	case i.Requester.Managed || trunk.Requester.Managed:
		return notPermitted()
	case trunk.Type != vpc.TypeTrunk:
		return InvalidParameter("Network interface '%s' is not a trunk interface.", trunk.ID)
	case i.Type != vpc.TypeInterface && i.Type != vpc.TypeBranch:
		return InvalidParameter("Network interface '%s' of type %s cannot be a branch interface.", i.ID, i.Type)
	case vlan < 1 || vlan > maxVLAN:
		return InvalidParameter("Value (%d) for parameter vlanId is invalid. It must be between 1 and %d.", vlan, maxVLAN)
	case i.Status() != "available":
		return inUse(i.ID)
	case trunk.Attachment == nil || trunk.Attachment.Status != Attached:
		return Errorf("IncorrectState", "The trunk interface '%s' is not attached to an instance.", trunk.ID)
	case ch.Subnets[i.Subnet].Zone != ch.Subnets[trunk.Subnet].Zone:
		return InvalidParameter("The branch interface '%s' and the trunk interface '%s' are not in the same availability zone.", i.ID, trunk.ID)
	}
	branches := BranchesOf(ch.State, trunk.ID)
	if slices.ContainsFunc(branches, func(o *Interface) bool { return o.Trunk.VLAN == vlan }) {
		return Errorf("InvalidVlanId.Duplicate", "VlanId '%d' is in use", vlan)
	}
	n := ch.Instances[trunk.Attachment.Instance]
	if len(branches) >= n.Limits.Branches {
		return Errorf("AttachmentLimitExceeded", "Branch interface count %d exceeds the limit for %s", len(branches)+1, n.Type)
	}
	return nil
}

// Disassociate ends an association of the branch, which becomes available. Source of the
// error: EC2 API reference, "Error codes"; AWS's VPC resource controller tolerates it.
func (h InterfaceHandle) Disassociate(id TrunkAssociationID) error {
	return h.cloud.apply(func(ch *change) error {
		i := ch.Interfaces[h.id]
		if i == nil || i.Trunk == nil || i.Trunk.ID != id {
			return NoAssociation(string(id))
		}
		ch.disassociate(i)
		return nil
	})
}

func (ch *change) disassociate(i *Interface) {
	i = i.clone()
	i.Trunk = nil
	ch.Interfaces[i.ID] = i
}

// endTrunk ends the associations of a trunk that is detached or deleted. On a deletion EC2
// does so, with the instance's termination as well; of a detachment it is not known. Sources:
// github.com/aws/amazon-vpc-resource-controller-k8s/pull/372 and pull/400.
func (ch *change) endTrunk(trunk vpc.ENIID) {
	for _, i := range BranchesOf(ch.State, trunk) {
		ch.disassociate(i)
	}
}

// inUse is EC2's error for an interface that is attached, or associated with a trunk.
func inUse(id vpc.ENIID) error {
	return InvalidParameter("Network interface '%s' is currently in use.", id)
}
