//go:build netns

package policy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// An endpoint that is adopted before the node knows its pods has none.
func TestAnAdoptedEndpointIsJudgedByItsPodOnceThatIsKnown(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	known := r.endpoint("b")
	put := func(e endpoint.Endpoint) {
		statetest.Update(t, r.store, func(tx *state.Tx) error { return tx.Put(e) })
		r.Loop.Mark()
	}
	unknown := known
	unknown.Pod = endpoint.Pod{}
	put(unknown)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("enforced", r.on.Load)
	r.waitUntil("the endpoint has no pod", func() bool { return len(r.selecting("b")) == 0 && len(r.selecting("")) == 0 })

	put(unknown.Identify(known.Pod))
	r.waitUntil("the policy selects the pod", func() bool { return len(r.selecting("b")) == 1 })
	r.waitUntil("the pod is reached", func() bool { _, err := r.dial("a", "b", 80); return err == nil })
	r.mustNotReach("a", "b", 81)
}

// The watch of the node's pods may be behind what the API server answered to an ADD.
func TestAPodIsNotJudgedByAnEarlierOneOfItsName(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("b")
	e := r.endpoint("b")
	e.Pod.UID = "uid-b"
	statetest.Update(t, r.store, func(tx *state.Tx) error { return tx.Put(e) })
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("enforced", r.on.Load)
	pod := func(uid, static, app string) kube.Pod {
		return kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "b"}, UID: uid, Static: static, Labels: map[string]string{"app": app}}
	}
	for _, c := range []struct {
		name     string
		pod      kube.Pod
		selected int
	}{
		{"its own", pod("uid-b", "", "b"), 1},
		{"an earlier pod with other labels", pod("uid-earlier", "", "other"), 1},
		{"its own with other labels", pod("uid-b", "", "other"), 0},
		{"a static pod with another mirror pod", pod("uid-mirror", "0123", "b"), 1},
	} {
		r.setPods(c.pod)
		if _, err := r.pass(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if list := r.selecting("b"); len(list) != c.selected {
			t.Errorf("%s: selected by %v, want %d", c.name, list, c.selected)
		}
	}
}

// A pod of a StatefulSet starts on another node while this one has not deleted its earlier sandbox.
func TestAPodThatMovedBeforePoliciesAreOnIsAPeerOnceItsEndpointEnds(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	moved := netip.MustParseAddr("10.0.0.77")
	r.server.Put("/api/v1/pods", &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b", UID: "later", Labels: map[string]string{"app": "b"}},
		Spec: corev1.PodSpec{NodeName: "n2"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: moved.String()},
	})
	r.server.Put(networkPolicies, allow("a", "b", 80))
	r.waitUntil("enforced", r.on.Load)
	at := func(a netip.Addr) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		ref, known := r.engine.At(a)
		return known && ref.Name == "b"
	}
	if local := r.address("b"); !at(local) || at(moved) {
		t.Errorf("while it has an endpoint here: local address known %v, the other %v", at(local), at(moved))
	}
	statetest.Remove(t, r.store, r.endpoint("b"))
	r.setPods(r.Pods()[:1]...)
	r.waitUntil("the pod of the other node is a peer", func() bool { return at(moved) })
}
