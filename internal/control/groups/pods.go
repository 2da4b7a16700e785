package groups

import (
	"context"
	"errors"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func selectable(p kube.Pod) securitygroup.Pod {
	return securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}, Labels: p.Labels,
		ServiceAccount: p.ServiceAccount, HostNetwork: p.HostNetwork, Ended: p.Done,
	}
}

// label is a pod of the node with the labels of its groups.
func (o *Objects) label(p kube.Pod) kube.Pod {
	o.update()
	o.mu.Lock()
	defer o.mu.Unlock()
	p.Labels = o.labels(selectable(p), p.Addresses)
	return p
}

// Pods are the pods of the node, labelled by their groups; control/policy's Pods.
type Pods struct {
	Objects *Objects
	Of      interface{ Pods() []kube.Pod }
}

// Pods implements control/policy.Pods.
func (p Pods) Pods() []kube.Pod {
	of := p.Of.Pods()
	list := make([]kube.Pod, 0, len(of))
	for _, pod := range of {
		list = append(list, p.Objects.label(pod))
	}
	return list
}

// Component is a component of control/cni around that of control/policy.
type Component struct {
	Objects *Objects
	Next    interface {
		Admit(ctx context.Context, pod kube.Pod) error
		Ready(ctx context.Context, e endpoint.Endpoint, link int) error
	}
}

// errUnknown refuses pods on a node that cannot know their groups.
var errUnknown = errors.New("the security groups of pods are not known to this node: the API server has not listed SecurityGroupPolicies, ServiceAccounts and SecurityGroups since the agent started, and the node has no copy of them. The pod is tried again")

// Admit implements control/cni.Component: a pod with groups that cannot be applied is refused.
func (c Component) Admit(ctx context.Context, p kube.Pod) error {
	if !c.Objects.groups.Known() {
		return errUnknown
	}
	c.Objects.update()
	c.Objects.mu.Lock()
	d := c.Objects.selector.decide(selectable(p))
	c.Objects.mu.Unlock()
	if d.Verdict == securitygroup.Refused {
		return fmt.Errorf("security groups of pod %s: %w", p.PodRef, d.Refusal)
	}
	return c.Next.Admit(ctx, c.Objects.label(p))
}

// Ready implements control/cni.Component.
func (c Component) Ready(ctx context.Context, e endpoint.Endpoint, link int) error {
	return c.Next.Ready(ctx, e, link)
}
