package kube_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Nodes that see the same problem of a policy write one event, and a later problem is another.
func TestNodesShareTheEventsOfAPolicy(t *testing.T) {
	w := newWorld(t)
	client, err := kube.FromREST(w.REST())
	if err != nil {
		t.Fatal(err)
	}
	ref := policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: "default", Name: strings.Repeat("p", 253)}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer func() { cancel(); ran.Wait() }()
	for n := range 4 {
		e := kube.NewEvents(client.Core, fmt.Sprint("n", n))
		ran.Go(func() { e.Run(ctx) })
		e.PolicyWarning(ref, "uid", "NotHonoured", "spec.ingress[0]: a")
	}
	const events = "/api/v1/events"
	asked := func() (n int) {
		for _, r := range w.Requests() {
			if strings.HasPrefix(r, "POST ") && strings.Contains(r, "/events") {
				n++
			}
		}
		return n
	}
	w.until(t, "requests of all nodes", func() bool { return asked() == 4 })
	keys := w.Keys(events)
	if len(keys) != 1 {
		t.Fatalf("%d events, want one: %q", len(keys), keys)
	}
	var got corev1.Event
	if !w.Get(events, keys[0], &got) || got.InvolvedObject.Name != ref.Name || got.InvolvedObject.UID != "uid" || got.Reason != "NotHonoured" || got.Message != "spec.ingress[0]: a" || got.Source.Component != kube.Component {
		t.Errorf("%+v", got)
	}
	other := kube.NewEvents(client.Core, "n1")
	ran.Go(func() { other.Run(ctx) })
	other.PolicyWarning(ref, "uid", "NotHonoured", "spec.ingress[0]: b")
	w.until(t, "an event of another problem", func() bool { return len(w.Keys(events)) == 2 })
}

// A SecurityGroup has no namespace; an event must have one.
func TestAnEventOfAnObjectOfTheClusterIsInTheDefaultNamespace(t *testing.T) {
	w := newWorld(t)
	client, err := kube.FromREST(w.REST())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer func() { cancel(); ran.Wait() }()
	e := kube.NewEvents(client.Core, "n1")
	ran.Go(func() { e.Run(ctx) })
	e.PolicyWarning(policy.Ref{Kind: "SecurityGroup", Name: "sg-0000000a"}, "uid", "NotHonoured", "rule sgr-1: a")
	const events = "/api/v1/events"
	w.until(t, "an event", func() bool { return len(w.Keys(events)) == 1 })
	var got corev1.Event
	if !w.Get(events, w.Keys(events)[0], &got) {
		t.Fatal("no event")
	}
	if about := got.InvolvedObject; got.Namespace != "default" || about.APIVersion != "trunkline.dev/v1alpha1" || about.Kind != "SecurityGroup" || about.Name != "sg-0000000a" || about.Namespace != "" {
		t.Errorf("%+v", got)
	}
}
