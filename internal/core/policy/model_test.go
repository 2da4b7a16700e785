package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// model is the cluster as Evaluate reads it, beside an engine and the tables it has written.
type model struct {
	Cluster
	endpoints map[endpoint.ID]PodRef
	engine    *Engine
	tables    *Tables
}

func newModel(l Limits) *model {
	return &model{Cluster: Cluster{Namespaces: map[string]labels.Set{}}, endpoints: map[endpoint.ID]PodRef{}, engine: NewEngine(l), tables: NewTables()}
}

func (m *model) setNamespace(name string, set labels.Set) {
	m.Namespaces[name] = set
	m.engine.SetNamespace(name, set)
}

func (m *model) deleteNamespace(name string) {
	delete(m.Namespaces, name)
	m.engine.DeleteNamespace(name)
}

func (m *model) setPod(p Pod) {
	m.engine.SetPod(p)
	at := slices.IndexFunc(m.Pods, func(o Pod) bool { return o.Ref() == p.Ref() })
	if at >= 0 && slices.Equal(claimed(m.Pods[at]), claimed(p)) {
		m.Pods[at] = p
		return
	}
	if at >= 0 {
		m.Pods = slices.Delete(m.Pods, at, at+1)
	}
	m.Pods = append(m.Pods, p)
}

func claimed(p Pod) []netip.Addr {
	if p.HostNetwork {
		return nil
	}
	return p.Addresses
}

func (m *model) deletePod(ref PodRef) {
	m.Pods = slices.DeleteFunc(m.Pods, func(p Pod) bool { return p.Ref() == ref })
	m.engine.DeletePod(ref)
}

func (m *model) setPolicy(p Policy) {
	m.Policies = append(slices.DeleteFunc(m.Policies, func(o Policy) bool { return o.Ref == p.Ref }), p)
	m.engine.SetPolicy(p)
}

func (m *model) deletePolicy(ref Ref) {
	m.Policies = slices.DeleteFunc(m.Policies, func(o Policy) bool { return o.Ref == ref })
	m.engine.DeletePolicy(ref)
}

func (m *model) setEndpoint(id endpoint.ID, ref PodRef) {
	m.endpoints[id] = ref
	m.engine.SetEndpoint(id, ref)
}

func (m *model) deleteEndpoint(id endpoint.ID) {
	delete(m.endpoints, id)
	m.engine.DeleteEndpoint(id)
}

// tuple is one question.
type tuple struct {
	endpoint  endpoint.ID
	direction Direction
	peer      netip.Addr
	protocol  Protocol
	port      uint16
}

func (t tuple) String() string {
	return fmt.Sprintf("endpoint %d, %s, %s %s %d", t.endpoint, t.direction, t.peer, t.protocol, t.port)
}

type answer byte

const (
	no       answer = 'd'
	yes      answer = 'a'
	anything answer = '?' // the kernel decides it without the tables
)

// oracle is Evaluate's answer.
func (m *model) oracle(t tuple) answer {
	d, asked := m.decision(t)
	switch {
	case !asked:
		return anything
	case d.Allowed:
		return yes
	default:
		return no
	}
}

// decision is Evaluate's; false if the kernel decides without the tables.
func (m *model) decision(t tuple) (d Decision, asked bool) {
	ref, exists := m.endpoints[t.endpoint]
	subject := m.Pod(ref)
	if !exists || subject == nil {
		return Decision{Basis: NoNamespace}, true
	}
	own := slices.IndexFunc(subject.Addresses, func(a netip.Addr) bool { return m.At(a) == subject })
	if own < 0 && !subject.HostNetwork {
		return d, false // Evaluate finds the subject's named ports by its address
	}
	f := Flow{Source: t.peer, Protocol: t.protocol, Port: t.port}
	if own >= 0 {
		f.Destination = subject.Addresses[own]
	}
	if t.direction == Egress {
		f.Source, f.Destination = f.Destination, f.Source
	}
	d = m.Judge(subject, t.direction, f)
	return d, d.Basis != OwnAddress && d.Basis != ResidentNode
}

func (m *model) kernel(t tuple) answer {
	if allowed, _, _ := m.tables.Judge(t.endpoint, t.direction, t.peer, t.protocol, t.port); allowed {
		return yes
	}
	return no
}

// universe is small, so that random objects overlap.
var (
	names      = []string{"x", "y"}
	addresses4 = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.6", "10.0.1.1", "10.0.1.2"}
	addresses6 = []string{"fd00::1", "fd00::2", "fd00::3", "fd00::11"}
	strangers  = []string{"10.0.0.5", "10.0.0.7", "10.0.1.9", "10.9.9.9", "192.0.2.1", "fd00::5", "fd00::12", "2001:db8::1"}
	prefixes   = []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.1/32", "10.0.0.5/32", "10.0.1.0/24", "::/0", "fd00::/64", "fd00::/124", "fd00::1/128", "fd00::/8"}
	numbers    = []uint16{0, 1, 52, 53, 54, 79, 80, 81, 443, 1023, 1024, 1025, 8079, 8080, 8081, 65534, 65535}
)

// draw makes random choices: by rapid, which shrinks them, or by a seed, which is fast and
// reaches larger clusters.
type draw func(n int, label string) int

func byRapid(t *rapid.T) draw {
	return func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) }
}

func bySeed(seed uint64) draw {
	r := rand.New(rand.NewPCG(seed, seed))
	return func(n int, _ string) int { return r.IntN(n) }
}

func pick[E any](d draw, list []E, label string) E { return list[d(len(list), label)] }

func (d draw) chance(of int, label string) bool { return d(of, label) == 0 }

func (d draw) labels() labels.Set {
	set := labels.Set{}
	for _, key := range []string{"app", "tier"} {
		if value := pick(d, []string{"", "a", "b"}, key); value != "" {
			set[key] = value
		}
	}
	return set
}

func (d draw) selector() labels.Selector {
	text := pick(d, []string{"nil", "", "app=a", "app=b", "tier=a", "app=a,tier=b", "app in (a,b)", "app!=a", "!tier", "tier", "app notin (b)", "tier in (a,b),app=a", "-"}, "selector")
	switch text {
	case "nil":
		return nil
	case "-":
		return labels.Nothing()
	}
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

func (d draw) podSet() PodSet {
	s := PodSet{Pods: d.selector()}
	if d.chance(2, "one namespace") {
		s.Namespace = pick(d, names, "namespace")
	} else {
		s.Namespaces = d.selector()
	}
	return s
}

func (d draw) peer() Peer {
	switch d(10, "peer") {
	case 0:
		return Peer{Name: "example.com"}
	case 1, 2, 3, 4, 5:
		s := d.podSet()
		return Peer{Pods: &s}
	}
	b := Block{Prefix: netip.MustParsePrefix(pick(d, prefixes, "prefix"))}
	for range d(3, "excepts") {
		b.Except = append(b.Except, netip.MustParsePrefix(pick(d, prefixes, "except")))
	}
	return Peer{Block: &b}
}

func (d draw) port() Port {
	p := Port{Protocol: pick(d, []Protocol{TCP, TCP, UDP, SCTP}, "protocol")}
	switch d(5, "port") {
	case 0:
		p.Last = allPorts
	case 1, 2:
		p.Name = pick(d, []string{"http", "dns", "none"}, "name")
	default:
		p.First = pick(d, numbers, "first")
		p.Last = p.First
		if d.chance(2, "range") {
			p.Last = max(p.First, pick(d, numbers, "last"))
		}
	}
	return p
}

func (d draw) rule(t Tier) Rule {
	r := Rule{AnyPeer: d.chance(4, "any peer"), AnyPort: d.chance(3, "any port")}
	if t != Namespaced {
		r.Action = pick(d, []Action{Accept, Deny, Pass}, "action")
	}
	if !r.AnyPeer {
		for range d(4, "peers") {
			r.Peers = append(r.Peers, d.peer())
		}
	}
	if !r.AnyPort {
		for range d(4, "ports") {
			r.Ports = append(r.Ports, d.port())
		}
	}
	return r
}

func (d draw) policy() Policy {
	p := Policy{Tier: pick(d, []Tier{Admin, Namespaced, Namespaced, Baseline}, "tier"), Order: d(3, "order")}
	p.Ref = Ref{Kind: p.Tier.String(), Name: pick(d, []string{"p", "q", "r"}, "policy name")}
	p.Subject = d.podSet()
	if p.Tier == Namespaced {
		p.Ref.Namespace = pick(d, names, "policy namespace")
		p.Subject = PodSet{Namespace: p.Ref.Namespace}
		if d.chance(2, "some pods") {
			p.Subject.Pods = d.selector()
		}
		p.Isolates = [2]bool{!d.chance(4, "no ingress"), d.chance(2, "isolates egress")}
	}
	for direction := range p.Rules {
		for range d(3, "rules") {
			p.Rules[direction] = append(p.Rules[direction], d.rule(p.Tier))
		}
	}
	return p
}

func (d draw) ref() PodRef {
	return PodRef{pick(d, names, "pod namespace"), pick(d, []string{"1", "2", "3"}, "pod")}
}

func (d draw) pod() Pod {
	ref := d.ref()
	p := Pod{Namespace: ref.Namespace, Name: ref.Name, Labels: d.labels(), HostNetwork: d.chance(10, "host network")}
	if !d.chance(8, "no network") {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(pick(d, addresses4, "address")))
		if d.chance(2, "dual stack") {
			p.Addresses = append(p.Addresses, netip.MustParseAddr(pick(d, addresses6, "address")))
		}
	}
	for _, name := range []NamedPort{{"http", TCP, 80}, {"http", TCP, 8080}, {"http", UDP, 80}, {"dns", UDP, 53}, {"dns", UDP, 54}} {
		if d.chance(3, "named port") {
			p.Ports = append(p.Ports, name)
		}
	}
	return p
}

// allTuples are all questions of the universe.
func allTuples() (list []tuple) {
	for id := range endpoint.ID(4) {
		for _, direction := range []Direction{Ingress, Egress} {
			for _, peer := range slices.Concat(addresses4, addresses6, strangers) {
				for _, protocol := range []Protocol{TCP, UDP, SCTP} {
					for _, number := range numbers {
						list = append(list, tuple{id + 1, direction, netip.MustParseAddr(peer), protocol, number})
					}
				}
				list = append(list, tuple{id + 1, direction, netip.MustParseAddr(peer), 1, 0}, tuple{id + 1, direction, netip.MustParseAddr(peer), 58, 0})
			}
		}
	}
	return list
}

// edit is a policy with one difference.
func (d draw) edit(p Policy) Policy {
	direction := pick(d, []Direction{Ingress, Egress}, "direction")
	rules := slices.Clone(p.Rules[direction])
	p.Rules[direction] = rules
	if len(rules) == 0 || d.chance(6, "another rule") {
		p.Rules[direction] = append(rules, d.rule(p.Tier))
		return p
	}
	r := &rules[d(len(rules), "rule")]
	r.Peers, r.Ports = slices.Clone(r.Peers), slices.Clone(r.Ports)
	switch {
	case len(r.Peers) > 0 && d.chance(2, "replace a peer"):
		r.Peers[d(len(r.Peers), "peer")] = d.peer()
	case len(r.Ports) > 0 && d.chance(2, "replace a port"):
		r.Ports[d(len(r.Ports), "port")] = d.port()
	case d.chance(3, "any port"):
		r.AnyPort = !r.AnyPort
	case d.chance(2, "any peer"):
		r.AnyPeer = !r.AnyPeer
	default:
		r.Peers = append(r.Peers, d.peer())
	}
	return p
}

// event changes the model and the engine at random.
func (m *model) event(d draw) {
	switch d(21, "event") {
	case 0, 1:
		m.setNamespace(pick(d, names, "name"), d.labels())
	case 2:
		m.deleteNamespace(pick(d, names, "name"))
	case 3, 4, 5, 6:
		m.setPod(d.pod())
	case 7, 8:
		m.deletePod(d.ref())
	case 9, 10:
		m.setPolicy(d.policy())
	case 17, 18, 19, 20:
		if len(m.Policies) > 0 {
			m.setPolicy(d.edit(pick(d, m.Policies, "policy")))
		}
	case 11, 12:
		if len(m.Pods) > 0 { // other labels, the same addresses
			p := pick(d, m.Pods, "pod")
			p.Labels = d.labels()
			m.setPod(p)
		}
	case 13:
		p := d.policy()
		m.deletePolicy(p.Ref)
	case 14, 15:
		m.setEndpoint(endpoint.ID(d(4, "endpoint")+1), d.ref())
	case 16:
		m.deleteEndpoint(endpoint.ID(d(4, "endpoint") + 1))
	}
}

// begin gives the model some objects.
func (m *model) begin(d draw) {
	for _, name := range names {
		m.setNamespace(name, d.labels())
	}
	for range d(9, "pods") {
		m.setPod(d.pod())
	}
	for range d(6, "policies") {
		m.setPolicy(d.policy())
	}
	for id := range d(5, "endpoints") {
		m.setEndpoint(endpoint.ID(id+1), d.ref())
	}
}
