package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Observed is one interface as EC2 describes it. Describes are eventually
// consistent; the ledger takes nothing from a single one that could hurt a pod.
type Observed struct {
	ENI ENI // ID, Type, Primary, Device (-1: not attached), Attachment, MAC, Subnet, SubnetCIDR, PrimaryIP, Groups, Unmanaged, Created
	// Attached: it is on this instance. One that is not, but carries our tags, is
	// taken over: attached where the instance has room, else deleted.
	Attached bool
	// Intent is the id of the action that created it, by its tag.
	Intent cloud.ActionID
	// Addresses are its secondary addresses.
	Addresses []netip.Addr
}

// Drift is a difference between the ledger and EC2 that people should know of.
type Drift struct {
	ENI     vpc.ENIID
	Addr    netip.Addr // not valid: the interface itself
	Message string
}

// Observe compares the ledger with what EC2 shows of this instance's interfaces,
// all of them, and takes over what is right:
//
//   - an unknown interface is booked, unless an action in flight will book it;
//   - an unknown address is unconfirmed, and free once a second look, a while
//     later, shows it again; never if we gave it back a moment ago;
//   - an unused address that is not shown is unconfirmed, and dropped once a second
//     look agrees; an address in use is never taken from a pod: it is reported and,
//     once a second look agrees, Plan has it assigned to its interface again;
//   - an interface that stays away is dropped when no pod uses it.
//
// The first look of an empty ledger takes addresses as they are: nothing can be
// known better.
func (l *Ledger) Observe(seen []Observed, now time.Time) ([]Record, []Drift) {
	l.expire(now)
	first := len(l.enis) == 0
	o := observer{l: l, now: now, first: first, shown: make(map[vpc.ENIID]bool)}
	for _, e := range seen {
		o.shown[e.ENI.ID] = true
		o.eni(e)
	}
	for _, id := range sortedKeys(l.enis) {
		if !o.shown[id] {
			o.absent(l.enis[id])
		}
	}
	l.observed = stamp(now)
	if len(o.records) == 0 {
		return nil, o.drift
	}
	return l.change(now, o.records...), o.drift
}

type observer struct {
	l       *Ledger
	now     time.Time
	first   bool
	shown   map[vpc.ENIID]bool
	records []Record
	drift   []Drift
}

func (o *observer) put(a Address) { o.records = append(o.records, putAddress(a)) }

func (o *observer) report(id vpc.ENIID, addr netip.Addr, format string, args ...any) {
	o.drift = append(o.drift, Drift{ENI: id, Addr: addr, Message: fmt.Sprintf(format, args...)})
}

// busy reports whether an action on the interface is in flight: its effect is
// booked by Settle, and a describe may show any part of it.
func (o *observer) busy(id vpc.ENIID) bool {
	for _, a := range o.l.actions {
		if a.ENI == id {
			return true
		}
	}
	return false
}

func (o *observer) eni(e Observed) {
	if _, flying := o.l.actions[e.Intent]; flying && e.Intent != "" {
		return
	}
	row, known := o.l.enis[e.ENI.ID]
	if at, gone := o.l.goneENIs[e.ENI.ID]; !known && gone && o.now.Sub(at) < staleAfter {
		return // deleted a moment ago; EC2 has not noticed everywhere
	}
	if !known {
		o.adopt(e)
		return
	}
	if o.busy(row.ID) {
		return
	}
	fresh := o.merge(*row, e)
	if !equalENI(fresh, *row) {
		o.records = append(o.records, putENI(fresh))
	}
	if fresh.Phase == Detaching || fresh.Phase == Deleting {
		return
	}
	for _, addr := range e.Addresses {
		o.shownAddress(row.ID, addr)
	}
	for _, addr := range sortedAddrs(o.l.byENI[row.ID]) {
		if !slices.Contains(e.Addresses, addr) {
			o.missingAddress(*o.l.addresses[addr])
		}
	}
}

// adopt books an interface the ledger did not know.
func (o *observer) adopt(e Observed) {
	row := e.ENI
	row.Missing = time.Time{}
	row.Since = stamp(o.now)
	row.Created = stamp(row.Created)
	if row.Created.IsZero() {
		row.Created = stamp(o.now)
	}
	switch {
	case row.Primary:
		row.Phase = Ready
	case e.Attached:
		row.Phase = SettingUp
	case row.Unmanaged:
		return // not on the instance and not ours
	default:
		row.Phase, row.Device, row.Attachment = Attaching, -1, ""
	}
	o.records = append(o.records, putENI(row))
	if !o.first && !row.Unmanaged {
		o.report(row.ID, netip.Addr{}, "interface %s was not in the ledger; it is now", row.ID)
	}
	for _, addr := range e.Addresses {
		if old, ok := o.l.addresses[addr]; ok {
			o.report(row.ID, addr, "%s is shown on %s and was on %s", addr, row.ID, old.ENI)
			continue
		}
		fresh := Address{Addr: addr, ENI: row.ID, State: Unconfirmed, Since: stamp(o.now)}
		if o.first {
			fresh = o.unused(fresh)
		}
		o.put(fresh)
	}
}

// unused is an address that EC2 shows and nobody has: free, unless a pod may have had
// it a moment ago by a ledger that was lost.
func (o *observer) unused(a Address) Address {
	a.State, a.Since = Free, stamp(o.now)
	if stamp(o.now).Before(o.l.unsure) {
		a.State, a.Until = Cooling, o.l.unsure
	}
	return a
}

// merge takes over what EC2 knows better. Phases move only where our own record
// cannot be right.
func (o *observer) merge(row ENI, e Observed) ENI {
	row.Unmanaged = e.ENI.Unmanaged
	row.Type = e.ENI.Type
	row.Missing = time.Time{}
	if len(e.ENI.Groups) > 0 {
		row.Groups = e.ENI.Groups
	}
	settled := o.now.Sub(row.Since) >= staleAfter
	switch {
	case e.Attached && row.Phase == Attaching:
		row.Phase, row.Since = SettingUp, stamp(o.now)
		row.Attachment, row.Device = e.ENI.Attachment, e.ENI.Device
	case !e.Attached && settled && (row.Phase == Ready || row.Phase == SettingUp) && !row.Primary:
		o.report(row.ID, netip.Addr{}, "interface %s is no longer attached to this instance", row.ID)
		row.Phase, row.Since, row.Device, row.Attachment = Attaching, stamp(o.now), -1, ""
	case !e.Attached && settled && row.Phase == Detaching:
		row.Phase, row.Since = Deleting, stamp(o.now)
	}
	return row
}

func equalENI(a, b ENI) bool {
	if !slices.Equal(a.Groups, b.Groups) {
		return false
	}
	a.Groups, b.Groups = nil, nil
	return a.ID == b.ID && a.Type == b.Type && a.Phase == b.Phase && a.Device == b.Device &&
		a.Attachment == b.Attachment && a.Unmanaged == b.Unmanaged && a.Missing.Equal(b.Missing)
}

func (o *observer) shownAddress(id vpc.ENIID, addr netip.Addr) {
	row, known := o.l.addresses[addr]
	switch {
	case known && row.ENI != id:
		o.report(id, addr, "%s is shown on %s and booked on %s", addr, id, row.ENI)
	case known && row.State == Unconfirmed:
		if o.now.Sub(row.Since) >= confirmAfter {
			o.put(o.unused(*row))
		}
	case known:
		if !row.Missing.IsZero() {
			back := *row
			back.Missing = time.Time{}
			o.put(back)
		}
	default:
		if at, gone := o.l.gone[addr]; gone && o.now.Sub(at) < staleAfter {
			return
		}
		o.report(id, addr, "%s is on %s and was not in the ledger; it is used once it is confirmed", addr, id)
		o.put(Address{Addr: addr, ENI: id, State: Unconfirmed, Since: stamp(o.now), Used: o.l.gone[addr]})
	}
}

// confirmAfter is how far apart two looks must be to count as two.
const confirmAfter = 5 * time.Second

func (o *observer) missingAddress(row Address) {
	age := o.now.Sub(row.Since)
	switch row.State {
	case Assigned, Quarantined:
		if age < staleAfter {
			return
		}
		o.report(row.ENI, row.Addr, "%s is given to %s and EC2 does not show it on %s; its traffic is lost until it is assigned again", row.Addr, row.Holder, row.ENI)
		if row.Missing.IsZero() {
			row.Missing = stamp(o.now)
			o.put(row)
		}
	case Free:
		if age >= staleAfter {
			o.report(row.ENI, row.Addr, "%s is no longer shown on %s; it is not given out", row.Addr, row.ENI)
			row.State, row.Since = Unconfirmed, stamp(o.now)
			o.put(row)
		}
	case Unconfirmed:
		if age >= confirmAfter {
			o.records = append(o.records, Record{Op: DropAddress, Addr: row.Addr})
		}
	case Cooling, Releasing: // not given out anyhow; when free, or when unassigned, it shows
	}
}

// absent handles an interface that EC2 does not show at all.
func (o *observer) absent(e *ENI) {
	if o.busy(e.ID) || e.Phase == Deleting || o.now.Sub(e.Since) < staleAfter {
		return
	}
	if e.Missing.IsZero() {
		o.report(e.ID, netip.Addr{}, "EC2 does not show interface %s", e.ID)
		row := *e
		row.Missing = stamp(o.now)
		o.records = append(o.records, putENI(row))
		return
	}
	if o.now.Sub(e.Missing) < staleAfter {
		return
	}
	for addr := range o.l.byENI[e.ID] {
		if a := o.l.addresses[addr]; a.State == Assigned || a.State == Quarantined {
			o.report(e.ID, netip.Addr{}, "interface %s is gone at EC2; %s and others on it have no network: delete them", e.ID, a.Holder)
			return
		}
	}
	o.report(e.ID, netip.Addr{}, "interface %s is gone at EC2 and was dropped", e.ID)
	for _, addr := range sortedAddrs(o.l.byENI[e.ID]) { // a keyed journal has a row for each
		o.records = append(o.records, Record{Op: DropAddress, Addr: addr})
	}
	o.records = append(o.records, Record{Op: DropENI, ENIID: e.ID})
}
