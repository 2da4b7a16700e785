//go:build netns

package policy

import (
	"testing"

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

func TestPodsOfADDsThatFailedAreForgottenWithoutPolicies(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	if err := r.Admit(t.Context(), kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "failed"}}); err != nil {
		t.Fatal(err)
	}
	r.Loop.MarkFull()
	r.waitUntil("the pod is forgotten", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.admitted) == 0
	})
}
