//go:build netns

package policy

import "testing"

// Entries of connections name endpoints by their numbers; see enter.
func TestConnectionsAreJudgedAgainBeforeANumberIsGivenAgain(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("enforced", r.on.Load)
	a, b := r.endpoint("a"), r.endpoint("b")
	r.mu.Lock()
	defer r.mu.Unlock()
	epoch := r.datapath.State.Epoch()
	if err := r.forget(a.ID); err != nil {
		t.Fatal(err)
	}
	r.enter(b)
	if now := r.datapath.State.Epoch(); now != epoch {
		t.Errorf("epoch %d after a number that no other pod had, want %d", now, epoch)
	}
	r.enter(a)
	if now := r.datapath.State.Epoch(); now == epoch {
		t.Error("the number of an endpoint that has ended is given again, and connections are not judged again")
	}
}
