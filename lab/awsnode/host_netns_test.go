//go:build netns

package awsnode

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/testns"
)

// A pod that ended while the daemon was down leaves its rules.
func TestTheRulesOfAStaleAllocationArePruned(t *testing.T) {
	h := Host{NetNS: testns.New(t, "prune").Name}
	for _, a := range []string{"10.0.0.5", "10.0.0.6"} {
		if err := h.all([]step{
			{"rule add pref %s to %s lookup %s", []any{ruleToPod, a, tableMain}},
			{"rule add pref %s from %s lookup %d", []any{ruleFromPod, a, 2}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // without rules it is a success
		if err := h.prune(addr("10.0.0.5")); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("ip", "-n", h.NetNS, "rule").CombinedOutput()
	if err != nil || strings.Contains(string(out), "10.0.0.5") || strings.Count(string(out), "10.0.0.6") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}
