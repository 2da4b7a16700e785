package conformance

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// eachRule changes the rules of every policy.
func eachRule(change func(*policy.Rule)) func(*policy.Cluster) {
	return func(c *policy.Cluster) {
		for _, p := range c.Policies {
			for _, rules := range p.Rules {
				for i := range rules {
					change(&rules[i])
				}
			}
		}
	}
}

func eachPeer(change func(*policy.Peer)) func(*policy.Cluster) {
	return eachRule(func(r *policy.Rule) {
		for i := range r.Peers {
			change(&r.Peers[i])
		}
	})
}

func eachPort(change func(*policy.Port)) func(*policy.Cluster) {
	return eachRule(func(r *policy.Rule) {
		for i := range r.Ports {
			change(&r.Ports[i])
		}
	})
}

// needsKeys is a selector that selects only what has every key that it names.
type needsKeys struct{ labels.Selector }

func (s needsKeys) Matches(l labels.Labels) bool {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		if !l.Has(r.Key()) && r.Operator() == selection.NotIn {
			return false
		}
	}
	return s.Selector.Matches(l)
}

// breaks are wrong readings of policies, each of one feature.
func breaks() map[string]func(*policy.Cluster) {
	return map[string]func(*policy.Cluster){
		"no exceptions": eachPeer(func(p *policy.Peer) {
			if p.Block != nil {
				p.Block.Except = nil
			}
		}),
		"only the first exception": eachPeer(func(p *policy.Peer) {
			if p.Block != nil && len(p.Block.Except) > 1 {
				p.Block.Except = p.Block.Except[:1]
			}
		}),
		"no IPv6 ranges": eachRule(func(r *policy.Rule) {
			r.Peers = slices.DeleteFunc(r.Peers, func(p policy.Peer) bool { return p.Block != nil && p.Block.Prefix.Addr().Is6() })
		}),
		"no IPv4 ranges": eachRule(func(r *policy.Rule) {
			r.Peers = slices.DeleteFunc(r.Peers, func(p policy.Peer) bool { return p.Block != nil && p.Block.Prefix.Addr().Is4() })
		}),
		"pod selectors select in every namespace": eachPeer(func(p *policy.Peer) {
			if p.Pods != nil {
				p.Pods.Namespace = ""
			}
		}),
		"namespace selectors select all": eachPeer(func(p *policy.Peer) {
			if p.Pods != nil {
				p.Pods.Namespaces = labels.Everything()
			}
		}),
		"pod selectors select all": eachPeer(func(p *policy.Peer) {
			if p.Pods != nil {
				p.Pods.Pods = labels.Everything()
			}
		}),
		"only the first peer": eachRule(func(r *policy.Rule) { r.Peers = r.Peers[:min(1, len(r.Peers))] }),
		"only the first port": eachRule(func(r *policy.Rule) { r.Ports = r.Ports[:min(1, len(r.Ports))] }),
		"no peers is none":    eachRule(func(r *policy.Rule) { r.AnyPeer = false }),
		"no ports is none":    eachRule(func(r *policy.Rule) { r.AnyPort = false }),
		"a range is its first port": eachPort(func(p *policy.Port) {
			if p.First > 0 {
				p.Last = p.First
			}
		}),
		"a range ends before its last port": eachPort(func(p *policy.Port) {
			if p.Last > p.First {
				p.Last--
			}
		}),
		"no named ports": eachRule(func(r *policy.Rule) {
			r.Ports = slices.DeleteFunc(r.Ports, func(p policy.Port) bool { return p.Name != "" })
		}),
		"a named port is every port": eachPort(func(p *policy.Port) {
			if p.Name != "" {
				p.Name, p.Last = "", 65535
			}
		}),
		"a named port is its number in every pod": func(c *policy.Cluster) {
			for i := range c.Pods {
				if i > 0 {
					c.Pods[i].Ports = c.Pods[0].Ports
				}
			}
		},
		"SCTP is TCP": eachPort(func(p *policy.Port) {
			if p.Protocol == policy.SCTP {
				p.Protocol = policy.TCP
			}
		}),
		"UDP is TCP": eachPort(func(p *policy.Port) {
			if p.Protocol == policy.UDP {
				p.Protocol = policy.TCP
			}
		}),
		"a protocol without port is every protocol": eachRule(func(r *policy.Rule) {
			if slices.ContainsFunc(r.Ports, func(p policy.Port) bool { return p.Name == "" && p.First == 0 }) {
				r.AnyPort = true
			}
		}),
		"no isolation for egress": func(c *policy.Cluster) {
			for i := range c.Policies {
				c.Policies[i].Isolates[policy.Egress] = false
			}
		},
		"isolation in both directions": func(c *policy.Cluster) {
			for i := range c.Policies {
				c.Policies[i].Isolates = [2]bool{true, true}
			}
		},
		"policies without rules isolate nothing": func(c *policy.Cluster) {
			for i := range c.Policies {
				p := &c.Policies[i]
				for d := range p.Isolates {
					p.Isolates[d] = p.Isolates[d] && len(p.Rules[d]) > 0
				}
			}
		},
		"only the first rule": func(c *policy.Cluster) {
			for i := range c.Policies {
				for d, rules := range c.Policies[i].Rules {
					c.Policies[i].Rules[d] = rules[:min(1, len(rules))]
				}
			}
		},
		"only the last policy": func(c *policy.Cluster) { c.Policies = c.Policies[max(0, len(c.Policies)-1):] },
		"a policy selects every pod of its namespace": func(c *policy.Cluster) {
			for i := range c.Policies {
				c.Policies[i].Subject.Pods = nil
			}
		},
		"a policy selects in every namespace": func(c *policy.Cluster) {
			for i := range c.Policies {
				c.Policies[i].Subject.Namespace = ""
			}
		},
		"no exemption of nodes": func(c *policy.Cluster) { c.Nodes = nil },
		"NotIn needs the key, as in cyclonus": eachPeer(func(p *policy.Peer) {
			if p.Pods != nil && p.Pods.Pods != nil {
				p.Pods.Pods = needsKeys{p.Pods.Pods}
			}
		}),
		"pods of the node's network are pods": func(c *policy.Cluster) {
			for i := range c.Pods {
				c.Pods[i].HostNetwork = false
			}
		},
	}
}

// Each wrong reading is a difference of no class, within a part of the sample.
func TestAWrongReadingIsFound(t *testing.T) {
	const seed, clusters = 1, 400
	for name, change := range breaks() {
		found := newResult()
		for n := uint64(0); n < clusters && len(found.Unclassified) == 0; n++ {
			cluster, flows := Draw(seed, n, connectionsPerCluster)
			converted, _ := cluster.Trunkline()
			converted.Pods = slices.Clone(converted.Pods)
			change(converted)
			found.Add(cluster, flows, false, func(_ *policy.Cluster, f policy.Flow) policy.Verdict { return converted.Evaluate(f) }, name)
		}
		if len(found.Unclassified) == 0 {
			t.Errorf("%s: no difference of no class in %d verdicts; differences %v", name, found.Verdicts, found.Differences)
		}
	}
}

// The clusters are worth judging: neither verdict is rare, and each basis and class occurs.
func TestDrawnClustersHaveEveryKindOfVerdict(t *testing.T) {
	r := Compare(1, 60_000, (*policy.Cluster).Evaluate)
	if r.Allowed < r.Verdicts/4 || r.Allowed > r.Verdicts*3/4 {
		t.Errorf("%d of %d verdicts allow: want a quarter to three quarters", r.Allowed, r.Verdicts)
	}
	for basis, percent := range map[policy.Basis]int{policy.ByRule: 10, policy.Isolated: 20, policy.NotIsolated: 10, policy.NoPod: 10, policy.ResidentNode: 1} {
		if r.Bases[basis]*100 < percent*2*r.Verdicts {
			t.Errorf("%d of %d decisions are by %q, want %d %%", r.Bases[basis], 2*r.Verdicts, basis, percent)
		}
	}
	for _, c := range Classes() {
		if r.Differences[c.Name] == 0 {
			t.Errorf("no difference of class %q: remove it, or draw what it is about", c.Name)
		}
	}
}
