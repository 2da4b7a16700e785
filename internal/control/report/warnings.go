package report

import (
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// warnings are those of the backend, and what the node as a whole gets otherwise than its
// configuration for AWS's CNI says: by variables, by filters and
// chains that an agent left, by its labels, by its number of pods.
func (r *Reporter) warnings() (all []string) {
	pool := r.State.Pool()
	all = append(all, pool.Warnings...)
	for _, n := range r.cfg.NotServed() {
		all = append(all, n.String())
	}
	r.mu.Lock()
	if r.frozen.pods != "" {
		all = append(all, r.frozen.warning())
	}
	if r.legacy.chains != "" {
		all = append(all, r.legacy.warning())
	}
	r.mu.Unlock()
	if r.Backend != config.BackendENI {
		return all
	}
	node, known := r.Cluster.Node()
	if !known {
		return all
	}
	view, _ := r.State.View(time.Now())
	for _, warning := range []string{tooManyPods(node, r.Cluster.Pods(), pool.Decision.Numbers, view), customNetworking(node)} {
		if warning != "" {
			all = append(all, warning)
		}
	}
	return all
}

// hostPods is how many pods on the host's network every node has at least: EKS adds them to
// the number of addresses for the number of pods of a node. Source: amazon-eks-ami,
// eni-max-pods.txt.
const hostPods = 2

// tooManyPods warns that the kubelet takes more pods than the node can have addresses: the
// scheduler places them, and they wait without an end. Nodes that used prefix delegation
// are so: a prefix takes the slot of an address and serves only the pods that have one of it.
func tooManyPods(node kube.Node, pods []kube.Pod, n ipam.Numbers, view ipam.View) string {
	claimed, prefixes, onHost := 0, 0, 0
	for _, e := range view.ENIs {
		claimed += len(e.Claimed)
		prefixes += len(e.Prefixes)
	}
	for _, p := range pods {
		if p.HostNetwork && !p.Done {
			onHost++
		}
	}
	most := n.Capacity + claimed
	if n.MaxENIs == 0 || node.MaxPods-max(onHost, hostPods) <= most {
		return ""
	}
	warning := fmt.Sprintf("the kubelet takes %d pods, and the node has addresses for %d besides those on the host's network: others are scheduled here and wait. Set max-pods to %d", node.MaxPods, most, most+hostPods)
	if prefixes > 0 {
		warning += fmt.Sprintf("; %d prefixes of prefix delegation take an address each and are kept, so replace the node once its pods have been drained", prefixes)
	}
	return warning
}

// customNetworking warns that the node's pods get other addresses than under AWS's CNI.
func customNetworking(node kube.Node) string {
	for _, from := range []map[string]string{node.Labels, node.Annotations} {
		name, external := from[vpc.LabelExternalENIConfig]
		if !external {
			name = from[vpc.LabelENIConfig]
		}
		if name != "" {
			return fmt.Sprintf("the Node names the ENIConfig %q, which is not used: new pods get addresses of the node's own subnet, and its security groups. Return the node to AWS's CNI if they must not", name)
		}
	}
	return ""
}
