package kube

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Node is the part of the agent's own Node that it needs.
type Node struct {
	Name       string            `json:"name"`
	UID        string            `json:"uid"`
	ProviderID string            `json:"providerID,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	// Annotations of Trunkline and AWS only.
	Annotations map[string]string `json:"annotations,omitempty"`
	// MaxPods is capacity.pods; 0 when the kubelet has not reported it.
	MaxPods int `json:"maxPods,omitempty"`
	// Unschedulable is set by cordon and drain.
	Unschedulable bool         `json:"unschedulable,omitempty"`
	Addresses     []netip.Addr `json:"addresses,omitempty"`
	// PodCIDRs are spec.podCIDRs, the ranges that the kube-controller-manager or another
	// allocator gave the node's pods; at most one of each family. A snapshot of an
	// earlier version has none.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// KubeletVersion and Runtime as the kubelet reports them, such as
	// "containerd://1.6.20".
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	Runtime        string `json:"runtime,omitempty"`
}

func nodeFrom(in *corev1.Node) Node {
	out := Node{
		Name:           in.Name,
		UID:            string(in.UID),
		ProviderID:     in.Spec.ProviderID,
		Labels:         in.Labels,
		MaxPods:        int(in.Status.Capacity.Pods().Value()),
		Unschedulable:  in.Spec.Unschedulable,
		KubeletVersion: in.Status.NodeInfo.KubeletVersion,
		Runtime:        in.Status.NodeInfo.ContainerRuntimeVersion,
	}
	for k, v := range in.Annotations {
		if ownAnnotation(k) {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[k] = v
		}
	}
	for _, a := range in.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	for _, text := range in.Spec.PodCIDRs { // spec.podCIDR is the first of them
		if p, err := netip.ParsePrefix(text); err == nil {
			out.PodCIDRs = append(out.PodCIDRs, p.Masked())
		}
	}
	return out
}

// stripNode drops images, volumes and managed fields, which are most of a Node.
func stripNode(obj any) (any, error) {
	in, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	in.ManagedFields = nil
	in.Status.Images = nil
	in.Status.VolumesInUse, in.Status.VolumesAttached = nil, nil
	in.Status.Conditions = nil
	return in, nil
}
