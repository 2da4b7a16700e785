package branch

import (
	"context"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Policies decide which pods have security groups of their own; *kube.GroupPolicies is one.
type Policies interface {
	// Decide decides for a pod; false if the policies of the cluster are not known: they were read
	// neither from the API server nor from a snapshot.
	Decide(pod securitygroup.Pod) (securitygroup.Decision, bool)
}

// Events creates Kubernetes events of pods; *kube.Events is one.
type Events interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
}

// ReasonNotApplied is the reason of the event on a pod that was refused.
const ReasonNotApplied = "SGPNotApplied"

// Check is the node's own check of each ADD, the last one before a pod has a network: a pod that a
// SecurityGroupPolicy selects and that requests no branch interface is refused, whatever admission
// has allowed. It implements cni.Component.
type Check struct {
	Policies Policies
	Events   Events
}

// Admit implements cni.Component. A pod that requests a branch gets one, or none of the node's
// networks.
func (c Check) Admit(_ context.Context, pod kube.Pod) error {
	if pod.BranchInterface || pod.Name == "" {
		return nil
	}
	if pod.ServiceAccount == "" && pod.Static == "" {
		return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod's service account is not known to this node yet", Details: "SecurityGroupPolicies may select pods by it"}
	}
	d, known := c.Policies.Decide(securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: pod.Namespace, Name: pod.Name}, Labels: pod.Labels, ServiceAccount: pod.ServiceAccount, HostNetwork: pod.HostNetwork,
	})
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

func (c Check) refuse(pod kube.Pod, code uint, msg, details string) error {
	c.Events.PodWarning(pod.PodRef, pod.UID, ReasonNotApplied, fmt.Sprintf("Pod %s was not started: %s: %s.", pod.PodRef, msg, details))
	return &cnirpc.Error{Code: code, Msg: msg, Details: details}
}

// Ready implements cni.Component: the groups of a branch are enforced outside of the node.
func (Check) Ready(context.Context, endpoint.Endpoint, int) error { return nil }
