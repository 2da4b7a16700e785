package cases

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/conformance"
)

// addresses gives each pod an address of its own, of one family.
func addresses(first string) func(policy.PodRef) netip.Addr {
	next, given := netip.MustParseAddr(first), map[policy.PodRef]netip.Addr{}
	return func(ref policy.PodRef) netip.Addr {
		if _, ok := given[ref]; !ok {
			given[ref], next = next, next.Next()
		}
		return given[ref]
	}
}

// Evaluate agrees with cyclonus's own model on each connection of its cases; only those of a pod
// to itself differ, which no policy can deny.
//
// Source of the counts: cyclonus v0.5.6 with `--exclude ""`.
func TestCasesOfCyclonusHaveItsVerdicts(t *testing.T) {
	const wantCases, wantSteps = 230, 256
	for family, first := range map[string]string{"IPv4": "192.168.7.1", "IPv6": "2001:db8::1"} {
		list, err := All(addresses(first))
		if err != nil {
			t.Fatal(err)
		}
		steps, probes, loopbacks, allowed := 0, 0, 0, 0
		for _, c := range list {
			for n, s := range c.Steps {
				steps++
				cluster, problems := s.Cluster.Trunkline()
				if len(problems) > 0 {
					t.Errorf("%s, case %d (%s), step %d: problems %q", family, c.Number, c.Description, n+1, problems)
				}
				for _, p := range s.Probes {
					probes++
					v := cluster.Evaluate(p.Flow)
					if v.Allowed() {
						allowed++
					}
					if p.Loopback {
						loopbacks++
						if !v.Allowed() {
							t.Errorf("%s, case %d, step %d: %s → itself %s: denied", family, c.Number, n+1, p.From, p.Flow)
						}
					} else if v.Egress.Allowed != p.Egress || v.Ingress.Allowed != p.Ingress {
						t.Errorf("%s, case %d (%s), step %d: %s → %s %s: egress %s, ingress %s; cyclonus expects %v, %v",
							family, c.Number, c.Description, n+1, p.From, p.To, p.Flow, v.Egress, v.Ingress, p.Egress, p.Ingress)
					}
				}
			}
		}
		t.Logf("%s: %d cases, %d steps, %d connections (%d of a pod to itself), %d allowed", family, len(list), steps, probes, loopbacks, allowed)
		if len(list) != wantCases || steps != wantSteps {
			t.Errorf("%d cases with %d steps, want %d with %d", len(list), steps, wantCases, wantSteps)
		}
		if probes < 256*9*9*6 || allowed < probes/4 || allowed > probes*19/20 {
			t.Errorf("%s: %d connections, %d allowed: the check is not valid", family, probes, allowed)
		}
	}
}

// A wrong expectation must be noticed: a model without excepts, or that allows all, differs.
func TestAWrongModelDiffersFromCyclonus(t *testing.T) {
	list, err := All(addresses("192.168.7.1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]func(*policy.Cluster){
		"without policies": func(c *policy.Cluster) { c.Policies = nil },
		"without excepts": func(c *policy.Cluster) {
			for _, p := range c.Policies {
				for _, rules := range p.Rules {
					for _, r := range rules {
						for _, peer := range r.Peers {
							if peer.Block != nil {
								peer.Block.Except = nil
							}
						}
					}
				}
			}
		},
	} {
		if differences(list, wrong) == 0 {
			t.Errorf("a model %s agrees with cyclonus", name)
		}
	}
}

func differences(list []Case, change func(*policy.Cluster)) (found int) {
	for _, c := range list {
		for _, s := range c.Steps {
			cluster, _ := (&conformance.Cluster{Namespaces: s.Cluster.Namespaces, Pods: s.Cluster.Pods, Policies: s.Cluster.Policies}).Trunkline()
			change(cluster)
			for _, p := range s.Probes {
				if v := cluster.Evaluate(p.Flow); !p.Loopback && (v.Egress.Allowed != p.Egress || v.Ingress.Allowed != p.Ingress) {
					found++
				}
			}
		}
	}
	return found
}
