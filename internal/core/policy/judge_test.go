package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// outOf is a policy that isolates the pods of shop with app=db in egress.
func outOf(rules ...Rule) Policy {
	p := toDB()
	p.Ref.Name, p.Isolates, p.Rules = "out", [2]bool{Egress: true}, [2][]Rule{Egress: rules}
	return p
}

// compiled is a model of a cluster, of which db of shop is endpoint 1.
func compiled(c *Cluster, limits Limits) *model {
	m := newModel(limits)
	m.Nodes = c.Nodes
	for name, set := range c.Namespaces {
		m.setNamespace(name, set)
	}
	for _, p := range c.Pods {
		m.setPod(p)
	}
	for _, p := range c.Policies {
		m.setPolicy(p)
	}
	m.setEndpoint(1, PodRef{"shop", "db"})
	return m
}

func TestConnectionsOutOfADatabase(t *testing.T) {
	all := Rule{AnyPeer: true, AnyPort: true}
	http := Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}}}
	range8 := Rule{AnyPeer: true, Ports: []Port{{Protocol: UDP, First: 1, Last: 1}, {Protocol: TCP, First: 80, Last: 88}}}
	team := Rule{Peers: []Peer{{Name: "example.com"}, {Pods: &PodSet{Namespaces: pods("team=other").Pods, Pods: pods("app=web").Pods}}}, AnyPort: true}
	gone := Rule{Peers: []Peer{{Pods: &PodSet{Namespace: "gone"}}}, AnyPort: true}
	pod := Rule{Peers: []Peer{{Pods: &PodSet{}}}, AnyPort: true}
	deny := func(order int, name string) Policy {
		p := cluster(Admin, order, name, Rule{Action: Deny, AnyPeer: true, AnyPort: true})
		p.Rules[Ingress], p.Rules[Egress] = nil, p.Rules[Ingress]
		return p
	}
	isolated := "denied: isolated by NetworkPolicy shop/out, and no rule allows it"
	flow := func(to string, port uint16) Flow { return Flow{addr("10.0.0.2"), addr(to), TCP, port} }
	for name, c := range map[string]struct {
		policies []Policy
		flow     Flow
		want     string
	}{
		"without policies":                       {nil, flow("10.0.0.1", 80), "allowed: no policy decides about it"},
		"policies of ingress do not count":       {[]Policy{toDB()}, flow("10.0.0.1", 80), "allowed: no policy decides about it"},
		"no rule":                                {[]Policy{outOf()}, flow("10.0.0.1", 80), isolated},
		"the second rule":                        {[]Policy{outOf(gone, all)}, flow("10.0.0.1", 80), "allowed by NetworkPolicy shop/out, rule 2"},
		"to a named port of the peer":            {[]Policy{outOf(http)}, flow("10.0.0.1", 8080), "allowed by NetworkPolicy shop/out, rule 1"},
		"to another port than the named one":     {[]Policy{outOf(http)}, flow("10.0.0.1", 8081), isolated},
		"to a named port of another protocol":    {[]Policy{outOf(http)}, Flow{addr("10.0.0.2"), addr("10.0.0.1"), UDP, 8080}, isolated},
		"to a port that another pod names":       {[]Policy{outOf(http)}, flow("10.0.0.3", 8080), isolated},
		"to a named port of no pod":              {[]Policy{outOf(http)}, flow("192.0.2.1", 8080), isolated},
		"below the range":                        {[]Policy{outOf(range8)}, flow("192.0.2.1", 79), isolated},
		"the first of the range":                 {[]Policy{outOf(range8)}, flow("192.0.2.1", 80), "allowed by NetworkPolicy shop/out, rule 1"},
		"the last of the range":                  {[]Policy{outOf(range8)}, flow("192.0.2.1", 88), "allowed by NetworkPolicy shop/out, rule 1"},
		"past the range":                         {[]Policy{outOf(range8)}, flow("192.0.2.1", 89), isolated},
		"to pods of namespaces":                  {[]Policy{outOf(team)}, flow("10.0.0.3", 1), "allowed by NetworkPolicy shop/out, rule 1"},
		"to pods of other namespaces":            {[]Policy{outOf(team)}, flow("10.0.0.1", 1), isolated},
		"to no pod":                              {[]Policy{outOf(pod)}, flow("192.0.2.1", 1), isolated},
		"to a pod of an unknown namespace":       {[]Policy{outOf(gone, pod)}, flow("10.0.0.4", 1), isolated},
		"to a pod with its node's network":       {[]Policy{outOf(pod)}, flow("10.0.9.8", 1), isolated},
		"to its node":                            {[]Policy{outOf()}, flow("10.0.9.9", 1), "allowed: the node that runs it"},
		"to another node":                        {[]Policy{outOf()}, flow("10.0.9.8", 1), isolated},
		"from no pod":                            {[]Policy{outOf()}, Flow{addr("192.0.2.1"), addr("10.0.0.1"), TCP, 1}, "allowed: no pod of the cluster"},
		"from a pod with its node's network":     {[]Policy{outOf()}, Flow{addr("10.0.9.8"), addr("10.0.0.1"), TCP, 1}, "allowed: no pod of the cluster"},
		"from a pod of an unknown namespace":     {nil, Flow{addr("10.0.0.4"), addr("10.0.0.1"), TCP, 1}, "denied: its namespace is not known"},
		"of equal order, the first by name":      {[]Policy{deny(1, "y"), deny(1, "x")}, flow("10.0.0.1", 1), "denied by ClusterNetworkPolicy x, rule 1"},
		"of other order, the lower":              {[]Policy{deny(1, "x"), deny(-1, "y")}, flow("10.0.0.1", 1), "denied by ClusterNetworkPolicy y, rule 1"},
		"a domain name matches no address":       {[]Policy{outOf(Rule{Peers: []Peer{{Name: "10.0.0.1"}}, AnyPort: true})}, flow("10.0.0.1", 1), isolated},
		"a named port is not port 0":             {[]Policy{outOf(http)}, flow("10.0.0.1", 0), isolated},
		"a port of ICMP matches nothing":         {[]Policy{outOf(Rule{AnyPeer: true, Ports: []Port{{Protocol: 1, Last: allPorts}}})}, Flow{addr("10.0.0.2"), addr("10.0.0.1"), 1, 0}, isolated},
		"a rule with no port matches nothing":    {[]Policy{outOf(Rule{AnyPeer: true})}, flow("10.0.0.1", 1), isolated},
		"a rule with no peer matches nothing":    {[]Policy{outOf(Rule{AnyPort: true})}, flow("10.0.0.1", 1), isolated},
		"a policy that isolates in no direction": {[]Policy{func() Policy { p := outOf(all); p.Isolates = [2]bool{}; return p }()}, flow("10.0.0.1", 1), "allowed: no policy decides about it"},
		"no rules of one that isolates ingress":  {[]Policy{outOf(), func() Policy { p := outOf(all); p.Ref.Name, p.Isolates = "in", [2]bool{true, false}; return p }()}, flow("10.0.0.1", 1), isolated},
	} {
		of := shop(c.policies...)
		of.Pods[0].Ports = []NamedPort{{"http", TCP, 80}, {"http", TCP, 8080}}
		of.Pods[2].Ports = []NamedPort{{"web", TCP, 8080}}
		of.Pods = append(of.Pods,
			Pod{Namespace: "gone", Name: "x", Addresses: []netip.Addr{addr("10.0.0.4")}},
			Pod{Namespace: "shop", Name: "host", HostNetwork: true, Addresses: []netip.Addr{addr("10.0.9.8")}})
		of.Nodes = append(of.Nodes, Node{Name: "a", Addresses: []netip.Addr{addr("10.0.9.8")}})
		if got := of.Evaluate(c.flow).Egress.String(); got != c.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", name, c.flow, got, c.want)
		}
		for _, limits := range []Limits{unlimited(), {}} {
			compiled(of, limits).agrees(t, name, []string{"10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.9.8", "10.0.9.9", "192.0.2.1"}, []uint16{0, 1, 79, 80, 88, 89, 8080, 8081})
		}
	}
}

func TestADecisionNamesTheTierTheRuleAndWhatIsolates(t *testing.T) {
	web, none := fromPods("app=web"), fromPods("app=none")
	deny := Rule{Action: Deny, Peers: web.Peers, AnyPort: true}
	flow := Flow{addr("10.0.0.1"), addr("10.0.0.2"), TCP, 80}
	second := toDB(none)
	second.Ref.Name = "second"
	clusterRef := Ref{Kind: "ClusterNetworkPolicy", Name: "x"}
	for name, c := range map[string]struct {
		policies []Policy
		want     Decision
	}{
		"an admin rule":      {[]Policy{cluster(Admin, 1, "x", none, web)}, Decision{Allowed: true, Basis: ByRule, Policy: clusterRef, Tier: Admin, Rule: 1}},
		"a baseline rule":    {[]Policy{cluster(Baseline, 1, "x", none, deny)}, Decision{Basis: ByRule, Policy: clusterRef, Tier: Baseline, Rule: 1}},
		"a namespaced rule":  {[]Policy{toDB(none, web), second}, Decision{Allowed: true, Basis: ByRule, Policy: toDB().Ref, Tier: Namespaced, Rule: 1, Isolating: []Ref{toDB().Ref, second.Ref}}},
		"no namespaced rule": {[]Policy{second, toDB(none)}, Decision{Basis: Isolated, Tier: Namespaced, Isolating: []Ref{toDB().Ref, second.Ref}}},
		"its deny is none":   {[]Policy{toDB(deny)}, Decision{Allowed: true, Basis: ByRule, Policy: toDB().Ref, Tier: Namespaced, Isolating: []Ref{toDB().Ref}}},
		"no policy":          {nil, Decision{Allowed: true, Basis: NotIsolated}},
	} {
		if got := shop(c.policies...).Evaluate(flow).Ingress; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		m := node(c.policies...)
		m.explains(t, tuple{1, Ingress, flow.Source, TCP, 80})
		m.agrees(t, name, []string{"10.0.0.1", "192.0.2.1"}, []uint16{80})
	}
	m := node(toDB(deny))
	if got := m.engine.Describe(m.tables.Endpoints[1]); !strings.Contains(got, "rule 1: accept from pods app=web") {
		t.Errorf("a rule of a namespaced policy accepts, and is described as\n%s", got)
	}
	c := shop(outOf())
	c.Pods[1].HostNetwork = true
	if got := c.Judge(c.Pod(PodRef{"shop", "db"}), Egress, Flow{addr("192.0.2.1"), addr("10.0.0.1"), TCP, 80}); got.Basis != NoPod || !got.Allowed {
		t.Errorf("a pod with its node's network: %s", got)
	}
}

// Peers with the same verdicts are one class in a set's own scope: a verdict is that of all of
// them, and its rule that of one.
func TestAnExplanationOfSeveralKindsOfPeersIsASample(t *testing.T) {
	m := newModel(Limits{})
	fill(m)
	m.setPolicy(toDB(fromPods("app=web"), fromPods("x=1"), fromPods("y=1"), fromPods("z=1")))
	for i := range 20 {
		m.setPod(newPod(fmt.Sprint("all", i), fmt.Sprint("10.0.1.", i), labels.Set{"app": "web", "x": "1", "y": "1", "z": "1"}))
	}
	m.deletePod(PodRef{"shop", "web"})
	sample := func() bool {
		t.Helper()
		m.apply()
		_, class, ports := m.tables.Judge(1, Ingress, addr("10.0.1.1"), TCP, 80)
		got, known := m.engine.Explain(m.tables.Endpoints[1], Ingress, class, ports)
		if !known || !got.Decision.Allowed || got.Decision.Basis != ByRule {
			t.Errorf("%+v, %v", got, known)
		}
		return got.Sample
	}
	if sample() {
		t.Error("peers with the same conditions are a sample")
	}
	m.setPod(newPod("x", "10.0.2.1", labels.Set{"x": "1"}))
	if !sample() {
		t.Error("peers with other conditions are no sample")
	}
	if sample(); !sample() {
		t.Error("it is no sample any more")
	}
}

func TestAConnectionIsAllowedIfBothEndsAllowIt(t *testing.T) {
	for _, c := range []struct{ out, in, want bool }{{true, true, true}, {true, false, false}, {false, true, false}, {false, false, false}} {
		v := Verdict{Egress: Decision{Allowed: c.out}, Ingress: Decision{Allowed: c.in}}
		if v.Allowed() != c.want {
			t.Errorf("%+v: %v", c, v.Allowed())
		}
	}
}

func TestOfTwoPodsWithAnAddressTheLastOfTheListHasIt(t *testing.T) {
	c := shop()
	c.Pods = append(c.Pods, newPod("second", "10.0.0.2", nil), Pod{Namespace: "shop", Name: "host", HostNetwork: true, Addresses: []netip.Addr{addr("10.0.0.2")}})
	if got := c.At(addr("10.0.0.2")); got == nil || got.Name != "second" {
		t.Errorf("%+v", got)
	}
	if got := c.At(addr("10.0.0.99")); got != nil {
		t.Errorf("%+v", got)
	}
	if got := c.Pod(PodRef{"other", "job"}); got == nil || got.Name != "job" {
		t.Errorf("%+v", got)
	}
	if got := c.Pod(PodRef{"shop", "job"}); got != nil {
		t.Errorf("%+v", got)
	}
}

func TestPoliciesAreOrderedByNamespaceNameAndKind(t *testing.T) {
	list := []Ref{{"b", "", "a"}, {"a", "", "b"}, {"b", "", "b"}, {"a", "x", "a"}, {"a", "y", "a"}}
	for i, a := range list {
		for j, b := range list {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%s, %s: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestOnlyTCPUDPAndSCTPHavePorts(t *testing.T) {
	for p := range Protocol(255) {
		if want := p == 6 || p == 17 || p == 132; p.HasPorts() != want {
			t.Errorf("%s: %v", p, !want)
		}
	}
}

func TestASetSelectsByNamespaceAndLabels(t *testing.T) {
	pod := Pod{Namespace: "shop", Labels: labels.Set{"app": "web"}}
	host := pod
	host.HostNetwork = true
	web, job, team, other := pods("app=web").Pods, pods("app=job").Pods, pods("team=shop").Pods, pods("team=other").Pods
	for name, c := range map[string]struct {
		set  PodSet
		pod  Pod
		want bool
	}{
		"all":                                {PodSet{}, pod, true},
		"all, but of a node's network":       {PodSet{}, host, false},
		"its namespace":                      {PodSet{Namespace: "shop"}, pod, true},
		"another namespace":                  {PodSet{Namespace: "other"}, pod, false},
		"its namespace, not by labels":       {PodSet{Namespace: "shop", Namespaces: other}, pod, true},
		"labels of its namespace":            {PodSet{Namespaces: team}, pod, true},
		"labels of another namespace":        {PodSet{Namespaces: other}, pod, false},
		"its labels":                         {PodSet{Pods: web}, pod, true},
		"other labels":                       {PodSet{Pods: job}, pod, false},
		"other labels of its namespace":      {PodSet{Namespace: "shop", Pods: job}, pod, false},
		"its labels of another namespace":    {PodSet{Namespaces: other, Pods: web}, pod, false},
		"other labels of the namespace's":    {PodSet{Namespaces: team, Pods: job}, pod, false},
		"its labels and the namespace's":     {PodSet{Namespaces: team, Pods: web}, pod, true},
		"no labels":                          {PodSet{Pods: labels.Nothing()}, pod, false},
		"its labels of no namespace at all":  {PodSet{Namespaces: labels.Nothing(), Pods: web}, pod, false},
		"its labels of the namespace's name": {PodSet{Namespace: "other", Pods: web}, pod, false},
	} {
		if got := c.set.Has(&c.pod, labels.Set{"team": "shop"}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The engine explains a verdict by the classes of the tables as Evaluate does by addresses.
func TestAVerdictIsExplainedByItsRuleAndPeers(t *testing.T) {
	sql := Rule{Peers: append(fromPods("app=web").Peers, fromBlock("10.0.0.0/30").Peers...), Ports: []Port{{Protocol: TCP, Name: "sql"}}}
	http := Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}}}
	job := Rule{Peers: fromPods("app=job").Peers, Ports: http.Ports}
	m := node(toDB(sql), outOf(http, job), cluster(Admin, 1, "admin", Rule{Action: Deny, AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 22, Last: 22}}}))
	web := newPod("web2", "10.0.1.1", labels.Set{"app": "job"})
	web.Ports = []NamedPort{{"http", TCP, 8080}}
	m.setPod(web)
	m.apply()
	isolated := func(p Policy) Decision {
		return Decision{Basis: Isolated, Tier: Namespaced, Isolating: []Ref{p.Ref}}
	}
	by := func(p Policy, rule int) Decision {
		return Decision{Allowed: true, Basis: ByRule, Policy: p.Ref, Tier: Namespaced, Rule: rule, Isolating: []Ref{p.Ref}}
	}
	for name, c := range map[string]struct {
		q     tuple
		want  Decision
		peers string
	}{
		"a rule":                 {tuple{1, Ingress, addr("10.0.0.1"), TCP, 5432}, by(toDB(), 0), "10.0.0.0/30 and pods app=web of namespace shop"},
		"a range":                {tuple{1, Ingress, addr("10.0.0.0"), TCP, 5432}, by(toDB(), 0), "10.0.0.0/30"},
		"no rule":                {tuple{1, Ingress, addr("10.0.0.1"), TCP, 80}, isolated(toDB()), "10.0.0.0/30 and pods app=web of namespace shop"},
		"another peer":           {tuple{1, Ingress, addr("192.0.2.1"), TCP, 5432}, isolated(toDB()), "other peers"},
		"an admin rule":          {tuple{1, Ingress, addr("10.0.0.1"), TCP, 22}, Decision{Basis: ByRule, Policy: Ref{Kind: "ClusterNetworkPolicy", Name: "admin"}, Tier: Admin}, "10.0.0.0/30 and pods app=web of namespace shop"},
		"a named port of a peer": {tuple{1, Egress, addr("10.0.1.1"), TCP, 8080}, by(outOf(), 0), "any pod with TCP http = 8080 and pods app=job of namespace shop with TCP http = 8080"},
	} {
		set := m.tables.Endpoints[1]
		_, class, ports := m.tables.Judge(c.q.endpoint, c.q.direction, c.q.peer, c.q.protocol, c.q.port)
		got, known := m.engine.Explain(set, c.q.direction, class, ports)
		if want := (Explanation{Decision: c.want, Peers: c.peers}); !known || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s\ngot  %+v, %v\nwant %+v", name, c.q, got, known, want)
		}
	}
}

func TestAVerdictOfWhatIsNotKnownIsNotExplained(t *testing.T) {
	m := node(toDB(Rule{Peers: fromPods("app=web").Peers, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}}}))
	set, class := m.tables.Endpoints[1], m.tables.Classes[ClassKey{NodeScope, addr("10.0.0.1")}]
	explained := func(id SetID, class Class, ports PortClass) bool {
		_, known := m.engine.Explain(id, Ingress, class, ports)
		return known
	}
	for name, c := range map[string]struct {
		id    SetID
		class Class
		ports PortClass
		want  bool
	}{
		"a rule":                    {set, class, 1, true},
		"other ports":               {set, class, 0, true},
		"other peers":               {set, 0, 1, true},
		"unknown ports":             {set, class, 2, false},
		"an unknown class":          {set, class + 1, 1, false},
		"an unknown set":            {set + 1, class, 1, false},
		"other peers of an unknown": {set + 1, 0, 1, false},
		"no set":                    {SetNone, 0, 0, false},
		"a pending endpoint":        {SetPending, 0, 0, false},
		"an open endpoint":          {SetOpen, 0, 0, true},
		"an open endpoint, a class": {SetOpen, class, 9, true},
	} {
		if explained(c.id, c.class, c.ports) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
	if got, _ := m.engine.Explain(SetOpen, Ingress, 0, 0); !reflect.DeepEqual(got, Explanation{Decision: Decision{Allowed: true, Basis: NotIsolated}, Peers: "any peer"}) {
		t.Errorf("an open endpoint: %+v", got)
	}
	if got, _ := m.engine.Explain(set, Egress, 0, 0); !reflect.DeepEqual(got, Explanation{Decision: Decision{Allowed: true, Basis: NotIsolated}, Peers: "other peers"}) {
		t.Errorf("the direction without policies: %+v", got)
	}
	// Also the class of a peer that ended.
	m.deletePod(PodRef{"shop", "web"})
	if m.apply(); !explained(set, class, 1) {
		t.Error("the class of a peer that ended is not known")
	}
	if m.engine.Commit(); !explained(set, class, 1) {
		t.Error("a commit without changes forgets what the last one retired")
	}
	m.setNamespace("new", nil)
	if m.apply(); explained(set, class, 1) || !explained(set, 0, 1) {
		t.Error("the class of a peer that ended before the last commit is known")
	}
	m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "web"}))
	m.apply()
	class = m.tables.Classes[ClassKey{NodeScope, addr("10.0.0.1")}]
	// Records of the kernel are read late: what a commit retired is known until the next.
	m.deletePolicy(toDB().Ref)
	if m.apply(); !explained(set, class, 1) {
		t.Error("what the last commit retired is not known")
	}
	m.setNamespace("other", nil)
	if m.apply(); explained(set, class, 1) || explained(set, 0, 1) {
		t.Error("what the commit before the last retired is known")
	}
}
