package policy

import (
	"net/netip"
	"slices"
)

// selection finds the sets of endpoints.
type selection struct {
	*Engine
	addresses []netip.Addr // of pods that changed
	rekey     map[*local]struct{}
	used      map[*policy]struct{} // selected by more or fewer endpoints
}

// selectPolicies finds the policies of endpoints, and acquires the matchers of policies that
// select one now.
func (s *selection) selectPolicies() {
	for _, l := range s.pending.gone {
		s.selected(l, nil)
	}
	for id, l := range s.endpoints {
		_, endpoint := s.pending.endpoints[id]
		_, pod := s.pending.pods[l.ref]
		_, space := s.pending.spaces[l.ref.Namespace]
		if endpoint || pod || space {
			s.rekey[l] = struct{}{}
			if p := s.subject(l); p != nil && !p.hostNetwork {
				s.selected(l, s.policies.of(p))
			} else {
				s.selected(l, nil)
			}
			continue
		}
		s.reselect(l)
	}
	for p := range s.used {
		if p.uses > 0 && !p.active {
			s.matchers.activate(p)
		}
	}
	for p := range s.used {
		if p.uses == 0 && p.active {
			s.matchers.deactivate(p)
		}
	}
}

// reselect applies changes of policies to an endpoint that did not change itself.
func (s *selection) reselect(l *local) {
	p := s.subject(l)
	if p == nil || p.hostNetwork {
		return
	}
	list := l.selected
	for ref, old := range s.pending.policies {
		now := s.policies.byRef[ref]
		if old == now {
			continue
		}
		if old != nil && slices.Contains(l.selected, old) {
			list = slices.DeleteFunc(slices.Clone(list), func(p *policy) bool { return p == old })
		}
		if now != nil && p.in(now.Subject) {
			list = append(slices.Clip(list), now)
		}
	}
	if !slices.Equal(list, l.selected) {
		slices.SortFunc(list, comparePolicyPointers)
		s.rekey[l] = struct{}{}
		s.selected(l, list)
	}
}

func (s *selection) selected(l *local, list []*policy) {
	for _, p := range list {
		p.uses++
		s.used[p] = struct{}{}
	}
	for _, p := range l.selected {
		p.uses--
		s.used[p] = struct{}{}
	}
	l.selected = list
}

// resolveNames counts the numbers of named ports of peers.
func (s *selection) resolveNames() {
	ms := s.matchers
	for g := range ms.groups {
		if g.fresh {
			ms.peersOf(s.peers, g.base, func(a netip.Addr, owner *pod) { ms.count(g, a, owner.numbers(g.port)) })
			g.fresh = false
		}
	}
	for _, a := range s.addresses {
		ms.recount(s.peers, a)
	}
	if len(ms.changed) == 0 {
		return
	}
	ms.settle()
	for _, l := range s.endpoints {
		if slices.ContainsFunc(l.selected, func(p *policy) bool { return p.names(ms.changed) }) {
			s.rekey[l] = struct{}{}
		}
	}
	clear(ms.changed)
}

// names reports whether a policy depends on one of the groups.
func (p *policy) names(groups map[*group]struct{}) bool {
	return slices.ContainsFunc(p.rules[Egress], func(r activeRule) bool {
		return slices.ContainsFunc(r.groups, func(g *group) bool { _, is := groups[g]; return is })
	})
}

// compileSets finds or compiles the sets of endpoints.
func (s *selection) compileSets() {
	open := map[string]bool{}
	for _, set := range s.sets {
		set.endpoints = 0
	}
	for l := range s.locals() {
		if _, rekey := s.rekey[l]; rekey {
			s.compileSet(l, s.subject(l), open)
		}
		if l.next != nil {
			l.next.endpoints++
		}
	}
}

func (s *selection) compileSet(l *local, p *pod, open map[string]bool) {
	l.next, l.to = nil, SetOpen
	switch {
	case p == nil:
		l.to = SetPending
		return
	case len(l.selected) == 0:
		return
	}
	key := setKey(l.selected, p)
	found := s.inForce[key]
	if found == nil && !open[key] {
		if found = compileSet(l.selected, p, key); found == nil {
			open[key] = true
			return
		}
		if old := l.set; old != nil && old.alone {
			found.alone = 2*len(found.matchers) >= len(old.matchers) // likely to divide the peers as far
		}
		s.add(found)
	}
	if found != nil {
		l.next, l.to = found, found.id
	}
}
