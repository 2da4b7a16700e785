package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Observed is one interface as EC2 describes it. Describes are eventually consistent,
// so a single one neither frees nor drops an address that a pod may use.
type Observed struct {
	// ENI has ID, Type, Primary, Card, Device (-1: not attached), Attachment, MAC, Subnet,
	// SubnetCIDR, PrimaryIP, Groups, Prefixes, Unmanaged, WhyUnmanaged, Created.
	ENI ENI
	// Attached: it is attached to this instance. An interface that is not, and is ours, is
	// attached if the instance has a free slot and else deleted.
	Attached bool
	// NotOurs is why an interface that is not attached is not ours, although it has the tag
	// of this instance; see Provenance. Empty: it is ours.
	NotOurs string
	// Intent is the id of the action that created it, from its tag.
	Intent cloud.ActionID
	// Addresses are its secondary addresses.
	Addresses []netip.Addr
}

// Drift is a difference between the ledger and EC2 that is reported to users.
type Drift struct {
	ENI     vpc.ENIID
	Addr    netip.Addr // not valid: the interface itself
	Message string
}

// Observe compares the ledger with what EC2 shows of this instance's interfaces,
// all of them, and records the differences:
//
//   - an unknown interface is recorded, unless an action in flight created it: then
//     Settle records it; one that is neither attached nor ours is reported only;
//   - an unknown address is unconfirmed, and free once a second observation, at least
//     confirmAfter later, shows it too; it is ignored if we released it less than
//     staleAfter ago;
//   - an unused address that is not shown is unconfirmed, and dropped if a second
//     observation does not show it either; an address in use stays assigned: it is
//     reported and, after a second observation, Plan restores it on its interface;
//   - an interface that two observations, staleAfter apart, do not show is dropped if
//     no pod uses it, and so is a prefix;
//   - an interface that was to be removed is not, if it turns out that it has a prefix or
//     that a pod of another CNI uses it.
//
// An empty ledger has nothing to compare with: its first observation is recorded
// without a confirmation.
func (l *Ledger) Observe(seen []Observed, now time.Time) ([]Record, []Drift) {
	l.expire(now)
	o := observer{
		rows: &l.rows, claimed: l.volatile.claims.unassigned(&l.rows), now: now,
		first: len(l.rows.enis) == 0, coolNewUntil: l.volatile.coolNewUntil,
		shown: make(map[vpc.ENIID]bool), added: make(map[netip.Addr]vpc.ENIID),
	}
	for _, e := range seen {
		o.shown[e.ENI.ID] = true
		o.eni(e)
	}
	for _, id := range slices.Sorted(maps.Keys(l.rows.enis)) {
		if !o.shown[id] {
			o.absent(l.rows.enis[id])
		}
	}
	l.volatile.observed = stamp(now)
	o.records = append(o.records, l.rows.credentialsAccepted()...) // EC2 has answered a describe
	if len(o.records) == 0 {
		return nil, o.drift
	}
	return l.change(now, o.records...), o.drift
}

// observer compares rows with an observation and collects the records of the differences.
type observer struct {
	rows         *rows
	claimed      map[vpc.ENIID][]Claimed
	now          time.Time
	first        bool      // there is nothing to compare with
	coolNewUntil time.Time // of the ledger
	shown        map[vpc.ENIID]bool
	added        map[netip.Addr]vpc.ENIID // addresses that the ledger did not have
	records      []Record
	drift        []Drift
}

func (o *observer) put(a Address) { o.records = append(o.records, putAddress(a)) }

// add records an address that the ledger does not have. A describe may show one that was
// moved on both interfaces: it is recorded once only one of them shows it.
func (o *observer) add(a Address) {
	on, twice := o.added[a.Addr]
	if twice && on != a.ENI {
		o.report(a.ENI, a.Addr, "EC2 shows %s on %s and on %s; no pod gets it until only one has it", a.Addr, on, a.ENI)
		o.records = slices.DeleteFunc(o.records, func(r Record) bool { return r.Op == PutAddress && r.Address.Addr == a.Addr })
		return
	}
	o.added[a.Addr] = a.ENI
	o.put(a)
}

func (o *observer) report(id vpc.ENIID, addr netip.Addr, format string, args ...any) {
	o.drift = append(o.drift, Drift{ENI: id, Addr: addr, Message: fmt.Sprintf(format, args...)})
}

// busy reports whether an action on the interface is in flight. Settle records its
// effect; until then a describe may show any part of it.
func (o *observer) busy(id vpc.ENIID) bool {
	_, busy := o.rows.inFlightOn(id)
	return busy
}

func (o *observer) eni(e Observed) {
	if _, inFlight := o.rows.actions[e.Intent]; inFlight && e.Intent != "" {
		return
	}
	row, known := o.rows.enis[e.ENI.ID]
	if !known && o.rows.released.recent(Gone{ENI: e.ENI.ID}, o.now) {
		return // we deleted it; the describe is stale
	}
	if !known {
		o.adopt(e)
		return
	}
	if o.busy(row.ID) {
		return
	}
	fresh := o.keep(o.merge(*row, e), e)
	if !equalENI(fresh, *row) {
		o.records = append(o.records, putENI(fresh))
	}
	if fresh.Phase == Detaching || fresh.Phase == Deleting {
		return
	}
	for _, addr := range e.Addresses {
		o.shownAddress(row.ID, addr)
	}
	for _, addr := range o.rows.addresses.of(row.ID) {
		if !slices.Contains(e.Addresses, addr) {
			o.missingAddress(*o.rows.addresses.rows[addr])
		}
	}
}

// adopt records an interface that the ledger does not have.
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
		return // neither attached nor ours
	case e.NotOurs != "":
		o.report(row.ID, netip.Addr{}, "interface %s has the tag of this instance, but %s: it is neither used nor deleted; delete it, or correct its tags", row.ID, e.NotOurs)
		return
	default:
		row.Phase, row.Device, row.Attachment = Attaching, -1, ""
	}
	o.records = append(o.records, putENI(row))
	if !o.first && !row.Unmanaged {
		o.report(row.ID, netip.Addr{}, "interface %s was not in the ledger; it is now", row.ID)
	}
	for _, addr := range e.Addresses {
		if old, ok := o.rows.addresses.rows[addr]; ok {
			o.report(row.ID, addr, "EC2 shows %s on %s, the ledger has it on %s", addr, row.ID, old.ENI)
			continue
		}
		fresh := Address{Addr: addr, ENI: row.ID, State: Unconfirmed, Since: stamp(o.now)}
		if o.first {
			fresh = o.unused(fresh)
		}
		o.add(fresh)
	}
}

// unused returns an address that EC2 shows and no pod holds as free, or in a cool-down
// if a lost ledger may have assigned it, see AssumeLost.
func (o *observer) unused(a Address) Address {
	a.State, a.Since = Free, stamp(o.now)
	if stamp(o.now).Before(o.coolNewUntil) {
		a.State, a.Until = Cooling, o.coolNewUntil
	}
	return a
}

// merge returns row with the properties that EC2 decides. It changes the phase only if
// EC2 contradicts it, and not on a describe that may be stale.
func (o *observer) merge(row ENI, e Observed) ENI {
	row.Unmanaged, row.WhyUnmanaged = e.ENI.Unmanaged, e.ENI.WhyUnmanaged
	row.Type = e.ENI.Type
	row.Missing = time.Time{}
	row.Prefixes = o.prefixes(row, e.ENI.Prefixes)
	if len(e.ENI.Groups) > 0 {
		row.Groups = e.ENI.Groups
	}
	settled := o.now.Sub(row.Since) >= staleAfter
	again := e.Attached && settled && attachedAgain(row, e.ENI)
	if again {
		o.report(row.ID, netip.Addr{}, "interface %s was detached from this instance and attached again", row.ID)
	}
	switch {
	case e.Attached && row.Phase == Attaching, again:
		row.Phase, row.Since = SettingUp, stamp(o.now)
		row.Attachment, row.Card, row.Device = e.ENI.Attachment, e.ENI.Card, e.ENI.Device
	case !e.Attached && settled && (row.Phase == Ready || row.Phase == SettingUp) && !row.Primary:
		o.report(row.ID, netip.Addr{}, "interface %s is no longer attached to this instance", row.ID)
		row.Phase, row.Since, row.Card, row.Device, row.Attachment = Attaching, stamp(o.now), vpc.DefaultCard, -1, ""
	case !e.Attached && settled && row.Phase == Detaching:
		row.Phase, row.Since = Deleting, stamp(o.now)
	}
	return row
}

// attachedAgain reports whether an interface has another attachment than recorded: a detachment by the
// recorded one has no effect, and its device, which its route table follows from, may be another.
func attachedAgain(row, shown ENI) bool {
	return !row.Primary && (row.Phase == Ready || row.Phase == SettingUp) && row.Attachment != "" && shown.Attachment != "" && shown.Attachment != row.Attachment
}

// prefixes are those of row after an observation. One that is not shown stays until it
// was missing for staleAfter, and for as long as pods use addresses of it.
func (o *observer) prefixes(row ENI, shown []Prefix) []Prefix {
	fresh := slices.Clone(shown)
	for _, old := range row.Prefixes {
		switch {
		case slices.ContainsFunc(shown, func(p Prefix) bool { return p.CIDR == old.CIDR }):
			continue
		case old.Missing.IsZero():
			o.report(row.ID, netip.Addr{}, "EC2 does not show prefix %s on %s", old.CIDR, row.ID)
			old.Missing = stamp(o.now)
		case o.now.Sub(old.Missing) >= staleAfter && !o.uses(row.ID, old.CIDR):
			continue
		}
		fresh = append(fresh, old)
	}
	slices.SortFunc(fresh, func(a, b Prefix) int { return a.CIDR.Compare(b.CIDR) })
	return fresh
}

// uses reports whether a pod uses an address of a prefix of the interface.
func (o *observer) uses(id vpc.ENIID, prefix netip.Prefix) bool {
	return slices.ContainsFunc(o.claimed[id], func(c Claimed) bool { return prefix.Contains(c.Addr) })
}

// keep returns row so that it is not removed if it is to be kept, see ENIView.Kept. Its
// addresses were fenced: those that EC2 shows are usable again after a confirmation.
func (o *observer) keep(row ENI, e Observed) ENI {
	why := o.rows.view(row, o.claimed[row.ID]).Kept()
	switch {
	case why == "":
		return row
	case row.Phase == Detaching && e.Attached:
		row = row.moved(SettingUp, o.now)
	case (row.Phase == Detaching || row.Phase == Deleting) && !e.Attached:
		row = row.moved(Attaching, o.now)
		row.Device, row.Attachment = -1, ""
	default:
		return row
	}
	o.report(row.ID, netip.Addr{}, "interface %s was to be removed; it is %s", row.ID, why)
	for _, addr := range o.rows.addresses.of(row.ID) {
		if a := *o.rows.addresses.rows[addr]; a.State == Releasing && slices.Contains(e.Addresses, addr) {
			a.State, a.Since = Unconfirmed, stamp(o.now)
			o.put(a)
		}
	}
	return row
}

func equalENI(a, b ENI) bool {
	return a.ID == b.ID && a.Type == b.Type && a.Phase == b.Phase && a.Card == b.Card && a.Device == b.Device &&
		a.Attachment == b.Attachment && a.Unmanaged == b.Unmanaged && a.WhyUnmanaged == b.WhyUnmanaged &&
		a.Missing.Equal(b.Missing) && slices.Equal(a.Groups, b.Groups) && slices.EqualFunc(a.Prefixes, b.Prefixes, Prefix.equal)
}

func (o *observer) shownAddress(id vpc.ENIID, addr netip.Addr) {
	row, known := o.rows.addresses.rows[addr]
	switch {
	case known && row.ENI != id:
		o.report(id, addr, "EC2 shows %s on %s, the ledger has it on %s", addr, id, row.ENI)
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
		if o.rows.released.recent(Gone{Addr: addr}, o.now) {
			return
		}
		o.report(id, addr, "%s is on %s and was not in the ledger; it is used after a second observation", addr, id)
		o.add(Address{Addr: addr, ENI: id, State: Unconfirmed, Since: stamp(o.now), Used: o.rows.released.addresses[addr]})
	}
}

// confirmAfter is the least time between two observations that confirm a difference.
const confirmAfter = 5 * time.Second

func (o *observer) missingAddress(row Address) {
	age := o.now.Sub(row.Since)
	switch row.State {
	case Assigned, Quarantined:
		if age < staleAfter {
			return
		}
		o.report(row.ENI, row.Addr, "%s is assigned to %s and EC2 does not show it on %s; its traffic is lost until EC2 has assigned it again", row.Addr, row.Holder, row.ENI)
		if row.Missing.IsZero() {
			row.Missing = stamp(o.now)
			o.put(row)
		}
	case Free:
		if age >= staleAfter {
			o.report(row.ENI, row.Addr, "EC2 no longer shows %s on %s; no pod gets it", row.Addr, row.ENI)
			row.State, row.Since = Unconfirmed, stamp(o.now)
			o.put(row)
		}
	case Unconfirmed:
		if age >= confirmAfter {
			o.records = append(o.records, Record{Op: DropAddress, Addr: row.Addr})
		}
	case Cooling, Releasing: // no pod can get it; compared again once its state changes
	}
}

// absent handles an interface that EC2 does not show.
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
	for _, addr := range o.rows.addresses.of(e.ID) {
		if a := o.rows.addresses.rows[addr]; a.State == Assigned || a.State == Quarantined {
			o.report(e.ID, netip.Addr{}, "interface %s no longer exists at EC2; %s and other pods on it have no network: delete these pods", e.ID, a.Holder)
			return
		}
	}
	if claimed := o.claimed[e.ID]; len(claimed) > 0 {
		o.report(e.ID, netip.Addr{}, "interface %s no longer exists at EC2; %s at %s and other pods on it have no network: delete these pods", e.ID, claimed[0].Holder, claimed[0].Addr)
		return
	}
	o.report(e.ID, netip.Addr{}, "interface %s no longer exists at EC2; it was dropped from the ledger", e.ID)
	for _, addr := range o.rows.addresses.of(e.ID) { // so that a keyed journal drops the row of each
		o.records = append(o.records, Record{Op: DropAddress, Addr: addr})
	}
	o.records = append(o.records, Record{Op: DropENI, ENIID: e.ID})
}
