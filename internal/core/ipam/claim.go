package ipam

import (
	"maps"
	"net/netip"
	"time"
)

// foreignContainer stands for the container of a pod that Trunkline did not wire. CNI
// lets no runtime name a container so.
const foreignContainer = "(foreign)"

// ForeignOwner is the owner of an address that Trunkline did not give out: a pod that
// another CNI wired. Its container is not known, so the address identifies it; name
// and uid of the pod may be empty.
func ForeignOwner(addr netip.Addr, namespace, name, uid string) Owner {
	return Owner{ContainerID: foreignContainer, IfName: addr.String(), Namespace: namespace, Name: name, PodUID: uid}
}

// Foreign reports whether Trunkline did not wire the owner.
func (o Owner) Foreign() bool { return o.ContainerID == foreignContainer }

// Claim says that a pod has an address which the ledger may not know of, or not as
// that pod's.
type Claim struct {
	Owner Owner
	// Made is when the pod was made for which the API server lists the address; zero
	// where the kernel itself shows it. What was given back after Made is not that
	// pod's any more, whatever the API server still says.
	Made time.Time
}

// Claim says who uses addresses beside those that were given out here: all of them,
// each time. They are booked as their owners', also when EC2 shows an address only
// later, and so never given out or back. What a foreign owner had and claims no more
// cools down, provided that the claims are whole: that everybody was asked.
func (l *Ledger) Claim(claims map[netip.Addr]Claim, whole bool, now time.Time) []Record {
	l.expire(now)
	l.claims = maps.Clone(claims)
	var records []Record
	for _, a := range l.sortedAddresses() {
		if _, still := claims[a.Addr]; whole && !still && a.State == Assigned && a.Owner.Foreign() {
			records = append(records, putAddress(l.cooled(a, now)))
		}
	}
	return l.change(now, records...)
}

// Renewed says that the runtime makes a new sandbox for the owner's pod, here. What the
// API server alone says that a foreign sandbox of that pod has is not in use any more.
func (l *Ledger) Renewed(owner Owner, now time.Time) []Record {
	if owner.PodUID == "" {
		return nil
	}
	var records []Record
	for _, a := range l.sortedAddresses() {
		c, claimed := l.claims[a.Addr]
		seen := claimed && c.Made.IsZero()
		if a.State == Assigned && a.Owner.Foreign() && a.Owner.PodUID == owner.PodUID && !seen {
			records = append(records, putAddress(l.cooled(a, now)))
		}
	}
	if records == nil {
		return nil
	}
	return l.change(now, records...)
}

// unclaim ends the claims of an owner whose DEL was taken.
func (l *Ledger) unclaim(k Key) {
	maps.DeleteFunc(l.claims, func(_ netip.Addr, c Claim) bool { return c.Owner.Key() == k })
}

// claimed books the claims that can be: the rows of change, which calls it.
func (l *Ledger) claimed(now time.Time) []Record {
	var records []Record
	for _, addr := range sortedAddrs(l.claims) {
		c := l.claims[addr]
		row, known := l.addresses[addr]
		if !known || !row.claimable(c) {
			continue
		}
		if other, holds := l.byOwner[c.Owner.Key()]; holds && other != addr {
			continue
		}
		taken := *row
		taken.State, taken.Owner, taken.Since, taken.Until = Assigned, c.Owner, stamp(now), time.Time{}
		records = append(records, putAddress(taken))
	}
	return records
}

// claimable reports whether a can be booked as c says.
func (a Address) claimable(c Claim) bool {
	switch a.State {
	case Free, Cooling, Unconfirmed:
		return c.Made.IsZero() || !a.Used.After(c.Made)
	case Assigned:
		return a.Owner.Foreign() && a.Owner != c.Owner
	case Quarantined, Releasing:
	}
	return false
}
