//go:build netns

package policy

import (
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// The peer has its class again, and set and epoch are those by which the connection was denied.
func TestAConnectionContinuesOnceItsPeerIsAllowedAgain(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("enforced", r.on.Load)
	live := r.mustReach("a", "b", 80)
	before := r.Pods()
	a, b := before[0], before[1]
	a.Labels = map[string]string{"app": "other"}
	for range 2 {
		for _, c := range []struct {
			pods    []kube.Pod
			allowed bool
		}{{[]kube.Pod{a, b}, false}, {before, true}} {
			r.setPods(c.pods...)
			if _, err := r.pass(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if !c.allowed {
				if live.answers() == nil {
					t.Fatal("a connection passes although its peer is denied")
				}
				continue
			}
			r.mustReach("a", "b", 80)
			r.waitUntil("the connection continues", func() bool { return live.answers() == nil })
		}
	}
}
