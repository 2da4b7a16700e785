package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Explanation is what decided a verdict of the tables.
type Explanation struct {
	Decision Decision
	Peers    string // the class in words
	// Sample is set if the class is one of a set's own scope in which peers satisfy different
	// matchers: the verdict is that of all of them, the rule that of one.
	Sample bool
}

// Explain names what decides about a class of peers and of ports, as records of the kernel
// have them. It is false for a set or class that is not known: one of before the last commit
// that is not empty, SetNone or SetPending.
func (e *Engine) Explain(id SetID, d Direction, peers Class, ports PortClass) (Explanation, bool) {
	if id == SetOpen {
		return Explanation{Decision: Decision{Allowed: true, Basis: NotIsolated}, Peers: "any peer"}, true
	}
	s, of := e.sets[id], e.numbers.byID[peers]
	if peers == 0 && s != nil {
		of = s.none(e.node)
	}
	if s == nil || of == nil || int(ports) >= s.ports.classes {
		return Explanation{}, false
	}
	list := of.of(s.leaves)
	return Explanation{Decision: s.programs[d].explain(list, ports), Peers: describePeers(list), Sample: of.mixed}, true
}

// none is the class 0 by which a set judges.
func (s *set) none(node *scope) *class {
	if s.own != nil {
		return s.own.classes.none
	}
	return node.classes.none
}

// explain is Evaluate's decision.
func (p *program) explain(list []*matcher, ports PortClass) Decision {
	if !p.isolated {
		return Decision{Allowed: true, Basis: NotIsolated}
	}
	decision := Decision{Basis: Isolated, Tier: Namespaced, Isolating: p.isolating}
	p.decide(list, func(h *hit, decided []uint64) {
		switch {
		case decided[ports/pageBits]>>(ports%pageBits)&1 == 0:
		case h == nil:
			decision = Decision{Allowed: true, Basis: NotIsolated}
		default:
			r := p.rules[h.rule]
			decision = Decision{Allowed: r.action == Accept, Basis: ByRule, Policy: r.policy.Ref, Tier: r.policy.Tier, Rule: r.index}
			if r.policy.Tier == Namespaced {
				decision.Isolating = p.isolating
			}
		}
	})
	return decision
}

// describePeers is a list of matchers in words.
func describePeers(list []*matcher) string {
	if len(list) == 0 {
		return "other peers"
	}
	texts := make([]string, len(list))
	for i, m := range list {
		texts[i] = m.String()
	}
	slices.Sort(texts)
	return strings.Join(texts, " and ")
}

// Describe is a set in words: what isolates its endpoints, its rules in the order in which they
// are asked, and its port classes.
func (e *Engine) Describe(id SetID) string {
	s := e.sets[id]
	switch {
	case id == SetOpen:
		return "open: no policy decides\n"
	case id == SetPending:
		return "pending: nothing passes until the pod and its namespace are known\n"
	case s == nil:
		return fmt.Sprintf("%s is not known\n", id)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %d endpoints, %d rows of classes\n", id, s.endpoints, len(s.rows))
	if s.own != nil {
		fmt.Fprintf(&b, "  classes of its own (scope %d): its %d conditions on peers divide them too far\n", s.own.id, len(s.matchers))
	}
	for d := range s.programs {
		s.programs[d].describe(&b, Direction(d))
	}
	for _, part := range s.ports.parts {
		fmt.Fprintf(&b, "  port class %d: %s\n", part.class, Port{Protocol: part.protocol, First: part.first, Last: part.last})
	}
	return b.String()
}

func (p *program) describe(b *strings.Builder, d Direction) {
	if !p.isolated {
		fmt.Fprintf(b, "  %s: no policy decides\n", d)
		return
	}
	rest := "allowed"
	if p.namespaced {
		rest = "denied"
	}
	fmt.Fprintf(b, "  %s: what no rule decides is %s\n", d, rest)
	for _, ref := range p.isolating {
		fmt.Fprintf(b, "    isolated by %s\n", ref)
	}
	for _, r := range p.rules {
		rule := r.policy.Rules[d][r.index]
		rule.Action = r.action
		fmt.Fprintf(b, "    %s, %s, rule %d: %s\n", r.policy.Tier, r.policy.Ref, r.index+1, rule.Describe(d))
	}
}
