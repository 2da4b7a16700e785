package ipam

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// restore requests addresses of pods that two observations did not show on their
// interface: they were unassigned externally. EC2 refuses one that another interface
// has by now, so none is ever held twice.
func (p *planner) restore() {
	if !p.mayCall() {
		return
	}
	for _, e := range p.s.ENIs {
		if !p.free(e) || e.Phase != Ready {
			continue
		}
		for _, a := range e.Addresses {
			if a.State == Assigned && p.s.lost(a) && p.restoreOne(e, a) {
				break // one per action, so that a refused one blocks no other
			}
		}
	}
}

func (p *planner) restoreOne(e ENIView, a Address) bool {
	action := cloud.Action{
		Kind: cloud.RestoreAddresses, ENI: e.ID, Subnet: e.Subnet, Addresses: []netip.Addr{a.Addr},
		Why: fmt.Sprintf("%s has it and two observations of EC2 did not show it on %s", a.Holder, e.ID),
	}
	_, paused := p.paused(failureKey(action, cloud.FailOther))
	if !paused {
		p.do(action)
	}
	return !paused
}

// lost reports whether a second observation confirmed that EC2 does not show an
// address in use.
func (v View) lost(a Address) bool {
	return !a.Missing.IsZero() && v.Observed.Sub(a.Missing) >= confirmAfter
}

// Differences lists in words where EC2 and the ledger differ.
func (v View) Differences() (found []string) {
	for _, e := range v.ENIs {
		if !e.Missing.IsZero() {
			found = append(found, fmt.Sprintf("EC2 does not show interface %s", e.ID))
		}
		for _, a := range e.Addresses {
			switch {
			case !a.Missing.IsZero():
				found = append(found, fmt.Sprintf("EC2 does not show %s of %s on %s", a.Addr, a.Holder, e.ID))
			case a.State == Unconfirmed:
				found = append(found, fmt.Sprintf("%s on %s is not confirmed", a.Addr, e.ID))
			}
		}
	}
	return found
}

// lost checks that what is to be restored is still in use and still missing.
func (l *Ledger) lost(a *cloud.Action) error {
	for _, addr := range a.Addresses {
		row, ok := l.addresses[addr]
		if !ok || row.ENI != a.ENI || row.State != Assigned || row.Missing.IsZero() {
			return fmt.Errorf("%s: %w", addr, ErrStale)
		}
	}
	return nil
}

// restored records addresses as assigned again. Since is new, because a describe may
// not show them yet.
func (l *Ledger) restored(addrs []netip.Addr, now time.Time) []Record {
	var records []Record
	for _, addr := range addrs {
		if row, ok := l.addresses[addr]; ok && !row.Missing.IsZero() {
			back := *row
			back.Missing, back.Since = time.Time{}, stamp(now)
			records = append(records, putAddress(back))
		}
	}
	return records
}
