package branch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Policies decide which pods have security groups of their own; *kube.GroupObjects is one.
type Policies interface {
	// Decide decides for a pod; false if the policies of the cluster are not known: they were read
	// neither from the API server nor from a snapshot.
	Decide(pod securitygroup.Pod) (securitygroup.Decision, bool)
}

// Events creates Kubernetes events of pods; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
}

// ReasonNotEnforced is the reason of the event on a pod that runs without the groups of its policies
// because its namespace is excluded.
const ReasonNotEnforced = "SGPNotEnforced"

// Check is the node's own check of each ADD, the last one before a pod has a network: a pod that a
// SecurityGroupPolicy selects and that requests no branch interface is refused, whatever admission
// has allowed. It implements cni.Component.
type Check struct {
	Policies Policies
	Events   Events
	Modes    *Modes
	// Wait bounds how long an ADD waits while the node is undecided.
	Wait time.Duration
	// Excluded are namespaces in which no pod is refused, because admission adds no request there:
	// kube-system and Trunkline's own. Otherwise a policy, or an outage of the API server, would keep
	// DNS, or what makes branches, from starting.
	Excluded []string
}

// Admit implements cni.Component. A pod that requests a branch gets one, or none of the node's
// networks.
//
// Where each node has a mode of its own, a selected pod is refused while the node is undecided, after Wait.
// A node that enforces groups itself needs no branch for it: control/groups decides there.
func (c Check) Admit(ctx context.Context, pod kube.Pod) error {
	if pod.Name == "" {
		return nil
	}
	var err error
	_ = wait.PollUntilContextTimeout(ctx, askEvery, c.Wait, true, func(context.Context) (bool, error) {
		err = c.admit(pod)
		return !errors.Is(err, errUndecided), nil
	})
	if why := (undecided{}); errors.As(err, &why) {
		return c.refuse(pod, cnirpc.CodeTryAgain, "a SecurityGroupPolicy selects the pod, or it requests a branch interface, and it is not decided how pods of this node get their security groups", why.Message)
	}
	return err
}

// askEvery is how often a pod that waits is decided again.
const askEvery = 50 * time.Millisecond

// errUndecided is that the node is undecided; undecided has the reason.
var errUndecided = errors.New("the node is undecided")

type undecided struct{ groupmode.Choice }

func (undecided) Error() string        { return errUndecided.Error() }
func (undecided) Is(target error) bool { return target == errUndecided }

func (c Check) admit(pod kube.Pod) error {
	choice := c.Modes.Choice()
	excluded := slices.Contains(c.Excluded, pod.Namespace) && !pod.Requests && !pod.BranchInterface
	switch {
	case choice.Mode == groupmode.Undecided && pod.BranchInterface:
		return undecided{choice}
	case choice.Mode == groupmode.EBPF && pod.BranchInterface:
		return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the mode of security groups of the node has just changed", Details: choice.Message}
	case excluded:
		c.reportExcluded(pod)
		return nil
	case choice.Mode == groupmode.EBPF, pod.BranchInterface:
		return nil
	}
	if pod.ServiceAccount == "" && pod.Static == "" {
		return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod's service account is not known to this node yet", Details: "SecurityGroupPolicies may select pods by it"}
	}
	d, known := c.Policies.Decide(pod.Selectable())
	switch {
	case !known:
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain, Msg: "the SecurityGroupPolicies of the cluster are not known to this node yet",
			Details: "the pod may have to have security groups of its own; see whether the API server answers and serves securitygrouppolicies.vpcresources.k8s.aws",
		}
	case d.Verdict == securitygroup.NotSelected:
		return nil
	case choice.Mode == groupmode.Undecided:
		return undecided{choice}
	case d.Verdict == securitygroup.Refused:
		return c.refuse(pod, cnirpc.CodeTryAgain, "it cannot be decided whether the pod has security groups of its own", d.Why)
	}
	return c.refuse(pod, cnirpc.CodeRefused, "a SecurityGroupPolicy selects the pod, and it requests no branch interface",
		d.Why+"; admission has not added the resource: see its webhook, and create the pod again")
}

// reportExcluded reports that a pod of an excluded namespace starts without the groups of the policies
// that select it.
func (c Check) reportExcluded(pod kube.Pod) {
	if d, known := c.Policies.Decide(pod.Selectable()); known && d.Verdict != securitygroup.NotSelected {
		c.Events.PodWarning(pod.PodRef, pod.UID, ReasonNotEnforced, fmt.Sprintf(
			"Pod %s starts with the security groups of its node: %s, and in namespace %s only pods that request %s themselves get groups of their own.",
			pod.PodRef, d.Why, pod.Namespace, vpc.ResourcePodENI))
	}
}

func (c Check) refuse(pod kube.Pod, code uint, msg, details string) error {
	c.Events.PodWarning(pod.PodRef, pod.UID, securitygroup.EventNotApplied, fmt.Sprintf("Pod %s was not started: %s: %s.", pod.PodRef, msg, details))
	return &cnirpc.Error{Code: code, Msg: msg, Details: details}
}

// Ready implements cni.Component: the groups of a branch are enforced outside of the node.
func (Check) Ready(context.Context, endpoint.Endpoint, int) error { return nil }
