package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/policy"
)

const (
	// sharedQueue is how many events may wait to be written; more are dropped.
	sharedQueue = 1024
	// sharedWithin spreads the first of several events, and sharedRate are events a second after
	// it: nodes see a change of a policy at the same time.
	sharedWithin = 3 * time.Second
	sharedRate   = 2
	sharedTries  = 3
)

// PolicyWarning writes a Warning event about a NetworkPolicy, or a SecurityGroup of the cluster. Every node with a pod that the policy
// selects may call it with the same text: the name of the event is made of its content, so that the
// API server creates one, and answers the other nodes that it exists.
func (e *Events) PolicyWarning(ref policy.Ref, uid, reason, message string) {
	const longest = 200 // of 253 characters of a name
	sum := sha256.Sum256([]byte(ref.String() + "\x00" + uid + "\x00" + reason + "\x00" + message))
	now := metav1.Now()
	about := corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(uid)}
	if ref.Namespace == "" { // events of objects without a namespace are in this one
		about.APIVersion, ref.Namespace = trunkline.GroupVersion().String(), metav1.NamespaceDefault
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: ref.Namespace, Name: fmt.Sprintf("%.*s.%x", longest, ref.Name, sum[:8])},
		InvolvedObject: about,
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: Component, Host: e.node}, ReportingController: Component, ReportingInstance: e.node,
	}
	select {
	case e.shared <- event:
	default:
	}
}

func (e *Events) writeShared(ctx context.Context) {
	limit := flowcontrol.NewTokenBucketRateLimiter(sharedRate, 1)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.shared:
			if limit.TryAccept() { // none before it for a while
				pause(ctx, rand.N(sharedWithin))
			} else if limit.Wait(ctx) != nil {
				return
			}
			e.writeOne(ctx, event)
		}
	}
}

// writeOne creates an event, unless another node has.
func (e *Events) writeOne(ctx context.Context, event *corev1.Event) {
	for try := range sharedTries {
		_, err := e.core.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // or the namespace ends
			return
		}
		pause(ctx, time.Second<<try)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
