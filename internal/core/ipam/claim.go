package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// ForeignHolder is the holder of an address that Trunkline did not assign: a pod that
// another CNI wired. The pod is zero if only the kernel shows the address.
func ForeignHolder(pod endpoint.Pod) Holder { return Holder{Pod: pod} }

// NodeHolder is the holder of an address that another program configured on a link of the
// node.
func NodeHolder(link string) Holder { return Holder{Link: link} }

// Claim is the record that a pod uses an address that the ledger does not have as
// assigned to that pod.
type Claim struct {
	Holder Holder
	// Made is when the pod was created for which the API server lists the address; zero
	// if the kernel shows the address. An address released after Made is no longer the
	// pod's: the API server's status of a pod may be stale.
	Made time.Time
}

// holds reports whether the holder of c uses a, if c is not outdated.
func (c Claim) holds(a Address) bool { return c.Made.IsZero() || !a.Used.After(c.Made) }

// claims are the claims of addresses. They are replaced, never changed in place.
type claims map[netip.Addr]Claim

func (c claims) ordered() []netip.Addr { return slices.SortedFunc(maps.Keys(c), netip.Addr.Compare) }

// Claim replaces the claims of the previous call. Each claimed address is assigned to
// its holder, also if EC2 shows it only later, so it is neither assigned to another pod
// nor released. If whole is set, which means that every source of claims was read, an
// address of a foreign holder that is no longer claimed starts a cool-down.
func (l *Ledger) Claim(claimed map[netip.Addr]Claim, whole bool, now time.Time) []Record {
	l.expire(now)
	l.volatile.claims = maps.Clone(claimed)
	var records []Record
	for _, a := range l.rows.addresses.ofForeign() {
		if _, still := claimed[a.Addr]; whole && !still {
			records = append(records, putAddress(a.cooled(now, l.settings.CoolDown)))
		}
	}
	return l.change(now, records...)
}

// Renewed records that the runtime creates a new sandbox for a pod on this node. An
// address that only the API server shows for the pod's foreign sandbox starts a
// cool-down: that sandbox no longer exists.
func (l *Ledger) Renewed(pod endpoint.Pod, now time.Time) []Record {
	if pod.UID == "" {
		return nil
	}
	var records []Record
	for _, a := range l.rows.addresses.ofForeign() {
		c, claimed := l.volatile.claims[a.Addr]
		seen := claimed && c.Made.IsZero()
		if a.Holder.Pod.UID == pod.UID && !seen {
			records = append(records, putAddress(a.cooled(now, l.settings.CoolDown)))
		}
	}
	if records == nil {
		return nil
	}
	return l.change(now, records...)
}

// Unclaim ends the claims of an endpoint after its DEL was accepted.
func (l *Ledger) Unclaim(id endpoint.ID) { l.volatile.claims = l.volatile.claims.without(id) }

// without returns the claims less those of an endpoint.
func (c claims) without(id endpoint.ID) claims {
	var of []netip.Addr
	for addr, claim := range c {
		if !claim.Holder.Foreign() && claim.Holder.Endpoint == id {
			of = append(of, addr)
		}
	}
	if of == nil {
		return c
	}
	kept := maps.Clone(c)
	for _, addr := range of {
		delete(kept, addr)
	}
	return kept
}

// due lists the records that assign claimed addresses to their holders, ordered by address.
// An endpoint has one address: of several that are claimed for it, the first.
func (c claims) due(s *rows, now time.Time) (records []Record) {
	given := map[endpoint.ID]bool{}
	for _, addr := range c.ordered() {
		holder := c[addr].Holder
		row, known := s.addresses.rows[addr]
		if !known || !row.claimable(c[addr]) {
			continue
		}
		if !holder.Foreign() {
			if given[holder.Endpoint] || s.addresses.holdsOther(holder.Endpoint, addr) {
				continue
			}
			given[holder.Endpoint] = true
		}
		records = append(records, putAddress(row.assigned(holder, now)))
	}
	return records
}

// claimable reports whether a can be assigned to the holder of c.
func (a Address) claimable(c Claim) bool {
	switch a.State {
	case Free, Cooling, Unconfirmed:
		return c.holds(a)
	case Assigned:
		return a.Holder.Foreign() && a.Holder != c.Holder
	case Quarantined, Releasing:
	}
	return false
}
