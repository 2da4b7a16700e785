//go:build netns

package policy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const eventsPath = "/api/v1/events"

// oddly is a policy with a range of ports that ends before it begins.
func oddly(app string) *networkingv1.NetworkPolicy {
	p := allow(app, "a", 80)
	p.UID = "uid-of-policy"
	p.Spec.Ingress[0].Ports = append(p.Spec.Ingress[0].Ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(90)), EndPort: new(int32(81))})
	return p
}

// What a policy asks for and cannot get is an event of the policy, of nodes with a pod that it
// selects, and opens nothing.
func TestWhatCannotBeHonouredIsAnEventOfThePolicy(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 85)
	r.server.Put(networkPolicies, oddly("elsewhere"))
	r.server.Put(networkPolicies, oddly("b"))
	r.waitUntil("an event", func() bool { return len(r.server.Keys(eventsPath)) > 0 })
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 85)
	for range 3 {
		r.Loop.MarkFull()
	}
	var got corev1.Event
	keys := r.server.Keys(eventsPath)
	if len(keys) != 1 || !r.server.Get(eventsPath, keys[0], &got) {
		t.Fatalf("events %q, want one", keys)
	}
	if o := got.InvolvedObject; o.Kind != "NetworkPolicy" || o.Namespace != "default" || o.Name != "of-b" || o.UID != "uid-of-policy" || !strings.Contains(got.Message, "90 to 81") {
		t.Errorf("the event is of %+v: %s", o, got.Message)
	}
	posts := func() (n int) {
		for _, request := range r.server.Requests() {
			if strings.HasPrefix(request, "POST ") && strings.Contains(request, "/events") {
				n++
			}
		}
		return n
	}
	if list := Faults(r.Controller); len(list) != 1 || !strings.HasPrefix(list[0], "a part of NetworkPolicy default/of-b cannot be honoured") || !strings.Contains(list[0], "90 to 81") {
		t.Errorf("faults %q", list)
	}
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("no fault", func() bool { return len(Faults(r.Controller)) == 0 })
	if n := posts(); n != 1 {
		t.Errorf("%d requests for one event: %q", n, slices.Sorted(slices.Values(r.server.Requests())))
	}
}

// A change that the agent receives is measured until it is in force.
func TestTheTimeToEnforcementIsMeasured(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	measured := func() uint64 {
		count, _ := histogram(t, r.metrics.enforcement)
		return count
	}
	fromAPI := func() uint64 {
		count, _ := histogram(t, r.metrics.fromAPI)
		return count
	}
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	before := measured()
	if before == 0 {
		t.Error("the first policy is not measured")
	}
	if n := fromAPI(); n != 1 {
		t.Errorf("%d measurements from the creation of the first policy in the API, want 1", n)
	}
	r.server.Put(networkPolicies, allow("b", "a", 81))
	r.waitUntil("another measurement", func() bool { return measured() > before })
	r.stop()
	r.start()
	r.waitUntil("policies enforced by the next agent", r.Enforcing)
	if n := fromAPI(); measured() == 0 || n != 0 {
		t.Errorf("%d measurements from the API after a restart, want none of the list", n)
	}
}
