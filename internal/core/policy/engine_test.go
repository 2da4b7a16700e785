package policy

import (
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// node is an engine of a node with the pods of shop, of which db is endpoint 1.
func node(policies ...Policy) *model {
	m := newModel(unlimited())
	fill(m)
	for _, p := range policies {
		m.setPolicy(p)
	}
	m.apply()
	return m
}

// fill adds the pods of shop, and db as endpoint 1.
func fill(m *model) {
	c := shop()
	for name, set := range c.Namespaces {
		m.setNamespace(name, set)
	}
	for _, p := range c.Pods {
		m.setPod(p)
	}
	m.setEndpoint(1, PodRef{"shop", "db"})
}

// apply commits and applies.
func (m *model) apply() Change {
	change := m.engine.Commit()
	m.tables.Apply(change.All()...)
	return change
}

// from is the verdict about a connection to endpoint 1.
func (m *model) from(peer string, port uint16) answer {
	return m.kernel(tuple{1, Ingress, addr(peer), TCP, port})
}

// count counts operations by type.
func count[O Operation](change Change) (n int) {
	for _, o := range change.All() {
		if _, is := o.(O); is {
			n++
		}
	}
	return n
}

type (
	putClass = Put[ClassKey, Class]
	putRow   = Put[RowKey, uint64]
	putSet   = Put[SetID, Set]

	putEndpoint    = Put[endpoint.ID, SetID]
	deleteEndpoint = Delete[endpoint.ID]
	deleteClass    = Delete[ClassKey]
)

func fromPods(expression string) Rule {
	return Rule{Peers: []Peer{{Pods: pods(expression)}}, AnyPort: true}
}

func fromBlock(prefix string, except ...string) Rule {
	b := Block{Prefix: netip.MustParsePrefix(prefix)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return Rule{Peers: []Peer{{Block: &b}}, AnyPort: true}
}

func newPod(name, address string, set labels.Set) Pod {
	return Pod{Namespace: "shop", Name: name, Labels: set, Addresses: []netip.Addr{addr(address)}}
}

func TestAnEndpointWithoutPoliciesIsOpen(t *testing.T) {
	m := node()
	if got := m.tables.Endpoints[1]; got != SetOpen || m.tables.Len() != 1 {
		t.Errorf("%s", m.tables)
	}
}

func TestAnEndpointIsPendingUntilItsPodAndNamespaceAreKnown(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	m.setEndpoint(2, PodRef{"shop", "new"})
	m.setEndpoint(3, PodRef{"gone", "new"})
	m.setPod(Pod{Namespace: "gone", Name: "new"})
	m.apply()
	list := m.engine.Pending()
	if len(list) != 2 || list[0].String() != "endpoint 2 of pod shop/new: the pod is not known" || list[1].String() != "endpoint 3 of pod gone/new: its namespace is not known" {
		t.Errorf("pending: %v", list)
	}
	if m.tables.Endpoints[2] != SetPending || m.tables.Endpoints[3] != SetPending {
		t.Errorf("%s", m.tables)
	}
	m.setPod(newPod("new", "10.0.0.9", nil))
	m.setNamespace("gone", nil)
	m.apply()
	if m.tables.Endpoints[2] != SetOpen || m.tables.Endpoints[3] != SetOpen || m.engine.Pending() != nil {
		t.Errorf("%s", m.tables)
	}
}

func TestPodsWithEqualContentShareASet(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	m.setPod(newPod("db2", "10.0.0.8", labels.Set{"app": "db", "other": "label"}))
	m.setEndpoint(2, PodRef{"shop", "db2"})
	if change := m.apply(); change.Len() != 1 || m.tables.Endpoints[1] != m.tables.Endpoints[2] {
		t.Errorf("%s\n%s", change, m.tables)
	}
}

func TestPodsWithOtherNumbersOfANamedPortShareNoSet(t *testing.T) {
	m := node(toDB(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "sql"}}}))
	db2 := newPod("db2", "10.0.0.8", labels.Set{"app": "db"})
	db2.Ports = []NamedPort{{"sql", TCP, 3306}}
	m.setPod(db2)
	m.setEndpoint(2, PodRef{"shop", "db2"})
	m.apply()
	for id, port := range map[endpoint.ID]uint16{1: 5432, 2: 3306} {
		for _, other := range []uint16{5432, 3306, 80} {
			if got := m.kernel(tuple{id, Ingress, addr("10.9.9.9"), TCP, other}) == yes; got != (other == port) {
				t.Errorf("endpoint %d, port %d: %v", id, other, got)
			}
		}
	}
}

func TestANewPeerIsOnePut(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	m.setPod(newPod("web2", "10.0.0.7", labels.Set{"app": "web", "version": "2"}))
	change := m.apply()
	if change.Len() != 1 || count[putClass](change) != 1 || change.Epoch || m.from("10.0.0.7", 1) != yes {
		t.Errorf("%s", change)
	}
	m.deletePod(PodRef{"shop", "web2"})
	if change := m.apply(); change.Len() != 1 || !change.Epoch || m.from("10.0.0.7", 1) != no {
		t.Errorf("%s", change)
	}
}

func TestAPodThatNoPolicyOfTheNodeNamesIsNoWrite(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	m.setPod(newPod("job", "10.0.0.7", labels.Set{"app": "job"}))
	if change := m.apply(); !change.Empty() {
		t.Errorf("%s", change)
	}
}

func TestAPolicyThatSelectsNoEndpointIsNoWrite(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	other := toDB(fromPods("app=job"))
	other.Ref.Name, other.Subject = "web", *pods("app=web")
	m.setPolicy(other)
	if change := m.apply(); !change.Empty() || m.engine.Size().Matchers != 1 {
		t.Errorf("%s, %+v", change, m.engine.Size())
	}
}

func TestAPolicyThatIsSetAgainIsNoWrite(t *testing.T) {
	block := fromBlock("10.0.0.0/8", "10.1.0.0/16")
	m := node(toDB(fromPods("app=web"), block))
	set := m.tables.Endpoints[1]
	m.setPolicy(toDB(fromPods("app=web"), fromBlock("10.0.0.0/8", "10.1.0.0/16")))
	if change := m.apply(); !change.Empty() {
		t.Errorf("%s", change)
	}
	m.setPolicy(toDB())
	m.setPolicy(toDB(fromPods("app=web"), block))
	if change := m.apply(); !change.Empty() || m.tables.Endpoints[1] != set {
		t.Errorf("changed and changed back: %s", change)
	}
}

func TestAChangeOfAPolicyWritesTheRowsOfItsSetsOnly(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	web := toDB(fromPods("app=db"))
	web.Ref.Name, web.Subject = "web", *pods("app=web")
	m.setPolicy(web)
	m.setEndpoint(2, PodRef{"shop", "web"})
	m.apply()
	kept := m.tables.Endpoints[2]
	m.setPolicy(toDB(fromPods("app=job")))
	change := m.apply()
	for _, o := range change.All() {
		if put, is := o.(putRow); is && put.Key.Set == kept || count[putSet](change) != 1 {
			t.Errorf("%s\n%s", o, change)
		}
	}
	if m.tables.Endpoints[2] != kept {
		t.Error("the other endpoint has another set")
	}
}

func TestAnEditedPolicyKeepsWhatBothVersionsAllow(t *testing.T) {
	for name, c := range map[string]struct{ before, after Rule }{
		"by another selector":            {fromPods("app=web"), fromPods("app in (web,job)")},
		"by a block instead of pods":     {fromPods("app=web"), fromBlock("10.0.0.0/24")},
		"by pods instead of a block":     {fromBlock("10.0.0.0/24", "10.0.0.4/32"), fromPods("app=web")},
		"by a larger block":              {fromBlock("10.0.0.0/30"), fromBlock("10.0.0.0/8")},
		"by an exact block":              {fromBlock("10.0.0.0/8"), fromBlock("10.0.0.1/32")},
		"by anything instead of a block": {fromBlock("0.0.0.0/0"), Rule{AnyPeer: true, AnyPort: true}},
	} {
		m := node(toDB(c.before))
		m.setPolicy(toDB(c.after))
		for step, o := range m.engine.Commit().All() {
			if m.tables.Apply(o); m.from("10.0.0.1", 80) != yes {
				t.Errorf("%s: step %d (%s) denies it", name, step, o)
			}
		}
	}
}

// Two rows of one commit: the peer's labels change, and the endpoint leaves the set that
// another endpoint keeps. What neither version allows must not pass in between.
func TestAnEndpointThatLeavesASharedSetIsNotOpenWhilePeersChange(t *testing.T) {
	m := node(toDB(fromPods("app=job")))
	second := toDB(fromPods("app=web"))
	second.Ref.Name, second.Subject = "second", *pods("app=second")
	m.setPolicy(second)
	m.setPod(newPod("db2", "10.0.0.8", labels.Set{"app": "db"}))
	m.setEndpoint(2, PodRef{"shop", "db2"})
	m.setPod(newPod("web2", "10.0.0.5", labels.Set{"app": "web"})) // keeps the class of the peer
	m.setPod(newPod("second", "10.0.0.6", labels.Set{"app": "second"}))
	m.setEndpoint(3, PodRef{"shop", "second"})
	m.apply()
	db := *m.Pod(PodRef{"shop", "db"})
	db.Labels = labels.Set{"app": "second"}
	m.setPod(db)
	m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "job"})) // was app=web
	change := m.engine.Commit()
	for _, o := range change.All() {
		if m.tables.Apply(o); m.from("10.0.0.1", 80) != no {
			t.Fatalf("%s allows it\n%s", o, change)
		}
	}
	if m.kernel(tuple{2, Ingress, addr("10.0.0.1"), TCP, 80}) != yes {
		t.Error("the other endpoint does not have the new peer")
	}
}

func TestPortsOfAllOfAProtocolAreNoOtherProtocol(t *testing.T) {
	m := node(toDB(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Last: allPorts}}}))
	for protocol, want := range map[Protocol]answer{TCP: yes, UDP: no, SCTP: no, 1: no, 58: no} {
		if got := m.kernel(tuple{1, Ingress, addr("10.9.9.9"), protocol, 80}); got != want {
			t.Errorf("%s: %c", protocol, got)
		}
	}
	if len(m.tables.Ports) != 0 || len(m.tables.PortRanges) != 1 {
		t.Errorf("%s", m.tables)
	}
}

func TestManyPortsOfARuleAreOneClass(t *testing.T) {
	r := Rule{AnyPeer: true}
	for n := range uint16(500) {
		r.Ports = append(r.Ports, Port{Protocol: TCP, First: 1000 + 2*n, Last: 1000 + 2*n})
	}
	m := node(toDB(r))
	if len(m.tables.Ports) != 500 || len(m.tables.Rows) != 1 {
		t.Errorf("%d ports, %d rows", len(m.tables.Ports), len(m.tables.Rows))
	}
	for port, want := range map[uint16]answer{999: no, 1000: yes, 1001: no, 1998: yes, 2000: no} {
		if got := m.from("10.9.9.9", port); got != want {
			t.Errorf("port %d: %c", port, got)
		}
	}
}

func TestPortsOfManyRulesNeedPages(t *testing.T) {
	var rules []Rule
	for n := range uint16(200) {
		rules = append(rules, Rule{Peers: fromPods("app=web").Peers, Ports: []Port{{Protocol: TCP, First: 1000 + n, Last: 1000 + n}}})
	}
	m := node(toDB(rules...))
	if len(m.tables.Rows) != 8 {
		t.Errorf("%d rows, want 4 pages of class 0 and of the peers'", len(m.tables.Rows))
	}
	for port, want := range map[uint16]answer{999: no, 1000: yes, 1063: yes, 1064: yes, 1199: yes, 1200: no} {
		if got := m.from("10.0.0.1", port); got != want {
			t.Errorf("port %d: %c", port, got)
		}
	}
}

func TestTheRangeOfAllIPv6HasNoIPv4Address(t *testing.T) {
	m := node(toDB(fromBlock("::/0")))
	for peer, want := range map[string]answer{"10.0.0.1": no, "192.0.2.1": no, "2001:db8::1": yes, "::1": yes} {
		if got := m.from(peer, 80); got != want {
			t.Errorf("%s: %c", peer, got)
		}
	}
}

func TestAThousandOverlappingBlocksWithExceptions(t *testing.T) {
	var rules []Rule
	for n := range 1000 {
		outer := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), byte(n >> 3), 0}), 8+n%17).Masked()
		inner := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), byte(n >> 3), byte(n)}), 25+n%8).Masked()
		rules = append(rules, fromBlock(outer.String(), inner.String()))
	}
	m := node(toDB(rules...))
	for n := range 2000 {
		q := tuple{1, Ingress, netip.AddrFrom4([4]byte{10, byte(n), byte(n >> 3), byte(n * 7)}), TCP, 80}
		if got, want := m.kernel(q), m.oracle(q); got != want {
			t.Fatalf("%s: %c, want %c", q, got, want)
		}
	}
	t.Logf("%d prefixes, %d addresses, %d rows", len(m.tables.Prefixes), len(m.tables.Classes), len(m.tables.Rows))
}

func TestASetIsDescribedInWords(t *testing.T) {
	m := node(toDB(Rule{Peers: append(fromPods("app=web").Peers, fromBlock("10.0.0.0/8", "10.1.0.0/16").Peers...), Ports: []Port{{Protocol: TCP, Name: "sql"}}}),
		cluster(Admin, 1, "metrics", Rule{Action: Deny, AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 9000, Last: 9100}}}))
	got := m.engine.Describe(m.tables.Endpoints[1])
	for _, want := range []string{
		"set 16 of 1 endpoints", "ingress: what no rule decides is denied", "isolated by NetworkPolicy shop/db", "egress: no policy decides",
		"admin, ClusterNetworkPolicy metrics, rule 1: deny from any peer: TCP 9000-9100",
		"namespaced, NetworkPolicy shop/db, rule 1: accept from pods app=web of namespace shop; 10.0.0.0/8 without 10.1.0.0/16: TCP sql",
		"port class 1: TCP 5432", "port class 2: TCP 9000-9100",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestEntriesHaveReadableTexts(t *testing.T) {
	m := node(toDB(fromPods("app=web"), fromBlock("10.0.0.0/8")))
	text := m.tables.String()
	for _, want := range []string{
		"endpoint     1: set 16\n", "set 16: scope 0, ports 1, isolates ingress, prefixes\n", "scope 0, 10.0.0.1: class ", "scope 0, 10.0.0.0/8: class ",
		"set 16, ingress, class 0, page 0: 0000",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	m.deletePolicy(toDB().Ref)
	if change := m.engine.Commit().String(); !strings.Contains(change, "switch: put 1: open\n") || !strings.Contains(change, "after: delete set 16\n") {
		t.Errorf("%s", change)
	}
}
