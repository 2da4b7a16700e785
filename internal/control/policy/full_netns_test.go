//go:build netns

package policy

import (
	"errors"
	"math"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
)

// withPorts is allow with more ports, each of which is an entry of a map.
func withPorts(app, from string, ports ...int) *networkingv1.NetworkPolicy {
	p := allow(app, from, ports[0])
	for _, port := range ports[1:] {
		p.Spec.Ingress[0].Ports = append(p.Spec.Ingress[0].Ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(int32(port)))})
	}
	return p
}

// apart are ports that have no neighbours among them.
func apart(n int) (ports []int) {
	for i := range n {
		ports = append(ports, 1000+2*i)
	}
	return ports
}

// retried waits until some more passes have failed.
func (r *rig) retried() {
	r.t.Helper()
	before := r.passes.Load()
	r.waitUntil("passes", func() bool { return r.passes.Load() >= before+4 })
}

func (r *rig) entries() int {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	ports, err := r.datapath.Maps.Ports.All()
	if err != nil {
		r.t.Fatal(err)
	}
	return len(ports)
}

// Policies that do not fit a map leave those in force as they are, and do not hinder
// smaller ones that follow.
func TestPoliciesThatDoNotFitAMapEndOnceTheyAreSmaller(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	for _, port := range []int{80, 81} {
		other := 161 - port
		r.server.Put(networkPolicies, allow("b", "a", port))
		r.waitUntil("policies enforced", func() bool { _, err := r.dial("a", "b", uint16(port)); return err == nil && r.Enforcing() })
		r.mustNotReach("a", "b", uint16(other))
		live, events := r.mustReach("a", "b", uint16(port)), r.events.count()

		r.server.Put(networkPolicies, withPorts("b", "a", append(apart(100), other)...))
		r.waitUntil("a problem", func() bool { return r.Problem() != "" })
		problem := r.Problem()
		r.retried()
		for _, part := range []string{"tl_ports", "64 entries", "need 101", "network-policy-map-sizes"} {
			if !strings.Contains(problem, part) {
				t.Errorf("problem %q does not name %q", problem, part)
			}
		}
		if again := r.Problem(); again != problem || r.events.count() != events+1 || r.entries() > 1 {
			t.Errorf("after more attempts: problem %q, was %q; %d events; %d entries", again, problem, r.events.count()-events, r.entries())
		}
		if err := live.answers(); err != nil {
			t.Errorf("a connection that the policy in force allows: %v", err)
		}
		r.mustReach("a", "b", uint16(port))
		r.mustNotReach("a", "b", uint16(other))
	}
	r.server.Put(networkPolicies, withPorts("b", "a", append(apart(60), 80)...))
	r.waitUntil("policies enforced", func() bool { return r.Enforcing() && r.Problem() == "" })
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// Policies that fit the maps, but not beside those in force, are written to other maps: an agent that
// starts is no exception. Another size is in force when an agent starts.
func TestPoliciesThatFitTheMapsAreEnforcedWhateverIsInForce(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	r.echo("b", 82)
	r.server.Put(networkPolicies, withPorts("b", "a", append(apart(60), 80)...))
	r.waitUntil("policies enforced", r.Enforcing)
	r.mustNotReach("a", "b", 82)
	live := r.mustReach("a", "b", 80)
	enforces := func(what string, entries int) {
		t.Helper()
		r.waitUntil(what, func() bool { return r.Enforcing() && r.entries() == entries })
		r.mustReach("a", "b", 80)
		r.mustReach("a", "b", 82)
		r.mustNotReach("a", "b", 81)
		if err := live.answers(); err != nil {
			t.Errorf("%s: a live connection: %v", what, err)
		}
		if list := r.pinned(); len(list) != 1 || strings.Count(r.list(), "bpf") == 0 {
			t.Errorf("%s: pinned %q, rules\n%s", what, list, r.list())
		}
	}
	r.server.Put(networkPolicies, withPorts("b", "a", append(apart(54), 80, 82)...))
	enforces("a change", 56)
	for _, size := range []uint32{64, 200, 60} { // the same, a larger and a smaller one
		r.stop()
		r.mustReach("a", "b", 80)
		r.sizes["tl_ports"] = size
		r.start()
		r.mustReach("a", "b", 80)
		r.mustNotReach("a", "b", 81)
		enforces("a start", 56)
		if got := r.datapath.Size("tl_ports"); got != int(size) {
			t.Errorf("size %d, want %d", got, size)
		}
	}
}

func TestFirstPoliciesThatDoNotFitAMapLeaveNothingInIt(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.server.Put(networkPolicies, withPorts("b", "a", apart(100)...))
	r.waitUntil("a problem", func() bool { return r.Problem() != "" })
	r.retried()
	if n := r.entries(); n > 0 || r.Enforcing() {
		t.Errorf("%d entries, enforcing %v", n, r.Enforcing())
	}
	for _, size := range []uint32{64, 80, 64} { // an agent that starts, also with other sizes, cuts no pod off
		r.stop()
		r.sizes["tl_ports"] = size
		r.start()
		r.mustReach("a", "b", 80)
		r.waitUntil("a problem after a start", func() bool { return r.Problem() != "" })
		r.mustReach("a", "b", 80)
	}
	r.server.Put(networkPolicies, withPorts("b", "b", apart(64)...))
	r.waitUntil("policies enforced", r.Enforcing)
	r.mustNotReach("a", "b", 80)
}

// After its journal was lost, an agent gives links other numbers. Until all policies are written, pods are judged by
// those of the earlier agent, and none by those of another pod.
func TestEndpointsWithOtherNumbersAreNotJudgedByThePoliciesOfOthers(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	for _, pod := range []string{"a", "b", "c"} {
		r.add(pod)
	}
	r.echo("b", 80)
	r.echo("b", 81)
	r.echo("c", 81)
	r.server.Put(networkPolicies, withPorts("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	judged := func(what string) {
		t.Helper()
		r.mustReach("a", "b", 80)
		r.mustNotReach("a", "b", 81)
		r.mustReach("a", "c", 81)
		if t.Failed() {
			t.Fatal(what)
		}
	}
	judged("before")
	r.stop()
	b, c := r.endpoint("b"), r.endpoint("c")
	statetest.Update(t, r.store, func(tx *state.Tx) error {
		tx.Delete(b.ID)
		tx.Delete(c.ID)
		b.ID, c.ID = c.ID, b.ID
		return errors.Join(tx.Put(b), tx.Put(c))
	})
	r.server.Put(networkPolicies, withPorts("b", "a", append(apart(100), 80)...)) // they do not fit the maps
	r.start()
	judged("adopted")
	r.waitUntil("a problem", func() bool { return r.Problem() != "" })
	r.retried()
	judged("with policies that cannot be written")
	r.flush()
	judged("after a repair of nftables")
	r.server.Put(networkPolicies, withPorts("b", "a", 80))
	r.waitUntil("policies enforced again", func() bool { return r.Enforcing() && r.Problem() == "" })
	judged("with the other numbers")
	if list := r.pinned(); len(list) != 1 {
		t.Errorf("pinned %q", list)
	}
}

// What is in force stays where it is, and ends with the policies.
func TestOtherMapsThatCannotBeMadeLeaveThoseInForce(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	r.server.Put(networkPolicies, withPorts("b", "a", append(apart(60), 80)...))
	r.waitUntil("policies enforced", r.Enforcing)
	r.stop()
	r.sizes["tl_rows"] = math.MaxUint32 // refused by the kernel
	r.start()                           // the policies of the earlier agent stay in the maps while these are written
	r.waitUntil("a problem", func() bool { return r.Problem() != "" })
	r.retried()
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
	r.flush()
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
	r.server.Delete(networkPolicies, "default/of-b")
	r.waitUntil("nothing pinned", func() bool { return len(r.pinned()) == 0 })
	r.mustReach("a", "b", 81)
}
