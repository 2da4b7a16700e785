package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// scope is a division of addresses into classes: that of the node, which sets share, or that
// of one set, in which addresses with the same verdicts are one class.
type scope struct {
	id      Scope
	owner   *set // nil: the node's
	blocks  *blocks
	entries map[netip.Addr]*class
	classes classes
}

func newScope(id Scope, owner *set) *scope {
	return &scope{id: id, owner: owner, blocks: newBlocks(), entries: map[netip.Addr]*class{}, classes: newClasses()}
}

// single reports whether an address is a border of a block.
func (s *scope) single(a netip.Addr) bool {
	b := s.blocks.borders[netip.PrefixFrom(a, a.BitLen())]
	return b != nil && b.refs > 0
}

// own builds the classes of a set's own scope.
func (e *Engine) own(s *set) {
	e.last.scope++
	s.own = newScope(e.last.scope, s)
	s.own.classes.none.key = s.verdictsKey(nil)
	s.own.classes.byKey = map[string]*class{s.own.classes.none.key: s.own.classes.none}
	for _, m := range s.matchers {
		if m.isBlock() {
			s.own.blocks.add(m)
		}
	}
	for _, b := range s.own.blocks.borders {
		if single(b.prefix) {
			e.ownEntry(s.own, b.prefix.Addr())
			continue
		}
		b.new = e.verdictClass(s.own, s.own.blocks.ofRange(b.prefix, nil))
		b.new.users++
	}
	e.matchers.peersOfAll(e.peers, filter(s.matchers, func(m *matcher) bool { return !m.isBlock() }), func(a netip.Addr) {
		if s.own.entries[a] == nil {
			e.ownEntry(s.own, a)
		}
	})
}

// ownEntry sets the class of an address in a set's own scope, and returns the one before.
func (e *Engine) ownEntry(s *scope, a netip.Addr) (old, new *class) {
	list := filter(e.matchers.of(e.peers, a), func(m *matcher) bool {
		_, uses := slices.BinarySearchFunc(s.owner.matchers, m, compareMatchers)
		return uses
	})
	slices.SortFunc(list, compareMatchers)
	old = s.entries[a]
	if s.single(a) || slices.ContainsFunc(list, func(m *matcher) bool { return !m.isBlock() }) {
		new = e.verdictClass(s, list)
		new.users++
		s.entries[a] = new
	} else {
		delete(s.entries, a)
	}
	if old != nil {
		old.users--
	}
	return old, new
}

// effective is the class by which an address of no entry is judged in a set's own scope.
func (s *scope) effective(a netip.Addr) *class {
	found := s.classes.none
	s.blocks.covering(netip.PrefixFrom(a, a.BitLen()), func(b *border) bool {
		if b.new != nil {
			found = b.new
		}
		return b.new == nil
	})
	return found
}

// verdictClass is the class of the verdicts about peers that satisfy a list of matchers.
func (e *Engine) verdictClass(s *scope, list []*matcher) *class {
	key := s.owner.verdictsKey(list)
	c := s.classes.byKey[key]
	if c == nil {
		c = &class{key: key, matchers: list}
		e.numbers.number(c)
		s.classes.byKey[key] = c
	}
	c.mixed = c.mixed || !slices.Equal(c.matchers, list)
	return c
}

// verdictsKey is the same for lists of matchers with the same verdicts.
func (s *set) verdictsKey(list []*matcher) string {
	var key []byte
	for d := range s.programs {
		for _, word := range s.programs[d].verdicts(list) {
			key = binary.LittleEndian.AppendUint64(key, word)
		}
	}
	return string(key)
}

// forbids reports whether the set allows something to a peer of the old matchers that it
// denies to one of the new.
func (s *set) forbids(old, new []*matcher) bool {
	gains := len(union(old, new)) == len(new) // then rules that only accept allow no less
	for d := range s.programs {
		if !s.programs[d].isolated || gains && s.programs[d].accepts {
			continue
		}
		after := s.programs[d].verdicts(new)
		for w, before := range s.programs[d].verdicts(old) {
			if before&^after[w] != 0 {
				return true
			}
		}
	}
	return false
}
