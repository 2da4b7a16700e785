//go:build netns

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/suite"
	"github.com/trunkline/trunkline/test/testrun"
)

// Verdicts of the kernel in a run: the sample of `make test`, and of `make suites`.
const (
	kernelSampled = 200_000
	kernelFull    = 1_000_000
	tiersSampled  = 60_000
	tiersFull     = 500_000
)

func verdictsOf(sample, suites int) int {
	if isFull() {
		return suites
	}
	return sample
}

// asking asks the kernel what Evaluate is asked, and notes the differences.
type asking struct {
	*testrun.Kernel
	t       *testing.T
	current *policy.Cluster
	result  kernelResult
}

func newAsking(t *testing.T, limits policy.Limits) *asking {
	return &asking{Kernel: testrun.New(t, limits), t: t, result: kernelResult{Decisions: map[string]int{}}}
}

// few are limits that nearly every cluster passes: sets then have addresses divided for them alone.
func few() policy.Limits { return policy.Limits{Classes: 3, Rows: 12} }

// judge is Evaluate's verdict with what the kernel decides in its place, where the kernel is asked:
// so cyclonus is compared with the kernel.
func (a *asking) judge(c *policy.Cluster, f policy.Flow) policy.Verdict {
	a.t.Helper()
	if c != a.current {
		if err := a.Set(c); err != nil {
			a.t.Fatal(err)
		}
		a.current = c
		a.result.Clusters++
	}
	return a.compare(c, f)
}

func (a *asking) compare(c *policy.Cluster, f policy.Flow) policy.Verdict {
	a.t.Helper()
	v := c.Evaluate(f)
	answer, err := a.Judge(f)
	if err != nil {
		a.t.Fatal(err)
	}
	a.result.add(v, answer, f)
	if testrun.Asked(v.Egress) {
		v.Egress.Allowed = answer.Egress
	}
	if testrun.Asked(v.Ingress) {
		v.Ingress.Allowed = answer.Ingress
	}
	return v
}

func TestTheKernelHasTheVerdictsOfEvaluateAndCyclonus(t *testing.T) {
	for section, of := range map[string]struct {
		limits   policy.Limits
		verdicts int
	}{
		"network policies":                 {policy.DefaultLimits(), verdictsOf(kernelSampled, kernelFull)},
		"network policies past the limits": {few(), verdictsOf(kernelSampled, kernelFull) / 5},
	} {
		t.Run(section, func(t *testing.T) {
			seed, a := seedOf(t), newAsking(t, of.limits)
			r := Compare(seed, of.verdicts, a.judge)
			for _, u := range r.Unclassified {
				t.Errorf("a difference of no class:\n%s", u)
			}
			a.report(section, seed, r.String())
		})
	}
}

func TestTheKernelHasTheVerdictsOfEvaluateWithTiers(t *testing.T) {
	for section, of := range map[string]struct {
		limits   policy.Limits
		verdicts int
	}{
		"tiers":                 {policy.DefaultLimits(), verdictsOf(tiersSampled, tiersFull)},
		"tiers past the limits": {few(), verdictsOf(tiersSampled, tiersFull) / 5},
	} {
		t.Run(section, func(t *testing.T) {
			seed, a := seedOf(t), newAsking(t, of.limits)
			for n := uint64(0); a.result.Verdicts < of.verdicts; n++ {
				cluster, flows := DrawTiers(seed, n, connectionsPerCluster)
				for _, f := range flows {
					a.judge(cluster, f)
				}
			}
			for _, tier := range []policy.Tier{policy.Admin, policy.Namespaced, policy.Baseline} {
				for _, allowed := range []bool{true, false} {
					name := decided(allowed, tier) // namespaced rules only allow
					if a.result.Decisions[name]*1000 < a.result.Verdicts && (allowed || tier != policy.Namespaced) {
						t.Errorf("%d of %d verdicts are %s: the comparison proves little", a.result.Decisions[name], a.result.Verdicts, name)
					}
				}
			}
			a.report(section, seed, "")
		})
	}
}

// report fails the test for each difference, and writes a section of the report in `make suites`.
func (a *asking) report(section string, seed uint64, more string) {
	a.t.Helper()
	a.t.Logf("seed %d\n%s%s", seed, a.result, more)
	for _, d := range a.result.Different {
		a.t.Errorf("a difference:\n%s", d)
	}
	if !isFull() || a.t.Failed() {
		return
	}
	if err := kernelReport().Write(section, suite.Counted{Number: a.result.Verdicts, Of: "verdicts", Seed: seed}, fmt.Sprint(a.result, more)); err != nil {
		a.t.Fatal(err)
	}
}

// tierBreaks are wrong readings of tiers, orders and actions.
func tierBreaks() map[string]func(*policy.Cluster) {
	action := func(from, to policy.Action) func(*policy.Cluster) {
		return eachRule(func(r *policy.Rule) {
			if r.Action == from {
				r.Action = to
			}
		})
	}
	eachPolicy := func(change func(*policy.Policy)) func(*policy.Cluster) {
		return func(c *policy.Cluster) {
			for i := range c.Policies {
				change(&c.Policies[i])
			}
		}
	}
	return map[string]func(*policy.Cluster){
		"Pass is Accept":  action(policy.Pass, policy.Accept),
		"Pass is Deny":    action(policy.Pass, policy.Deny),
		"Deny is Accept":  action(policy.Deny, policy.Accept),
		"no order":        eachPolicy(func(p *policy.Policy) { p.Order = 0 }),
		"the order turns": eachPolicy(func(p *policy.Policy) { p.Order = -p.Order }),
		"the last rule is asked first": eachPolicy(func(p *policy.Policy) {
			slices.Reverse(p.Rules[policy.Ingress])
			slices.Reverse(p.Rules[policy.Egress])
		}),
		"baseline is admin": eachPolicy(func(p *policy.Policy) {
			if p.Tier == policy.Baseline {
				p.Tier = policy.Admin
			}
		}),
		"admin is baseline": eachPolicy(func(p *policy.Policy) {
			if p.Tier == policy.Admin {
				p.Tier = policy.Baseline
			}
		}),
	}
}

// copied is a cluster of which a break can change the policies and the pods.
func copied(c *policy.Cluster) *policy.Cluster {
	out := *c
	out.Pods, out.Policies = slices.Clone(c.Pods), slices.Clone(c.Policies)
	for i := range out.Policies {
		for d, rules := range out.Policies[i].Rules {
			rules = slices.Clone(rules)
			out.Policies[i].Rules[d] = rules
			for j := range rules {
				rules[j].Peers, rules[j].Ports = slices.Clone(rules[j].Peers), slices.Clone(rules[j].Ports)
				for k, p := range rules[j].Peers {
					if p.Block != nil {
						rules[j].Peers[k].Block = &policy.Block{Prefix: p.Block.Prefix, Except: p.Block.Except}
					}
				}
			}
		}
	}
	return &out
}

// The kernel has the policies in a wrong reading, or a wrong bit, and the comparison finds it.
func TestAWrongKernelIsFound(t *testing.T) {
	all := tierBreaks()
	for _, name := range []string{"no exceptions", "SCTP is TCP", "a named port is every port", "a range ends before its last port", "no IPv6 ranges", "only the last policy"} {
		all[name] = breaks()[name]
	}
	const seed, clusters = 1, 200
	for name, change := range all {
		a := newAsking(t, policy.DefaultLimits())
		for n := uint64(0); n < clusters && len(a.result.Different) == 0; n++ {
			cluster, flows := DrawTiers(seed, n, connectionsPerCluster)
			wrong := copied(cluster)
			change(wrong)
			if err := a.Set(wrong); err != nil {
				t.Fatal(err)
			}
			for _, f := range flows {
				a.compare(cluster, f)
			}
		}
		if len(a.result.Different) == 0 {
			t.Errorf("%s: no difference in %d verdicts", name, a.result.Verdicts)
		}
	}
	t.Run("a bit of each row", func(t *testing.T) {
		a := newAsking(t, policy.DefaultLimits())
		for n := uint64(0); n < clusters && len(a.result.Different) == 0; n++ {
			a.Kernel = testrun.New(t, policy.DefaultLimits())
			cluster, flows := DrawTiers(seed, n, connectionsPerCluster)
			a.judge(cluster, flows[0])
			rows, err := a.Maps.Rows.All()
			if err != nil {
				t.Fatal(err)
			}
			for key, bits := range rows {
				if err := a.Maps.Rows.Put(key, bits^1); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range flows {
				a.compare(cluster, f)
			}
		}
		if len(a.result.Different) == 0 {
			t.Errorf("no difference: %s", a.result)
		}
	})
}

// kernelResult is what a comparison of the kernel with Evaluate found.
type kernelResult struct {
	Clusters, Verdicts, Allowed, Asked int
	Decisions                          map[string]int
	Different                          []string // the first ones
}

func (r *kernelResult) add(v policy.Verdict, a testrun.Answer, f policy.Flow) {
	r.Verdicts++
	if v.Allowed() {
		r.Allowed++
	}
	for _, d := range []policy.Decision{v.Ingress, v.Egress} {
		name := string(d.Basis)
		if d.Basis == policy.ByRule {
			name = decided(d.Allowed, d.Tier)
		}
		r.Decisions[name]++
		if testrun.Asked(d) {
			r.Asked++
		}
	}
	if different := a.Compare(v); different != "" && len(r.Different) < 3 {
		r.Different = append(r.Different, fmt.Sprintf("cluster %d, %s: %s", r.Clusters, f, different))
	}
}

func decided(allowed bool, tier policy.Tier) string {
	if allowed {
		return fmt.Sprintf("allowed by a rule of tier %s", tier)
	}
	return fmt.Sprintf("denied by a rule of tier %s", tier)
}

func (r kernelResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d verdicts of Evaluate in %d clusters, %.1f %% allow; %d of %d decisions are the kernel's too\ndecisions, two for each verdict:\n",
		r.Verdicts, r.Clusters, 100*float64(r.Allowed)/float64(max(r.Verdicts, 1)), r.Asked, 2*r.Verdicts)
	for _, name := range slices.Sorted(maps.Keys(r.Decisions)) {
		fmt.Fprintf(&b, "  %s: %d\n", name, r.Decisions[name])
	}
	return b.String()
}
