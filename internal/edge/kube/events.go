package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Component is the source of Trunkline's events.
const Component = "trunkline"

// Events writes Kubernetes events. Equal ones are counted on one object, and
// events about one object are rate limited (a burst of 25, then one in five minutes), as
// the kubelet's are. No method blocks: an event that cannot be written is dropped.
type Events struct {
	broadcaster record.EventBroadcaster
	sender      watch.Interface
	recorder    record.EventRecorderLogger
	node        string
	core        kubernetes.Interface
	shared      chan *corev1.Event // of several nodes, which only one is to write
}

// NewEvents returns a writer of events that come from node (empty: from no node).
// They are sent at once, until the context of Run ends; the caller must call Run. A Cluster
// has its own.
func NewEvents(c kubernetes.Interface, node string) *Events {
	b := record.NewBroadcaster()
	return &Events{
		broadcaster: b,
		// Here and not in Run: the broadcaster drops events that it has no receiver for.
		sender:   b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: c.CoreV1().Events("")}),
		recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Component, Host: node}),
		node:     node, core: c, shared: make(chan *corev1.Event, sharedQueue),
	}
}

// Run writes events that several nodes share, until ctx ends, and then stops the sending of all.
func (e *Events) Run(ctx context.Context) {
	e.writeShared(ctx)
	e.sender.Stop()
	e.broadcaster.Shutdown()
}

// PodWarning writes a Warning event about a pod: reason is one CamelCase word, message
// says what failed, why and what to do.
func (e *Events) PodWarning(ref PodRef, uid, reason, message string) {
	e.recorder.Event(podReference(ref, uid), corev1.EventTypeWarning, reason, message)
}

// PodNormal writes a Normal event about a pod.
func (e *Events) PodNormal(ref PodRef, uid, reason, message string) {
	e.recorder.Event(podReference(ref, uid), corev1.EventTypeNormal, reason, message)
}

// NodeWarning writes a Warning event about the node.
func (e *Events) NodeWarning(reason, message string) {
	e.recorder.Event(nodeReference(e.node), corev1.EventTypeWarning, reason, message)
}

func podReference(ref PodRef, uid string) runtime.Object {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(uid)}
}

// nodeReference has the node's name as uid, like the kubelet's events: `kubectl
// describe node` selects events by it.
func nodeReference(node string) runtime.Object {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
}
