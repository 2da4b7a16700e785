package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// policy is a policy that the engine holds.
type policy struct {
	Policy
	generation uint64 // of the content
	uses       int    // endpoints that it selects
	active     bool   // its matchers are acquired
	rules      [2][]activeRule
}

// activeRule is a rule of a policy in force, without those that match nothing.
type activeRule struct {
	index  int
	peers  []*matcher
	groups []*group // named ports of egress
}

// policies are all policies of the cluster.
type policies struct {
	byRef     map[Ref]*policy
	bySubject map[string]map[*policy]struct{} // by the namespace of the subject, or empty
}

func newPolicies() policies {
	return policies{byRef: map[Ref]*policy{}, bySubject: map[string]map[*policy]struct{}{}}
}

// replace removes old and adds new; either may be nil.
func (ps *policies) replace(old, new *policy) {
	if old != nil {
		delete(ps.byRef, old.Ref)
		delete(ps.bySubject[old.Subject.Namespace], old)
		if len(ps.bySubject[old.Subject.Namespace]) == 0 {
			delete(ps.bySubject, old.Subject.Namespace)
		}
	}
	if new != nil {
		ps.byRef[new.Ref] = new
		if ps.bySubject[new.Subject.Namespace] == nil {
			ps.bySubject[new.Subject.Namespace] = map[*policy]struct{}{}
		}
		ps.bySubject[new.Subject.Namespace][new] = struct{}{}
	}
}

// of returns the policies that select a pod, in order.
func (ps *policies) of(p *pod) (list []*policy) {
	for _, namespace := range []string{p.namespace.name, ""} {
		for policy := range ps.bySubject[namespace] {
			if p.in(policy.Subject) {
				list = append(list, policy)
			}
		}
	}
	slices.SortFunc(list, comparePolicyPointers)
	return list
}

func comparePolicyPointers(a, b *policy) int {
	if a.Tier != b.Tier {
		return int(a.Tier) - int(b.Tier)
	}
	return comparePolicies(&a.Policy, &b.Policy)
}

// activate acquires the matchers of a policy.
func (ms *matchers) activate(p *policy) {
	p.active = true
	for d := range p.Rules {
		if p.Tier == Namespaced && !p.Isolates[d] {
			continue
		}
		for i := range p.Rules[d] {
			if r, ok := ms.activateRule(&p.Rules[d][i], Direction(d)); ok {
				r.index = i
				p.rules[d] = append(p.rules[d], r)
			}
		}
	}
}

func (ms *matchers) activateRule(r *Rule, d Direction) (active activeRule, ok bool) {
	static, names := r.AnyPort, []portName(nil)
	for _, p := range r.Ports {
		switch {
		case r.AnyPort:
		case p.Name == "" || d == Ingress:
			static = true
		case !slices.Contains(names, portName{p.Name, p.Protocol}):
			names = append(names, portName{p.Name, p.Protocol})
		}
	}
	add := func(acquire func() *matcher, asPeer bool) {
		if asPeer {
			active.peers = append(active.peers, acquire())
		}
		for _, name := range names {
			active.groups = append(active.groups, ms.group(acquire(), name))
		}
	}
	if r.AnyPeer {
		add(ms.any, false)
		return active, static || len(names) > 0
	}
	for _, p := range r.Peers {
		if p.Pods != nil || p.Block != nil {
			add(func() *matcher { return ms.peer(p) }, static)
		}
	}
	return active, len(active.peers)+len(active.groups) > 0
}

// deactivate releases the matchers of a policy.
func (ms *matchers) deactivate(p *policy) {
	p.active = false
	for d := range p.rules {
		for _, r := range p.rules[d] {
			for _, g := range r.groups {
				ms.releaseGroup(g)
			}
			for _, m := range r.peers {
				ms.release(m)
			}
		}
		p.rules[d] = nil
	}
}

// set is the compiled content of the policies that select an endpoint. Its content never
// changes.
type set struct {
	id        SetID
	key       string
	policies  []*policy
	ports     *ports
	programs  [2]program
	matchers  []*matcher // of both directions
	prefixes  bool       // a matcher is a block of more than one address
	own       *scope     // nil: the node's
	alone     bool       // it needs a scope of its own
	rows      map[*class]struct{}
	endpoints int // that are to have it after the commit
	written   bool
	leaves    bool // with this commit
	counted   bool // in the load of the node's scope
}

// setKey is the same for endpoints for which the same policies compile to the same content:
// named ports of ingress are those of the subject, of egress those of the peers.
func setKey(policies []*policy, subject *pod) string {
	var key []byte
	add := func(numbers []uint16) {
		key = binary.LittleEndian.AppendUint16(key, uint16(len(numbers)))
		for _, n := range numbers {
			key = binary.LittleEndian.AppendUint16(key, n)
		}
	}
	for _, p := range policies {
		key = binary.LittleEndian.AppendUint64(key, p.generation)
		for _, active := range p.rules[Ingress] {
			for _, port := range namedPorts(&p.Rules[Ingress][active.index]) {
				add(subject.numbers(port))
			}
		}
		for _, active := range p.rules[Egress] {
			for _, g := range active.groups {
				add(g.list())
			}
		}
	}
	return string(key)
}

func namedPorts(r *Rule) (list []portName) {
	if r.AnyPort {
		return nil
	}
	for _, p := range r.Ports {
		if p.Name != "" {
			list = append(list, portName{p.Name, p.Protocol})
		}
	}
	return list
}

// intervalsOf are the ports that a rule names by number, or by a name of the subject.
func intervalsOf(r *Rule, d Direction, subject *pod) (list []interval) {
	for _, p := range r.Ports {
		switch {
		case p.Name == "" && p.First <= p.Last:
			list = append(list, interval{p.Protocol, p.First, p.Last})
		case p.Name != "" && d == Ingress:
			for _, n := range subject.numbers(portName{p.Name, p.Protocol}) {
				list = append(list, interval{p.Protocol, n, n})
			}
		}
	}
	return list
}

// compileSet compiles the policies of a subject. It returns nil if they isolate it in no
// direction.
func compileSet(policies []*policy, subject *pod, key string) *set {
	s := &set{key: key, policies: slices.Clone(policies), rows: map[*class]struct{}{}}
	var users [][]interval
	for d := range s.programs {
		for _, p := range policies {
			for _, active := range p.rules[d] {
				users = appendUsers(users, p, active, Direction(d), subject)
			}
		}
	}
	s.ports = dividePorts(users)
	seen := map[*matcher]struct{}{}
	for d := range s.programs {
		s.programs[d] = s.compile(Direction(d), subject)
		for m := range s.programs[d].byMatcher {
			seen[m] = struct{}{}
			s.prefixes = s.prefixes || m.isBlock() && slices.ContainsFunc(bordersOf(m.block), func(p netip.Prefix) bool { return !single(p) })
		}
	}
	if !s.programs[Ingress].isolated && !s.programs[Egress].isolated {
		return nil
	}
	for m := range seen {
		s.matchers = append(s.matchers, m)
	}
	slices.SortFunc(s.matchers, compareMatchers)
	return s
}

func appendUsers(users [][]interval, p *policy, active activeRule, d Direction, subject *pod) [][]interval {
	r := &p.Rules[d][active.index]
	if r.AnyPort {
		return users
	}
	if list := intervalsOf(r, d, subject); len(list) > 0 {
		users = append(users, list)
	}
	for _, g := range active.groups {
		for _, n := range g.list() {
			users = append(users, []interval{{g.port.protocol, n, n}})
		}
	}
	return users
}

func (s *set) compile(d Direction, subject *pod) program {
	p := program{byMatcher: map[*matcher][]hit{}, all: s.ports.all(), accepts: true}
	for _, policy := range s.policies {
		if policy.Tier == Namespaced && policy.Isolates[d] {
			p.namespaced = true
			p.isolating = append(p.isolating, policy.Ref)
		}
	}
	for _, policy := range s.policies {
		if policy.Tier == Baseline && p.namespaced {
			break // it is not asked
		}
		for _, active := range policy.rules[d] {
			s.compileRule(&p, policy, active, d, subject)
		}
	}
	p.isolated = p.namespaced || len(p.rules) > 0
	p.base = p.verdicts(nil)
	return p
}

func (s *set) compileRule(p *program, policy *policy, active activeRule, d Direction, subject *pod) {
	r := &policy.Rules[d][active.index]
	compiled := compiledRule{policy: policy, index: active.index, action: r.Action}
	if policy.Tier == Namespaced {
		compiled.action = Accept
	}
	h := hit{rule: len(p.rules), ports: p.all}
	if !r.AnyPort {
		h.ports = s.ports.mask(intervalsOf(r, d, subject))
	}
	p.rules = append(p.rules, compiled)
	p.accepts = p.accepts && compiled.action == Accept
	switch {
	case isZero(h.ports) && !r.AnyPort:
	case r.AnyPeer:
		p.always = append(p.always, h)
	default:
		for _, m := range active.peers {
			p.byMatcher[m] = append(p.byMatcher[m], h)
		}
	}
	for _, g := range active.groups {
		for n, entry := range g.numbers {
			mask := s.ports.mask([]interval{{g.port.protocol, n, n}})
			p.byMatcher[entry.matcher] = append(p.byMatcher[entry.matcher], hit{h.rule, mask})
		}
	}
}

func isZero(bitmap []uint64) bool {
	return !slices.ContainsFunc(bitmap, func(word uint64) bool { return word != 0 })
}

// content is the set's entry of the tables; without a scope of its own it has the node's.
func (s *set) content(node Scope) Set {
	content := Set{Scope: node, Ports: s.ports.id, Ranges: s.ports.ranges(), Prefixes: s.prefixes}
	if s.own != nil {
		content.Scope = s.own.id
	}
	for d := range s.programs {
		content.Isolated[d] = s.programs[d].isolated
	}
	return content
}

// touches reports whether the set has rows of a class of these matchers.
func (s *set) touches(list []*matcher) bool {
	return s.programs[Ingress].touches(list) || s.programs[Egress].touches(list)
}

// weight is the largest number of rows of a class: of the pages of ports that its rules name.
func (s *set) weight(list []*matcher) (rows int) {
	for d := range s.programs {
		p := &s.programs[d]
		if !p.touches(list) {
			continue
		}
		for page := range s.ports.words() {
			if p.names(list, page) {
				rows++
			}
		}
	}
	return rows
}

// rowsOf calls f with each row of a class of these matchers. A class other than 0 has none on the
// pages on which its verdicts are those of class 0: so the rows of a class are as many as the pages
// that its rules name, and not as many as those of all rules.
func (s *set) rowsOf(c Class, list []*matcher, f func(key RowKey, row uint64)) {
	for d := range s.programs {
		p := &s.programs[d]
		if !p.isolated || c != 0 && !p.touches(list) {
			continue
		}
		for page, row := range p.verdicts(list) {
			if c == 0 || row != p.base[page] {
				f(RowKey{Set: s.id, Direction: Direction(d), Class: c, Page: uint16(page)}, row)
			}
		}
	}
}
