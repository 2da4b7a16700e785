package ipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Dump prints everything that a ledger remembers.
func Dump(l *Ledger) string {
	out := fmt.Sprintf("%+v\n", l.volatile)
	for _, r := range l.Records() {
		raw, err := json.Marshal(r)
		out += fmt.Sprintf("%s %v\n", raw, err)
	}
	return out + fmt.Sprintf("undo %v %d", l.rows.undoing, len(l.rows.undo))
}

// CheckIndexes compares what the ledger has counted and ordered with a walk over all rows.
func CheckIndexes(l *Ledger) error {
	s := &l.rows.addresses
	inUse, holders, foreign, firstEnd := 0, 0, 0, time.Time{}
	byENI := map[vpc.ENIID][]*Address{}
	for _, a := range s.rows {
		byENI[a.ENI] = append(byENI[a.ENI], a)
		if a.State == Assigned || a.State == Cooling {
			inUse++
		}
		if a.State == Cooling && (firstEnd.IsZero() || a.Until.Before(firstEnd)) {
			firstEnd = a.Until
		}
		switch {
		case a.State != Assigned:
		case a.Holder.Foreign():
			foreign++
			if _, ok := s.foreign[a.Addr]; !ok {
				return fmt.Errorf("%s of a foreign pod is not found as that", a.Addr)
			}
		default:
			holders++
			if found, ok := s.heldBy(a.Holder.Endpoint); !ok || found != a {
				return fmt.Errorf("endpoint %d has %s, found %v", a.Holder.Endpoint, a.Addr, found)
			}
		}
	}
	if s.inUse() != inUse || len(s.byHolder) != holders || len(s.foreign) != foreign || !s.nextCoolDownEnd().Equal(firstEnd) {
		return fmt.Errorf("counted %d in use, %d held, %d foreign, first cool-down until %s; there are %d, %d, %d, %s",
			s.inUse(), len(s.byHolder), len(s.foreign), s.nextCoolDownEnd(), inUse, holders, foreign, firstEnd)
	}
	if len(s.byENI) != len(byENI) {
		return fmt.Errorf("%d interfaces with addresses, found %d", len(byENI), len(s.byENI))
	}
	for id, rows := range byENI {
		if err := checkHolding(s.holding(id), rows); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

func checkHolding(of holding, rows []*Address) error {
	states := map[State]int{}
	var all []netip.Addr
	var oldest *Address
	for _, a := range rows {
		states[a.State]++
		all = append(all, a.Addr)
		if a.State == Free && (oldest == nil || a.Used.Before(oldest.Used) || a.Used.Equal(oldest.Used) && a.Addr.Less(oldest.Addr)) {
			oldest = a
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	if !slices.Equal(of.all, all) {
		return fmt.Errorf("has %v, found %v", all, of.all)
	}
	for _, state := range []State{Free, Assigned, Quarantined, Cooling, Releasing, Unconfirmed} {
		if of.states[state] != states[state] {
			return fmt.Errorf("%d are %s, counted %d", states[state], state, of.states[state])
		}
	}
	if len(of.free) != states[Free] || oldest != nil && of.free[0].addr != oldest.Addr {
		return fmt.Errorf("%d are free, the oldest %v; found %v", states[Free], oldest, of.free)
	}
	return nil
}
