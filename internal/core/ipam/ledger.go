package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// staleAfter is for how long a describe may be stale: it may still show an address that
// was released, and not yet show a new one. Within it, the ledger's own record of the
// call takes precedence.
const staleAfter = time.Minute

// Settings are the fixed properties of a ledger.
type Settings struct {
	// CoolDown is how long a freed address is not assigned again.
	CoolDown time.Duration
	// IdleAfter is the window over which View reports the peak of use.
	IdleAfter time.Duration
}

// Ledger records the node's interfaces and addresses. It is not safe for
// concurrent use: the caller holds a lock. Every method that changes something
// returns the records of the change; the caller journals them before it acts on
// the result.
type Ledger struct {
	settings  Settings
	enis      map[vpc.ENIID]*ENI
	addresses map[netip.Addr]*Address
	byENI     map[vpc.ENIID]map[netip.Addr]struct{}
	byHolder  map[endpoint.ID]netip.Addr // of endpoints
	actions   map[cloud.ActionID]cloud.Action
	backoffs  map[string]Backoff
	gone      map[netip.Addr]time.Time // released addresses; a stale describe may still show them
	goneENIs  map[vpc.ENIID]time.Time  // deleted interfaces, likewise
	claims    map[netip.Addr]Claim     // of the last Claim; not journaled
	// coolNewUntil is until when new addresses start in a cool-down, see AssumeLost; not journaled
	coolNewUntil time.Time
	use          peak      // not journaled: after a restart the window is empty
	released     time.Time // last Begin of a freeing action; not journaled
	observed     time.Time // last Observe; not journaled
	latest       time.Time // the largest now seen; not journaled
}

// New returns an empty ledger.
func New(s Settings) *Ledger {
	return &Ledger{
		settings:  s,
		enis:      make(map[vpc.ENIID]*ENI),
		addresses: make(map[netip.Addr]*Address),
		byENI:     make(map[vpc.ENIID]map[netip.Addr]struct{}),
		byHolder:  make(map[endpoint.ID]netip.Addr),
		actions:   make(map[cloud.ActionID]cloud.Action),
		backoffs:  make(map[string]Backoff),
		gone:      make(map[netip.Addr]time.Time),
		goneENIs:  make(map[vpc.ENIID]time.Time),
	}
}

// Clone returns a copy that shares nothing with the ledger that changes.
func (l *Ledger) Clone() *Ledger {
	c := *l
	c.enis, c.addresses = cloneRows(l.enis), cloneRows(l.addresses)
	c.byENI = make(map[vpc.ENIID]map[netip.Addr]struct{}, len(l.byENI))
	for id, of := range l.byENI {
		c.byENI[id] = maps.Clone(of)
	}
	c.byHolder, c.actions, c.backoffs = maps.Clone(l.byHolder), maps.Clone(l.actions), maps.Clone(l.backoffs)
	c.gone, c.goneENIs, c.claims = maps.Clone(l.gone), maps.Clone(l.goneENIs), maps.Clone(l.claims)
	c.use.earlier = slices.Clone(l.use.earlier)
	return &c
}

// cloneRows copies rows that are changed in place.
func cloneRows[K comparable, T any](rows map[K]*T) map[K]*T {
	clone, all := make(map[K]*T, len(rows)), make([]T, 0, len(rows))
	for key, row := range rows {
		all = append(all, *row)
		clone[key] = &all[len(all)-1]
	}
	return clone
}

// stamp removes the monotonic reading and the location, which JSON does not carry, so
// that a replayed ledger is equal.
func stamp(t time.Time) time.Time { return t.Round(0).UTC() }

// change applies records that the ledger made itself, and then the claims that have
// become applicable. It returns all of these records. They are valid by construction,
// so an error is a defect of this package.
func (l *Ledger) change(now time.Time, records ...Record) []Record {
	l.applyOwn(records)
	claimed := l.claimed(now)
	l.applyOwn(claimed)
	records = append(records, claimed...)
	l.use.note(stamp(now), l.inUse(), l.settings.IdleAfter)
	return records
}

func (l *Ledger) applyOwn(records []Record) {
	for _, r := range records {
		if err := l.apply(r); err != nil {
			panic("ipam: own record refused: " + err.Error())
		}
	}
}

func putAddress(a Address) Record { return Record{Op: PutAddress, Address: &a} }
func putENI(e ENI) Record         { return Record{Op: PutENI, ENI: &e} }

// expire ends cool-downs that are over, each at its own time. It makes no records:
// replaying the journal gives the same result, because Until is journaled.
func (l *Ledger) expire(now time.Time) {
	l.trackClock(now)
	var over []*Address
	for _, a := range l.addresses {
		if a.State == Cooling && !now.Before(a.Until) {
			over = append(over, a)
		}
	}
	slices.SortFunc(over, func(a, b *Address) int { return a.Until.Compare(b.Until) })
	for _, a := range over {
		a.State, a.Since, a.Until = Free, a.Until, time.Time{}
		l.use.note(a.Since, l.inUse(), l.settings.IdleAfter)
	}
	l.use.note(stamp(now), l.inUse(), l.settings.IdleAfter)
}

// nextCoolDownEnd is when the first cool-down ends; zero without one.
func (l *Ledger) nextCoolDownEnd() (first time.Time) {
	for _, a := range l.addresses {
		if a.State == Cooling && (first.IsZero() || a.Until.Before(first)) {
			first = a.Until
		}
	}
	return first
}

// inUse counts the addresses that are assigned or cooling down.
func (l *Ledger) inUse() int {
	n := 0
	for _, a := range l.addresses {
		if a.State == Assigned || a.State == Cooling {
			n++
		}
	}
	return n
}

// Assign assigns an address to an endpoint. An endpoint that has one gets the same
// address and no records. It uses the ready interface with the most addresses in use, so
// that others become idle and can be removed, and of it the address unused for longest.
// Errors wrap ErrNoAddress: ErrPoolEmpty or ErrAllCooling; Plan's Condition has the
// cause and the time of the next attempt.
func (l *Ledger) Assign(h Holder, now time.Time) (Lease, []Record, error) {
	if h.Foreign() {
		return Lease{}, nil, fmt.Errorf("assign to %s: an endpoint is needed", h)
	}
	if lease, ok := l.Lookup(h.Endpoint); ok {
		return lease, nil, nil
	}
	l.expire(now)
	addr, err := l.choose()
	if err != nil {
		return Lease{}, nil, err
	}
	a := *l.addresses[addr]
	a.State, a.Holder, a.Since = Assigned, h, stamp(now)
	records := l.change(now, putAddress(a))
	return l.lease(a), records, nil
}

// choose returns the address for the next pod.
func (l *Ledger) choose() (netip.Addr, error) {
	var best *Address
	var bestENI *ENI
	bestUsed, cooling := -1, 0
	for id, e := range l.enis {
		if !e.pooled() || e.Phase != Ready || !e.Missing.IsZero() {
			continue
		}
		oldest, used, cool := l.oldestFree(id)
		cooling += cool
		if oldest == nil {
			continue
		}
		if best == nil || used > bestUsed || used == bestUsed && before(e, bestENI) {
			best, bestENI, bestUsed = oldest, e, used
		}
	}
	switch {
	case best != nil:
		return best.Addr, nil
	case cooling > 0:
		return netip.Addr{}, ErrAllCooling
	default:
		return netip.Addr{}, ErrPoolEmpty
	}
}

// oldestFree returns the free address of interface id that was used longest ago, and
// how many addresses of the interface are in use and cooling.
func (l *Ledger) oldestFree(id vpc.ENIID) (oldest *Address, used, cooling int) {
	for addr := range l.byENI[id] {
		a := l.addresses[addr]
		switch a.State {
		case Free:
			if oldest == nil || a.Used.Before(oldest.Used) ||
				a.Used.Equal(oldest.Used) && a.Addr.Less(oldest.Addr) {
				oldest = a
			}
		case Assigned, Quarantined:
			used++
		case Cooling:
			cooling++
		case Releasing, Unconfirmed:
		}
	}
	return oldest, used, cooling
}

// before orders interfaces: the primary, then by device index, then by id.
func before(a, b *ENI) bool {
	if a.Primary != b.Primary {
		return a.Primary
	}
	if a.Device != b.Device {
		return a.Device < b.Device
	}
	return a.ID < b.ID
}

func (l *Ledger) lease(a Address) Lease {
	e := l.enis[a.ENI]
	return Lease{
		Holder: a.Holder, Addr: a.Addr, ENI: a.ENI, Primary: e.Primary, Device: e.Device,
		MAC: e.MAC, Subnet: e.SubnetCIDR, Gateway: vpc.Gateway(e.SubnetCIDR),
		Since: a.Since, Family: a.Family(),
	}
}

// Lookup returns the address of an endpoint.
func (l *Ledger) Lookup(id endpoint.ID) (Lease, bool) {
	addr, ok := l.byHolder[id]
	if !ok {
		return Lease{}, false
	}
	return l.lease(*l.addresses[addr]), true
}

// Leases returns every assigned address, ordered by address.
func (l *Ledger) Leases() []Lease {
	out := make([]Lease, 0, len(l.byHolder))
	for _, a := range l.sortedAddresses() {
		if a.State == Assigned {
			out = append(out, l.lease(a))
		}
	}
	return out
}

// Release starts the cool-down of an endpoint's address. The caller has deleted the
// link: until then an endpoint that is being removed keeps its address. An endpoint
// without an address is no error and makes no records.
func (l *Ledger) Release(id endpoint.ID, now time.Time) []Record {
	l.Unclaim(id)
	addr, ok := l.byHolder[id]
	if !ok {
		return nil
	}
	return l.change(now, putAddress(l.cooled(*l.addresses[addr], now)))
}

// cooled returns a without its holder and at the start of its cool-down.
func (l *Ledger) cooled(a Address, now time.Time) Address {
	a.State, a.Holder = Cooling, Holder{}
	a.Since, a.Used = stamp(now), stamp(now)
	a.Until = a.Since.Add(l.settings.CoolDown)
	if !a.Missing.IsZero() {
		a.State, a.Until, a.Missing = Unconfirmed, time.Time{}, time.Time{}
	}
	return a
}

// Return undoes an Assign if the address was never put on a link: the address is free
// at once, without a cool-down. An endpoint without an address is no error and makes no
// records.
func (l *Ledger) Return(id endpoint.ID, now time.Time) []Record {
	addr, ok := l.byHolder[id]
	if !ok {
		return nil
	}
	a := *l.addresses[addr]
	a.State, a.Holder, a.Since = Free, Holder{}, stamp(now)
	if !a.Missing.IsZero() {
		a.State, a.Missing = Unconfirmed, time.Time{}
	}
	return l.change(now, putAddress(a))
}

// Adopt records that an endpoint has addr, which is in the kernel and not in the ledger:
// the journal was lost, or AWS's daemon wired the pod. It fails with ErrUnknown if addr
// is on no interface of the ledger, and with ErrHeld if another endpoint holds it.
func (l *Ledger) Adopt(h Holder, addr netip.Addr, now time.Time) (Lease, []Record, error) {
	l.expire(now)
	a, ok := l.addresses[addr]
	if !ok {
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: %w", addr, h, ErrUnknown)
	}
	if held, ok := l.byHolder[h.Endpoint]; ok && held != addr {
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: it has %s: %w", addr, h, held, ErrHeld)
	}
	switch {
	case a.State == Assigned && a.Holder.Endpoint == h.Endpoint:
		return l.lease(*a), nil, nil
	case a.State == Assigned && !a.Holder.Foreign():
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: %s has it: %w", addr, h, a.Holder, ErrHeld)
	case a.State == Releasing:
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: it is being released: %w", addr, h, ErrHeld)
	}
	taken := *a
	taken.State, taken.Holder, taken.Since, taken.Until = Assigned, h, stamp(now), time.Time{}
	records := l.change(now, putAddress(taken))
	return l.lease(taken), records, nil
}

// AssumeLost records that an earlier ledger existed and was lost. A pod may have just
// released any address that EC2 shows, so addresses that are observed within the next
// Settings.CoolDown start in a cool-down.
func (l *Ledger) AssumeLost(now time.Time) { l.coolNewUntil = stamp(now).Add(l.settings.CoolDown) }

// Restart adapts a replayed ledger to a new process and its clock. A cool-down can
// never last longer than Settings.CoolDown from now, even if the clock was set back. A
// SetUp in flight is dropped: configuring the kernel is idempotent and is planned again.
// Actions at EC2 stay in flight until their outcome is known.
func (l *Ledger) Restart(now time.Time) []Record {
	latest := stamp(now).Add(l.settings.CoolDown)
	records := l.outdated(now)
	for _, a := range l.sortedAddresses() {
		if a.State == Cooling && a.Until.After(latest) {
			a.Until = latest
			records = append(records, putAddress(a))
		}
	}
	for _, id := range sortedKeys(l.actions) {
		if l.actions[id].Kind == cloud.SetUp {
			records = append(records, Record{Op: DropAction, ID: id})
		}
	}
	for _, key := range sortedKeys(l.backoffs) {
		if b := l.backoffs[key]; b.Until.After(now.Add(maxBackoff)) {
			records = append(records, Record{Op: DropBackoff, Scope: key})
		}
	}
	if records != nil {
		records = l.change(now, records...)
	}
	l.rewind(stamp(now))
	return records
}
