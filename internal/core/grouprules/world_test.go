package grouprules_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// world is a VPC with a cluster: groups with rules, interfaces with groups, and pods.
type world struct {
	r     *rand.Rand
	rules map[vpc.SecurityGroupID][]grouprules.Rule
	nics  []nic
	pods  []vpod
	base  policy.Cluster // namespaces, nodes and network policies
}

// nic is an interface that is not a pod's: of an instance, a load balancer or a node.
type nic struct {
	addresses []netip.Addr
	pools     []netip.Prefix // of a node
	groups    []vpc.SecurityGroupID
}

// vpod is a pod; groups are nil unless policies give it some.
type vpod struct {
	policy.Pod
	own []vpc.SecurityGroupID
}

func groupIDs() []vpc.SecurityGroupID {
	return []vpc.SecurityGroupID{"sg-0000000a", "sg-0000000b", "sg-0000000c", "sg-0000000d", "sg-0000000e"}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// some returns up to n of a list, each once.
func some[T comparable](r *rand.Rand, list []T, n int) (out []T) {
	for range n {
		if v := pick(r, list); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func newWorld(r *rand.Rand) *world {
	w := &world{r: r, rules: map[vpc.SecurityGroupID][]grouprules.Rule{}}
	for _, id := range groupIDs()[:4] { // the last does not exist
		w.drawRules(id)
	}
	for n := range 2 { // nodes
		node := nic{addresses: addresses(fmt.Sprintf("10.0.%d.4", n), fmt.Sprintf("fd00:%d::4", n)), groups: some(r, groupIDs()[:4], 2)}
		node.pools = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.16/28", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d:1::/80", n))}
		w.nics = append(w.nics, node)
		w.base.Nodes = append(w.base.Nodes, policy.Node{Name: fmt.Sprint("node", n), Addresses: node.addresses})
	}
	for n := range 3 {
		w.nics = append(w.nics, nic{addresses: addresses(fmt.Sprintf("10.0.9.%d", 10+n), fmt.Sprintf("fd00:9::%d", 10+n)), groups: some(r, groupIDs()[:4], 2)})
	}
	w.base.Namespaces = map[string]labels.Set{"shop": {"team": "shop"}, "bank": {"team": "bank"}}
	for n := range 6 {
		p := vpod{Pod: policy.Pod{
			Namespace: pick(r, []string{"shop", "bank"}), Name: fmt.Sprint("p", n), Labels: labels.Set{"app": pick(r, []string{"web", "db"})},
			Addresses: addresses(fmt.Sprintf("10.0.%d.%d", n%2, 16+n), fmt.Sprintf("fd00:%d:1::%d", n%2, 16+n)), Node: fmt.Sprint("node", n%2),
		}}
		if r.IntN(6) == 0 { // forged by its author
			p.Labels[grouprules.MemberLabel(pick(r, groupIDs()))] = "true"
		}
		if r.IntN(3) > 0 {
			p.own = append([]vpc.SecurityGroupID{}, some(r, groupIDs(), 3)...)
		}
		w.pods = append(w.pods, p)
	}
	for n := range r.IntN(3) {
		w.base.Policies = append(w.base.Policies, w.networkPolicy(n))
	}
	return w
}

func (w *world) networkPolicy(n int) policy.Policy {
	p := policy.Policy{Ref: policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: pick(w.r, []string{"shop", "bank"}), Name: fmt.Sprint("np", n)}, Tier: policy.Namespaced}
	p.Subject = policy.PodSet{Namespace: p.Ref.Namespace, Pods: labels.SelectorFromSet(labels.Set{"app": pick(w.r, []string{"web", "db"})})}
	for d := range p.Rules {
		p.Isolates[d] = w.r.IntN(2) == 0
		peer := policy.Peer{Pods: &policy.PodSet{Pods: labels.SelectorFromSet(labels.Set{"app": pick(w.r, []string{"web", "db"})})}}
		if w.r.IntN(2) == 0 {
			peer = policy.Peer{Block: &policy.Block{Prefix: pick(w.r, ranges())}}
		}
		p.Rules[d] = append(p.Rules[d], policy.Rule{Peers: []policy.Peer{peer}, AnyPort: w.r.IntN(2) == 0, Ports: []policy.Port{{Protocol: policy.TCP, First: 80, Last: 90}}})
	}
	return p
}

func ranges() (out []netip.Prefix) {
	for _, t := range []string{"0.0.0.0/0", "::/0", "10.0.0.0/16", "10.0.1.0/24", "10.0.9.11/32", "fd00::/16", "fd00:1:1::/80", "192.0.2.0/24"} {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func (w *world) drawRules(id vpc.SecurityGroupID) {
	w.rules[id] = nil
	for n := range w.r.IntN(5) {
		rule := grouprules.Rule{
			ID: fmt.Sprintf("sgr-%s-%d", id, n), Direction: policy.Direction(w.r.IntN(2)),
			Protocol: pick(w.r, []int{grouprules.All, 6, 6, 6, 17, 132, 1, 58, 47}), From: grouprules.All, To: grouprules.All,
		}
		if rule.Protocol == 6 || rule.Protocol == 17 {
			rule.From = pick(w.r, []int{0, 53, 80, 443})
			rule.To = pick(w.r, []int{rule.From, rule.From + 10, 65535})
		}
		switch w.r.IntN(5) {
		case 0, 1:
			rule.Prefixes = []netip.Prefix{pick(w.r, ranges())}
		case 2:
			rule.Prefixes = some(w.r, ranges(), 3)
		default:
			rule.Group = pick(w.r, groupIDs()) // itself among them
		}
		w.rules[id] = append(w.rules[id], rule)
	}
}

// snapshot is what the controller makes of the groups and interfaces.
func (w *world) snapshot() []grouprules.Group {
	var interfaces []grouprules.Interface
	for _, n := range w.nics {
		i := grouprules.Interface{Groups: n.groups, ForPods: n.pools}
		for _, a := range n.addresses {
			i.Fixed = append(i.Fixed, netip.PrefixFrom(a, a.BitLen()))
		}
		interfaces = append(interfaces, i)
	}
	members := grouprules.Membership(interfaces)
	var out []grouprules.Group
	for _, id := range groupIDs() {
		if rules, exists := w.rules[id]; exists {
			g := members[id]
			g.ID, g.Rules = id, rules
			out = append(out, g)
		}
	}
	return out
}

// labelled are the pods as the engine gets them.
func (w *world) labelled(groups []grouprules.Group) (out []policy.Pod) {
	pools := grouprules.NewPools(groups)
	for _, p := range w.pods {
		pod := p.Pod
		pod.Labels = grouprules.Labels(p.Labels, grouprules.Groups{Isolated: p.own != nil, Own: p.own, Inherited: pools.Of(p.Addresses)})
		out = append(out, pod)
	}
	return out
}

// cluster is the world with its groups compiled.
func (w *world) cluster() policy.Cluster {
	groups := w.snapshot()
	c := w.base
	c.Pods = w.labelled(groups)
	c.Policies = slices.Clone(c.Policies)
	for _, compiled := range grouprules.Compile(groups) {
		c.Policies = append(c.Policies, compiled.Policy)
	}
	return c
}

// ungrouped is the world without groups.
func (w *world) ungrouped() policy.Cluster {
	c := w.base
	for _, p := range w.pods {
		c.Pods = append(c.Pods, p.Pod)
	}
	return c
}

// flow draws a connection.
func (w *world) flow() policy.Flow {
	var known []netip.Addr
	for _, p := range w.pods {
		known = append(known, p.Addresses...)
	}
	for _, n := range w.nics {
		known = append(known, n.addresses...)
	}
	known = append(known, addresses("192.0.2.7", "198.51.100.1", "fd00:8::1", "169.254.169.253", "169.254.169.123", "fd00:ec2::253", "10.0.0.30", "10.0.1.31")...)
	f := policy.Flow{Source: pick(w.r, known), Protocol: pick(w.r, []policy.Protocol{6, 6, 17, 132, 1, 58, 47})}
	f.Destination = pick(w.r, slices.DeleteFunc(known, func(a netip.Addr) bool { return a.Is4() != f.Source.Is4() }))
	if f.Protocol.HasPorts() {
		f.Port = pick(w.r, []uint16{0, 52, 53, 63, 80, 85, 90, 91, 123, 443, 65535})
	}
	return f
}
