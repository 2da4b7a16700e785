package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// rows are the journaled part of a ledger. Only apply changes them, and a stored row is
// replaced, never changed in place. So each change has an inverse, which is a record too: a
// failed transaction is undone by applying the inverses of its changes.
type rows struct {
	enis      map[vpc.ENIID]*ENI
	addresses addresses
	actions   map[cloud.ActionID]*cloud.Action
	backoffs  map[string]*Backoff
	released  releases

	undoing bool     // a transaction runs
	undo    []Record // inverses of its changes, oldest first
}

func newRows() rows {
	return rows{
		enis:      make(map[vpc.ENIID]*ENI),
		addresses: newAddresses(),
		actions:   make(map[cloud.ActionID]*cloud.Action),
		backoffs:  make(map[string]*Backoff),
		released:  newReleases(),
	}
}

// begin starts a transaction. It panics in another one, which would lose its inverses.
func (s *rows) begin() {
	if s.undoing {
		panic("ipam: a transaction was begun in another one")
	}
	s.undoing, s.undo = true, nil
}

// end ends a transaction and undoes it unless keep is set.
func (s *rows) end(keep bool) {
	s.undoing = false
	if !keep {
		slices.Reverse(s.undo)
		s.applyOwn(s.undo)
	}
	s.undo = nil
}

// applyOwn applies records that are valid by construction: an error is a defect of this
// package.
func (s *rows) applyOwn(records []Record) {
	for _, r := range records {
		if err := s.apply(r); err != nil {
			panic("ipam: own record refused: " + err.Error())
		}
	}
}

// apply makes the change of r. After an error nothing has changed.
func (s *rows) apply(r Record) error {
	if !r.whole() {
		return fmt.Errorf("operation %q: unknown, or its row is missing", string(r.Op))
	}
	if r.Op == DropENI {
		if err := s.dropAddressesOf(r.ENIID); err != nil {
			return err
		}
	}
	var inverse Record
	if s.undoing {
		inverse = s.inverse(r)
	}
	if err := s.store(r); err != nil {
		return err
	}
	if s.undoing {
		s.undo = append(s.undo, inverse)
	}
	return nil
}

func (s *rows) store(r Record) error {
	switch r.Op {
	case PutENI:
		s.enis[r.ENI.ID] = r.ENI
	case DropENI:
		delete(s.enis, r.ENIID)
	case PutAddress:
		if s.enis[r.Address.ENI] == nil {
			return fmt.Errorf("address %s: interface %s: %w", r.Address.Addr, r.Address.ENI, ErrUnknown)
		}
		return s.addresses.put(r.Address)
	case DropAddress:
		s.addresses.drop(r.Addr)
	case PutAction:
		s.actions[r.Action.ID] = r.Action
	case DropAction:
		delete(s.actions, r.ID)
	case PutBackoff:
		s.backoffs[r.Backoff.Key] = r.Backoff
	case DropBackoff:
		delete(s.backoffs, r.Scope)
	case PutGone:
		s.released.put(*r.Gone)
	case DropGone:
		s.released.drop(*r.Gone)
	}
	return nil
}

// dropAddressesOf drops the addresses of an interface that no pod uses.
func (s *rows) dropAddressesOf(id vpc.ENIID) error {
	all := s.addresses.of(id)
	for _, addr := range all {
		if a := s.addresses.rows[addr]; a.State == Assigned {
			return fmt.Errorf("drop %s: %s is assigned to %s", id, addr, a.Holder)
		}
	}
	for _, addr := range all {
		s.applyOwn([]Record{{Op: DropAddress, Addr: addr}})
	}
	return nil
}

// inverse is the record that undoes r: it puts the row that r replaces or drops, or drops
// the row that r adds.
func (s *rows) inverse(r Record) Record {
	drop := r.drop()
	switch drop.Op {
	case DropENI:
		if old := s.enis[drop.ENIID]; old != nil {
			return Record{Op: PutENI, ENI: old}
		}
	case DropAddress:
		if old := s.addresses.rows[drop.Addr]; old != nil {
			return Record{Op: PutAddress, Address: old}
		}
	case DropAction:
		if old := s.actions[drop.ID]; old != nil {
			return Record{Op: PutAction, Action: old}
		}
	case DropBackoff:
		if old := s.backoffs[drop.Scope]; old != nil {
			return Record{Op: PutBackoff, Backoff: old}
		}
	case DropGone:
		if old, ok := s.released.find(*drop.Gone); ok {
			return Record{Op: PutGone, Gone: &old}
		}
	case PutENI, PutAddress, PutAction, PutBackoff, PutGone: // not of a drop
	}
	return drop
}

// records is the shortest list of records that rebuilds the rows. The order is stable.
func (s *rows) records() []Record {
	var out []Record
	for _, id := range slices.Sorted(maps.Keys(s.enis)) {
		out = append(out, Record{Op: PutENI, ENI: s.enis[id]})
	}
	for _, a := range s.addresses.sorted() {
		out = append(out, Record{Op: PutAddress, Address: a})
	}
	for _, id := range slices.Sorted(maps.Keys(s.actions)) {
		out = append(out, Record{Op: PutAction, Action: s.actions[id]})
	}
	for _, key := range slices.Sorted(maps.Keys(s.backoffs)) {
		out = append(out, Record{Op: PutBackoff, Backoff: s.backoffs[key]})
	}
	for _, g := range s.released.all() {
		out = append(out, Record{Op: PutGone, Gone: &g})
	}
	return out
}

// outdated lists the records that drop what is no longer needed: releases so long ago
// that no describe can still show them, and back-offs that ended long ago. Callers put
// them before new records, which may have the same keys.
func (s *rows) outdated(now time.Time) (records []Record) {
	now = stamp(now)
	for _, g := range s.released.all() {
		if now.Sub(g.At) > 2*staleAfter {
			records = append(records, Record{Op: DropGone, Gone: &g})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.backoffs)) {
		if now.Sub(s.backoffs[key].Until) > 10*maxBackoff {
			records = append(records, Record{Op: DropBackoff, Scope: key})
		}
	}
	return records
}

// inFlightOn is the action in flight on an interface. There is at most one.
func (s *rows) inFlightOn(id vpc.ENIID) (*cloud.Action, bool) {
	for _, a := range s.actions {
		if a.ENI == id {
			return a, true
		}
	}
	return nil, false
}

// leaseOf is the address of an endpoint.
func (s *rows) leaseOf(id endpoint.ID) (Lease, bool) {
	a, ok := s.addresses.heldBy(id)
	if !ok {
		return Lease{}, false
	}
	return s.lease(a), true
}

// lease is an assigned address with what it has of its interface.
func (s *rows) lease(a *Address) Lease {
	e := s.enis[a.ENI]
	return Lease{
		Holder: a.Holder, Addr: a.Addr, ENI: a.ENI, Primary: e.Primary, Device: e.Device,
		MAC: e.MAC, Subnet: e.SubnetCIDR, Gateway: vpc.Gateway(e.SubnetCIDR),
		Since: a.Since, Family: a.Family(),
	}
}

// nextFree is the address for the next pod: of the ready interface with the most
// addresses in use, so that others become idle and can be removed, the one unused for
// longest.
func (s *rows) nextFree() (*Address, error) {
	var best *ENI
	bestUsed, cooling := -1, 0
	for id, e := range s.enis {
		if !e.pooled() || e.Phase != Ready || !e.Missing.IsZero() {
			continue
		}
		of := s.addresses.holding(id)
		cooling += of.states[Cooling]
		if len(of.free) == 0 {
			continue
		}
		used := of.states[Assigned] + of.states[Quarantined]
		if best == nil || used > bestUsed || used == bestUsed && byOrder(e, best) < 0 {
			best, bestUsed = e, used
		}
	}
	switch {
	case best != nil:
		return s.addresses.rows[s.addresses.holding(best.ID).free[0].addr], nil
	case cooling > 0:
		return nil, ErrAllCooling
	default:
		return nil, ErrPoolEmpty
	}
}

// byOrder compares interfaces: the primary first, then by device index, then by id.
func byOrder(a, b *ENI) int {
	switch {
	case a.Primary && !b.Primary:
		return -1
	case b.Primary && !a.Primary:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.ID, b.ID))
}

// endFirstCoolDown ends the cool-down that ends first: its address is free.
func (s *rows) endFirstCoolDown() {
	a := *s.addresses.rows[s.addresses.cooling[0].addr]
	a.State, a.Since, a.Until = Free, a.Until, time.Time{}
	s.applyOwn([]Record{putAddress(a)})
}

// restarted lists the records that adapt rows to a new process, see Ledger.Restart.
func (s *rows) restarted(now time.Time, coolDown time.Duration) (records []Record) {
	latest := now.Add(coolDown)
	for _, a := range s.addresses.sorted() {
		if a.State == Cooling && a.Until.After(latest) {
			shorter := *a
			shorter.Until = latest
			records = append(records, putAddress(shorter))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.actions)) {
		if s.actions[id].Kind == cloud.SetUp {
			records = append(records, Record{Op: DropAction, ID: id})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.backoffs)) {
		// A person may have restarted the agent after the cause has ended, such as missing
		// rights; one that fails all the time makes a call a minute.
		if b := *s.backoffs[key]; b.Until.After(now.Add(minDeniedBackoff)) {
			b.Until = now.Add(minDeniedBackoff)
			records = append(records, Record{Op: PutBackoff, Backoff: &b})
		}
	}
	return records
}
