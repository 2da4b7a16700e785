package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Removed reports whether a pod of a DaemonSet that is being stopped will have no
// successor on its node, and why. It has none if the DaemonSet is deleted or being
// deleted, and if the DaemonSet no longer selects the node. A DaemonSet created again under
// the same name provides a successor.
//
// An error means that this is unknown; callers treat the stop as a rollout. A role
// without the right to read the DaemonSet is such an error: it belongs to another
// version, which is the successor. So is a refusal: an API server that starts refuses
// everything until it has read the roles (403), and one that cannot read service accounts or
// their keys knows no account (401), which may last for minutes. Both look like the loss of the
// agent's rights. While the agent's own pod is refused, the question is repeated until ctx
// ends.
func Removed(ctx context.Context, c *Client, own PodRef, node string) (removed bool, why string, err error) {
	for {
		removed, why, err = removedNow(ctx, c, own, node)
		if !errors.Is(err, errRefused) {
			return removed, why, err
		}
		select {
		case <-ctx.Done():
			return false, "", err
		case <-time.After(refusedAgain):
		}
	}
}

// refusedAgain is the pause before a refused question is repeated.
const refusedAgain = 500 * time.Millisecond

// errRefused says that the pod's account may not even read the pod.
var errRefused = errors.New("refused")

// removedNow asks once.
func removedNow(ctx context.Context, c *Client, own PodRef, node string) (removed bool, why string, err error) {
	pod, err := c.Core.CoreV1().Pods(own.Namespace).Get(ctx, own.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		return false, "", fmt.Errorf("get own pod %s: %w: %w", own, errRefused, err)
	case err != nil:
		return false, "", fmt.Errorf("get own pod %s: %w", own, err)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" {
		return false, "pod " + own.String() + " is not owned by a DaemonSet", nil
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
	case !Selects(set, n):
		return true, "DaemonSet " + owner.Name + " no longer selects node " + node, nil
	}
	return false, "DaemonSet " + owner.Name + " selects node " + node, nil
}

// Selects reports whether a DaemonSet's node selector and required node affinity match a
// node. Taints are ignored: the agent tolerates all.
func Selects(set *appsv1.DaemonSet, n *corev1.Node) bool {
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
	for _, term := range required.NodeSelectorTerms { // any term suffices; an empty one matches nothing
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
			return false // an invalid requirement counts as met: the conflist then stays
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
