package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Prefix is a prefix that EC2 delegated to an interface: an IPv4 /28, which takes a slot
// of an address, or an IPv6 /80. This version gives no address out of it to a pod.
type Prefix struct {
	CIDR netip.Prefix `json:"cidr"`
	// Missing is when EC2 was first found not to show it; zero while EC2 shows it.
	Missing time.Time `json:"missing,omitzero"`
}

func (p Prefix) equal(q Prefix) bool { return p.CIDR == q.CIDR && p.Missing.Equal(q.Missing) }

// PrefixesOf are prefixes that EC2 shows, ordered.
func PrefixesOf(cidrs []netip.Prefix) []Prefix {
	var out []Prefix
	for _, cidr := range slices.SortedFunc(slices.Values(cidrs), netip.Prefix.Compare) {
		out = append(out, Prefix{CIDR: cidr})
	}
	return out
}

// PrefixOf returns the prefix of e in which addr lies.
func (e ENI) PrefixOf(addr netip.Addr) (cidr netip.Prefix, ok bool) {
	for _, p := range e.Prefixes {
		if p.CIDR.Contains(addr) {
			return p.CIDR, true
		}
	}
	return netip.Prefix{}, false
}

// prefixes4 counts the IPv4 prefixes of e.
func (e ENI) prefixes4() (n int) {
	for _, p := range e.Prefixes {
		if vpc.FamilyOf(p.CIDR.Addr()) == vpc.IPv4 {
			n++
		}
	}
	return n
}

// Claimed is an address that a claim's holder uses and that the ledger cannot assign to
// it: it lies in a prefix, or its release has begun.
type Claimed struct {
	Addr   netip.Addr
	Holder Holder
}

// unassigned lists, by interface, what is claimed and cannot be assigned to its holder.
// Each list is ordered.
func (c claims) unassigned(s *rows) map[vpc.ENIID][]Claimed {
	var out map[vpc.ENIID][]Claimed
	for _, addr := range c.ordered() {
		id, found := s.claimedOn(addr, c[addr])
		if !found {
			continue
		}
		if out == nil {
			out = make(map[vpc.ENIID][]Claimed)
		}
		out[id] = append(out[id], Claimed{addr, c[addr].Holder})
	}
	return out
}

// claimedOn is the interface of a claimed address that cannot be assigned to its holder.
func (s *rows) claimedOn(addr netip.Addr, c Claim) (vpc.ENIID, bool) {
	if a, known := s.addresses.rows[addr]; known {
		return a.ENI, a.State == Releasing && c.holds(*a)
	}
	for id, e := range s.enis {
		if _, ok := e.PrefixOf(addr); ok {
			return id, true
		}
	}
	return "", false
}

// OfForeign lists the addresses of the interface that pods of another CNI use, ordered: those
// that the ledger has assigned to them, and those that it cannot assign, such as an address
// of a prefix.
func (e ENIView) OfForeign() []Claimed { return e.heldBy(Holder.ForeignPod) }

// OnNode lists, ordered, the addresses of the interface that the node itself has.
func (e ENIView) OnNode() []Claimed { return e.heldBy(Holder.OnNode) }

// heldBy lists the addresses of the interface with such holders, ordered.
func (e ENIView) heldBy(are func(Holder) bool) (out []Claimed) {
	for _, a := range e.Addresses {
		if a.State == Assigned && are(a.Holder) {
			out = append(out, Claimed{a.Addr, a.Holder})
		}
	}
	for _, c := range e.Claimed {
		if are(c.Holder) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Claimed) int { return a.Addr.Compare(b.Addr) })
	return out
}

// Foreign counts the pods of another CNI that use addresses of the interface.
func (e ENIView) Foreign() int { return len(e.OfForeign()) }

// Kept is why the interface is neither detached nor deleted and none of its addresses
// released, however idle its other addresses are; empty if that may be.
func (e ENIView) Kept() string {
	pods := fmt.Sprintf("%d pods of another CNI", e.Foreign())
	if e.Foreign() == 1 {
		pods = "1 pod of another CNI"
	}
	switch {
	case len(e.Prefixes) == 1:
		return fmt.Sprintf("kept for its prefix %s, with %s", e.Prefixes[0].CIDR, pods)
	case len(e.Prefixes) > 1:
		return fmt.Sprintf("kept for its %d prefixes, with %s", len(e.Prefixes), pods)
	case e.Foreign() > 0:
		return "kept for " + pods
	case len(e.OnNode()) > 0:
		return fmt.Sprintf("kept for its addresses that the node itself has: %d", len(e.OnNode()))
	}
	return ""
}

// prefixes4 counts the IPv4 prefixes on managed interfaces of the default network card:
// each takes a slot of an address.
func (v View) prefixes4() (n int) {
	for _, e := range v.ENIs {
		if e.Card == vpc.DefaultCard && e.managed() {
			n += e.prefixes4()
		}
	}
	return n
}

// claimed counts the pods on addresses that are not in the ledger, such as those of prefixes.
func (v View) claimed() (n int) {
	for _, e := range v.ENIs {
		n += len(e.Claimed)
	}
	return n
}

// slots is how many addresses the interface can still take.
func (e ENIView) slots(l Limits) int { return l.perENI() - len(e.Addresses) - e.prefixes4() }
