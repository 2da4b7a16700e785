package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// FieldOwner is the field manager of our server-side apply requests.
const FieldOwner = "trunkline-agent"

// reportEvery is the interval at which an unchanged report is written again: its age
// shows that the agent runs, and the leak collector relies on it.
const reportEvery = time.Minute

// conditionEvery is the same of the Node's condition, which every watcher of Nodes gets: as often as the kubelet writes
// an unchanged status. Source: nodeStatusReportFrequency of the kubelet's configuration.
const conditionEvery = 5 * time.Minute

// reportWithin bounds a report to a server that does not respond: the next report
// replaces it.
const reportWithin = 15 * time.Second

type networkWriter struct {
	client rest.Interface
	node   string

	mu     sync.Mutex
	last   trunkline.NodeNetworkStatus
	lastAt time.Time
	// available is the last NetworkUnavailable condition written, at availableAt.
	available   corev1.NodeCondition
	availableAt time.Time
}

// WriteNetwork reports the node's network. A report that equals the last one, apart
// from ObservedAt, is written at most once a minute. The object is created if it does
// not exist, owned by the Node.
func (c *Cluster) WriteNetwork(ctx context.Context, s trunkline.NodeNetworkStatus) error {
	w := &c.network
	w.mu.Lock()
	s = keepTransitions(w.last, s)
	unchanged := time.Since(w.lastAt) < reportEvery && sameReport(w.last, s)
	w.mu.Unlock()
	if unchanged {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	node, _ := c.Node()
	obj := &trunkline.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: w.node},
	}
	if node.UID != "" {
		obj.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.UID)}}
	}
	status := *obj
	status.OwnerReferences = nil
	status.Status = s
	err := w.apply(ctx, &status, "status")
	if apierrors.IsNotFound(err) {
		if err = w.apply(ctx, obj); err == nil {
			err = w.apply(ctx, &status, "status")
		}
	}
	if err != nil {
		return fmt.Errorf("write NodeNetwork %s: %w", w.node, err)
	}
	w.mu.Lock()
	w.last, w.lastAt = *s.DeepCopy(), time.Now()
	w.mu.Unlock()
	return nil
}

// keepTransitions gives a condition that did not change the time of its last change, so
// that callers do not have to keep it.
func keepTransitions(last, s trunkline.NodeNetworkStatus) trunkline.NodeNetworkStatus {
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		now := &s.Conditions[i]
		for _, was := range last.Conditions {
			if was.Type == now.Type && was.Status == now.Status {
				now.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return s
}

func sameReport(a, b trunkline.NodeNetworkStatus) bool {
	a.ObservedAt, b.ObservedAt = metav1.Time{}, metav1.Time{}
	return apiequality.Semantic.DeepEqual(a, b)
}

func (w *networkWriter) apply(ctx context.Context, obj *trunkline.NodeNetwork, sub ...string) error {
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return w.client.Patch(types.ApplyPatchType).
		Resource(trunkline.ResourceNodeNetworks).Name(w.node).SubResource(sub...).
		Param("fieldManager", FieldOwner).Param("force", "true").
		Body(body).Do(ctx).Error()
}

// SetNetworkUnavailable sets the Node's condition of that name. The scheduler does not
// bind pods to the node while it is true; an agent sets it to false once it can serve an
// ADD. reason is one CamelCase word. An equal condition is written at most once in conditionEvery.
func (c *Cluster) SetNetworkUnavailable(ctx context.Context, unavailable bool, reason, message string) error {
	status := corev1.ConditionFalse
	if unavailable {
		status = corev1.ConditionTrue
	}
	now := metav1.Now()
	next := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, Message: message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	w := &c.network
	w.mu.Lock()
	was := w.available
	if was.Status == status {
		next.LastTransitionTime = was.LastTransitionTime
	}
	unchanged := time.Since(w.availableAt) < conditionEvery && was.Status == status && was.Reason == reason && was.Message == message
	w.mu.Unlock()
	if unchanged {
		return nil
	}
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{next}}}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode node condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, err = c.opts.Client.Core.CoreV1().Nodes().Patch(ctx, c.opts.NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: FieldOwner}, "status")
	if err != nil {
		return fmt.Errorf("set NetworkUnavailable=%s on node %s: %w", status, c.opts.NodeName, err)
	}
	w.mu.Lock()
	w.available, w.availableAt = next, now.Time
	w.mu.Unlock()
	return nil
}
