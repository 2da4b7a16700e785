package grouprules_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// comparison counts verdicts of worlds.
type comparison struct {
	verdicts, allowed, wider, wrong int
	stricter                        int // than the VPC: a rule that cannot be enforced would allow it
	first                           string
}

// compare compares the compiled groups of a world with the oracle. alter may spoil the cluster.
func (c *comparison) compare(w *world, flows int, alter func(*policy.Cluster)) {
	cluster, ungrouped := w.cluster(), w.ungrouped()
	if alter != nil {
		alter(&cluster)
	}
	for range flows {
		f := w.flow()
		without := ungrouped.Evaluate(f).Allowed()
		want := without && oracle{world: w}.allows(f)
		full := without && oracle{world: w, all: true}.allows(f)
		got := cluster.Evaluate(f)
		c.verdicts++
		if got.Allowed() {
			c.allowed++
		}
		if got.Allowed() && !full {
			c.wider++
		}
		if full && !want {
			c.stricter++
		}
		if got.Allowed() != want {
			if c.wrong++; c.first == "" {
				c.first = f.String() + "\n  source: " + got.Egress.String() + "\n  destination: " + got.Ingress.String()
			}
		}
	}
}

// random draws worlds; one seed for all, so that a failure can be repeated.
func random(worlds, flows int, alter func(*policy.Cluster)) comparison {
	var c comparison
	for n := range worlds {
		c.compare(newWorld(rand.New(rand.NewPCG(11, uint64(n)))), flows, alter)
	}
	return c
}

func TestCompiledGroupsAllowWhatTheVPCWouldAndNetworkPoliciesAllow(t *testing.T) {
	c := random(1500, 100, nil)
	t.Logf("%d verdicts, %d allowed, %d denied only because a rule cannot be enforced in the node", c.verdicts, c.allowed, c.stricter)
	if c.wrong > 0 || c.wider > 0 {
		t.Fatalf("%d wrong verdicts, %d of them allow what the VPC would not; the first:\n%s", c.wrong, c.wider, c.first)
	}
	if c.verdicts < 100_000 || c.allowed*10 < c.verdicts || c.stricter == 0 {
		t.Fatalf("the sample is no proof: %+v", c)
	}
}

func TestTheComparisonFindsEachBreak(t *testing.T) {
	edit := func(change func(p *policy.Policy)) func(*policy.Cluster) {
		return func(c *policy.Cluster) {
			for i := range c.Policies {
				if c.Policies[i].Ref.Kind == grouprules.Kind {
					change(&c.Policies[i])
				}
			}
		}
	}
	breaks := map[string]func(*policy.Cluster){
		"what no group allows is passed": edit(func(p *policy.Policy) {
			if p.Ref.Name == grouprules.Implicit {
				p.Rules = [2][]policy.Rule{}
			}
		}),
		"groups accept in place of passing": edit(func(p *policy.Policy) {
			for d := range p.Rules {
				for i := range p.Rules[d] {
					if p.Rules[d][i].Action == policy.Pass {
						p.Rules[d][i].Action = policy.Accept
					}
				}
			}
		}),
		"the direction is exchanged": edit(func(p *policy.Policy) { p.Rules[0], p.Rules[1] = p.Rules[1], p.Rules[0] }),
		"members by interface are left out": edit(func(p *policy.Policy) {
			for d := range p.Rules {
				for i, r := range p.Rules[d] {
					if len(r.Peers) > 1 && r.Peers[0].Pods != nil {
						p.Rules[d][i].Peers = r.Peers[:1]
					}
				}
			}
		}),
		"labels of users count": func(c *policy.Cluster) {
			for i := range c.Pods {
				c.Pods[i].Labels = labels.Merge(c.Pods[i].Labels, labels.Set{grouprules.MemberLabel("sg-0000000a"): "true"})
			}
		},
		"one group of a pod is left out": func(c *policy.Cluster) {
			for i := range c.Pods {
				delete(c.Pods[i].Labels, grouprules.SubjectLabel("sg-0000000b"))
			}
		},
	}
	for name, alter := range breaks {
		if c := random(150, 100, alter); c.wrong == 0 {
			t.Errorf("%s: the comparison finds no difference in %d verdicts", name, c.verdicts)
		}
	}
}

// node is the engine of a node with the world's pods, and the tables it has written.
type node struct {
	*world
	engine *policy.Engine
	tables *policy.Tables
	known  map[policy.Ref]bool
}

func newNode(w *world) *node {
	n := &node{world: w, engine: policy.NewEngine(policy.DefaultLimits()), tables: policy.NewTables()}
	for name, set := range w.base.Namespaces {
		n.engine.SetNamespace(name, set)
	}
	for _, p := range w.base.Policies {
		n.engine.SetPolicy(p)
	}
	for i, p := range w.pods {
		n.engine.SetEndpoint(endpoint.ID(i+1), p.Ref())
	}
	return n
}

// write compiles the world as it is now.
func (n *node) write() {
	groups := n.snapshot()
	for _, p := range n.labelled(groups) {
		n.engine.SetPod(p)
	}
	before := n.known
	n.known = map[policy.Ref]bool{}
	for _, c := range grouprules.Compile(groups) {
		n.engine.SetPolicy(c.Policy)
		n.known[c.Policy.Ref] = true
		delete(before, c.Policy.Ref)
	}
	for ref := range before {
		n.engine.DeletePolicy(ref)
	}
	n.tables.Apply(n.engine.Commit().All()...)
}

// change has another membership, other rules, or another pod's groups.
func (w *world) change() {
	switch i := w.r.IntN(len(w.nics)); w.r.IntN(4) {
	case 0:
		w.nics[i].groups = some(w.r, groupIDs()[:4], 2)
	case 1:
		w.drawRules(pick(w.r, groupIDs()))
	case 2:
		delete(w.rules, pick(w.r, groupIDs()))
	default:
		p := &w.pods[w.r.IntN(len(w.pods))]
		p.own = nil
		if w.r.IntN(3) > 0 {
			p.own = append([]vpc.SecurityGroupID{}, some(w.r, groupIDs(), 3)...)
		}
	}
}

// judge compares the tables with Evaluate for a pod that is an end of a connection, and returns the
// number of decisions.
func (n *node) judge(t *testing.T, c *policy.Cluster, id endpoint.ID, f policy.Flow) (decisions int) {
	t.Helper()
	p := &c.Pods[id-1]
	for d, ends := range map[policy.Direction][2]netip.Addr{policy.Egress: {f.Source, f.Destination}, policy.Ingress: {f.Destination, f.Source}} {
		if !slices.Contains(p.Addresses, ends[0]) {
			continue
		}
		want := c.Judge(p, d, f)
		if want.Basis == policy.OwnAddress || want.Basis == policy.ResidentNode {
			continue // the forward hook does not see it
		}
		decisions++
		if got, _, _ := n.tables.Judge(id, d, ends[1], f.Protocol, f.Port); got != want.Allowed {
			t.Fatalf("%s of pod %s, %s: the tables allow %v; %s", f, p.Ref(), d, got, want)
		}
	}
	return decisions
}

func TestTheTablesOfANodeFollowMembersAndRules(t *testing.T) {
	decisions := 0
	for seed := range uint64(120) {
		n := newNode(newWorld(rand.New(rand.NewPCG(12, seed))))
		for range 12 {
			n.write()
			cluster := n.cluster()
			for range 40 {
				f := n.flow()
				for i := range n.pods {
					decisions += n.judge(t, &cluster, endpoint.ID(i+1), f)
				}
			}
			n.change()
		}
	}
	t.Logf("%d decisions of tables", decisions)
	if decisions < 20_000 {
		t.Errorf("%d decisions are no proof", decisions)
	}
}
