package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Forget deletes what Trunkline's agent wrote at the API server about a node that it did not
// leave: the NodeNetwork, and the Node's condition NetworkUnavailable. It returns what it
// deleted. An agent writes nothing else about its node: CNINodes go with their Nodes, and the
// label trunkline.dev/cni is the operator's.
//
// It refuses a node that an agent serves or will serve, and a node with pods that Trunkline
// wired: another CNI would give their addresses to new pods. uninstalled says that `trunkline
// uninstall` has succeeded on the node, so that these pods may stay; it cannot be seen at the
// API server.
func Forget(ctx context.Context, c *kube.Client, node string, uninstalled bool) (deleted []string, err error) {
	agent, err := c.Core.AppsV1().DaemonSets(systemNamespace).Get(ctx, agentName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		agent, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the agent's DaemonSet: %w", err)
	}
	traces, err := kube.ReadTraces(ctx, c, node)
	if err != nil {
		return nil, err
	}
	if traces.Node == nil && traces.Report == nil {
		return nil, fmt.Errorf("there is neither a Node nor a NodeNetwork %s: the name is wrong, or it is forgotten already", node)
	}
	if traces.Report == nil && traces.Condition() == nil {
		return nil, nil
	}
	if why := inService(agent, traces, uninstalled, time.Now()); why != "" {
		return nil, errors.New(why)
	}
	if err := traces.Remove(ctx, c); err != nil {
		if apierrors.IsConflict(err) {
			err = fmt.Errorf("%w: it was written meanwhile; see trunkline status, and try again", err)
		}
		return nil, err
	}
	if traces.Report != nil {
		deleted = append(deleted, "NodeNetwork "+node)
	}
	if traces.Condition() != nil {
		deleted = append(deleted, "condition "+string(corev1.NodeNetworkUnavailable)+" of the Node")
	}
	return deleted, nil
}

// inService returns why a node may not be forgotten; empty if it may. Pure.
func inService(agent *appsv1.DaemonSet, t kube.Traces, uninstalled bool, now time.Time) string {
	for i := range t.Pods {
		if p := &t.Pods[i]; p.Labels[nameLabel] == agentName && !ended(p) {
			return fmt.Sprintf("pod %s/%s of the agent is on the node: wait until it has ended", p.Namespace, p.Name)
		}
	}
	if t.Report != nil {
		if age := now.Sub(t.Report.Status.ObservedAt.Time).Round(time.Second); age.Abs() < kube.StaleReport {
			return fmt.Sprintf("its agent reported %s ago and may still run: try again once the report is older than %s", age, kube.StaleReport)
		}
	}
	if t.Node == nil {
		return "" // Kubernetes deletes the pods of a Node that is gone
	}
	if agent != nil && agent.DeletionTimestamp == nil && kube.Selects(agent, t.Node) {
		return "the DaemonSet " + agentName + " selects the node, so that an agent serves it or will: if its instance is gone, kubectl delete node " + t.Node.Name + " first; " +
			"if another CNI serves it from now on, change its label trunkline.dev/cni (docs/migrate.md)"
	}
	if uninstalled {
		return ""
	}
	if names := wired(t); len(names) > 0 {
		return fmt.Sprintf("%d of its pods may have been wired by Trunkline, and another CNI would give their addresses to new pods: %s. "+
			"Drain the node; or run trunkline uninstall on it (docs/migrate.md), then this command with --uninstalled", len(names), some(names))
	}
	return ""
}

// wired returns the pods of a node that Trunkline may have wired: those with an address of
// their own that are older than the agent's last report can be. Without a report it is all.
func wired(t kube.Traces) (names []string) {
	for i := range t.Pods {
		p := &t.Pods[i]
		if !onPodNetwork(p) {
			continue
		}
		if t.Report == nil || p.CreationTimestamp.Time.Before(t.Report.Status.ObservedAt.Add(kube.StaleReport)) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
