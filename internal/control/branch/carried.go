package branch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

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
	groups := sorted(have)
	if !slices.Equal(groups, d.Groups) {
		return refused(fmt.Errorf("%s has the security groups %v at EC2, and those of the pod are %v: %s", branch, groups, d.Groups, d.Why))
	}
	return nil
}

// notKnown has the runtime try again.
func notKnown(msg, details string) error {
	return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: msg, Details: details}
}

func sorted(groups []vpc.SecurityGroupID) []string {
	out := make([]string, 0, len(groups))
	for _, g := range groups {
		out = append(out, string(g))
	}
	slices.Sort(out)
	return out
}

// How often the audit reads the groups of branches from EC2: one call for all of the node. After a
// start it does so within carriedFirst, at another time on each node.
const (
	carriedEvery = 10 * time.Minute
	carriedAgain = time.Minute // after an error, and while a branch has other groups
	carriedFirst = 20 * time.Second
)

// carried are the groups that the branches of running pods have at EC2, where no record has them. A
// branch that is made between two reads was compared when its pod was wired.
type carried struct {
	read   func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error)
	groups map[vpc.ENIID][]vpc.SecurityGroupID
	at     time.Time // of the last read, or of the start
	due    time.Time
}

func newCarried(read func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error), now time.Time) *carried {
	return &carried{read: read, at: now, due: now.Add(rand.N(carriedFirst))}
}

// enter enters the groups of the pods' branches, once they were read, and reads them if that is due.
func (c *carried) enter(ctx context.Context, pods []securitygroup.Wired, now time.Time) (err error) {
	var ids []vpc.ENIID
	for _, p := range pods {
		if p.Branch != "" {
			ids = append(ids, vpc.ENIID(p.Branch))
		}
	}
	if len(ids) > 0 && !now.Before(c.due) {
		var found map[vpc.ENIID][]vpc.SecurityGroupID
		c.at, c.due = now, now.Add(carriedAgain)
		if found, err = c.read(ctx, ids); err == nil {
			c.groups, c.due = found, now.Add(carriedEvery)
		}
	}
	for i, p := range pods {
		if groups, ok := c.groups[vpc.ENIID(p.Branch)]; ok {
			pods[i].Groups, pods[i].Known = sorted(groups), true
		}
	}
	return err
}

// again has the groups read soon: a branch had others.
func (c *carried) again() {
	if soon := c.at.Add(carriedAgain); soon.Before(c.due) {
		c.due = soon
	}
}
