package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReasonReady is the reason of the Node's condition NetworkUnavailable that an agent writes
// while it serves the node, and deletes when it leaves.
const ReasonReady = "TrunklineReady"

// ReasonRefuses is that of the same condition while an agent runs on the node and refuses to serve
// it.
const ReasonRefuses = "TrunklineRefuses"

// ReasonLeft is the reason of the event of a node that its agent has left.
const ReasonLeft = "TrunklineLeft"

// Leave deletes what the agent has written about its node: the NodeNetwork, and the Node's
// condition NetworkUnavailable, which would keep pods from the node if it was true. Then it
// reports that by an event of the node, which outlives the agent's pod and its log. What is
// gone already is success; it may be repeated. No other method may be writing.
func (c *Cluster) Leave(ctx context.Context) error {
	report := DeleteReport(ctx, c.opts.Client, c.opts.NodeName)
	if err := errors.Join(report, removeCondition(ctx, c.opts.Client, c.opts.NodeName, "")); err != nil {
		return err
	}
	return c.reportLeft(ctx)
}

// reportLeft writes its event itself: the writer of events ends when the agent is stopped.
func (c *Cluster) reportLeft(ctx context.Context) error {
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", c.opts.NodeName, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Node", Name: c.opts.NodeName, UID: types.UID(c.opts.NodeName), // as in nodeReference
		},
		Reason: ReasonLeft, Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: Component, Host: c.opts.NodeName},
		Message:        "Trunkline's agent has left the node; another CNI may start.",
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if _, err := c.opts.Client.Core.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: FieldOwner}); err != nil {
		return fmt.Errorf("create event %s of node %s: %w", e.Reason, c.opts.NodeName, err)
	}
	return nil
}

// Refuse has the Node's condition NetworkUnavailable say that the agent refuses to serve, if an
// agent that served the node wrote it. That of another network stays, and none is made: that
// network serves the node.
func (c *Cluster) Refuse(ctx context.Context, why string) error {
	n, err := c.opts.Client.Core.CoreV1().Nodes().Get(ctx, c.opts.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", c.opts.NodeName, err)
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeNetworkUnavailable && condition.Reason == ReasonReady {
			return c.SetNetworkUnavailable(ctx, false, ReasonRefuses, why)
		}
	}
	return nil
}
