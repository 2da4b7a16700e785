//go:build netns

package policy

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// rigOptions are read by start.
type rigOptions struct {
	sizes  map[string]uint32 // of maps
	copied string            // file of the copy of the objects; empty: none
}

// The copy is older than what is in force: it may lack peers.
func TestACopyDoesNotReplaceWhatIsInForce(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.copied = filepath.Join(t.TempDir(), "policies.json")
	r.start()
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	for _, file := range []string{r.copied, r.copied + ".peers"} {
		r.waitUntil("the copy", func() bool { _, err := os.Stat(file); return err == nil })
	}
	r.stop()
	r.server.Refuse("/api/v1/pods", http.StatusInternalServerError)
	r.start()
	if !r.Objects.Copied() {
		t.Fatal("there is no copy")
	}
	for range 3 {
		if _, err := r.pass(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		r.mustReach("a", "b", 80)
	}
	if r.Enforcing() {
		t.Error("what is in force is replaced by a copy")
	}
	r.server.Refuse("/api/v1/pods", 0)
	r.waitUntil("policies enforced again", r.Enforcing)
	r.mustReach("a", "b", 80)
}
