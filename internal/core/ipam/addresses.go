package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// addresses are the secondary addresses of all interfaces, with indexes. Only put and
// drop change them, so that rows and indexes agree.
type addresses struct {
	rows     map[netip.Addr]*Address // a stored row is replaced, never changed
	byENI    map[vpc.ENIID]*holding
	byHolder map[endpoint.ID]netip.Addr // of endpoints
	foreign  map[netip.Addr]struct{}    // assigned to pods that Trunkline did not wire
	cooling  []timed                    // by the end of the cool-down
}

// holding is the index of the addresses of one interface.
type holding struct {
	all    []netip.Addr // ordered
	states map[State]int
	free   []timed // by last use
}

func newAddresses() addresses {
	return addresses{
		rows:     make(map[netip.Addr]*Address),
		byENI:    make(map[vpc.ENIID]*holding),
		byHolder: make(map[endpoint.ID]netip.Addr),
		foreign:  make(map[netip.Addr]struct{}),
	}
}

// put stores a row, which must not be changed afterwards. An address does not move
// between interfaces, and an endpoint has one address.
func (s *addresses) put(a *Address) error {
	old, known := s.rows[a.Addr]
	if known && old.ENI != a.ENI {
		return fmt.Errorf("address %s: on %s, was on %s", a.Addr, a.ENI, old.ENI)
	}
	if a.State == Assigned && !a.Holder.Foreign() {
		if other, ok := s.byHolder[a.Holder.Endpoint]; ok && other != a.Addr {
			return fmt.Errorf("address %s: endpoint %d of %s holds %s already", a.Addr, a.Holder.Endpoint, a.Holder, other)
		}
	}
	if known {
		s.unindex(old)
	} else {
		of := s.byENI[a.ENI]
		if of == nil {
			of = &holding{states: make(map[State]int)}
			s.byENI[a.ENI] = of
		}
		of.all = insert(of.all, a.Addr, netip.Addr.Compare)
	}
	s.rows[a.Addr] = a
	s.index(a)
	return nil
}

// drop removes a row; without one it does nothing.
func (s *addresses) drop(addr netip.Addr) {
	a, ok := s.rows[addr]
	if !ok {
		return
	}
	s.unindex(a)
	delete(s.rows, addr)
	of := s.byENI[a.ENI]
	if of.all = remove(of.all, addr, netip.Addr.Compare); len(of.all) == 0 {
		delete(s.byENI, a.ENI)
	}
}

func (s *addresses) index(a *Address) {
	of := s.byENI[a.ENI]
	of.states[a.State]++
	switch a.State {
	case Free:
		of.free = insert(of.free, timed{a.Used, a.Addr}, byTime)
	case Cooling:
		s.cooling = insert(s.cooling, timed{a.Until, a.Addr}, byTime)
	case Assigned:
		if a.Holder.Foreign() {
			s.foreign[a.Addr] = struct{}{}
		} else {
			s.byHolder[a.Holder.Endpoint] = a.Addr
		}
	case Quarantined, Releasing, Unconfirmed:
	}
}

func (s *addresses) unindex(a *Address) {
	of := s.byENI[a.ENI]
	of.states[a.State]--
	switch a.State {
	case Free:
		of.free = remove(of.free, timed{a.Used, a.Addr}, byTime)
	case Cooling:
		s.cooling = remove(s.cooling, timed{a.Until, a.Addr}, byTime)
	case Assigned:
		if a.Holder.Foreign() {
			delete(s.foreign, a.Addr)
		} else {
			delete(s.byHolder, a.Holder.Endpoint)
		}
	case Quarantined, Releasing, Unconfirmed:
	}
}

// holding is what an interface has; zero for one without addresses.
func (s *addresses) holding(id vpc.ENIID) holding {
	if of := s.byENI[id]; of != nil {
		return *of
	}
	return holding{}
}

// of lists the addresses of an interface, ordered.
func (s *addresses) of(id vpc.ENIID) []netip.Addr { return slices.Clone(s.holding(id).all) }

// freeOf lists the free addresses of an interface, ordered.
func (s *addresses) freeOf(id vpc.ENIID) (out []netip.Addr) {
	for _, free := range s.holding(id).free {
		out = insert(out, free.addr, netip.Addr.Compare)
	}
	return out
}

// heldBy is the address of an endpoint.
func (s *addresses) heldBy(id endpoint.ID) (*Address, bool) {
	addr, ok := s.byHolder[id]
	return s.rows[addr], ok
}

// holdsOther reports whether an endpoint has an address other than addr.
func (s *addresses) holdsOther(id endpoint.ID, addr netip.Addr) bool {
	held, ok := s.byHolder[id]
	return ok && held != addr
}

// ofForeign lists the addresses of pods that Trunkline did not wire, ordered.
func (s *addresses) ofForeign() []*Address {
	out := make([]*Address, 0, len(s.foreign))
	for _, addr := range slices.SortedFunc(maps.Keys(s.foreign), netip.Addr.Compare) {
		out = append(out, s.rows[addr])
	}
	return out
}

// inUse counts the addresses that are assigned or cooling down.
func (s *addresses) inUse() int { return len(s.byHolder) + len(s.foreign) + len(s.cooling) }

// nextCoolDownEnd is when the first cool-down ends; zero without one.
func (s *addresses) nextCoolDownEnd() time.Time {
	if len(s.cooling) == 0 {
		return time.Time{}
	}
	return s.cooling[0].at
}

// sorted lists all rows, ordered by address.
func (s *addresses) sorted() []*Address {
	out := make([]*Address, 0, len(s.rows))
	for _, a := range s.rows {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Address) int { return a.Addr.Compare(b.Addr) })
	return out
}
