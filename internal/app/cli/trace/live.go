package trace

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// FromCluster reads the policies, namespaces, pods and nodes of a cluster.
func FromCluster(ctx context.Context, c *kube.Client) (*World, error) {
	w := &World{Cluster: policy.Cluster{Namespaces: map[string]labels.Set{}}, DefaultNamespace: c.Namespace}
	policies, err := c.Core.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list NetworkPolicies: %w", err)
	}
	for i := range policies.Items {
		w.policy(&policies.Items[i])
	}
	namespaces, err := c.Core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, ns := range namespaces.Items {
		w.Namespaces[ns.Name] = ns.Labels
	}
	pods, err := c.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if p, ok := policy.FromPod(&pods.Items[i]); ok {
			w.Pods = append(w.Pods, p)
		}
	}
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes.Items {
		node := policy.Node{Name: n.Name}
		for _, address := range n.Status.Addresses {
			if a, err := netip.ParseAddr(address.Address); err == nil {
				node.Addresses = append(node.Addresses, a)
			}
		}
		w.Nodes = append(w.Nodes, node)
	}
	return w, nil
}
