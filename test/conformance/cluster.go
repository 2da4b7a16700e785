package conformance

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// Cluster is what both sides judge connections in: policies as the API has them, and what they
// select from.
type Cluster struct {
	Namespaces map[string]labels.Set
	Pods       []policy.Pod
	Nodes      []policy.Node
	Policies   []*networkingv1.NetworkPolicy
}

// Trunkline is the cluster with its policies converted, and what could not be honoured of them.
func (c *Cluster) Trunkline() (converted *policy.Cluster, problems []string) {
	converted = &policy.Cluster{Namespaces: c.Namespaces, Pods: c.Pods, Nodes: c.Nodes}
	for _, np := range c.Policies {
		p, found := policy.FromNetworkPolicy(np)
		converted.Policies = append(converted.Policies, p)
		problems = append(problems, found...)
	}
	return converted, problems
}

// at returns the pod that has an address of its own.
func (c *Cluster) at(a netip.Addr) *policy.Pod {
	for i := range c.Pods {
		for _, has := range c.Pods[i].Addresses {
			if has == a && !c.Pods[i].HostNetwork {
				return &c.Pods[i]
			}
		}
	}
	return nil
}

// resident reports whether an address is that of the node which runs a pod.
func (c *Cluster) resident(pod *policy.Pod, a netip.Addr) bool {
	for _, n := range c.Nodes {
		for _, has := range n.Addresses {
			if n.Name == pod.Node && has == a {
				return true
			}
		}
	}
	return false
}
