package hostnet

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Leftovers returns the steps that delete the rules that AWS's plugin made for a pod that has
// ended. They precede ours of the same priority: when another pod gets the address, its
// packets would leave by the interface of the earlier one.
//
// Only rules without a protocol count, with the priority and selector of a pod, of an address
// within the ranges, which are those of the node's interfaces. The pod has ended
// when no route leads to a link of another CNI by that address, and inUse reports that no pod
// of another CNI claims it. An equal rule that stands in for one of ours stays.
func (a *Actual) Leftovers(parts []Part, ranges []netip.Prefix, inUse func(netip.Addr) bool) (ops []Op) {
	wired := a.Foreign(ranges)
	own := map[string]bool{}
	for _, r := range a.have.Rules {
		own[r.Key()] = own[r.Key()] || r.Ours()
	}
	desired := objectsOf(parts)
	for _, r := range a.have.Rules {
		addr, pod := r.ofPod()
		if r.Protocol != ProtocolUnspecified || !pod || wired[addr] || inUse(addr) || !within(ranges, addr) {
			continue
		}
		if desired.keys[r.Key()] && !own[r.Key()] {
			continue
		}
		ops = append(ops, Op{Delete, r, "its pod, which another CNI wired, has ended"})
	}
	return ops
}

// Foreign returns the addresses within the ranges that have a route to a link which is not
// ours: those of the pods that another CNI wired.
func (a *Actual) Foreign(ranges []netip.Prefix) map[netip.Addr]bool {
	wired := map[netip.Addr]bool{}
	for _, r := range a.have.Routes {
		if r.To.IsSingleIP() && !r.Via.IsValid() && r.Link != "" && !a.links[r.Link].Ours() && within(ranges, r.To.Addr()) {
			wired[r.To.Addr()] = true
		}
	}
	return wired
}

func within(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ofPod returns the address of the pod that a rule of AWS's plugin, or of ours, is for.
func (r Rule) ofPod() (addr netip.Addr, ok bool) {
	switch {
	case r.Family != vpc.IPv4 || r.Mask != 0:
	case r.Priority == RuleToPod && r.To.IsSingleIP() && !r.From.IsValid() && r.Table == TableMain:
		return r.To.Addr(), true
	case r.Priority == RuleFromPod && r.From.IsSingleIP() && !r.To.IsValid():
		return r.From.Addr(), true
	}
	return netip.Addr{}, false
}
