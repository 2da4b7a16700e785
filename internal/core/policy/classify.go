package policy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// move is an address of the node's scope with another class, or a range.
type move struct {
	had, has bool // the tables have an entry, and are to have one
	old, new *class
}

// kind is what peers with the same class have in common, unless they have named ports.
type kind struct {
	namespace *namespace
	labels    *shared[labels.Set]
	border    *border
}

// classify gives addresses their classes of the node's scope, if their matchers changed.
func (c *commit) classify(addresses []netip.Addr) {
	affected := map[netip.Addr]struct{}{}
	for _, a := range addresses {
		affected[a] = struct{}{}
	}
	var blocks, selectors []*matcher
	dropped := map[*matcher]bool{}
	for m := range c.scoped {
		if m.classed == (m.scoped > 0) {
			continue
		}
		m.classed = m.scoped > 0
		switch {
		case m.isBlock():
			blocks = append(blocks, m)
		case m.pods == nil && !m.classed:
			dropped[m] = true
		default:
			selectors = append(selectors, m)
		}
	}
	c.matchers.peersOfAll(c.peers, selectors, func(a netip.Addr) { affected[a] = struct{}{} })
	c.affectedEntries(blocks, dropped, affected)
	c.classifyBorders(blocks, affected)
	kinds := map[kind]*class{}
	for a := range affected {
		c.setClass(a, c.classOf(a, kinds))
	}
	c.weigh()
}

// affectedEntries adds the entries of blocks, and of named ports that are not used any longer.
func (c *commit) affectedEntries(blocks []*matcher, dropped map[*matcher]bool, affected map[netip.Addr]struct{}) {
	if len(blocks) == 0 && len(dropped) == 0 {
		return
	}
	drops := map[*class]bool{}
	for a, class := range c.node.entries {
		drop, known := drops[class]
		if !known {
			drop = slices.ContainsFunc(class.matchers, func(m *matcher) bool { return dropped[m] })
			drops[class] = drop
		}
		if drop || len(blocks) > manyBlocks || slices.ContainsFunc(blocks, func(m *matcher) bool { return m.block.Prefix.Contains(a) }) {
			affected[a] = struct{}{}
		}
	}
}

// manyBlocks is the number of changed blocks from which on all entries are classified again.
const manyBlocks = 32

// classifyBorders gives ranges their classes, and adds single addresses.
func (c *commit) classifyBorders(blocks []*matcher, affected map[netip.Addr]struct{}) {
	if len(blocks) == 0 {
		return
	}
	for _, b := range c.node.blocks.borders {
		near := len(blocks) > manyBlocks || slices.ContainsFunc(blocks, func(m *matcher) bool {
			return m.block.Prefix.Overlaps(b.prefix) || b.prefix.Bits() == 0
		})
		switch {
		case !near:
		case single(b.prefix):
			affected[b.prefix.Addr()] = struct{}{}
			c.borders[b] = struct{}{}
		default:
			list := c.node.blocks.ofRange(b.prefix, nil)
			slices.SortFunc(list, compareMatchers)
			old := b.new
			if b.new = c.node.classes.of(list, c.numbers); b.refs > 0 {
				b.new.users++
			}
			c.touched[b.new] = struct{}{}
			if old != nil && b.counted {
				old.users--
				c.touched[old] = struct{}{}
			}
			b.counted = b.refs > 0
			c.borders[b] = struct{}{}
		}
	}
}

// classOf is the class of an address that needs an exact entry; nil if ranges suffice.
func (c *commit) classOf(a netip.Addr, kinds map[kind]*class) *class {
	owner := c.peers.owners[a]
	numbered := len(c.matchers.numbered[a]) > 0
	isSingle := c.node.single(a)
	k := kind{border: c.node.nearest(a)}
	if owner != nil {
		k.namespace, k.labels = owner.namespace, owner.labels
	}
	class, known := kinds[k]
	if !known || numbered {
		list := filter(c.matchers.of(c.peers, a), func(m *matcher) bool { return m.scoped > 0 })
		slices.SortFunc(list, compareMatchers)
		class = c.node.classes.of(list, c.numbers)
		c.touched[class] = struct{}{}
		if !numbered {
			kinds[k] = class
		}
	}
	if isSingle || class.exact() {
		return class
	}
	return nil
}

// nearest is the longest border that contains an address; nil if none does.
func (s *scope) nearest(a netip.Addr) (found *border) {
	s.blocks.covering(netip.PrefixFrom(a, a.BitLen()), func(b *border) bool {
		found = b
		return false
	})
	return found
}

// setClass sets the class of an address; nil if it needs no entry.
func (c *commit) setClass(a netip.Addr, class *class) {
	now := c.node.entries[a]
	if now == class {
		return
	}
	m := c.moves[a]
	if m == nil {
		m = &move{had: now != nil, old: now}
		c.moves[a] = m
	}
	m.has, m.new = class != nil, class
	if now != nil {
		now.users--
		c.touched[now] = struct{}{}
	}
	if class == nil {
		delete(c.node.entries, a)
		return
	}
	c.node.entries[a] = class
	class.users++
	c.touched[class] = struct{}{}
}

// weigh brings the load up to date.
func (c *commit) weigh() {
	for _, s := range c.sets {
		counted := s.endpoints > 0 && !s.alone
		if counted == s.counted {
			continue
		}
		s.counted = counted
		rows := s.words()
		for class := range s.classes() {
			if class.counted {
				rows += s.weight(class.matchers)
			}
		}
		if !counted {
			rows = -rows
		}
		c.load.rows += rows
	}
	for class := range c.touched {
		used := class.users > 0
		if class == c.node.classes.none || used == class.counted {
			continue
		}
		class.counted = used
		sign := 1
		if !used {
			sign = -1
		}
		c.load.classes += sign
		for _, s := range setsOf(class.matchers) {
			if s.counted {
				c.load.rows += sign * s.weight(class.matchers)
			}
		}
	}
}

// setsOf are the sets that use one of the matchers in the node's scope.
func setsOf(list []*matcher) (sets []*set) {
	if len(list) == 1 {
		for s := range list[0].sets {
			sets = append(sets, s)
		}
		return sets
	}
	seen := map[*set]struct{}{}
	for _, m := range list {
		for s := range m.sets {
			if _, known := seen[s]; !known {
				seen[s] = struct{}{}
				sets = append(sets, s)
			}
		}
	}
	return sets
}

// classes are the classes of the node's scope that have a matcher of the set.
func (s *set) classes() map[*class]struct{} {
	all := map[*class]struct{}{}
	for _, m := range s.matchers {
		for class := range m.classes {
			all[class] = struct{}{}
		}
	}
	return all
}

// words is the number of rows of class 0.
func (s *set) words() (rows int) {
	for d := range s.programs {
		if s.programs[d].isolated {
			rows += s.ports.words()
		}
	}
	return rows
}

// bound gives sets scopes of their own until the node's is within its limits.
func (c *commit) bound() {
	for c.load.classes > c.limits.Classes || c.load.rows > c.limits.Rows {
		var largest *set
		for _, s := range c.sets {
			if s.counted && len(s.matchers) > 0 && (largest == nil || len(s.matchers) > len(largest.matchers) || len(s.matchers) == len(largest.matchers) && s.id < largest.id) {
				largest = s
			}
		}
		if largest == nil {
			return // what remains are the rows of class 0
		}
		c.seclude(largest)
		c.classify(nil)
	}
}

// seclude gives a set a scope of its own.
func (c *commit) seclude(s *set) {
	if !s.written {
		s.alone = true
		c.part(s)
		return
	}
	c.staying = slices.DeleteFunc(c.staying, func(other *set) bool { return other == s })
	c.arriving = append(c.arriving, c.clone(s, true))
	c.leaving = append(c.leaving, s)
	c.part(s)
}
