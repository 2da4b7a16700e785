package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// commit is the work of one Commit.
type commit struct {
	*Engine
	addresses []netip.Addr // of pods that changed
	arriving  []*set
	leaving   []*set
	staying   []*set
	scoped    map[*matcher]bool // matchers with another number of sets: were they of the node's scope
	touched   map[*class]struct{}
	moves     map[netip.Addr]*move
	borders   map[*border]struct{}
}

// Commit compiles what changed since the last call, and returns what to write. Without changes
// it is empty. The change must be applied, whole and in order, before that of the next call.
func (e *Engine) Commit() Change {
	if !e.pending.any {
		return Change{}
	}
	e.purge()
	addresses := slices.Collect(maps.Keys(e.peers.dirty))
	s := selection{Engine: e, addresses: addresses, rekey: map[*local]struct{}{}, used: map[*policy]struct{}{}}
	s.selectPolicies()
	s.resolveNames()
	s.compileSets()
	c := &commit{Engine: e, addresses: addresses, scoped: map[*matcher]bool{}, touched: map[*class]struct{}{}, moves: map[netip.Addr]*move{}, borders: map[*border]struct{}{}}
	c.separate()
	c.enter()
	c.classify(addresses)
	c.bound()
	w := &writer{commit: c, vias: map[[2]*class]*class{}, forbidden: map[[2]*class]bool{}}
	w.write()
	w.finish()
	e.peers.dirty = map[netip.Addr]struct{}{} // not cleared: it would keep the size of the first commit
	e.pending = newChanges()
	return w.change
}

// purge forgets what the last commit retired.
func (e *Engine) purge() {
	for _, s := range e.retired {
		delete(e.sets, s.id)
	}
	e.retired = nil
	e.numbers.purge()
}

// subject is the pod of an endpoint; nil if it, or the namespace that its policies depend on,
// is not known.
func (e *Engine) subject(l *local) *pod {
	if p := e.peers.pod(l.ref); p != nil && (p.namespace.known || p.hostNetwork) {
		return p
	}
	return nil
}

// locals are the endpoints by number.
func (e *Engine) locals() iter.Seq[*local] {
	return func(yield func(l *local) bool) {
		for _, id := range slices.Sorted(maps.Keys(e.endpoints)) {
			if !yield(e.endpoints[id]) {
				return
			}
		}
	}
}

// add numbers a set and shares its ports.
func (e *Engine) add(s *set) {
	e.last.set++
	s.id = e.last.set
	if known := e.ports[s.ports.key]; known != nil {
		s.ports = known
	} else {
		e.last.ports++
		s.ports.id = e.last.ports
		e.ports[s.ports.key] = s.ports
	}
	s.ports.sets++
	e.sets[s.id] = s
	e.inForce[s.key] = s
}

// clone replaces a set by one with the same content and another number.
func (c *commit) clone(s *set, alone bool) *set {
	n := &set{key: s.key, policies: s.policies, ports: s.ports, programs: s.programs, matchers: s.matchers, alone: alone, prefixes: s.prefixes, rows: map[*class]struct{}{}}
	c.add(n)
	for _, l := range c.endpoints {
		if l.next == s {
			l.next, l.to = n, n.id
		}
	}
	n.endpoints, s.endpoints = s.endpoints, 0
	return n
}

// separate gives another number to each set that an endpoint leaves and that others keep, if
// peers change at the same time. The endpoints that leave are then judged by the old classes
// of the peers until they switch, those that stay by the new ones.
func (c *commit) separate() {
	if len(c.addresses) == 0 {
		return
	}
	for _, l := range c.endpoints {
		if s := l.set; s != nil && l.next != nil && l.next != s && s.endpoints > 0 {
			c.clone(s, s.alone)
		}
	}
}

// enter sorts sets by what becomes of them.
func (c *commit) enter() {
	for _, id := range slices.Sorted(maps.Keys(c.sets)) {
		switch s := c.sets[id]; {
		case s.endpoints > 0 && s.written:
			c.staying = append(c.staying, s)
		case s.endpoints > 0:
			c.arriving = append(c.arriving, s)
			if !s.alone {
				c.join(s)
			}
		case s.written:
			c.leaving = append(c.leaving, s)
		}
	}
	for _, s := range c.leaving {
		if s.own == nil {
			c.part(s)
		}
	}
}

// join adds the matchers of a set to the node's scope.
func (c *commit) join(s *set) {
	for _, m := range s.matchers {
		c.note(m)
		m.sets[s] = struct{}{}
		if m.scoped++; m.scoped == 1 && m.isBlock() {
			c.node.blocks.add(m)
		}
	}
}

// part removes the matchers of a set from the node's scope, from which it is judged until it
// has left.
func (c *commit) part(s *set) {
	for _, m := range s.matchers {
		c.note(m)
		if s.written {
			m.leaving++
		} else {
			delete(m.sets, s)
		}
		if m.scoped--; m.scoped == 0 && m.isBlock() {
			c.node.blocks.remove(m)
		}
	}
}

func (c *commit) note(m *matcher) {
	if _, noted := c.scoped[m]; !noted {
		c.scoped[m] = m.scoped > 0
	}
}
