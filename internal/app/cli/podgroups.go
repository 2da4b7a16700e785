package cli

import (
	"fmt"
	"slices"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli/branches"
	"github.com/trunkline/trunkline/internal/core/groupmode"
)

// podGroups is who makes the branches of a node, with the reason, and why it cannot; both are empty for
// a node without branches.
func podGroups(n *vpcresources.CNINode) (note, refused string) {
	const what = "security groups for pods: "
	switch l := n.Status.Trunkline; {
	case l != nil && l.Mode != nil && l.Trunk != nil: // the report of the node has the mode
		return fmt.Sprintf("trunk %s is %s, with %d branches", l.Trunk.ENIID, l.Trunk.Phase, len(l.Branches)), ""
	case l != nil && l.Mode != nil:
		return "", ""
	case l != nil && branches.TrunkRefusal(l) != "":
		return "", "security groups for pods: the node " + branches.TrunkRefusal(l)
	case l != nil && l.Trunk == nil:
		return what + "own, because Trunkline's controller has the record of the node; it has no trunk yet", ""
	case l != nil:
		return fmt.Sprintf("%sown, because Trunkline's controller has the record of the node; trunk %s is %s, with %d branches", what, l.Trunk.ENIID, l.Trunk.Phase, len(l.Branches)), ""
	case n.Spec.ManagedBy == vpcresources.ManagedByEKSAutoMode:
		return what + "managed by EKS Auto Mode", ""
	}
	asked := slices.ContainsFunc(n.Spec.Features, func(f vpcresources.Feature) bool { return f.Name == vpcresources.SecurityGroupsForPods })
	switch owned := slices.Contains(n.Finalizers, vpcresources.FinalizerAWS); {
	case asked && owned:
		return what + "managed, because AWS's VPC resource controller owns the CNINode and its agent has requested a trunk", ""
	case asked:
		return what + "a trunk was requested, and no controller has recorded anything about the node: Trunkline's does once a pod requests a branch", ""
	}
	return "", ""
}

// chosenGroups is the mode that was chosen for a node, with the reason; empty where the setting is a mode.
// wrong: none is chosen, or the label of the Node is not followed.
func chosenGroups(g *trunkline.PodGroups) (why string, wrong bool) {
	if g == nil || g.Reason == "" {
		return "", false
	}
	why = fmt.Sprintf("security groups for pods: %s (%s): %s", g.Mode, g.Reason, g.Message)
	return why, g.Mode == trunkline.GroupsUndecided || g.Reason == string(groupmode.InvalidLabel)
}
