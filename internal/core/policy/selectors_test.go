package policy

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// manySelectors are peers by each way to select pods, more than are compared one by one.
func manySelectors() (list []Peer) {
	expressions := []string{
		"app=a", "app==b", "app in (c)", "app in (d,e)", "app notin (a,b,c,d,e,f,g,web,db)", "tier", "!app", "app!=a,app!=b,tier=x", "tier=x,app=f", "app=a,tier=y", "app in (a,g),tier in (y,z)", "",
	}
	for _, text := range expressions {
		list = append(list, Peer{Pods: pods(text)})
	}
	for _, text := range expressions {
		list = append(list, Peer{Pods: &PodSet{Pods: pods(text).Pods}}, Peer{Pods: &PodSet{Namespaces: pods("team=other").Pods, Pods: pods(text).Pods}})
	}
	return append(list, Peer{Pods: &PodSet{Namespaces: pods("team in (other,x),kind").Pods}}, Peer{Pods: &PodSet{Namespaces: pods("!team").Pods}}, Peer{Pods: &PodSet{Namespaces: pods("kind!=x,team=x").Pods, Pods: pods("app=a").Pods}},
		Peer{Pods: &PodSet{Pods: labels.Nothing()}}, Peer{Pods: &PodSet{Namespaces: labels.Nothing()}})
}

// Each peer has a port of its own, so that a verdict says which selectors are taken to select.
func TestASelectorSelectsTheSamePodsBesideManyOthersAsAlone(t *testing.T) {
	peers := manySelectors()
	rules := make([]Rule, len(peers))
	ports := make([]uint16, len(peers))
	for i, p := range peers {
		ports[i] = uint16(1000 + i)
		rules[i] = Rule{Peers: []Peer{p}, Ports: []Port{{Protocol: TCP, First: ports[i], Last: ports[i]}}}
	}
	m := node()
	m.setNamespace("third", labels.Set{"kind": "y"})
	m.setNamespace("fourth", labels.Set{"team": "x", "kind": "x"})
	for n, namespace := range []string{"shop", "other", "third", "fourth", "unknown"} {
		for i, set := range []labels.Set{{"app": "a"}, {"app": "b"}, {"app": "c", "tier": "x"}, {"app": "d"}, {"app": "e", "tier": "y"}, {"app": "f", "tier": "x"}, {"app": "g", "tier": "z"}, {"app": "a", "tier": "y"}, nil, {"tier": "x"}} {
			p := newPod(fmt.Sprint("pod", i), fmt.Sprintf("10.1.%d.%d", n, i), set)
			p.Namespace = namespace
			m.setPod(p)
		}
	}
	check := func(what string) {
		t.Helper()
		m.apply()
		for n := range m.Pods {
			pod := &m.Pods[n]
			namespace, known := m.Namespaces[pod.Namespace]
			for i, p := range peers {
				want := no
				if known && p.Pods.Has(pod, namespace) && slices.ContainsFunc(m.Policies[0].Rules[Ingress], func(r Rule) bool { return r.Ports[0].First == ports[i] }) {
					want = yes
				}
				if got := m.from(pod.Addresses[0].String(), ports[i]); got != want && pod.Name != "db" {
					t.Fatalf("%s: pod %s with %v is a peer of %s: %c", what, pod.Ref(), pod.Labels, p, got)
				}
			}
		}
		if got, want := snapshotOf(m.engine), snapshotOf(m.build().engine); got != want {
			t.Errorf("%s:\n%s", what, difference(got, want))
		}
	}
	m.setPolicy(toDB(rules...))
	check("all at once")
	for _, n := range []int{len(rules) - 5, 24, 12, fewMatchers + 1, fewMatchers, 2} {
		m.setPolicy(toDB(rules[:n]...))
		check(fmt.Sprint("the first ", n))
	}
	m.setPolicy(toDB(rules[2:]...))
	check("without the first")
	m.setPolicy(toDB(rules...))
	m.setNamespace("other", labels.Set{"team": "x"})
	m.setNamespace("unknown", labels.Set{"team": "other"})
	m.deleteNamespace("third")
	check("other labels of namespaces")
	for i := range 5 {
		m.deletePod(PodRef{"shop", fmt.Sprint("pod", i)})
		m.setPod(newPod(fmt.Sprint("pod", i+5), fmt.Sprint("10.1.0.", i+5), labels.Set{"app": "a", "tier": "y"}))
	}
	check("other pods")
	m.setPolicy(toDB())
	m.apply()
	if len(m.engine.matchers.index)+len(m.engine.matchers.byKey) != 0 {
		t.Errorf("%d selectors are left", len(m.engine.matchers.byKey))
	}
}

// The set's own scope finds the same peers.
func TestASetWithManySelectorsHasTheSamePeersInAScopeOfItsOwn(t *testing.T) {
	m := newModel(Limits{})
	fill(m)
	var addresses []string
	for i, set := range []labels.Set{{"app": "a"}, {"app": "c", "tier": "x"}, {"app": "g", "tier": "z"}, nil} {
		for n, namespace := range []string{"shop", "other", "none"} {
			address := fmt.Sprintf("10.1.%d.%d", n, i)
			p := newPod(fmt.Sprint("pod", i), address, set)
			p.Namespace = namespace
			m.setPod(p)
			addresses = append(addresses, address)
		}
	}
	for i, p := range manySelectors() {
		if i%5 != 0 {
			continue
		}
		m.setPolicy(toDB(append(peersAlone(manySelectors()[:i]), Rule{Peers: []Peer{p}, AnyPort: true})...))
		m.agrees(t, fmt.Sprint("selector ", i), addresses, []uint16{80, 1000})
	}
}

// peersAlone are rules of a port that is not asked for.
func peersAlone(peers []Peer) (rules []Rule) {
	for _, p := range peers {
		rules = append(rules, Rule{Peers: []Peer{p}, Ports: []Port{{Protocol: TCP, First: 1000, Last: 1000}}})
	}
	return rules
}
