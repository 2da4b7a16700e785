package network

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// The program that an earlier agent left goes on judging: the first comparison must not remove
// its rule. A kernel that refuses the rule must not prevent the repair of all others.
func TestTheRuleOfPoliciesIsPartOfTheFirstComparisonAndGoesAfterAnError(t *testing.T) {
	s, seen, times := statetest.Open(t, t.TempDir()), &calls{kernel: newKernel()}, new(int)
	statetest.Observe(t, s)
	n := withEdges(t, s, seen, seen.kernel, refusing{firewall{seen.kernel}, times})
	calls := func(path string) bool { return strings.Contains(seen.kernel.rules.String(), path) }

	if err := Judge(t.Context(), n, ruleset.Programs{Forward: "/bpf/one/forward"}); err != nil || len(seen.kernel.rules.Tables) > 0 {
		t.Fatalf("before the start: %v, and %d tables were applied without what the node is", err, len(seen.kernel.rules.Tables))
	}
	if err := n.Start(t.Context()); err != nil || !calls("/bpf/one/forward") {
		t.Fatalf("%v, rules\n%s", err, seen.kernel.rules)
	}
	if err := Judge(t.Context(), n, ruleset.Programs{Forward: "/bpf/two/forward"}); err != nil || calls("/bpf/one") || !calls("/bpf/two/forward") {
		t.Fatalf("%v, rules\n%s", err, seen.kernel.rules)
	}
	if events := len(seen.events); events > 0 {
		t.Errorf("%d events: the agent itself changed the rules", events)
	}
	*times = 1
	if err := Judge(t.Context(), n, ruleset.Programs{Forward: "/bpf/three/forward"}); err == nil {
		t.Fatal("no error, and the kernel refused the rule")
	}
	if _, err := n.pass(t.Context(), true); err != nil || calls("/bpf/three") || !calls("/bpf/two/forward") {
		t.Errorf("after the error: %v, rules\n%s", err, seen.kernel.rules)
	}
	if err := Judge(t.Context(), n, ruleset.Programs{}); err != nil || calls("/bpf") {
		t.Errorf("without policies: %v, rules\n%s", err, seen.kernel.rules)
	}
}
