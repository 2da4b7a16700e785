package policy

import (
	"encoding/binary"
	"slices"
)

// class is a class of addresses. In the node's scope it is the exact set of matchers that they
// satisfy; in the scope of one set, the verdicts that they have.
type class struct {
	id       Class
	key      string
	matchers []*matcher // by id; of a class of verdicts: those of one of its addresses
	users    int        // addresses and ranges
	counted  bool       // in the load of the node's scope
	from, to *class     // of a transitional class: by from for sets that leave, by to for others
	mixed    bool       // a class of verdicts: addresses satisfy different matchers
}

// classes holds the classes of a scope.
type classes struct {
	byKey map[string]*class
	none  *class // class 0
}

// classNumbers numbers the classes of all scopes. Numbers are not used again: a delayed delete
// never removes an entry of another class.
type classNumbers struct {
	last    Class
	byID    map[Class]*class
	retired []*class // known until the next commit, for records of the kernel that are read late
}

func newClasses() classes {
	none := &class{}
	return classes{byKey: map[string]*class{"": none}, none: none}
}

func (n *classNumbers) number(c *class) {
	n.last++
	c.id = n.last
	n.byID[c.id] = c
}

func (n *classNumbers) retire(c *class) { n.retired = append(n.retired, c) }

// purge forgets the retired classes.
func (n *classNumbers) purge() {
	for _, c := range n.retired {
		delete(n.byID, c.id)
	}
	n.retired = nil
}

// of returns the class of a list of matchers in order. The list may be kept.
func (cs *classes) of(list []*matcher, n *classNumbers) *class {
	if len(list) == 0 {
		return cs.none
	}
	key := matchersKey(list)
	c := cs.byKey[key]
	if c == nil {
		c = &class{key: key, matchers: list}
		n.number(c)
		cs.byKey[key] = c
		for _, m := range list {
			m.classes[c] = struct{}{}
		}
	}
	return c
}

// drop removes a class that has no users, other than class 0.
func (cs *classes) drop(c *class, n *classNumbers) {
	delete(cs.byKey, c.key)
	for _, m := range c.matchers {
		delete(m.classes, c)
	}
	n.retire(c)
}

func matchersKey(list []*matcher) string {
	key := make([]byte, 0, 4*len(list))
	for _, m := range list {
		key = binary.LittleEndian.AppendUint32(key, m.id)
	}
	return string(key)
}

// of are the matchers by which a set judges the class.
func (c *class) of(leaving bool) []*matcher {
	switch {
	case c.from == nil:
		return c.matchers
	case leaving:
		return c.from.matchers
	default:
		return c.to.matchers
	}
}

// exact reports whether the class needs exact entries: it has a matcher that does not depend
// on the address alone.
func (c *class) exact() bool {
	return slices.ContainsFunc(c.matchers, func(m *matcher) bool { return !m.isBlock() })
}

// filter are the matchers of a class of which keep is true.
func filter(list []*matcher, keep func(m *matcher) bool) []*matcher {
	var kept []*matcher
	for _, m := range list {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// sameOf reports whether two lists have the same matchers among those of which of is true.
func sameOf(a, b []*matcher, of func(m *matcher) bool) bool {
	i, j := 0, 0
	for {
		for i < len(a) && !of(a[i]) {
			i++
		}
		for j < len(b) && !of(b[j]) {
			j++
		}
		if i == len(a) || j == len(b) {
			return i == len(a) && j == len(b)
		}
		if a[i] != b[j] {
			return false
		}
		i, j = i+1, j+1
	}
}

// union is the ordered union of two ordered lists.
func union(a, b []*matcher) []*matcher {
	all := make([]*matcher, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] == b[0]:
			all = append(all, a[0])
			a, b = a[1:], b[1:]
		case a[0].id < b[0].id:
			all, a = append(all, a[0]), a[1:]
		default:
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}
