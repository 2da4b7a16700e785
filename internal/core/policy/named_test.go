package policy

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func ofNumber(p Pod, ports ...NamedPort) Pod {
	p.Ports = ports
	return p
}

// agrees checks every question about endpoint 1 and peers against Evaluate, and what the
// engine holds against one that is built at once.
func (m *model) agrees(t *testing.T, what string, peers []string, ports []uint16) {
	t.Helper()
	m.apply()
	for _, direction := range []Direction{Ingress, Egress} {
		for _, peer := range peers {
			for _, protocol := range []Protocol{TCP, UDP, SCTP, 1} {
				for _, port := range ports {
					q := tuple{1, direction, addr(peer), protocol, port}
					if got, want := m.kernel(q), m.oracle(q); got != want && want != anything {
						t.Errorf("%s: %s: %c, Evaluate says %c", what, q, got, want)
					}
				}
			}
		}
	}
	consistent(t, what, m.engine)
	inScope(t, what, m.engine)
	if m.engine.limits != unlimited() {
		return
	}
	if got, want := snapshotOf(m.engine), snapshotOf(m.build().engine); got != want {
		t.Errorf("%s:\n%s", what, difference(got, want))
	}
}

// Named ports of egress are those of each peer, which come and go with peers and policies.
func TestNamedPortsOfPeersComeAndGo(t *testing.T) {
	http := func(peers ...Peer) Rule {
		return Rule{Peers: peers, AnyPeer: peers == nil, Ports: []Port{{Protocol: TCP, Name: "http"}}}
	}
	web := Peer{Pods: pods("app=web")}
	block := Peer{Block: blockOf("10.0.0.0/24", "10.0.0.9/32")}
	peers, ports := []string{"10.0.0.1", "10.0.0.3", "10.0.0.7", "10.0.0.9", "10.0.0.50", "192.0.2.1"}, []uint16{0, 79, 80, 81, 8080, 8081}
	a := newPod("a", "10.0.0.7", labels.Set{"app": "web"})
	for name, rules := range map[string][]Rule{
		"any peer":              {http()},
		"pods":                  {http(web)},
		"a block":               {http(block)},
		"each of them":          {http(), http(web), http(block)},
		"in one rule":           {http(web, block)},
		"twice":                 {http(web), http(web)},
		"beside a number":       {{Peers: []Peer{web}, Ports: []Port{{Protocol: TCP, Name: "http"}, {Protocol: TCP, First: 81, Last: 81}}}},
		"of two protocols":      {{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}, {Protocol: UDP, Name: "http"}}}},
		"two names":             {{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}, {Protocol: TCP, Name: "admin"}}}},
		"a name twice":          {{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}, {Protocol: TCP, Name: "http"}}}},
		"beside any port":       {{Peers: []Peer{web}, AnyPort: true, Ports: []Port{{Protocol: TCP, Name: "http"}}}},
		"a domain name beside":  {http(Peer{Name: "example.com"}, web)},
		"pods of no namespace":  {http(Peer{Pods: &PodSet{Namespace: "gone"}})},
		"pods of any namespace": {http(Peer{Pods: &PodSet{Pods: labels.Everything()}})},
	} {
		for _, limits := range []Limits{unlimited(), {}} {
			if limits != unlimited() && len(rules) < 3 {
				continue // a scope of its own for the case of all rules only
			}
			m := newModel(limits)
			fill(m)
			m.setPod(ofNumber(*m.Pod(PodRef{"shop", "web"}), NamedPort{"http", TCP, 80}))
			m.setPod(ofNumber(newPod("nine", "10.0.0.9", nil), NamedPort{"http", TCP, 80}, NamedPort{"http", UDP, 80}))
			m.setPolicy(outOf())
			m.agrees(t, name+": no rules", peers, ports)
			m.setPolicy(outOf(rules...))
			m.agrees(t, name+": after the peers", peers, ports)
			for _, step := range []struct {
				name string
				pod  Pod
			}{
				{"a peer of the same number", ofNumber(a, NamedPort{"http", TCP, 80})},
				{"of another number", ofNumber(a, NamedPort{"http", TCP, 8080})},
				{"of both numbers", ofNumber(a, NamedPort{"http", TCP, 8080}, NamedPort{"http", TCP, 80})},
				{"of a number twice", ofNumber(a, NamedPort{"http", TCP, 8080}, NamedPort{"http", TCP, 8080})},
				{"of two names", ofNumber(a, NamedPort{"admin", TCP, 8081}, NamedPort{"http", TCP, 80})},
				{"of another protocol", ofNumber(a, NamedPort{"http", UDP, 8080})},
				{"of other labels", ofNumber(newPod("a", "10.0.0.7", nil), NamedPort{"http", TCP, 8080})},
				{"of another address", ofNumber(newPod("a", "10.0.0.50", labels.Set{"app": "web"}), NamedPort{"http", TCP, 8080})},
				{"without a named port", newPod("a", "10.0.0.50", labels.Set{"app": "web"})},
			} {
				m.setPod(step.pod)
				m.agrees(t, name+": a peer "+step.name, peers, ports)
			}
			m.setPod(ofNumber(newPod("b", "10.0.0.51", labels.Set{"app": "web"}), NamedPort{"http", TCP, 80}))
			m.setPod(ofNumber(newPod("c", "10.0.0.52", labels.Set{"app": "web"}), NamedPort{"http", TCP, 8080}))
			m.setPod(newPod("d", "10.0.0.53", labels.Set{"app": "web"}))
			m.agrees(t, name+": peers of the same labels", append(peers, "10.0.0.51", "10.0.0.52", "10.0.0.53"), ports)
			m.setPod(ofNumber(newPod("d", "10.0.0.51", labels.Set{"app": "web"}), NamedPort{"http", TCP, 8081})) // has the address of b
			m.agrees(t, name+": pods of the same address", append(peers, "10.0.0.51"), ports)
			m.setPolicy(outOf())
			m.agrees(t, name+": no rules again", peers, ports)
			m.setPolicy(outOf(rules...))
			m.agrees(t, name+": after pods of the same address", append(peers, "10.0.0.51"), ports)
			for _, other := range []string{"b", "c", "d"} {
				m.deletePod(PodRef{"shop", other})
			}
			m.setPolicy(outOf(append(rules, Rule{Peers: []Peer{web}, Ports: []Port{{Protocol: TCP, Name: "admin"}}})...))
			m.setPod(ofNumber(a, NamedPort{"admin", TCP, 8081}))
			m.agrees(t, name+": one more name", peers, ports)
			m.setPolicy(outOf(rules...))
			m.agrees(t, name+": one name less", peers, ports)
			m.deletePod(a.Ref())
			m.agrees(t, name+": the end of a peer", peers, ports)
			m.deletePolicy(outOf().Ref)
			m.agrees(t, name+": the end of the policy", peers, ports)
			if got := m.engine.Size(); got.Matchers != 0 || got.Sets != 0 || len(m.engine.matchers.groups)+len(m.engine.matchers.numbered)+len(m.engine.matchers.index) != 0 {
				t.Errorf("%s: the engine holds %+v, %d named ports", name, got, len(m.engine.matchers.numbered))
			}
		}
	}
}

// Named ports of ingress are those of the endpoint's own pod.
func TestNamedPortsOfTheSubjectComeAndGo(t *testing.T) {
	peers, ports := []string{"10.0.0.1", "192.0.2.1"}, []uint16{0, 80, 81, 5432, 5433}
	sql := func(p Protocol) Port { return Port{Protocol: p, Name: "sql"} }
	for name, rule := range map[string]Rule{
		"any peer":         {AnyPeer: true, Ports: []Port{sql(TCP)}},
		"pods":             {Peers: fromPods("app=web").Peers, Ports: []Port{sql(TCP)}},
		"of two protocols": {AnyPeer: true, Ports: []Port{sql(TCP), sql(UDP)}},
		"beside a number":  {AnyPeer: true, Ports: []Port{sql(TCP), {Protocol: TCP, First: 80, Last: 81}}},
		"another name":     {AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "none"}}},
	} {
		m := node(toDB(rule))
		db := *m.Pod(PodRef{"shop", "db"})
		for step, list := range map[string][]NamedPort{
			"none": nil, "one": {{"sql", TCP, 5432}}, "another": {{"sql", TCP, 5433}}, "two": {{"sql", TCP, 5432}, {"sql", TCP, 5433}},
			"one twice": {{"sql", TCP, 5432}, {"sql", TCP, 5432}}, "of another protocol": {{"sql", UDP, 5432}}, "of both": {{"sql", UDP, 80}, {"sql", TCP, 5432}},
			"of another name": {{"x", TCP, 5432}},
		} {
			m.setPod(ofNumber(db, list...))
			m.agrees(t, name+": "+step, peers, ports)
		}
	}
}

func TestOddPodsAndRulesAreJudgedAsEvaluateDoes(t *testing.T) {
	peers, ports := []string{"10.0.0.1", "10.0.0.7", "10.0.0.8", "fd00::7", "192.0.2.1"}, []uint16{0, 79, 80, 81, 90, 65535}
	all := Rule{Peers: []Peer{{Pods: pods("app=web")}}, AnyPort: true}
	for name, c := range map[string]struct {
		pod  Pod
		rule Rule
	}{
		"a port without a name":     {Pod{Ports: []NamedPort{{"", TCP, 81}}, Addresses: []netip.Addr{addr("10.0.0.7")}}, Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 90, Last: 80}, {Protocol: TCP, First: 79, Last: 79}}}},
		"ports of ICMP":             {Pod{}, Rule{AnyPeer: true, Ports: []Port{{Protocol: 1, Last: allPorts}}}},
		"an address twice":          {Pod{Addresses: []netip.Addr{addr("10.0.0.7"), addr("10.0.0.7")}}, all},
		"the addresses of two":      {Pod{Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.0.0.8")}}, all},
		"an address of each family": {Pod{Addresses: []netip.Addr{addr("10.0.0.7"), addr("fd00::7")}}, all},
		"its node's address":        {Pod{Addresses: []netip.Addr{addr("10.0.0.7")}, HostNetwork: true}, all},
		"no address":                {Pod{}, all},
		"a port before the first":   {Pod{}, Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 90, Last: 80}}}},
		"such a port and another":   {Pod{}, Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 90, Last: 80}, {Protocol: TCP, First: 79, Last: 79}}}},
		"every port":                {Pod{}, Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Last: allPorts}}}},
		"no port":                   {Pod{}, Rule{AnyPeer: true}},
		"no peer":                   {Pod{}, Rule{AnyPort: true}},
		"pods of no namespace":      {Pod{}, Rule{Peers: []Peer{{Pods: &PodSet{Namespace: "gone"}}}, AnyPort: true}},
		"a domain name":             {Pod{}, Rule{Peers: []Peer{{Name: "example.com"}}, AnyPort: true}},
		"overlapping ports":         {Pod{}, Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 79, Last: 81}, {Protocol: TCP, First: 80, Last: 90}, {Protocol: UDP, First: 81, Last: 81}}}},
	} {
		c.pod.Namespace, c.pod.Name, c.pod.Labels = "shop", "odd", labels.Set{"app": "web"}
		for _, p := range []Policy{toDB(c.rule), outOf(c.rule), toDB(c.rule, all)} {
			m := node(p)
			m.setPod(c.pod)
			m.agrees(t, name, peers, ports)
			other := c.pod
			other.Labels = labels.Set{"app": "x"}
			m.setPod(other)
			m.agrees(t, name+", of other labels", peers, ports)
			m.deletePod(c.pod.Ref())
			m.agrees(t, name+", the end", peers, ports)
		}
	}
}

// A rule can decide as the rest is decided: then a peer of it is of class 0 in a set's own scope.
func TestAPeerWithTheVerdictsOfOthersLeavesTheirRows(t *testing.T) {
	for _, limits := range []Limits{unlimited(), {}} {
		m := newModel(limits)
		fill(m)
		deny := cluster(Admin, 1, "x", Rule{Action: Deny, Peers: fromPods("app=web").Peers, AnyPort: true})
		m.setPolicy(deny)
		m.setPolicy(toDB(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}}}))
		m.setPolicy(outOf(Rule{Action: Accept, Peers: fromPods("app=web").Peers, Ports: []Port{{Protocol: TCP, First: 9, Last: 9}}}))
		for _, p := range []Pod{
			newPod("web", "10.0.0.1", labels.Set{"app": "web"}), newPod("web", "10.0.0.1", nil), newPod("web", "10.0.0.1", labels.Set{"app": "web"}), newPod("web", "10.0.0.8", nil),
		} {
			m.setPod(p)
			m.agrees(t, "deny of a port", []string{"10.0.0.1", "10.0.0.8", "192.0.2.1"}, []uint16{9, 80, 81})
		}
		m.deletePolicy(deny.Ref)
		m.deletePolicy(outOf().Ref)
		m.setPolicy(toDB())
		m.setPolicy(cluster(Admin, 1, "y", Rule{Action: Deny, Peers: fromPods("app=web").Peers, AnyPort: true}))
		for _, p := range []Pod{
			newPod("web", "10.0.0.1", labels.Set{"app": "web"}), newPod("web", "10.0.0.1", nil), newPod("web", "10.0.0.1", labels.Set{"app": "web"}),
		} {
			m.setPod(p)
			m.agrees(t, "deny of all", []string{"10.0.0.1", "10.0.0.8", "192.0.2.1"}, []uint16{9, 80, 81})
		}
	}
}
