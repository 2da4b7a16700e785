package ipam

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Settings are the fixed properties of a ledger.
type Settings struct {
	// CoolDown is how long a freed address is not assigned again.
	CoolDown time.Duration
	// IdleAfter is the window over which View reports the peak of use, until pods need
	// addresses soon after a release.
	IdleAfter time.Duration
}

// idleTime is the configured idle time of addresses, of which the cool-down is part.
func (s Settings) idleTime() time.Duration { return s.IdleAfter + s.CoolDown }

// Ledger records the node's interfaces and addresses. It is not safe for
// concurrent use: the caller holds a lock. Every method that changes something
// returns the records of the change; the caller journals them before it acts on
// the result.
type Ledger struct {
	settings Settings
	rows     rows
	volatile volatile
}

// volatile is the part of a ledger that is not journaled: it is zero in a new process.
// It is copied at the start of a transaction, so nothing it refers to is changed in place.
type volatile struct {
	claims claims // of the last Claim
	// coolNewUntil is until when new addresses start in a cool-down, see AssumeLost.
	coolNewUntil time.Time
	use          peak // after a restart the window is empty
	idle         idleTime
	observed     time.Time // last Observe
	latest       time.Time // the largest now seen
}

// New returns an empty ledger.
func New(s Settings) *Ledger { return &Ledger{settings: s, rows: newRows()} }

// Atomic runs f as a transaction: if f returns an error or panics, the ledger is as it
// was before. A transaction in a transaction panics. The cost is that of what f changes.
func (l *Ledger) Atomic(f func() error) error {
	before, keep := l.volatile, false
	l.rows.begin()
	defer func() {
		if l.rows.end(keep); !keep {
			l.volatile = before
		}
	}()
	if err := f(); err != nil {
		return err
	}
	keep = true
	return nil
}

// Replay applies records, oldest first: those that a ledger's methods returned, or
// those of Records. It stops with an error at the first invalid record; those before it
// stay applied.
func (l *Ledger) Replay(records []Record) error {
	for i, r := range records {
		if err := l.rows.apply(r); err != nil {
			return fmt.Errorf("replay record %d of %d: %w", i+1, len(records), err)
		}
	}
	return nil
}

// Records returns the shortest list of records that rebuilds the ledger: what a
// journal is compacted to. The order is stable.
func (l *Ledger) Records() []Record { return l.rows.records() }

// change applies records that the ledger made itself, and then the claims that have
// become applicable. It returns all of these records.
func (l *Ledger) change(now time.Time, records ...Record) []Record {
	l.rows.applyOwn(records)
	claimed := l.volatile.claims.due(&l.rows, now)
	l.rows.applyOwn(claimed)
	l.noteUse(now)
	return append(records, claimed...)
}

func (l *Ledger) noteUse(at time.Time) {
	l.volatile.use.note(stamp(at), l.rows.addresses.inUse(), l.window())
}

// window is the time over which View reports the peak of use.
func (l *Ledger) window() time.Duration { return l.settings.IdleAfter + l.volatile.idle.extra }

// expire ends cool-downs that are over, each at its own time. The caller journals no
// records of it: replaying the journal gives the same result, because Until is journaled.
func (l *Ledger) expire(now time.Time) {
	if at := stamp(now); l.volatile.setBack(at) {
		l.rewind(at)
	}
	for len(l.rows.addresses.cooling) > 0 {
		end := l.rows.addresses.nextCoolDownEnd()
		if now.Before(end) {
			break
		}
		l.rows.endFirstCoolDown()
		l.noteUse(end)
	}
	l.noteUse(now)
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
	free, err := l.rows.nextFree()
	if err != nil {
		return Lease{}, nil, err
	}
	taken := free.assigned(h, now)
	records := l.change(now, putAddress(taken))
	return l.rows.lease(&taken), records, nil
}

// Lookup returns the address of an endpoint.
func (l *Ledger) Lookup(id endpoint.ID) (Lease, bool) { return l.rows.leaseOf(id) }

// Leases returns every assigned address, ordered by address.
func (l *Ledger) Leases() []Lease {
	out := make([]Lease, 0, len(l.rows.addresses.byHolder))
	for _, a := range l.rows.addresses.sorted() {
		if a.State == Assigned {
			out = append(out, l.rows.lease(a))
		}
	}
	return out
}

// Release starts the cool-down of an endpoint's address. The caller has deleted the
// link: until then an endpoint that is being removed keeps its address. An endpoint
// without an address is no error and makes no records.
func (l *Ledger) Release(id endpoint.ID, now time.Time) []Record {
	l.Unclaim(id)
	a, ok := l.rows.addresses.heldBy(id)
	if !ok {
		return nil
	}
	return l.change(now, putAddress(a.cooled(now, l.settings.CoolDown)))
}

// Return undoes an Assign if the address was never put on a link: the address is free
// at once, without a cool-down. An endpoint without an address is no error and makes no
// records.
func (l *Ledger) Return(id endpoint.ID, now time.Time) []Record {
	a, ok := l.rows.addresses.heldBy(id)
	if !ok {
		return nil
	}
	return l.change(now, putAddress(a.returned(now)))
}

// Adopt records that an endpoint has addr, which is in the kernel and not in the ledger:
// the journal was lost, or AWS's daemon wired the pod. It fails with ErrUnknown if addr
// is on no interface of the ledger, and with ErrHeld if another endpoint holds it.
func (l *Ledger) Adopt(h Holder, addr netip.Addr, now time.Time) (Lease, []Record, error) {
	l.expire(now)
	a, ok := l.rows.addresses.rows[addr]
	if !ok {
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: %w", addr, h, ErrUnknown)
	}
	if held, ok := l.rows.addresses.byHolder[h.Endpoint]; ok && held != addr {
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: it has %s: %w", addr, h, held, ErrHeld)
	}
	switch {
	case a.State == Assigned && a.Holder.Endpoint == h.Endpoint:
		return l.rows.lease(a), nil, nil
	case a.State == Assigned && !a.Holder.Foreign():
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: %s has it: %w", addr, h, a.Holder, ErrHeld)
	case a.State == Releasing:
		return Lease{}, nil, fmt.Errorf("adopt %s for %s: it is being released: %w", addr, h, ErrHeld)
	}
	taken := a.assigned(h, now)
	records := l.change(now, putAddress(taken))
	return l.rows.lease(&taken), records, nil
}

// AssumeLost records that an earlier ledger existed and was lost. A pod may have just
// released any address that EC2 shows, so addresses that are observed within the next
// Settings.CoolDown start in a cool-down.
func (l *Ledger) AssumeLost(now time.Time) {
	l.volatile.coolNewUntil = stamp(now).Add(l.settings.CoolDown)
}

// Restart adapts a replayed ledger to a new process and its clock. A cool-down can
// never last longer than Settings.CoolDown from now, even if the clock was set back, and a
// back-off no longer than those of its cause: it is kept, so that an agent that crashes again
// and again does not repeat a refused call at each start. A SetUp in flight is dropped: configuring the kernel is idempotent and is planned again.
// Actions at EC2 stay in flight until their outcome is known.
func (l *Ledger) Restart(now time.Time) []Record {
	records := append(l.rows.outdated(now), l.rows.restarted(stamp(now), l.settings.CoolDown)...)
	if records != nil {
		records = l.change(now, records...)
	}
	l.rewind(stamp(now))
	return records
}
