package branch

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/endpoint"
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
	// Excluded are namespaces in which no pod is refused, because admission adds no request there:
	// kube-system and Trunkline's own. Otherwise a policy, or an outage of the API server, would keep
	// DNS, or what makes branches, from starting.
	Excluded []string
}

// Admit implements cni.Component. A pod that requests a branch gets one, or none of the node's
// networks.
func (c Check) Admit(_ context.Context, pod kube.Pod) error {
	if pod.BranchInterface || pod.Name == "" {
		return nil
	}
	if slices.Contains(c.Excluded, pod.Namespace) {
		c.reportExcluded(pod)
		return nil
	}
	if pod.ServiceAccount == "" && pod.Static == "" {
		return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod's service account is not known to this node yet", Details: "SecurityGroupPolicies may select pods by it"}
	}
	d, known := c.Policies.Decide(subject(pod))
	switch {
	case !known:
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain, Msg: "the SecurityGroupPolicies of the cluster are not known to this node yet",
			Details: "the pod may have to have security groups of its own; see whether the API server answers and serves securitygrouppolicies.vpcresources.k8s.aws",
		}
	case d.Verdict == securitygroup.NotSelected:
		return nil
	case d.Verdict == securitygroup.Refused:
		return c.refuse(pod, cnirpc.CodeTryAgain, "it cannot be decided whether the pod has security groups of its own", d.Why)
	}
	return c.refuse(pod, cnirpc.CodeRefused, "a SecurityGroupPolicy selects the pod, and it requests no branch interface",
		d.Why+"; admission has not added the resource: see its webhook, and create the pod again")
}

func subject(pod kube.Pod) securitygroup.Pod {
	return securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: pod.Namespace, Name: pod.Name}, UID: types.UID(pod.UID), Labels: pod.Labels,
		ServiceAccount: pod.ServiceAccount, HostNetwork: pod.HostNetwork, Ended: pod.Done,
	}
}

// reportExcluded reports that a pod of an excluded namespace starts without the groups of the policies
// that select it.
func (c Check) reportExcluded(pod kube.Pod) {
	if d, known := c.Policies.Decide(subject(pod)); known && d.Verdict != securitygroup.NotSelected {
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
