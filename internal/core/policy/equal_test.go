package policy

import (
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// wide is a policy with something in each of its fields.
func wide() Policy {
	rule := func() Rule {
		return Rule{
			Name: "rule", Action: Deny, AnyPeer: false, AnyPort: false,
			Peers: []Peer{{Pods: &PodSet{Namespaces: pods("team=shop").Pods, Pods: pods("app=web").Pods}}, {Block: blockOf("10.0.0.0/8", "10.1.0.0/16")}, {Name: "example.com"}},
			Ports: []Port{{Protocol: TCP, First: 80, Last: 90}, {Protocol: UDP, Name: "dns"}},
		}
	}
	return Policy{
		Ref: Ref{"ClusterNetworkPolicy", "", "wide"}, Tier: Admin, Order: 1, Isolates: [2]bool{true, false},
		Subject: PodSet{Namespaces: pods("team=shop").Pods, Pods: pods("app=db").Pods},
		Rules:   [2][]Rule{{rule(), rule()}, {rule()}},
	}
}

func TestPoliciesAreEqualIfNothingDiffersThatIsJudged(t *testing.T) {
	if a, b := wide(), wide(); !equalPolicies(&a, &b) {
		t.Error("a policy is not equal to its copy")
	}
	first := func(p *Policy) *Rule { return &p.Rules[Ingress][0] }
	for name, edit := range map[string]func(p *Policy){
		"kind":                       func(p *Policy) { p.Ref.Kind = "other" },
		"name":                       func(p *Policy) { p.Ref.Name = "other" },
		"tier":                       func(p *Policy) { p.Tier = Baseline },
		"order":                      func(p *Policy) { p.Order = 2 },
		"isolates ingress":           func(p *Policy) { p.Isolates[Ingress] = false },
		"isolates egress":            func(p *Policy) { p.Isolates[Egress] = true },
		"namespace of the subject":   func(p *Policy) { p.Subject.Namespace = "shop" },
		"namespaces of the subject":  func(p *Policy) { p.Subject.Namespaces = pods("team=other").Pods },
		"all namespaces":             func(p *Policy) { p.Subject.Namespaces = nil },
		"pods of the subject":        func(p *Policy) { p.Subject.Pods = pods("app=web").Pods },
		"no pods":                    func(p *Policy) { p.Subject.Pods = labels.Nothing() },
		"all pods":                   func(p *Policy) { p.Subject.Pods = nil },
		"fewer rules":                func(p *Policy) { p.Rules[Ingress] = p.Rules[Ingress][:1] },
		"no rules of egress":         func(p *Policy) { p.Rules[Egress] = nil },
		"a rule of egress":           func(p *Policy) { p.Rules[Egress][0].AnyPort = true },
		"the second rule":            func(p *Policy) { p.Rules[Ingress][1].AnyPort = true },
		"name of a rule":             func(p *Policy) { first(p).Name = "" },
		"action":                     func(p *Policy) { first(p).Action = Pass },
		"any peer":                   func(p *Policy) { first(p).AnyPeer = true },
		"any port":                   func(p *Policy) { first(p).AnyPort = true },
		"fewer peers":                func(p *Policy) { first(p).Peers = first(p).Peers[:2] },
		"order of the peers":         func(p *Policy) { slices.Reverse(first(p).Peers) },
		"pods of a peer":             func(p *Policy) { first(p).Peers[0].Pods.Pods = nil },
		"namespaces of a peer":       func(p *Policy) { first(p).Peers[0].Pods.Namespaces = nil },
		"a block instead of pods":    func(p *Policy) { first(p).Peers[0] = first(p).Peers[1] },
		"nothing instead of pods":    func(p *Policy) { first(p).Peers[0] = Peer{} },
		"nothing instead of a block": func(p *Policy) { first(p).Peers[1] = Peer{} },
		"pods beside a block":        func(p *Policy) { first(p).Peers[1].Pods = &PodSet{} },
		"a block beside pods":        func(p *Policy) { first(p).Peers[0].Block = blockOf("10.0.0.0/8") },
		"range of a block":           func(p *Policy) { first(p).Peers[1].Block.Prefix = netip.MustParsePrefix("10.0.0.0/9") },
		"exceptions of a block":      func(p *Policy) { first(p).Peers[1].Block.Except = nil },
		"domain name":                func(p *Policy) { first(p).Peers[2].Name = "example.org" },
		"fewer ports":                func(p *Policy) { first(p).Ports = first(p).Ports[:1] },
		"protocol of a port":         func(p *Policy) { first(p).Ports[0].Protocol = UDP },
		"the first port":             func(p *Policy) { first(p).Ports[0].First = 79 },
		"the last port":              func(p *Policy) { first(p).Ports[0].Last = 91 },
		"name of a port":             func(p *Policy) { first(p).Ports[1].Name = "other" },
	} {
		a, b := wide(), wide()
		if edit(&b); equalPolicies(&a, &b) || equalPolicies(&b, &a) {
			t.Errorf("%s: policies that differ are equal", name)
		}
	}
}

// The namespace of a set replaces the selector of namespaces.
func TestNamespacesThatAreNotReadMakeNoDifference(t *testing.T) {
	a, b := PodSet{Namespace: "shop"}, PodSet{Namespace: "shop", Namespaces: pods("team=shop").Pods}
	if !equalPodSets(a, b) || a.Key() != b.Key() {
		t.Errorf("%s (%s) and %s (%s) differ", a, a.Key(), b, b.Key())
	}
}

func TestSetsOfOtherPodsHaveOtherKeys(t *testing.T) {
	sets := []PodSet{
		{},
		{Pods: labels.Nothing()},
		{Pods: pods("app=web").Pods},
		{Namespaces: pods("app=web").Pods},
		{Namespaces: labels.Nothing()},
		{Namespace: "shop"},
		{Namespace: "shop", Pods: pods("app=web").Pods},
		{Namespace: "shop", Pods: labels.Nothing()},
		{Namespace: "other"},
	}
	for i, a := range sets {
		for j, b := range sets {
			if (a.Key() == b.Key()) != (i == j) || equalPodSets(a, b) != (i == j) {
				t.Errorf("%s: %q, %s: %q", a, a.Key(), b, b.Key())
			}
		}
	}
	blocks := []*Block{blockOf("10.0.0.0/8"), blockOf("10.0.0.0/9"), blockOf("10.0.0.0/8", "10.1.0.0/16"), blockOf("10.0.0.0/8", "10.2.0.0/16"), blockOf("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16")}
	for i, a := range blocks {
		for j, b := range blocks {
			if (a.Key() == b.Key()) != (i == j) {
				t.Errorf("%s: %q, %s: %q", a, a.Key(), b, b.Key())
			}
		}
	}
}
