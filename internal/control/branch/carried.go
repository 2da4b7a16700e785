package branch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// errOtherGroups is why an ADD waits for the groups of its branch.
var errOtherGroups = errors.New("the pod's branch does not have the security groups of its policies yet, by the record of the controller of branches")

// carries compares the groups of a branch with those of the policies that select its pod. The controller
// may not have seen a policy that this node has seen: its watch may be the older one.
//
// Trunkline's record has the groups. AWS's has none: EC2 is read, by one call for each ADD. AWS's controller
// gives a pod the groups of its instance while it sees no policy that selects it, as
// when API discovery lacks their definition for a moment.
//
// Source: CreateAndAnnotateResources in pkg/provider/branch/provider.go of
// aws/amazon-vpc-resource-controller-k8s.
func (c *Controller) carries(ctx context.Context, pod kube.Pod, branch vpc.ENIID) error {
	owned := c.Owned()
	if c.Policies == nil || !owned && c.Groups == nil {
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
	if owned {
		return c.recorded(ctx, pod, branch, d)
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

// recorded compares the groups of a branch by Trunkline's record with a decision. Where the cached record has
// others, it is read from the API server; where that has others too, the ADD waits.
func (c *Controller) recorded(ctx context.Context, pod kube.Pod, branch vpc.ENIID, d securitygroup.Decision) error {
	instance := string(c.State.Node().Instance)
	groups := func(n *vpcresources.CNINode) []string {
		if n == nil {
			return nil
		}
		for _, b := range n.Status.Trunkline.BranchesOf(instance, types.UID(pod.UID)) {
			if b.ENIID == string(branch) {
				return slices.Sorted(slices.Values(b.SecurityGroups))
			}
		}
		return nil
	}
	if object, known := c.Record.Object(); known && slices.Equal(groups(object), d.Groups) {
		return nil
	}
	live, err := c.Record.Live(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoRecord, err)
	}
	if have := groups(live); !slices.Equal(have, d.Groups) {
		return fmt.Errorf("%w: it has %v, and those of the pod are %v: %s", errOtherGroups, have, d.Groups, d.Why)
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
	carriedAgain = time.Minute // after an error or a new difference; each further time twice as long
	carriedFirst = 20 * time.Second
)

// carried are the groups that the branches of running pods have at EC2, where no record has them. A
// branch that is made between two reads was compared when its pod was wired.
type carried struct {
	read   func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error)
	groups map[vpc.ENIID][]vpc.SecurityGroupID
	at     time.Time // of the last read, or of the start
	due    time.Time
	pause  time.Duration // until the next read after an error, or while a branch has other groups
	failed bool          // the last read
}

func newCarried(read func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error), now time.Time) *carried {
	return &carried{read: read, at: now, due: now.Add(rand.N(carriedFirst)), pause: carriedAgain}
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
		c.at, c.due = now, now.Add(c.pause)
		found, err = c.read(ctx, ids)
		if c.failed = err != nil; !c.failed {
			c.groups, c.due = found, now.Add(carriedEvery)
		} else {
			c.grow()
		}
	}
	for i, p := range pods {
		if groups, ok := c.groups[vpc.ENIID(p.Branch)]; ok {
			pods[i].Groups, pods[i].Known = sorted(groups), true
		}
	}
	return err
}

// differ has the groups read again soon while a branch has others, and ever later: AWS's controller does not
// correct them.
func (c *carried) differ(others bool) {
	if !others && !c.failed {
		c.pause = carriedAgain
	}
	if !others {
		return
	}
	if again := c.at.Add(c.pause); again.Before(c.due) {
		c.due = again
		c.grow()
	}
}

func (c *carried) grow() { c.pause = min(2*c.pause, carriedEvery) }
