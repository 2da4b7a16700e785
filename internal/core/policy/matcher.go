package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// matcher is one condition on a peer. It is one of: the pods of a set, the addresses of a
// block, any pod (the base of named ports only), or the peers of a base that have a named port
// with a certain number.
type matcher struct {
	id     uint32 // grows; never used again
	key    string
	pods   *PodSet
	block  *Block
	base   *matcher // of a named port
	port   portName
	number uint16

	groups  []*group // named ports of the peers that this matches
	refs    int      // policies in force and groups that use it
	scoped  int      // sets of the node's scope that use it, without those that leave
	leaving int      // sets of the node's scope that use it and leave
	classed bool     // the classes of the node's scope divide by it
	sets    map[*set]struct{}
	classes map[*class]struct{} // of the node's scope that have it
}

// portName is a named port.
type portName struct {
	name     string
	protocol Protocol
}

// group is a named port of the peers that a matcher matches. Each of its numbers is a matcher.
type group struct {
	base    *matcher
	port    portName
	refs    int // policies in force
	numbers map[uint16]*number
	fresh   bool // its peers are not counted yet
}

type number struct {
	matcher *matcher
	peers   map[netip.Addr]struct{}
}

// list are the numbers of the named port.
func (g *group) list() []uint16 {
	list := make([]uint16, 0, len(g.numbers))
	for n := range g.numbers {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

func compareMatchers(a, b *matcher) int { return int(a.id) - int(b.id) }

// isBlock reports whether the matcher depends on the address only.
func (m *matcher) isBlock() bool { return m.block != nil }

func (m *matcher) String() string {
	switch {
	case m.pods != nil:
		return m.pods.String()
	case m.block != nil:
		return m.block.String()
	case m.base != nil:
		return fmt.Sprintf("%s with %s %s = %d", m.base, m.port.protocol, m.port.name, m.number)
	default:
		return "any pod"
	}
}

// matchers are the conditions of the policies in force, each once.
type matchers struct {
	byKey  map[string]*matcher
	next   uint32
	index  matcherIndex
	blocks *blocks
	anyPod *matcher // the base of named ports of any peer; nil if there are none
	groups map[*group]struct{}
	// numbered are the groups of each address that has a named port of a group.
	numbered map[netip.Addr][]*group
	changed  map[*group]struct{} // groups with other numbers than before the commit
}

func newMatchers() *matchers {
	return &matchers{
		byKey: map[string]*matcher{}, index: matcherIndex{}, blocks: newBlocks(), groups: map[*group]struct{}{},
		numbered: map[netip.Addr][]*group{}, changed: map[*group]struct{}{},
	}
}

// acquire returns the matcher with a key; create fills in a new one.
func (ms *matchers) acquire(key string, create func(m *matcher)) *matcher {
	m := ms.byKey[key]
	if m == nil {
		m = &matcher{id: ms.next, key: key, sets: map[*set]struct{}{}, classes: map[*class]struct{}{}}
		ms.next++
		create(m)
		ms.byKey[key] = m
		switch {
		case m.pods != nil:
			ms.index.add(m)
		case m.block != nil:
			ms.blocks.add(m)
		case m.base == nil:
			ms.anyPod = m
		}
	}
	m.refs++
	return m
}

func (ms *matchers) release(m *matcher) {
	if m.refs--; m.refs > 0 {
		return
	}
	delete(ms.byKey, m.key)
	switch {
	case m.pods != nil:
		ms.index.remove(m)
	case m.block != nil:
		ms.blocks.remove(m)
		ms.blocks.prune(m)
	case m.base == nil:
		ms.anyPod = nil
	}
}

func (ms *matchers) peer(p Peer) *matcher {
	if p.Pods != nil {
		return ms.acquire("p"+p.Pods.Key(), func(m *matcher) { m.pods = p.Pods })
	}
	return ms.acquire("b"+p.Block.Key(), func(m *matcher) { m.block = p.Block })
}

func (ms *matchers) any() *matcher { return ms.acquire("*", func(*matcher) {}) }

// group takes over a reference to its base.
func (ms *matchers) group(base *matcher, port portName) *group {
	for _, g := range base.groups {
		if g.port == port {
			g.refs++
			ms.release(base)
			return g
		}
	}
	g := &group{base: base, port: port, refs: 1, numbers: map[uint16]*number{}, fresh: true}
	base.groups = append(base.groups, g)
	ms.groups[g] = struct{}{}
	return g
}

func (ms *matchers) releaseGroup(g *group) {
	if g.refs--; g.refs > 0 {
		return
	}
	for _, n := range g.numbers {
		for a := range n.peers {
			ms.unnumber(a, g)
		}
		ms.release(n.matcher)
	}
	g.base.groups = slices.DeleteFunc(g.base.groups, func(other *group) bool { return other == g })
	delete(ms.groups, g)
	ms.release(g.base)
}

func (ms *matchers) unnumber(a netip.Addr, g *group) {
	rest := slices.DeleteFunc(ms.numbered[a], func(other *group) bool { return other == g })
	if len(rest) == 0 {
		delete(ms.numbered, a)
		return
	}
	ms.numbered[a] = rest
}

// count adds the numbers of a peer to a group.
func (ms *matchers) count(g *group, a netip.Addr, numbers []uint16) {
	for _, n := range numbers {
		entry := g.numbers[n]
		if entry == nil {
			key := string(binary.LittleEndian.AppendUint16([]byte("n"+g.base.key+"\x00"+g.port.name+"\x00"+string(rune(g.port.protocol))), n))
			entry = &number{peers: map[netip.Addr]struct{}{}, matcher: ms.acquire(key, func(m *matcher) { m.base, m.port, m.number = g.base, g.port, n })}
			g.numbers[n] = entry
			ms.changed[g] = struct{}{}
		}
		entry.peers[a] = struct{}{}
	}
	if len(numbers) > 0 {
		ms.numbered[a] = append(ms.numbered[a], g)
	}
}

// recount replaces the numbers of an address.
func (ms *matchers) recount(p *peers, a netip.Addr) {
	if len(ms.groups) == 0 {
		return
	}
	for _, g := range ms.numbered[a] {
		for _, entry := range g.numbers {
			if delete(entry.peers, a); len(entry.peers) == 0 {
				ms.changed[g] = struct{}{}
			}
		}
	}
	delete(ms.numbered, a)
	owner := p.owners[a]
	if owner == nil || len(owner.ports.value) == 0 {
		return
	}
	for _, base := range ms.bases(a, owner) {
		for _, g := range base.groups {
			ms.count(g, a, owner.numbers(g.port))
		}
	}
}

// settle drops the numbers that no peer has.
func (ms *matchers) settle() {
	for g := range ms.changed {
		for n, entry := range g.numbers {
			if len(entry.peers) == 0 {
				ms.release(entry.matcher)
				delete(g.numbers, n)
			}
		}
	}
}

// bases are the matchers of an address, without named ports.
func (ms *matchers) bases(a netip.Addr, owner *pod) []*matcher {
	var list []*matcher
	if owner != nil {
		list = ms.index.match(owner)
		if ms.anyPod != nil {
			list = append(list, ms.anyPod)
		}
	}
	return ms.blocks.of(a, list)
}

// of are the matchers of an address.
func (ms *matchers) of(p *peers, a netip.Addr) []*matcher {
	owner := p.owners[a]
	list := ms.bases(a, owner)
	for _, g := range ms.numbered[a] {
		for _, n := range owner.numbers(g.port) {
			list = append(list, g.numbers[n].matcher)
		}
	}
	return list
}

// peersOf calls f with the addresses of pods that a matcher matches.
func (ms *matchers) peersOf(p *peers, m *matcher, f func(a netip.Addr, owner *pod)) {
	if m.base != nil {
		for _, g := range m.base.groups {
			if entry := g.numbers[m.number]; g.port == m.port && entry != nil {
				for a := range entry.peers {
					f(a, p.owners[a])
				}
			}
		}
		return
	}
	for n := range p.namespacesOf(m.pods) {
		p.of(n, func(a netip.Addr, owner *pod) {
			if m.selects(a, owner) {
				f(a, owner)
			}
		})
	}
}

// fewMatchers is the number of pod sets of a namespace up to which each is compared with all of its
// pods.
const fewMatchers = 8

// peersOfAll calls f with the addresses of pods that one of the matchers matches, some of them several
// times. Many pod sets of a namespace are found by each pod's labels: the work grows with their number
// and with that of pods, and not with the product.
func (ms *matchers) peersOfAll(p *peers, list []*matcher, f func(a netip.Addr)) {
	sets := map[string][]*matcher{} // by the namespace of their pods
	for _, m := range list {
		if m.pods != nil {
			sets[m.pods.Namespace] = append(sets[m.pods.Namespace], m)
			continue
		}
		ms.peersOf(p, m, func(a netip.Addr, _ *pod) { f(a) })
	}
	for namespace, list := range sets {
		if len(list) <= fewMatchers {
			for _, m := range list {
				ms.peersOf(p, m, func(a netip.Addr, _ *pod) { f(a) })
			}
			continue
		}
		index := matcherIndex{}
		for _, m := range list {
			index.add(m)
		}
		for n := range p.namespacesOf(&PodSet{Namespace: namespace}) {
			p.of(n, func(a netip.Addr, owner *pod) {
				if len(index.match(owner)) > 0 {
					f(a)
				}
			})
		}
	}
}

// selects reports whether a matcher without a named port matches the address of a pod.
func (m *matcher) selects(a netip.Addr, owner *pod) bool {
	if m.pods != nil {
		return owner.in(*m.pods)
	}
	return m.block == nil || m.block.Has(a)
}

// indexKey is a label that a pod, or its namespace, must have for a matcher to select it.
type indexKey struct {
	namespace   string // of the pods; empty for all
	ofNamespace bool   // the label is the namespace's
	label       string // empty: no label is known to be necessary
	value       string
}

// matcherIndex finds the pod sets that may select a pod.
type matcherIndex map[indexKey][]*matcher

// keys are the labels of which a selected pod has exactly one.
func indexKeys(s PodSet) []indexKey {
	if keys := equalities(s.Pods, indexKey{namespace: s.Namespace}); keys != nil {
		return keys
	}
	if s.Namespace == "" {
		if keys := equalities(s.Namespaces, indexKey{ofNamespace: true}); keys != nil {
			return keys
		}
	}
	return []indexKey{{namespace: s.Namespace}}
}

// equalities are the keys of the first requirement that names the values of a label; nil if
// none does.
func equalities(s labels.Selector, key indexKey) (keys []indexKey) {
	if s == nil {
		return nil
	}
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch string(r.Operator()) {
		case "=", "==", "in":
		default:
			continue
		}
		key.label = r.Key()
		for _, key.value = range r.ValuesUnsorted() {
			keys = append(keys, key)
		}
		return keys
	}
	return nil
}

func (x matcherIndex) add(m *matcher) {
	for _, key := range indexKeys(*m.pods) {
		x[key] = append(x[key], m)
	}
}

func (x matcherIndex) remove(m *matcher) {
	for _, key := range indexKeys(*m.pods) {
		rest := slices.DeleteFunc(x[key], func(other *matcher) bool { return other == m })
		if len(rest) == 0 {
			delete(x, key)
			continue
		}
		x[key] = rest
	}
}

// match returns the pod sets that select a pod.
func (x matcherIndex) match(p *pod) (list []*matcher) {
	check := func(key indexKey) {
		for _, m := range x[key] {
			if p.in(*m.pods) {
				list = append(list, m)
			}
		}
	}
	for _, namespace := range []string{p.namespace.name, ""} {
		check(indexKey{namespace: namespace})
		for label, value := range p.labels.value {
			check(indexKey{namespace: namespace, label: label, value: value})
		}
	}
	for label, value := range p.namespace.labels {
		check(indexKey{ofNamespace: true, label: label, value: value})
	}
	return list
}
