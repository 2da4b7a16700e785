//go:build lab

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func podAddressesAreAssignedInEC2(t *testing.T, l lab) {
	l.runPod(t, "one", "serve")
	eventually(t, 30*time.Second, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	leftoversAreDetected(t, l)
	eventually(t, 30*time.Second, "they agree again", func(t testing.TB) error { return l.stateAgrees(t) })
}

// leftoversAreDetected is the deliberate break of every step that checks for
// leftovers: one of each kind is left on a node, or in EC2, and must be named.
func leftoversAreDetected(t testing.TB, l lab) {
	t.Helper()
	n := l.nodes(t)[0]
	inside := func(args ...string) func() { return func() { n.inNetns(t, args...) } }
	rule := func(verb, way string, priority int) func() {
		return inside("ip", "rule", verb, way, "192.0.2.1", "priority", strconv.Itoa(priority), "lookup", "main")
	}
	for _, left := range []struct {
		what         string
		make, repair func()
	}{
		{"pod links", inside("ip", "link", "add", "enileft", "type", "bridge"), inside("ip", "link", "del", "enileft")},
		{"rules to", rule("add", "to", hostnet.RuleToPod), rule("del", "to", hostnet.RuleToPod)},
		{"a rule from", rule("add", "from", hostnet.RuleFromPod), rule("del", "from", hostnet.RuleFromPod)},
		{
			"namespaces",
			func() { n.exec(t, "ip", "netns", "add", "left") },
			func() { n.exec(t, "ip", "netns", "del", "left") },
		},
	} {
		left.make()
		err := l.stateAgrees(t)
		left.repair()
		if err == nil || !strings.Contains(err.Error(), left.what) {
			t.Errorf("a leftover of %s: the check returned %v", left.what, err)
		}
	}
	a := l.account(t)
	id := a.leak(t, map[string]string{vpc.TagManagedBy: "trunkline", vpc.TagNoManage: "true"})
	if err := l.stateAgrees(t); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("unowned interface %s: the check returned %v", id, err)
	}
	a.deleteInterface(t, id)
}
