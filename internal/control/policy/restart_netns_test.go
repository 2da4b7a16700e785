//go:build netns

package policy

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// rules are what the node's rules of nftables call.
type rules struct {
	unstarted bool // they have not been compared yet
	policy    atomic.Pointer[ruleset.Programs]
}

// settle is what an agent does before its loops run: it adopts what an earlier one has pinned, and only then
// compares the rules of nftables.
func (r *rig) settle(c *Controller) {
	r.t.Helper()
	r.policy.Store(&ruleset.Programs{})
	if len(r.pinned()) > 0 {
		r.unstarted = true
		if err := c.Adopt(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
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

// A rule of nftables holds the program that it was made for, with its maps, whatever is pinned at its path later.
func TestTheRuleWithLostMapsIsReplaced(t *testing.T) {
	for _, lost := range []string{"tl_classes", "tl_endpoints"} {
		t.Run(lost, func(t *testing.T) {
			r := newRig(t)
			r.waitUntil("policies known", r.Objects.Known)
			r.add("a")
			r.add("b")
			r.echo("b", 80)
			r.echo("b", 81)
			r.server.Put(networkPolicies, allow("b", "a", 80))
			r.waitUntil("policies enforced", r.Enforcing)
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
