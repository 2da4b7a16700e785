package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// Traces are what the API server has of a node: what an agent wrote about it, and the pods
// that are bound to it. Node and Report are nil if there is none.
type Traces struct {
	Node   *corev1.Node
	Report *trunkline.NodeNetwork
	Pods   []corev1.Pod
}

// ReadTraces reads the traces of a node.
func ReadTraces(ctx context.Context, c *Client, node string) (t Traces, err error) {
	t.Node, err = c.Core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.Node, err = nil, nil
	}
	if err != nil {
		return Traces{}, fmt.Errorf("get node %s: %w", node, err)
	}
	t.Report = &trunkline.NodeNetwork{}
	err = c.Trunkline.Get().Resource(trunkline.ResourceNodeNetworks).Name(node).Do(ctx).Into(t.Report)
	if apierrors.IsNotFound(err) { // also if the definition is deleted
		t.Report, err = nil, nil
	}
	if err != nil {
		return Traces{}, fmt.Errorf("get NodeNetwork %s: %w", node, err)
	}
	pods, err := c.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return Traces{}, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	t.Pods = pods.Items
	return t, nil
}

// Condition returns the Node's condition that an agent wrote, nil if there is none.
func (t Traces) Condition() *corev1.NodeCondition {
	if t.Node == nil {
		return nil
	}
	for i := range t.Node.Status.Conditions {
		if c := &t.Node.Status.Conditions[i]; c.Type == corev1.NodeNetworkUnavailable && (c.Reason == ReasonReady || c.Reason == ReasonRefuses) {
			return c
		}
	}
	return nil
}

// Remove deletes the report and the condition as they were read. If an agent has written one
// of them since, it is kept, and an error says so. What is gone already is success.
func (t Traces) Remove(ctx context.Context, c *Client) error {
	var problems []error
	if t.Condition() != nil {
		problems = append(problems, removeCondition(ctx, c, t.Node.Name, t.Node.ResourceVersion))
	}
	if t.Report != nil && errors.Join(problems...) == nil { // last: what pods Trunkline wired is read from it
		version := t.Report.ResourceVersion
		err := c.Trunkline.Delete().Resource(trunkline.ResourceNodeNetworks).Name(t.Report.Name).
			Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &t.Report.UID, ResourceVersion: &version}}).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("delete NodeNetwork %s: %w", t.Report.Name, err))
		}
	}
	return errors.Join(problems...)
}

// removeCondition deletes a Node's condition NetworkUnavailable, with a version only if the
// Node still has it. A Node that is gone is success.
func removeCondition(ctx context.Context, c *Client, node, version string) error {
	patch := map[string]any{"status": map[string]any{"conditions": []map[string]any{
		{"type": corev1.NodeNetworkUnavailable, "$patch": "delete"},
	}}}
	if version != "" {
		patch["metadata"] = map[string]any{"resourceVersion": version}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode node condition: %w", err)
	}
	_, err = c.Core.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: FieldOwner}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the condition NetworkUnavailable of node %s: %w", node, err)
	}
	return nil
}
