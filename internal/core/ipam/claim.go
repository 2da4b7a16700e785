package ipam

import (
	"maps"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// ForeignHolder is the holder of an address that Trunkline did not give out: a pod that
// another CNI wired. The pod may be zero where only the kernel shows the address.
func ForeignHolder(pod endpoint.Pod) Holder { return Holder{Pod: pod} }

// Claim says that a pod has an address which the ledger may not know of, or not as
// that pod's.
type Claim struct {
	Holder Holder
	// Made is when the pod was made for which the API server lists the address; zero
	// where the kernel itself shows it. What was given back after Made is not that
	// pod's any more, whatever the API server still says.
	Made time.Time
}

// Claim says which addresses are in use that were not given out here: all of them,
// each time. They are assigned to their holders, also when EC2 shows an address only
// later, and so never given out or back. What a foreign holder had and no longer
// claims cools down, provided that the claims are whole: every source was read.
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

// Renewed says that the runtime makes a new sandbox for a pod on this node. The address
// that only the API server shows for a foreign sandbox of that pod is no longer in use.
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

// Unclaim ends the claims of an endpoint whose DEL was accepted.
func (l *Ledger) Unclaim(id endpoint.ID) {
	maps.DeleteFunc(l.claims, func(_ netip.Addr, c Claim) bool { return !c.Holder.Foreign() && c.Holder.Endpoint == id })
}

// claimed assigns what is claimed and can be assigned; change calls it.
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

// claimable reports whether a can be assigned as c says.
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
