package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Op is what a record does to the ledger.
type Op string

// Operations. Each carries the whole new row or the key of a row that is dropped, so a
// record can be applied twice.
const (
	PutENI      Op = "eni"
	DropENI     Op = "eni-gone"
	PutAddress  Op = "address"
	DropAddress Op = "address-gone"
	PutAction   Op = "action"
	DropAction  Op = "action-gone"
	PutBackoff  Op = "backoff"
	DropBackoff Op = "backoff-gone"
	PutGone     Op = "gone" // what we released; stale describes may still show it
	DropGone    Op = "gone-forgotten"
)

// Record is one change of the ledger, for the journal. Op determines the one other field
// that is set.
type Record struct {
	Op      Op             `json:"op"`
	ENI     *ENI           `json:"eni,omitempty"`
	Address *Address       `json:"address,omitempty"`
	Action  *cloud.Action  `json:"action,omitempty"`
	Backoff *Backoff       `json:"backoff,omitempty"`
	Gone    *Gone          `json:"gone,omitempty"`
	ENIID   vpc.ENIID      `json:"eniID,omitempty"`
	Addr    netip.Addr     `json:"addr,omitzero"`
	ID      cloud.ActionID `json:"id,omitempty"`
	Scope   string         `json:"scope,omitempty"` // key of a Backoff
}

// Key is the key of r's row in a keyed journal: a later record with the same key
// replaces an earlier one, and replaying the last record of each key, in the order of
// the keys, rebuilds the ledger.
func (r Record) Key() string {
	switch r.Op {
	case PutENI:
		return "eni/" + string(r.ENI.ID)
	case DropENI:
		return "eni/" + string(r.ENIID)
	case PutAddress:
		return "ip/" + r.Address.Addr.String() // sorts after "eni/": an address needs its interface
	case DropAddress:
		return "ip/" + r.Addr.String()
	case PutAction:
		return "action/" + string(r.Action.ID)
	case DropAction:
		return "action/" + string(r.ID)
	case PutBackoff:
		return "backoff/" + r.Backoff.Key
	case DropBackoff:
		return "backoff/" + r.Scope
	case PutGone, DropGone:
		return "gone/" + r.Gone.key()
	}
	return "unknown/" + string(r.Op)
}

// Drops reports whether r removes its row, and with it the key from a keyed journal.
func (r Record) Drops() bool {
	return r.Op == DropENI || r.Op == DropAddress || r.Op == DropAction || r.Op == DropBackoff || r.Op == DropGone
}

// Gone is an address released to its subnet, or an interface deleted, and when.
type Gone struct {
	Addr netip.Addr `json:"addr,omitzero"`
	ENI  vpc.ENIID  `json:"eni,omitempty"`
	At   time.Time  `json:"at"`
}

func (g Gone) key() string {
	if g.ENI != "" {
		return string(g.ENI)
	}
	return g.Addr.String()
}

// Replay applies records, oldest first: those that a ledger's methods returned, or
// those of Records. It stops with an error at the first invalid record; those before it
// stay applied.
func (l *Ledger) Replay(records []Record) error {
	for i, r := range records {
		if err := l.apply(r); err != nil {
			return fmt.Errorf("replay record %d of %d: %w", i+1, len(records), err)
		}
	}
	return nil
}

// Records returns the shortest list of records that rebuilds the ledger: what a
// journal is compacted to. The order is stable.
func (l *Ledger) Records() []Record {
	var out []Record
	for _, id := range sortedKeys(l.enis) {
		e := *l.enis[id]
		out = append(out, Record{Op: PutENI, ENI: &e})
	}
	for _, a := range l.sortedAddresses() {
		out = append(out, Record{Op: PutAddress, Address: &a})
	}
	for _, id := range sortedKeys(l.actions) {
		a := l.actions[id]
		out = append(out, Record{Op: PutAction, Action: &a})
	}
	for _, key := range sortedKeys(l.backoffs) {
		b := l.backoffs[key]
		out = append(out, Record{Op: PutBackoff, Backoff: &b})
	}
	for _, addr := range sortedAddrs(l.gone) {
		out = append(out, Record{Op: PutGone, Gone: &Gone{Addr: addr, At: l.gone[addr]}})
	}
	for _, id := range sortedKeys(l.goneENIs) {
		out = append(out, Record{Op: PutGone, Gone: &Gone{ENI: id, At: l.goneENIs[id]}})
	}
	return out
}

// apply makes the change of r. Outside of expire and rewind, which make no records, no
// other function changes rows.
func (l *Ledger) apply(r Record) error {
	if !r.whole() {
		return fmt.Errorf("operation %q: unknown, or its row is missing", string(r.Op))
	}
	switch r.Op {
	case PutENI:
		e := *r.ENI
		l.enis[e.ID] = &e
	case DropENI:
		return l.applyDropENI(r.ENIID)
	case PutAddress:
		return l.applyAddress(*r.Address)
	case DropAddress:
		l.applyDropAddress(r.Addr)
	case PutAction:
		l.actions[r.Action.ID] = *r.Action
	case DropAction:
		delete(l.actions, r.ID)
	case PutBackoff:
		l.backoffs[r.Backoff.Key] = *r.Backoff
	case DropBackoff:
		delete(l.backoffs, r.Scope)
	case PutGone:
		l.applyGone(*r.Gone)
	case DropGone:
		delete(l.gone, r.Gone.Addr)
		delete(l.goneENIs, r.Gone.ENI)
	}
	return nil
}

// whole reports whether r has a known operation and the row or the key it needs.
func (r Record) whole() bool {
	switch r.Op {
	case PutENI:
		return r.ENI != nil && r.ENI.ID != ""
	case DropENI:
		return r.ENIID != ""
	case PutAddress:
		return r.Address != nil && r.Address.Addr.IsValid()
	case DropAddress:
		return r.Addr.IsValid()
	case PutAction:
		return r.Action != nil && r.Action.ID != ""
	case DropAction:
		return r.ID != ""
	case PutBackoff:
		return r.Backoff != nil && r.Backoff.Key != ""
	case DropBackoff:
		return r.Scope != ""
	case PutGone, DropGone:
		return r.Gone != nil && r.Gone.Addr.IsValid() != (r.Gone.ENI != "")
	}
	return false
}

func (l *Ledger) applyDropENI(id vpc.ENIID) error {
	for addr := range l.byENI[id] {
		a := l.addresses[addr]
		if a.State == Assigned {
			return fmt.Errorf("drop %s: %s is assigned to %s", id, addr, a.Holder)
		}
		l.applyDropAddress(addr)
	}
	delete(l.enis, id)
	delete(l.byENI, id)
	return nil
}

func (l *Ledger) applyAddress(a Address) error {
	if l.enis[a.ENI] == nil {
		return fmt.Errorf("address %s: interface %s: %w", a.Addr, a.ENI, ErrUnknown)
	}
	if old, ok := l.addresses[a.Addr]; ok {
		if old.ENI != a.ENI {
			return fmt.Errorf("address %s: on %s, was on %s", a.Addr, a.ENI, old.ENI)
		}
		l.dropHolder(*old)
	}
	if a.State == Assigned && !a.Holder.Foreign() {
		if other, ok := l.byHolder[a.Holder.Endpoint]; ok && other != a.Addr {
			return fmt.Errorf("address %s: endpoint %d of %s holds %s already", a.Addr, a.Holder.Endpoint, a.Holder, other)
		}
		l.byHolder[a.Holder.Endpoint] = a.Addr
	}
	l.addresses[a.Addr] = &a
	if l.byENI[a.ENI] == nil {
		l.byENI[a.ENI] = make(map[netip.Addr]struct{})
	}
	l.byENI[a.ENI][a.Addr] = struct{}{}
	return nil
}

func (l *Ledger) applyDropAddress(addr netip.Addr) {
	a, ok := l.addresses[addr]
	if !ok {
		return
	}
	l.dropHolder(*a)
	delete(l.byENI[a.ENI], addr)
	delete(l.addresses, addr)
}

func (l *Ledger) dropHolder(a Address) {
	if a.State == Assigned && !a.Holder.Foreign() {
		delete(l.byHolder, a.Holder.Endpoint)
	}
}

func (l *Ledger) applyGone(g Gone) {
	if g.ENI != "" {
		l.goneENIs[g.ENI] = g.At
	} else {
		l.gone[g.Addr] = g.At
	}
}

// outdated lists the records that drop what is no longer needed: releases so long ago
// that no describe can still show them, and back-offs that ended long ago. Callers put
// them before new records, which may have the same keys.
func (l *Ledger) outdated(now time.Time) (records []Record) {
	now = stamp(now)
	for _, addr := range sortedAddrs(l.gone) {
		if at := l.gone[addr]; now.Sub(at) > 2*staleAfter {
			records = append(records, Record{Op: DropGone, Gone: &Gone{Addr: addr, At: at}})
		}
	}
	for _, id := range sortedKeys(l.goneENIs) {
		if at := l.goneENIs[id]; now.Sub(at) > 2*staleAfter {
			records = append(records, Record{Op: DropGone, Gone: &Gone{ENI: id, At: at}})
		}
	}
	for _, key := range sortedKeys(l.backoffs) {
		if now.Sub(l.backoffs[key].Until) > 10*maxBackoff {
			records = append(records, Record{Op: DropBackoff, Scope: key})
		}
	}
	return records
}

func (l *Ledger) sortedAddresses() []Address {
	out := make([]Address, 0, len(l.addresses))
	for _, a := range l.addresses {
		out = append(out, *a)
	}
	slices.SortFunc(out, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	return out
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int { return strings.Compare(string(a), string(b)) })
	return keys
}

func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	keys := make([]netip.Addr, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, netip.Addr.Compare)
	return keys
}
