package kube

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// PodRef names a pod.
type PodRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (r PodRef) String() string { return r.Namespace + "/" + r.Name }

// Pod is the part of a pod that the node's network needs.
type Pod struct {
	PodRef
	UID string `json:"uid"`
	// Static, of a mirror pod, is the uid that the kubelet and the runtime have for the
	// static pod: a hash of its manifest.
	Static string `json:"static,omitempty"`
	// HostNetwork pods have the node's addresses; the plugin is not called for them.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// Done pods have ended (Succeeded, Failed) and will not be started again.
	Done bool `json:"done,omitempty"`
	// Deleting pods have a deletion time; they may run until their grace period ends.
	Deleting bool `json:"deleting,omitempty"`
	// Addresses are those the kubelet reported.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Annotations of Trunkline and AWS only.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Ports are those of its containers that have names.
	Ports []policy.NamedPort `json:"ports,omitempty"`
	// BranchInterface pods request an interface of their own, for their security groups: AWS's
	// webhook has added the resource vpc.amazonaws.com/pod-eni to them.
	BranchInterface bool `json:"branchInterface,omitempty"`
	// Requests is that its containers request one, whether the pod gets it or not.
	Requests bool `json:"requests,omitempty"`
	// ServiceAccount is that of the pod; empty for static pods, and in a snapshot of an earlier build.
	ServiceAccount string    `json:"serviceAccount,omitempty"`
	Created        time.Time `json:"created"`
	// Bound is when the pod was bound to its node; possibly long after Created.
	Bound time.Time `json:"bound"`
	// AwaitsVolume pods have a volume that may not exist yet: the kubelet mounts all volumes
	// before it asks for a sandbox.
	AwaitsVolume bool `json:"awaitsVolume,omitempty"`
}

// named reports whether uid is the pod's, as API server or runtime have it; empty: any.
func (p Pod) named(uid string) bool {
	return uid == "" || uid == p.UID || uid == p.Static
}

// isStatic reports whether a uid is a static pod's: the kubelet derives it from an MD5
// sum (pkg/kubelet/config/common.go), while the API server assigns UUIDs.
func isStatic(uid string) bool {
	sum, err := hex.DecodeString(uid)
	return err == nil && len(sum) == 16
}

// WantsAddress reports whether the pod has or will have a sandbox with an address of
// its own.
func (p Pod) WantsAddress() bool { return !p.HostNetwork && !p.Done }

// Selectable is what SecurityGroupPolicies select a pod by.
func (p Pod) Selectable() securitygroup.Pod {
	return securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}, UID: types.UID(p.UID), Labels: p.Labels,
		ServiceAccount: p.ServiceAccount, HostNetwork: p.HostNetwork, Ended: p.Done,
	}
}

// ownAnnotation reports whether the node's network uses an annotation.
func ownAnnotation(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	for _, of := range []string{"trunkline.dev", "vpc.amazonaws.com", "k8s.amazonaws.com"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return false
}

// bound returns when a pod was bound to its node. The API server writes the condition
// when it binds a pod (pkg/registry/core/pod/storage); a pod without it was created with
// a node name.
func bound(in *corev1.Pod) time.Time {
	for _, c := range in.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return in.CreationTimestamp.Time
}

// awaited reports whether the kubelet may have to wait for a volume: for all but those that it
// makes of what it has.
func awaited(v corev1.Volume) bool {
	switch {
	case v.EmptyDir != nil, v.DownwardAPI != nil:
		return false
	case v.HostPath != nil:
		return v.HostPath.Type != nil && *v.HostPath.Type != corev1.HostPathUnset
	case v.Projected != nil:
		return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken == nil && s.DownwardAPI == nil && (s.ConfigMap == nil || s.ConfigMap.Name != rootCA)
		})
	}
	return true
}

// rootCA is the ConfigMap that Kubernetes makes in each namespace for the volume of each
// pod's account.
const rootCA = "kube-root-ca.crt"

func podFrom(in *corev1.Pod) Pod {
	out := Pod{
		PodRef:      PodRef{Namespace: in.Namespace, Name: in.Name},
		UID:         string(in.UID),
		HostNetwork: in.Spec.HostNetwork,
		Done:        in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed,
		Deleting:    in.DeletionTimestamp != nil,
		Labels:      in.Labels,
		Ports:       policy.NamedPorts(&in.Spec),
		Created:     in.CreationTimestamp.Time,
		Bound:       bound(in),
		Static:      in.Annotations[corev1.MirrorPodAnnotationKey],

		ServiceAccount:  in.Spec.ServiceAccountName,
		BranchInterface: podadmission.Requests(in.Spec), Requests: podadmission.Requests(in.Spec),
		AwaitsVolume: slices.ContainsFunc(in.Spec.Volumes, awaited),
	}
	for _, ip := range in.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out.Addresses = append(out.Addresses, a)
		}
	}
	for k, v := range in.Annotations {
		if !ownAnnotation(k) {
			continue
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[k] = v
	}
	return out
}

// namedContainers are the containers that have named ports, with nothing but these and what
// policy.NamedPorts reads beside them.
func namedContainers(list []corev1.Container) (out []corev1.Container) {
	for _, c := range list {
		ports := slices.DeleteFunc(slices.Clone(c.Ports), func(p corev1.ContainerPort) bool { return p.Name == "" })
		if len(ports) > 0 {
			out = append(out, corev1.Container{Ports: ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return out
}

// stripPod drops everything podFrom does not read, before the object is stored:
// specs, managed fields and foreign annotations are most of a pod's bytes.
func stripPod(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // a tombstone, or a bookmark
	}
	out := &corev1.Pod{}
	out.Namespace, out.Name, out.UID = in.Namespace, in.Name, in.UID
	out.ResourceVersion = in.ResourceVersion
	out.Labels = in.Labels
	if i := slices.IndexFunc(in.Spec.Volumes, awaited); i >= 0 {
		out.Spec.Volumes = []corev1.Volume{in.Spec.Volumes[i]}
	}
	out.CreationTimestamp, out.DeletionTimestamp = in.CreationTimestamp, in.DeletionTimestamp
	for k, v := range in.Annotations {
		if ownAnnotation(k) || k == corev1.MirrorPodAnnotationKey {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[k] = v
		}
	}
	out.Spec.HostNetwork, out.Spec.NodeName, out.Spec.ServiceAccountName = in.Spec.HostNetwork, in.Spec.NodeName, in.Spec.ServiceAccountName
	if podadmission.Requests(in.Spec) {
		out.Spec.Containers = []corev1.Container{requestingBranch()}
	}
	out.Spec.Containers = append(out.Spec.Containers, namedContainers(in.Spec.Containers)...)
	out.Spec.InitContainers = namedContainers(in.Spec.InitContainers)
	out.Status.Phase, out.Status.PodIPs = in.Status.Phase, in.Status.PodIPs
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(in.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type != corev1.PodScheduled
	})
	return out, nil
}
