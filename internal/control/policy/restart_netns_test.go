//go:build netns

package policy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// rules are what the node's rules of nftables call.
type rules struct {
	unstarted bool // they have not been compared yet
	adopted   error
	policy    atomic.Pointer[ruleset.Programs]
}

// settle is what an agent does before its loops run: it adopts what an earlier one has pinned, and only then
// compares the rules of nftables.
func (r *rig) settle(c *Controller) {
	r.t.Helper()
	r.policy.Store(&ruleset.Programs{})
	if len(r.pinned()) > 0 {
		r.unstarted = true
		r.adopted = c.Adopt(r.t.Context())
		r.unstarted = false
	}
	r.repair()
}

// repair compares the rules of nftables and repairs them.
func (r *rig) repair() {
	r.t.Helper()
	if err := r.judge(r.t.Context(), *r.policy.Load()); err != nil {
		r.t.Fatal(err)
	}
}

// flush deletes all rules of nftables, as another program does, and repairs them.
func (r *rig) flush() {
	r.t.Helper()
	if out, err := exec.Command("ip", "netns", "exec", r.node.Name, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	r.repair()
}

// newIsolating is a node with the pods a and b, of which b serves two ports and a policy allows a the port 80.
func newIsolating(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	return r
}

// A rule of nftables holds the program that it was made for, with its maps, whatever is pinned at its path later.
func TestTheRuleWithLostMapsIsReplaced(t *testing.T) {
	for _, lost := range []string{"tl_classes", "tl_endpoints"} {
		t.Run(lost, func(t *testing.T) {
			r := newIsolating(t)
			r.mustReach("a", "b", 80)
			r.stop()
			if err := os.Remove(filepath.Join(r.bpffs, "tl-test", r.pinned()[0], lost)); err != nil {
				t.Fatal(err)
			}
			r.start()
			r.waitUntil("policies enforced again", r.Enforcing)
			r.mustReach("a", "b", 80)
			r.mustNotReach("a", "b", 81)
			r.server.Put(networkPolicies, allow("b", "a", 81))
			r.waitUntil("port 81 allowed", func() bool { _, err := r.dial("a", "b", 81); return err == nil })
			r.mustNotReach("a", "b", 80)
		})
	}
}

// What is in force goes on where the next agent cannot open it.
func TestProgramsThatCannotBeOpenedStayInForce(t *testing.T) {
	r := newIsolating(t)
	r.stop()
	r.sizes["tl_none"] = 1 // there is no such map
	r.start()
	if r.adopted == nil {
		t.Fatal("adopted with a map that does not exist")
	}
	r.waitUntil("a problem", func() bool { return r.Problem() != "" })
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
	r.stop()
	delete(r.sizes, "tl_none")
	r.start()
	r.waitUntil("policies enforced again", r.Enforcing)
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// Policies that are deleted while their end fails are not in force with those that follow.
func TestPoliciesAfterAFailedEndAreCompiledWithAllChanges(t *testing.T) {
	r := newIsolating(t)
	r.echo("a", 80)
	r.mustNotReach("a", "b", 81)
	ends := errors.New("the rules of nftables cannot be written")
	r.broken = func() error {
		if r.policy.Load().Forward == "" {
			return ends
		}
		return nil
	}
	r.server.Delete(networkPolicies, "default/of-b")
	r.waitUntil("a failed end", func() bool { return strings.Contains(r.Problem(), "still enforced") })
	r.server.Put(networkPolicies, allow("a", "none", 80))
	r.waitUntil("the deleted policy ends", func() bool { _, err := r.dial("a", "b", 81); return err == nil && r.Enforcing() })
	r.mustNotReach("b", "a", 80)
	if problem := r.Problem(); problem != "" {
		t.Errorf("then: %s", problem)
	}
}

// Another pod may get the address of one that ends while no policies can be written.
func TestAnEndpointThatEndsWhilePoliciesDoNotFitLeavesTheMaps(t *testing.T) {
	r := newSizedRig(t, map[string]uint32{"tl_ports": 64})
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	r.stop()
	r.server.Put(networkPolicies, withPorts("a", "b", apart(100)...))
	r.start()
	r.waitUntil("a problem", func() bool { return r.Problem() != "" })
	b := r.endpoint("b")
	statetest.Update(t, r.store, func(tx *state.Tx) error { tx.Delete(b.ID); return nil })
	r.retried()
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, found, err := r.datapath.Maps.Addresses.Get(bpf.AddressOf(b.Addresses.Primary())); found || err != nil {
		t.Errorf("its address has endpoint %d (%v)", id, err)
	}
	if set := r.datapath.State.InForce(b.ID); set != bpf.SetNone {
		t.Errorf("set %d is in force for it", set)
	}
}
