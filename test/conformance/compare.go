package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// Judge judges a connection for Trunkline.
type Judge func(*policy.Cluster, policy.Flow) policy.Verdict

// Result is what a comparison found.
type Result struct {
	Clusters, Policies, Verdicts int
	Allowed, Ingress, Egress     int // verdicts that allow, and those that allow in one direction
	Bases                        map[policy.Basis]int
	Differences                  map[string]int // verdicts of one direction, by class
	Unclassified                 []string
}

// connectionsPerCluster is how many connections are judged in each cluster.
const connectionsPerCluster = 250

// Compare judges the connections of clusters drawn from a seed by Trunkline and by cyclonus,
// which simplifies the policies of every other cluster.
func Compare(seed uint64, verdicts int, judge Judge) Result {
	r := newResult()
	for n := uint64(0); r.Verdicts < verdicts; n++ {
		cluster, flows := Draw(seed, n, connectionsPerCluster)
		r.Add(cluster, flows, n%2 == 1, judge, fmt.Sprintf("cluster %d of seed %d", n, seed))
	}
	return r
}

func newResult() Result {
	return Result{Bases: map[policy.Basis]int{}, Differences: map[string]int{}}
}

// Add judges connections of one cluster. Trunkline must agree with cyclonus after every
// correction, also where it agrees with cyclonus as it is: both could be wrong. The classes say
// why cyclonus as it is differs.
func (r *Result) Add(c *Cluster, flows []policy.Flow, simplify bool, judge Judge, name string) {
	converted, _ := c.Trunkline()
	oracle := NewOracle(c, simplify)
	r.Clusters++
	r.Policies += len(c.Policies)
	for _, f := range flows {
		r.Verdicts++
		v := judge(converted, f)
		r.count(v)
		theirs, corrected := oracle.Judge(f, 0), oracle.Judge(f, everyCorrection)
		for d, ours := range map[policy.Direction]policy.Decision{policy.Ingress: v.Ingress, policy.Egress: v.Egress} {
			if ours.Allowed == direction(theirs, d) && ours.Allowed == direction(corrected, d) {
				continue
			}
			class := unclassified
			if ours.Allowed == direction(corrected, d) {
				class = explain(oracle, f, d, ours.Allowed)
			}
			r.Differences[class]++
			if class == unclassified && len(r.Unclassified) < 3 {
				r.Unclassified = append(r.Unclassified, fmt.Sprintf("%s: %s, %s: Trunkline %s, cyclonus allowed = %v, corrected %v\n%s", name, f, d, ours, direction(theirs, d), direction(corrected, d), describe(c, f)))
			}
		}
	}
}

func (r *Result) count(v policy.Verdict) {
	if v.Allowed() {
		r.Allowed++
	}
	if v.Ingress.Allowed {
		r.Ingress++
	}
	if v.Egress.Allowed {
		r.Egress++
	}
	r.Bases[v.Ingress.Basis]++
	r.Bases[v.Egress.Basis]++
}

// describe prints what a difference can depend on: the ends and the policies of their
// namespaces.
func describe(c *Cluster, f policy.Flow) string {
	var b strings.Builder
	for _, p := range []*policy.Pod{c.at(f.Source), c.at(f.Destination)} {
		if p == nil {
			continue
		}
		fmt.Fprintf(&b, "pod %s %v, namespace %v, ports %v, node %s\n", p.Ref(), p.Labels, c.Namespaces[p.Namespace], p.Ports, p.Node)
		for _, np := range c.Policies {
			if np.Namespace == p.Namespace {
				raw, err := yaml.Marshal(np)
				fmt.Fprintf(&b, "---\n%s", raw)
				if err != nil {
					fmt.Fprintln(&b, err)
				}
			}
		}
	}
	return b.String()
}

// String is the result as the report has it.
func (r Result) String() string {
	percent := func(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(of, 1))) }
	var b strings.Builder
	fmt.Fprintf(&b, "%d verdicts in %d clusters with %d policies; allowed %s, at the destination %s, at the source %s\n", r.Verdicts, r.Clusters, r.Policies,
		percent(r.Allowed, r.Verdicts), percent(r.Ingress, r.Verdicts), percent(r.Egress, r.Verdicts))
	fmt.Fprintf(&b, "decisions, two for each verdict:\n")
	for _, basis := range slices.Sorted(maps.Keys(r.Bases)) {
		fmt.Fprintf(&b, "  %s: %s\n", basis, percent(r.Bases[basis], 2*r.Verdicts))
	}
	total := 0
	for _, n := range r.Differences {
		total += n
	}
	fmt.Fprintf(&b, "decisions that differ from cyclonus: %d (%s), by class:\n", total, percent(total, 2*r.Verdicts))
	for _, class := range slices.Sorted(maps.Keys(r.Differences)) {
		fmt.Fprintf(&b, "  %s: %d\n", class, r.Differences[class])
	}
	return b.String()
}
