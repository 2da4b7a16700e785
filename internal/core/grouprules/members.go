package grouprules

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Interface is what membership depends on.
type Interface struct {
	Groups []vpc.SecurityGroupID
	// Fixed are the addresses that no pod without groups of its own has: the primary ones, all
	// of an interface that is no node's.
	Fixed []netip.Prefix
	// ForPods are those that a node gives to pods.
	ForPods []netip.Prefix
}

// Membership returns the members and pools of groups, without rules, by group.
func Membership(interfaces []Interface) map[vpc.SecurityGroupID]Group {
	out := map[vpc.SecurityGroupID]Group{}
	for _, i := range interfaces {
		for _, id := range i.Groups {
			g := out[id]
			g.ID = id
			g.Members, g.Pools = append(g.Members, i.Fixed...), append(g.Pools, i.ForPods...)
			out[id] = g
		}
	}
	for id, g := range maps.Clone(out) {
		g.Members, g.Pools = Aggregate(g.Members), Aggregate(g.Pools)
		out[id] = g
	}
	return out
}

// Aggregate returns disjoint ranges with the same addresses, as few as possible, in order.
func Aggregate(ranges []netip.Prefix) []netip.Prefix {
	list := slices.Clone(ranges)
	for i, p := range list {
		list[i] = p.Masked()
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range list {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue // the earlier one is larger
		}
		out = append(out, p)
		for n := len(out); n > 1; n = len(out) {
			joined, siblings := join(out[n-2], out[n-1])
			if !siblings {
				break
			}
			out = append(out[:n-2], joined)
		}
	}
	return out
}

// join returns the range of which two disjoint ones are the halves. The range around one without bits is
// invalid and contains nothing.
func join(a, b netip.Prefix) (joined netip.Prefix, siblings bool) {
	joined = netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return joined, a.Bits() == b.Bits() && joined.Contains(b.Addr())
}
