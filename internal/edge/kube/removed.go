package kube

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Removed tells whether a pod of a DaemonSet that is being stopped will have no
// successor on its node, and why. It will have none when the DaemonSet is gone or
// going, when it no longer wants the node, and when the pod's own account or all
// its rights are gone, as after `kubectl delete -k`. A DaemonSet of the same name
// that was made anew is a successor.
//
// An error means that nobody could tell; then the stop is best taken for a roll. A
// role that does not let the DaemonSet be read is such an error: it is another
// version's, and so is the successor.
func Removed(ctx context.Context, c *Client, own PodRef, node string) (removed bool, why string, err error) {
	pod, err := c.Core.CoreV1().Pods(own.Namespace).Get(ctx, own.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return true, "the agent's service account is gone", nil
	case apierrors.IsForbidden(err):
		return true, "the agent's rights are gone", nil
	case err != nil:
		return false, "", fmt.Errorf("get own pod %s: %w", own, err)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" {
		return false, "pod " + own.String() + " is not of a DaemonSet", nil
	}
	set, err := c.Core.AppsV1().DaemonSets(own.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, "DaemonSet " + owner.Name + " is gone", nil
	case err != nil:
		return false, "", fmt.Errorf("get DaemonSet %s/%s: %w", own.Namespace, owner.Name, err)
	case set.DeletionTimestamp != nil:
		return true, "DaemonSet " + owner.Name + " is being deleted", nil
	}
	n, err := c.Core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, "node " + node + " is gone", nil
	case err != nil:
		return false, "", fmt.Errorf("get node %s: %w", node, err)
	case !wants(set, n):
		return true, "DaemonSet " + owner.Name + " does not want node " + node + " any more", nil
	}
	return false, "DaemonSet " + owner.Name + " wants node " + node, nil
}

// wants reports whether a DaemonSet's node selector and required node affinity
// match a node. Taints are not looked at: the agent tolerates all.
func wants(set *appsv1.DaemonSet, n *corev1.Node) bool {
	spec := &set.Spec.Template.Spec
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(n.Labels)) {
		return false
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return true
	}
	for _, term := range required.NodeSelectorTerms { // one of them; an empty one matches nothing
		if len(term.MatchExpressions)+len(term.MatchFields) > 0 &&
			all(term.MatchExpressions, n.Labels) && all(term.MatchFields, map[string]string{"metadata.name": n.Name}) {
			return true
		}
	}
	return false
}

func all(list []corev1.NodeSelectorRequirement, of labels.Set) bool {
	for _, r := range list {
		op, known := operators()[r.Operator]
		want, err := labels.NewRequirement(r.Key, op, r.Values)
		if known && err == nil && !want.Matches(of) {
			return false // one we cannot read counts as met: better a conflist too many
		}
	}
	return true
}

func operators() map[corev1.NodeSelectorOperator]selection.Operator {
	return map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
}
