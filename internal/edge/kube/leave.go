package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Leave deletes what the agent has written about its node: the NodeNetwork, and the Node's
// condition NetworkUnavailable, which would keep pods from the node if it was true. What is
// gone already is success; it may be repeated. No other method may be writing.
func (c *Cluster) Leave(ctx context.Context) error {
	report := DeleteReport(ctx, c.opts.Client, c.opts.NodeName)
	return errors.Join(report, c.deleteCondition(ctx))
}

func (c *Cluster) deleteCondition(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []map[string]any{
		{"type": corev1.NodeNetworkUnavailable, "$patch": "delete"},
	}}})
	if err != nil {
		return fmt.Errorf("encode node condition: %w", err)
	}
	_, err = c.opts.Client.Core.CoreV1().Nodes().Patch(ctx, c.opts.NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: FieldOwner}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the condition NetworkUnavailable of node %s: %w", c.opts.NodeName, err)
	}
	return nil
}
