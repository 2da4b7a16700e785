package ipam

import (
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// fence computes the records of an action that begins: it checks the action against the
// rows, completes it from them (Subnet, Held, Recent, Attachment), and fences what the
// action releases.
type fence struct {
	rows    *rows
	claimed map[vpc.ENIID][]Claimed
	now     time.Time
	action  cloud.Action
	records []Record
}

// build fails with ErrStale if the rows do not allow the action. An interface has at most
// one action in flight.
func (f *fence) build() error {
	a := &f.action
	if a.Kind == cloud.CreateENI {
		return nil
	}
	e := f.rows.enis[a.ENI]
	if e == nil {
		return fmt.Errorf("interface: %w", ErrStale)
	}
	if other, busy := f.rows.inFlightOn(a.ENI); busy {
		return fmt.Errorf("%s is in flight: %w", other, ErrStale)
	}
	a.Subnet = e.Subnet
	switch a.Kind {
	case cloud.Attach:
		return e.in(Attaching)
	case cloud.SetUp:
		return e.in(SettingUp)
	case cloud.AssignAddresses:
		a.Held, a.Recent = f.rows.addresses.of(a.ENI), f.rows.released.recentAddresses(f.now)
		return e.in(Attaching, SettingUp, Ready)
	case cloud.RestoreAddresses:
		return f.checkMissing()
	case cloud.UnassignAddresses:
		return f.addresses()
	case cloud.Detach:
		a.Attachment = e.Attachment
		if e.Phase != Detaching {
			a.From = string(e.Phase)
		}
		a.Addresses = f.rows.addresses.freeOf(e.ID)
		return f.eni(e, Ready, Detaching)
	case cloud.DeleteENI:
		return f.eni(e, Attaching, Deleting)
	case cloud.CreateENI:
	}
	return fmt.Errorf("unknown kind %q", string(a.Kind))
}

// in fails with ErrStale if e is in none of the phases.
func (e ENI) in(phases ...Phase) error {
	if slices.Contains(phases, e.Phase) {
		return nil
	}
	return fmt.Errorf("the interface is %s: %w", e.Phase, ErrStale)
}

// checkMissing checks that the addresses to restore are still in use and missing.
func (f *fence) checkMissing() error {
	for _, addr := range f.action.Addresses {
		row, ok := f.rows.addresses.rows[addr]
		if !ok || row.ENI != f.action.ENI || row.State != Assigned || row.Missing.IsZero() {
			return fmt.Errorf("%s: %w", addr, ErrStale)
		}
	}
	return nil
}

// addresses fences the addresses of the action. What a pod uses, and the free addresses
// of an interface that is kept, are not released.
func (f *fence) addresses() error {
	of := f.rows.view(*f.rows.enis[f.action.ENI], f.claimed[f.action.ENI])
	for _, addr := range f.action.Addresses {
		row, ok := f.rows.addresses.rows[addr]
		if !ok || row.ENI != f.action.ENI {
			return fmt.Errorf("%s: %w", addr, ErrStale)
		}
		switch row.State {
		case Releasing:
			if !slices.Contains(of.unclaimed(Releasing), addr) {
				return fmt.Errorf("%s is in use: %w", addr, ErrStale)
			}
		case Free:
			if why := of.Kept(); why != "" {
				return fmt.Errorf("%s: the interface is %s: %w", addr, why, ErrStale)
			}
			f.release(*row)
		case Assigned, Quarantined, Cooling, Unconfirmed:
			return fmt.Errorf("%s is %s: %w", addr, row.State, ErrStale)
		}
	}
	return nil
}

// eni moves an interface from one phase to another and fences all its addresses.
func (f *fence) eni(e *ENI, from, to Phase) error {
	if e.Primary || e.Unmanaged {
		return fmt.Errorf("primary and unmanaged interfaces are never removed: %w", ErrStale)
	}
	if why := f.rows.view(*e, f.claimed[e.ID]).Kept(); why != "" {
		return fmt.Errorf("the interface is %s: %w", why, ErrStale)
	}
	if e.Phase == to {
		return nil
	}
	if err := e.in(from); err != nil {
		return err
	}
	for _, addr := range f.rows.addresses.of(e.ID) {
		row := *f.rows.addresses.rows[addr]
		switch row.State {
		case Assigned, Quarantined, Cooling:
			return fmt.Errorf("%s is %s: %w", addr, row.State, ErrStale)
		case Free, Unconfirmed:
			f.release(row)
		case Releasing:
		}
	}
	f.records = append(f.records, putENI(e.moved(to, f.now)))
	return nil
}

func (f *fence) release(row Address) {
	row.State, row.Since = Releasing, stamp(f.now)
	f.records = append(f.records, putAddress(row))
}
