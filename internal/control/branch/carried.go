package branch

import (
	"context"
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// carries compares the groups that a branch has at EC2 with those of the policies that select its pod.
// AWS's controller gives a pod the groups of its instance while it sees no policy that selects it, as
// when API discovery lacks their definition for a moment. It is called for each ADD of a pod with a
// branch where the record does not have the groups: one call of EC2.
//
// Source: CreateAndAnnotateResources in pkg/provider/branch/provider.go of
// aws/amazon-vpc-resource-controller-k8s.
func (c *Controller) carries(ctx context.Context, pod kube.Pod, branch vpc.ENIID) error {
	if c.Groups == nil || c.Policies == nil || c.Owned() {
		return nil
	}
	if pod.ServiceAccount == "" && pod.Static == "" {
		return notKnown("the pod's service account is not known to this node yet", "SecurityGroupPolicies may select pods by it")
	}
	d, known := c.Policies.Decide(pod.Selectable())
	switch {
	case !known:
		return notKnown("the SecurityGroupPolicies of the cluster are not known to this node yet", "the groups of the pod's branch are compared with theirs")
	case d.Verdict == securitygroup.NotSelected:
		return nil
	case d.Verdict == securitygroup.Refused:
		return notKnown("it cannot be decided which security groups the pod has", d.Why)
	}
	have, err := c.Groups(ctx, branch)
	if err != nil {
		return notKnown("the security groups of the pod's branch cannot be read from EC2", err.Error())
	}
	groups := make([]string, 0, len(have))
	for _, g := range have {
		groups = append(groups, string(g))
	}
	slices.Sort(groups)
	if !slices.Equal(groups, d.Groups) {
		return refused(fmt.Errorf("%s has the security groups %v at EC2, and those of the pod are %v: %s", branch, groups, d.Groups, d.Why))
	}
	return nil
}

// notKnown has the runtime try again.
func notKnown(msg, details string) error {
	return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: msg, Details: details}
}
