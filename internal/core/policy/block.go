package policy

import (
	"net/netip"
	"slices"
)

// blocks divides addresses by the borders of blocks: their ranges and their exceptions. All
// addresses with the same border as their longest match are in the same blocks.
type blocks struct {
	borders map[netip.Prefix]*border
	lengths [2][129]int // borders of each length, by family
}

// border is a range; one that holds a single address is an exact entry.
type border struct {
	prefix netip.Prefix
	refs   int        // blocks that have it; 0 until it is pruned
	blocks []*matcher // of this range
	old    *class     // that the tables have; nil if they have no entry
	new    *class     // that the commit gives it
	// counted: it is a user of new
	counted bool
}

// single reports whether a range is one address.
func single(p netip.Prefix) bool { return p.Bits() == p.Addr().BitLen() }

func newBlocks() *blocks { return &blocks{borders: map[netip.Prefix]*border{}} }

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// bordersOf are the ranges at which membership of a block changes. A range of IPv6 that
// contains the mapped IPv4 addresses has that of IPv4 as a border: the kernel would otherwise
// match IPv4 addresses by it.
func bordersOf(b *Block) []netip.Prefix {
	if b.Prefix.Addr().Is4In6() || !b.Prefix.IsValid() {
		return nil // no peer has such an address
	}
	list := []netip.Prefix{b.Prefix.Masked()}
	for _, e := range b.Except {
		if e = e.Masked(); e.Addr().Is4() == b.Prefix.Addr().Is4() && !e.Addr().Is4In6() && e.Bits() > b.Prefix.Bits() && b.Prefix.Contains(e.Addr()) {
			list = append(list, e)
		}
	}
	mapped := netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff})
	if slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(mapped) }) {
		list = append(list, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	return list
}

// add adds a block.
func (bs *blocks) add(m *matcher) {
	for i, prefix := range bordersOf(m.block) {
		b := bs.borders[prefix]
		if b == nil {
			b = &border{prefix: prefix}
			bs.borders[prefix] = b
			bs.lengths[family(prefix.Addr())][prefix.Bits()]++
		}
		b.refs++
		if i == 0 {
			b.blocks = append(b.blocks, m)
		}
	}
}

// remove removes a block; borders stay until they are pruned.
func (bs *blocks) remove(m *matcher) {
	for i, prefix := range bordersOf(m.block) {
		b := bs.borders[prefix]
		b.refs--
		if i == 0 {
			b.blocks = slices.DeleteFunc(b.blocks, func(other *matcher) bool { return other == m })
		}
	}
}

// prune removes the borders of a removed block that no other has.
func (bs *blocks) prune(m *matcher) {
	for _, prefix := range bordersOf(m.block) {
		if b := bs.borders[prefix]; b != nil && b.refs == 0 {
			delete(bs.borders, prefix)
			bs.lengths[family(prefix.Addr())][prefix.Bits()]--
		}
	}
}

// covering calls f with the borders that contain a range, the longest first, until f returns
// false.
func (bs *blocks) covering(p netip.Prefix, f func(b *border) bool) {
	lengths := &bs.lengths[family(p.Addr())]
	for bits := p.Bits(); bits >= 0; bits-- {
		if lengths[bits] == 0 {
			continue
		}
		if b := bs.borders[netip.PrefixFrom(p.Addr(), bits).Masked()]; b != nil && !f(b) {
			return
		}
	}
}

// of adds the blocks of an address to a list.
func (bs *blocks) of(a netip.Addr, list []*matcher) []*matcher {
	return bs.ofRange(netip.PrefixFrom(a, a.BitLen()), list)
}

// ofRange adds the blocks that contain a border, apart from longer borders in it, to a list.
func (bs *blocks) ofRange(p netip.Prefix, list []*matcher) []*matcher {
	if len(bs.borders) == 0 {
		return list
	}
	bs.covering(p, func(b *border) bool {
		for _, m := range b.blocks {
			if !slices.ContainsFunc(m.block.Except, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) }) {
				list = append(list, m)
			}
		}
		return true
	})
	return list
}
