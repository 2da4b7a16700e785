//go:build lab

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestIptables is a lab of two nodes with kube-proxy in iptables mode.
func TestIptables(t *testing.T) {
	drawn(t)
	l := lab{name: uniqueName("ipt"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/iptables.yaml")
	for _, s := range []step{
		{"Services are rules of iptables", servicesAreRulesOfIptables},
		{"the connectivity test passes", connectivityPassesWithoutGroups},
		{"a NetworkPolicy is enforced by address and by Service, and ends", policiesAreEnforced},
		{"a NetworkPolicy judges node ports from outside the VPC", nodePortsAreJudgedFromOutside},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// servicesAreRulesOfIptables reads the proxy's rules, of the mode that it must have and of the
// other one.
func servicesAreRulesOfIptables(t *testing.T, l lab) {
	for _, n := range l.nodes(t) {
		eventually(t, time.Minute, "kube-proxy's rules on "+n.Name, func(t testing.TB) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if r := l.try(ctx, "exec", n.Name, "--", "iptables", "-t", "nat", "-S", "KUBE-SERVICES"); r.err != nil || !strings.Contains(r.stdout, "default/kubernetes:https") {
				return notYet("%v %s", r.err, r)
			}
			return nil
		})
		if tables := l.run(t, time.Minute, "exec", n.Name, "--", "nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
			t.Errorf("%s has the table of the nftables mode:\n%s", n.Name, tables)
		}
	}
}
