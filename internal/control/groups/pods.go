package groups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// label is a pod of the node with the labels of its groups.
func (o *Objects) label(p kube.Pod) kube.Pod {
	o.update()
	o.mu.Lock()
	defer o.mu.Unlock()
	ref := policy.PodRef{Namespace: p.Namespace, Name: p.Name}
	o.recall(ref, keyOf(p))
	p.Labels = o.labels(p.Selectable(), p.Addresses, o.Branches && p.BranchInterface, p.Requests)
	o.remember(ref, keyOf(p))
	return p
}

// keyOf is the uid of a pod; of a static one that of its manifest, which stays when the kubelet creates its
// object at the API server again.
func keyOf(p kube.Pod) string { return cmp.Or(p.Static, p.UID) }

// Pods are the pods of the node, labelled by their groups; control/policy's Pods.
type Pods struct {
	Objects *Objects
	Of      interface {
		Synced() bool
		Pods() []kube.Pod
	}
}

// Pods implements control/policy.Pods.
func (p Pods) Pods() []kube.Pod {
	all, of := p.Of.Synced(), p.Of.Pods()
	list := make([]kube.Pod, 0, len(of))
	for _, pod := range of {
		list = append(list, p.Objects.label(pod))
	}
	p.Objects.save(of, all)
	return list
}

// Events creates Kubernetes events of pods; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
}

// Component is a component of control/cni around that of control/policy. It is the check of each ADD: a
// pod that has groups which cannot be applied is refused.
type Component struct {
	Objects *Objects
	Events  Events
	// Wait bounds how long an ADD waits for what is not known yet.
	Wait time.Duration
	Next interface {
		Admit(ctx context.Context, pod kube.Pod) error
		Ready(ctx context.Context, e endpoint.Endpoint, link int) error
	}
}

// errUnknown refuses pods on a node that cannot know their groups.
var errUnknown = errors.New("the API server has not listed SecurityGroupPolicies, ServiceAccounts and SecurityGroups since the agent started, and the node has no copy of them, or EC2 has not shown the node's VPC; see whether the API server serves securitygroups.trunkline.dev to the agent")

// errNoAccount refuses pods of which an earlier build saved no account.
var errNoAccount = errors.New("the pod's service account is not known to this node yet, and SecurityGroupPolicies may select pods by it")

// askEvery is how often a pod that waits is decided again.
const askEvery = 50 * time.Millisecond

// Admit implements control/cni.Component. It waits for what is not known yet, up to Wait; then the
// runtime has to try again.
func (c Component) Admit(ctx context.Context, p kube.Pod) error {
	var err error
	_ = wait.PollUntilContextTimeout(ctx, askEvery, c.Wait, true, func(context.Context) (bool, error) {
		err = c.refusal(p)
		return !awaited(err), nil
	})
	if err == nil {
		return c.Next.Admit(ctx, c.Objects.label(p))
	}
	refused := &cnirpc.Error{Code: cnirpc.CodeRefused, Msg: "the pod's security groups cannot be applied", Details: err.Error()}
	if awaited(err) || errors.Is(err, securitygroup.ErrNoAccount) {
		refused.Code, refused.Msg = cnirpc.CodeTryAgain, "the pod's security groups are not known to this node yet"
	}
	c.Events.PodWarning(p.PodRef, p.UID, securitygroup.EventNotApplied, fmt.Sprintf("Pod %s was not started: %s: %s.", p.PodRef, refused.Msg, refused.Details))
	return refused
}

// awaited reports whether a pod is refused only because something is not known yet.
func awaited(err error) bool {
	return errors.Is(err, errUnknown) || errors.Is(err, errNoAccount) || errors.Is(err, securitygroup.ErrGroupNotRead)
}

// refusal is why a pod cannot have its groups now; nil if it can, or has none.
func (c Component) refusal(p kube.Pod) error {
	switch {
	case p.Name == "":
		return nil
	case !c.Objects.Known():
		return errUnknown
	case c.Objects.Branches && (p.BranchInterface || c.Objects.Judges == nil || !c.Objects.Judges()):
		return nil // control/branch decides
	case slices.Contains(c.Objects.Excluded, p.Namespace) && !p.Requests:
		return nil // control/branch reports it
	case p.ServiceAccount == "" && p.Static == "":
		return errNoAccount
	}
	c.Objects.update()
	c.Objects.mu.Lock()
	defer c.Objects.mu.Unlock()
	err := c.Objects.selector.decide(p.Selectable()).Refusal
	if denied := c.Objects.Groups.Denied(); denied != "" && errors.Is(err, securitygroup.ErrGroupNotRead) {
		return fmt.Errorf("%w: %s", err, denied)
	}
	return err
}

// Spared reports whether a pod may start on a node that cannot enforce: the cluster has no network policies, and
// the pod has a branch, or no SecurityGroupPolicy selects it where pods without a branch have the groups of their
// node.
func (o *Objects) Spared(p kube.Pod) bool {
	if !o.Known() || o.Policies.Any() {
		return false
	}
	if p.BranchInterface || slices.Contains(o.Excluded, p.Namespace) && !p.Requests {
		return true
	}
	o.update()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.selector.decide(p.Selectable()).Verdict == securitygroup.NotSelected
}

// Ready implements control/cni.Component.
func (c Component) Ready(ctx context.Context, e endpoint.Endpoint, link int) error {
	return c.Next.Ready(ctx, e, link)
}
