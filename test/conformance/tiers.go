package conformance

import (
	"cmp"
	"fmt"
	"math/rand/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// tiersSeed makes the draws of tiers others than those of the cluster with the same numbers.
const tiersSeed = 0x7469657273

// DrawTiers draws what Draw does, converted, with policies of the admin and baseline tiers added.
func DrawTiers(seed, n uint64, flows int) (*policy.Cluster, []policy.Flow) {
	cluster, list := Draw(seed, n, flows)
	converted, _ := cluster.Trunkline()
	d := drawing{Rand: rand.New(rand.NewPCG(seed^tiersSeed, n)), cluster: cluster}
	for i := range 1 + d.IntN(6) {
		converted.Policies = append(converted.Policies, d.tiered(fmt.Sprintf("t%d", i)))
	}
	return converted, list
}

// tiered draws a policy that selects in several namespaces. Its rules have the peers and ports of a
// NetworkPolicy, and any action.
func (d drawing) tiered(name string) policy.Policy {
	p, _ := policy.FromNetworkPolicy(d.policy(name))
	p.Ref = policy.Ref{Kind: "ClusterNetworkPolicy", Name: name}
	p.Tier, p.Order, p.Isolates = of(d, policy.Admin, policy.Baseline), d.IntN(3), [2]bool{}
	namespaces, err := metav1.LabelSelectorAsSelector(d.namespaces())
	pods, other := metav1.LabelSelectorAsSelector(d.selector("app", "tier"))
	if err := cmp.Or(err, other); err != nil {
		panic(err) // selectors that are drawn are valid
	}
	p.Subject = policy.PodSet{Namespaces: namespaces}
	if d.chance(50) {
		p.Subject.Pods = pods
	}
	for direction, rules := range p.Rules {
		for i := range rules {
			r := &p.Rules[direction][i]
			r.Action = of(d, policy.Accept, policy.Deny, policy.Pass)
			if d.chance(10) {
				r.Peers = append(r.Peers, policy.Peer{Name: "example.com"})
			}
			for j := range r.Peers {
				if set := r.Peers[j].Pods; set != nil && d.chance(50) {
					set.Namespace, set.Namespaces = "", namespaces
				}
			}
		}
	}
	return p
}
