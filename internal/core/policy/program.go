package policy

import (
	"slices"
)

// program is what the policies of a set say about a direction.
type program struct {
	isolated   bool // there is something to decide
	namespaced bool // a namespaced policy isolates
	accepts    bool // every rule accepts
	rules      []compiledRule
	byMatcher  map[*matcher][]hit
	always     []hit // of rules for any peer
	isolating  []Ref
	all        []uint64 // the bitmap of all port classes
	base       []uint64 // the verdicts of class 0
}

// compiledRule is a rule, in the order in which rules are asked.
type compiledRule struct {
	policy *policy
	index  int // in the policy's rules of the direction
	action Action
}

// hit is a rule that matches a peer, with the ports that it names.
type hit struct {
	rule  int
	ports []uint64
}

// touches reports whether a class of these matchers may have other verdicts than class 0.
func (p *program) touches(list []*matcher) bool {
	return p.isolated && slices.ContainsFunc(list, func(m *matcher) bool { return p.byMatcher[m] != nil })
}

// names reports whether a rule for these matchers names a port of a page.
func (p *program) names(list []*matcher, page int) bool {
	for _, m := range list {
		if slices.ContainsFunc(p.byMatcher[m], func(h hit) bool { return h.ports[page] != 0 }) {
			return true
		}
	}
	return false
}

// hits are the rules that match a peer, in order.
func (p *program) hits(list []*matcher) []hit {
	hits := slices.Clone(p.always)
	for _, m := range list {
		hits = append(hits, p.byMatcher[m]...)
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.rule - b.rule })
	return hits
}

// verdicts is the bitmap of the port classes that are allowed.
func (p *program) verdicts(list []*matcher) []uint64 {
	allowed := make([]uint64, len(p.all))
	p.decide(list, func(h *hit, ports []uint64) {
		if h == nil || p.rules[h.rule].action == Accept {
			for w := range allowed {
				allowed[w] |= ports[w]
			}
		}
	})
	return allowed
}

// decide calls f with each rule that decides and the ports that it decides about; with nil and
// the ports that the default allows. What no call names is denied by isolation.
func (p *program) decide(list []*matcher, f func(h *hit, ports []uint64)) {
	open := slices.Clone(p.all) // not decided yet
	passed := make([]uint64, len(open))
	ports := make([]uint64, len(open))
	tier := Admin
	next := func(to Tier) {
		for ; tier < to; tier++ {
			for w := range open {
				open[w] |= passed[w]
				passed[w] = 0
			}
			if tier == Namespaced && p.namespaced {
				clear(open)
			}
		}
	}
	hits := p.hits(list)
	for i := range hits {
		h := &hits[i]
		next(p.rules[h.rule].policy.Tier)
		pass := p.rules[h.rule].action == Pass
		for w := range open {
			ports[w] = open[w] & h.ports[w]
			open[w] &^= ports[w]
			if pass {
				passed[w] |= ports[w]
			}
		}
		if !pass {
			f(h, ports)
		}
	}
	next(Baseline + 1)
	f(nil, open)
}
