package ipam

import (
	"maps"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// ForeignHolder is the holder of an address that Trunkline did not assign: a pod that
// another CNI wired. The pod is zero if only the kernel shows the address.
func ForeignHolder(pod endpoint.Pod) Holder { return Holder{Pod: pod} }

// Claim is the record that a pod uses an address that the ledger does not have as
// assigned to that pod.
type Claim struct {
	Holder Holder
	// Made is when the pod was created for which the API server lists the address; zero
	// if the kernel shows the address. An address released after Made is no longer the
	// pod's: the API server's status of a pod may be stale.
	Made time.Time
}

// Claim replaces the claims of the previous call. Each claimed address is assigned to
// its holder, also if EC2 shows it only later, so it is neither assigned to another pod
// nor released. If whole is set, which means that every source of claims was read, an
// address of a foreign holder that is no longer claimed starts a cool-down.
func (l *Ledger) Claim(claims map[netip.Addr]Claim, whole bool, now time.Time) []Record {
	l.expire(now)
	l.claims = maps.Clone(claims)
	var records []Record
	for _, a := range l.sortedAddresses() {
		if _, still := claims[a.Addr]; whole && !still && a.State == Assigned && a.Holder.Foreign() {
			records = append(records, putAddress(l.cooled(a, now)))
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
	for _, a := range l.sortedAddresses() {
		c, claimed := l.claims[a.Addr]
		seen := claimed && c.Made.IsZero()
		if a.State == Assigned && a.Holder.Foreign() && a.Holder.Pod.UID == pod.UID && !seen {
			records = append(records, putAddress(l.cooled(a, now)))
		}
	}
	if records == nil {
		return nil
	}
	return l.change(now, records...)
}

// Unclaim ends the claims of an endpoint after its DEL was accepted.
func (l *Ledger) Unclaim(id endpoint.ID) {
	maps.DeleteFunc(l.claims, func(_ netip.Addr, c Claim) bool { return !c.Holder.Foreign() && c.Holder.Endpoint == id })
}

// claimed lists the records that assign claimed addresses to their holders.
func (l *Ledger) claimed(now time.Time) []Record {
	var records []Record
	for _, addr := range sortedAddrs(l.claims) {
		c := l.claims[addr]
		row, known := l.addresses[addr]
		if !known || !row.claimable(c) {
			continue
		}
		if other, holds := l.byHolder[c.Holder.Endpoint]; holds && other != addr {
			continue
		}
		taken := *row
		taken.State, taken.Holder, taken.Since, taken.Until = Assigned, c.Holder, stamp(now), time.Time{}
		records = append(records, putAddress(taken))
	}
	return records
}

// claimable reports whether a can be assigned to the holder of c.
func (a Address) claimable(c Claim) bool {
	switch a.State {
	case Free, Cooling, Unconfirmed:
		return c.Made.IsZero() || !a.Used.After(c.Made)
	case Assigned:
		return a.Holder.Foreign() && a.Holder != c.Holder
	case Quarantined, Releasing:
	}
	return false
}
