package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// snapshot is what an engine holds, by names instead of numbers: engines of the same content
// have equal ones, by whatever changes they got there.
type snapshot struct{ lines []string }

func snapshotOf(e *Engine) string {
	s := &snapshot{}
	s.ofPeers(e.peers)
	s.ofPolicies(&e.policies)
	s.ofMatchers(e.matchers)
	s.ofGroups(e.matchers)
	s.ofBlocks("all", e.matchers.blocks)
	s.ofScope(e.node)
	s.ofSets(e)
	s.ofEndpoints(e)
	s.add("load %+v", e.load)
	slices.Sort(s.lines)
	return strings.Join(s.lines, "\n")
}

func (s *snapshot) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func nameOfPod(p *pod) string { return p.namespace.name + "/" + p.name }

func (s *snapshot) ofPeers(p *peers) {
	for _, n := range p.namespaces {
		s.add("namespace %s: known %v, labels %s", n.name, n.known, textOfLabels(n.labels))
		for _, pod := range n.pods {
			s.add("pod %s: labels %s, ports %q, addresses %s, host network %v", nameOfPod(pod), pod.labels.key, pod.ports.key, pod.addresses, pod.hostNetwork)
		}
	}
	for a, pod := range p.owners {
		s.add("%s is of pod %s", a, nameOfPod(pod))
	}
	for a, list := range p.contested {
		s.add("%s is claimed by %s", a, sortedTexts(list, nameOfPod))
	}
	for key, shared := range p.labels {
		s.add("labels %s: %d uses", key, shared.uses)
	}
	for key, shared := range p.ports {
		s.add("named ports %q: %d uses", key, shared.uses)
	}
	s.add("%d addresses to look at", len(p.dirty))
}

func (s *snapshot) ofPolicies(ps *policies) {
	for ref, p := range ps.byRef {
		s.add("%s: %d uses, in force %v, rules %d, %d", ref, p.uses, p.active, len(p.rules[0]), len(p.rules[1]))
	}
	for namespace, set := range ps.bySubject {
		s.add("policies of subjects in %q: %s", namespace, sortedTexts(slices.Collect(maps.Keys(set)), func(p *policy) string { return p.Ref.String() }))
	}
}

func keyOf(m *matcher) string { return fmt.Sprintf("%q", m.key) }

func sortedTexts[E any](list []E, text func(E) string) string {
	texts := make([]string, len(list))
	for i, e := range list {
		texts[i] = text(e)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}

func (s *snapshot) ofMatchers(ms *matchers) {
	for _, m := range ms.byKey {
		s.add("matcher %s: %d references, %d sets, %d leave, %v, %d of sets, %d of classes, %d groups", keyOf(m), m.refs, m.scoped, m.leaving, m.classed, len(m.sets), len(m.classes), len(m.groups))
	}
	for key, list := range ms.index {
		s.add("index %+v: %s", key, sortedTexts(list, keyOf))
	}
	s.add("any pod %v", ms.anyPod != nil)
}

func nameOfGroup(g *group) string {
	return keyOf(g.base) + " " + g.port.name + g.port.protocol.String()
}

func (s *snapshot) ofGroups(ms *matchers) {
	for g := range ms.groups {
		s.add("named port %s: %d references, fresh %v", nameOfGroup(g), g.refs, g.fresh)
		for n, entry := range g.numbers {
			s.add("named port %s = %d: %s", nameOfGroup(g), n, sortedTexts(slices.Collect(maps.Keys(entry.peers)), netip.Addr.String))
		}
	}
	for a, list := range ms.numbered {
		s.add("named ports of %s: %s", a, sortedTexts(list, nameOfGroup))
	}
	s.add("%d named ports with other numbers", len(ms.changed))
}

func (s *snapshot) ofBlocks(of string, bs *blocks) {
	for prefix, b := range bs.borders {
		s.add("blocks of %s: %s: %d references, %s, %v", of, prefix, b.refs, sortedTexts(b.blocks, keyOf), b.counted)
	}
	for f := range bs.lengths {
		for bits, n := range bs.lengths[f] {
			if n != 0 {
				s.add("blocks of %s: family %d, %d bits: %d", of, f, bits, n)
			}
		}
	}
}

func nameOfClass(c *class) string {
	if c == nil {
		return "none"
	}
	return "[" + sortedTexts(c.matchers, keyOf) + "]"
}

func (s *snapshot) ofScope(of *scope) {
	s.ofBlocks("the node", of.blocks)
	for prefix, b := range of.blocks.borders {
		s.add("%s is of class %s, and was of %s", prefix, nameOfClass(b.new), nameOfClass(b.old))
	}
	for a, c := range of.entries {
		s.add("%s is of class %s", a, nameOfClass(c))
	}
	for _, c := range of.classes.byKey {
		users := c.users
		if c == of.classes.none {
			users = 0 // it is never dropped
		}
		s.add("class %s: %d users, counted %v", nameOfClass(c), users, c.counted)
	}
}

func namesOfPolicies(list []*policy) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.Ref.String()
	}
	return strings.Join(texts, ", ")
}

func (s *snapshot) ofSets(e *Engine) {
	for _, set := range e.inForce {
		s.add("set of %s: ports %q, %d endpoints, %s; %v %v %v %v %v; rows of %s", namesOfPolicies(set.policies), set.ports.key, set.endpoints, sortedTexts(set.matchers, keyOf),
			set.prefixes, set.alone, set.written, set.leaves, set.counted, sortedTexts(slices.Collect(maps.Keys(set.rows)), nameOfClass))
	}
	for key, p := range e.ports {
		s.add("ports %q: %d sets, written %v", key, p.sets, p.written)
	}
	retired := map[Class]bool{}
	for _, c := range e.numbers.retired {
		retired[c.id] = true
	}
	s.add("%d sets by number, %d classes", len(e.sets)-len(e.retired), len(e.numbers.byID)-len(retired))
}

func (s *snapshot) ofEndpoints(e *Engine) {
	for id, l := range e.endpoints {
		s.add("endpoint %d: %s, %s, set %v, open %v, pending %v", id, l.ref, namesOfPolicies(l.selected), l.set != nil, l.number == SetOpen, l.number == SetPending)
	}
	s.add("changes: %v %d %d %d %d %d", e.pending.any, len(e.pending.policies), len(e.pending.endpoints), len(e.pending.pods), len(e.pending.spaces), len(e.pending.gone))
}
