package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Back-off after a failed action: the first pause and the longest, doubling.
const (
	minBackoff = 2 * time.Second
	maxBackoff = 2 * time.Minute
)

// Begin records an action of a plan as in flight and fences what it releases:
// addresses become releasing, an interface detaching or deleting. The records must be
// synced to disk before the action is carried out. Begin fails with ErrStale when the
// ledger has changed since the plan was made (a pod was assigned an address, another
// action of the same interface is in flight): plan again. The action needs an ID.
func (l *Ledger) Begin(a cloud.Action, now time.Time) ([]Record, error) {
	if a.ID == "" {
		return nil, fmt.Errorf("begin %s: the action has no id", a)
	}
	if _, ok := l.rows.actions[a.ID]; ok {
		return nil, fmt.Errorf("begin %s: %s is in flight: %w", a, a.ID, ErrStale)
	}
	l.expire(now)
	records, err := l.fence(&a, now)
	if err != nil {
		return nil, fmt.Errorf("begin %s: %w", a, err)
	}
	a.Began = stamp(now)
	if a.Kind == cloud.UnassignAddresses || a.Kind == cloud.Detach {
		l.volatile.released = a.Began
	}
	return l.change(now, append(records, Record{Op: PutAction, Action: &a})...), nil
}

// fence checks a against the ledger, adds what the ledger has (Subnet, Held, Recent,
// Attachment) and returns the records that fence what a releases. An interface has at
// most one action in flight.
func (l *Ledger) fence(a *cloud.Action, now time.Time) ([]Record, error) {
	if a.Kind == cloud.CreateENI {
		return nil, nil
	}
	e, ok := l.rows.enis[a.ENI]
	if !ok {
		return nil, fmt.Errorf("interface: %w", ErrStale)
	}
	if other, busy := l.rows.inFlightOn(a.ENI); busy {
		return nil, fmt.Errorf("%s is in flight: %w", other, ErrStale)
	}
	a.Subnet = e.Subnet
	switch a.Kind {
	case cloud.Attach:
		return nil, inPhase(e, Attaching)
	case cloud.SetUp:
		return nil, inPhase(e, SettingUp)
	case cloud.AssignAddresses:
		a.Held, a.Recent = l.rows.addresses.of(a.ENI), l.rows.released.recentAddresses(now)
		return nil, inPhase(e, Attaching, SettingUp, Ready)
	case cloud.RestoreAddresses:
		return nil, l.checkMissing(a)
	case cloud.UnassignAddresses:
		return l.fenceAddresses(a, now)
	case cloud.Detach:
		a.Attachment = e.Attachment
		if e.Phase != Detaching {
			a.From = string(e.Phase)
		}
		records, err := l.fenceENI(e, Detaching, now)
		a.Addresses = l.freeOf(e.ID)
		return records, err
	case cloud.DeleteENI:
		return l.fenceENI(e, Deleting, now)
	case cloud.CreateENI:
	}
	return nil, fmt.Errorf("unknown kind %q", string(a.Kind))
}

func inPhase(e *ENI, phases ...Phase) error {
	if slices.Contains(phases, e.Phase) {
		return nil
	}
	return fmt.Errorf("the interface is %s: %w", e.Phase, ErrStale)
}

func (l *Ledger) fenceAddresses(a *cloud.Action, now time.Time) ([]Record, error) {
	var records []Record
	for _, addr := range a.Addresses {
		row, ok := l.rows.addresses.rows[addr]
		if !ok || row.ENI != a.ENI {
			return nil, fmt.Errorf("%s: %w", addr, ErrStale)
		}
		switch row.State {
		case Releasing:
		case Free:
			fenced := *row
			fenced.State, fenced.Since = Releasing, stamp(now)
			records = append(records, putAddress(fenced))
		case Assigned, Quarantined, Cooling, Unconfirmed:
			return nil, fmt.Errorf("%s is %s: %w", addr, row.State, ErrStale)
		}
	}
	return records, nil
}

// fenceENI moves an interface to Detaching or Deleting and fences all its addresses.
func (l *Ledger) fenceENI(e *ENI, to Phase, now time.Time) ([]Record, error) {
	if e.Primary || e.Unmanaged {
		return nil, fmt.Errorf("primary and unmanaged interfaces are never removed: %w", ErrStale)
	}
	if e.Phase == to {
		return nil, nil
	}
	from := []Phase{Ready}
	if to == Deleting {
		from = []Phase{Attaching}
	}
	if err := inPhase(e, from...); err != nil {
		return nil, err
	}
	var records []Record
	for _, addr := range l.rows.addresses.of(e.ID) {
		row := *l.rows.addresses.rows[addr]
		switch row.State {
		case Assigned, Quarantined, Cooling:
			return nil, fmt.Errorf("%s is %s: %w", addr, row.State, ErrStale)
		case Free, Unconfirmed:
			row.State, row.Since = Releasing, stamp(now)
			records = append(records, putAddress(row))
		case Releasing:
		}
	}
	moved := *e
	moved.Phase, moved.Since = to, stamp(now)
	return append(records, putENI(moved)), nil
}

// freeOf lists the free addresses of an interface.
func (l *Ledger) freeOf(id vpc.ENIID) (out []netip.Addr) {
	for _, addr := range l.rows.addresses.of(id) {
		if l.rows.addresses.rows[addr].State == Free {
			out = append(out, addr)
		}
	}
	return out
}

// Settle records the effect of an action that succeeded and drops the action. It
// fails with ErrUnknown when the action is not in flight.
func (l *Ledger) Settle(id cloud.ActionID, r cloud.Outcome, now time.Time) ([]Record, error) {
	a, ok := l.rows.actions[id]
	if !ok {
		return nil, fmt.Errorf("settle action %s: %w", id, ErrUnknown)
	}
	records := append(l.rows.outdated(now), Record{Op: DropAction, ID: id})
	records = append(records, l.clearBackoff(*a)...)
	e := l.rows.enis[a.ENI]
	if a.Kind != cloud.CreateENI && e == nil {
		return l.change(now, records...), nil // Observe dropped the interface
	}
	switch a.Kind {
	case cloud.CreateENI:
		records = append(records, l.recordCreated(*a, r, now)...)
	case cloud.AssignAddresses:
		records = append(records, l.recordAssigned(a.ENI, r.Addresses, now)...)
	case cloud.RestoreAddresses:
		records = append(records, l.recordRestored(a.Addresses, now)...)
	case cloud.UnassignAddresses:
		records = append(records, l.recordReleased(a.Addresses, now)...)
	case cloud.Attach:
		moved := *e
		moved.Attachment, moved.Device = r.Attachment, r.Device
		records = append(records, advance(moved, SettingUp, now))
	case cloud.SetUp:
		records = append(records, advance(*e, Ready, now))
	case cloud.Detach:
		records = append(records, advance(*e, Deleting, now))
	case cloud.DeleteENI:
		records = append(records, l.recordReleased(l.rows.addresses.of(e.ID), now)...)
		records = append(records, Record{Op: DropENI, ENIID: e.ID},
			Record{Op: PutGone, Gone: &Gone{ENI: e.ID, At: stamp(now)}})
	}
	return l.change(now, records...), nil
}

func advance(e ENI, to Phase, now time.Time) Record {
	e.Phase, e.Since = to, stamp(now)
	return putENI(e)
}

func (l *Ledger) recordCreated(a cloud.Action, r cloud.Outcome, now time.Time) []Record {
	if _, known := l.rows.enis[r.ENI]; known {
		return nil // Observe recorded it before the outcome was known
	}
	e := ENI{
		ID: r.ENI, Type: vpc.TypeInterface, Phase: Attaching, Device: -1, MAC: r.MAC, PrimaryIP: r.PrimaryIP,
		Subnet: a.Subnet, SubnetCIDR: a.SubnetCIDR, Groups: r.Groups, Created: stamp(now), Since: stamp(now),
	}
	if len(e.Groups) == 0 {
		e.Groups = a.Groups
	}
	return append([]Record{putENI(e)}, l.recordAssigned(e.ID, r.Addresses, now)...)
}

// recordAssigned adds addresses that EC2 assigned; known ones keep their state.
func (l *Ledger) recordAssigned(id vpc.ENIID, addrs []netip.Addr, now time.Time) []Record {
	var records []Record
	for _, addr := range addrs {
		if old, ok := l.rows.addresses.rows[addr]; ok && old.State != Unconfirmed {
			continue
		}
		if old, ok := l.rows.addresses.rows[addr]; ok && old.ENI != id {
			records = append(records, Record{Op: DropAddress, Addr: addr})
		}
		records = append(records, putAddress(Address{Addr: addr, ENI: id, State: Free, Since: stamp(now), Used: l.rows.released.addresses[addr]}))
	}
	return records
}

// recordReleased drops addresses that EC2 released and records when.
func (l *Ledger) recordReleased(addrs []netip.Addr, now time.Time) []Record {
	var records []Record
	for _, addr := range addrs {
		records = append(records,
			Record{Op: DropAddress, Addr: addr},
			Record{Op: PutGone, Gone: &Gone{Addr: addr, At: stamp(now)}})
	}
	return records
}

// Fail records that an action failed, drops it and starts a back-off for the scope of
// the failure. After a definite failure fenced addresses are free again; otherwise
// they stay fenced and the planner repeats the action. It fails with ErrUnknown when the
// action is not in flight.
func (l *Ledger) Fail(id cloud.ActionID, f cloud.Failure, now time.Time) ([]Record, error) {
	a, ok := l.rows.actions[id]
	if !ok {
		return nil, fmt.Errorf("fail action %s: %w", id, ErrUnknown)
	}
	records := append(l.rows.outdated(now), Record{Op: DropAction, ID: id})
	if f.Definite {
		records = append(records, l.unfence(*a, now)...)
	}
	b := l.nextBackoff(*a, f, now)
	return l.change(now, append(records, Record{Op: PutBackoff, Backoff: &b})...), nil
}

// unfence makes free again what a fenced and EC2 did not release.
func (l *Ledger) unfence(a cloud.Action, now time.Time) (records []Record) {
	switch a.Kind {
	case cloud.UnassignAddresses:
	case cloud.Detach:
		if e := l.rows.enis[a.ENI]; e != nil && e.Phase == Detaching && a.From != "" {
			records = append(records, advance(*e, Phase(a.From), now))
		}
	case cloud.CreateENI, cloud.Attach, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.DeleteENI:
		return nil
	}
	for _, addr := range a.Addresses {
		if row, ok := l.rows.addresses.rows[addr]; ok && row.State == Releasing {
			back := *row
			back.State, back.Since = Free, stamp(now)
			records = append(records, putAddress(back))
		}
	}
	return records
}

func (l *Ledger) nextBackoff(a cloud.Action, f cloud.Failure, now time.Time) Backoff {
	key := failureKey(a, f.Reason)
	tries := 1
	if last := l.rows.backoffs[key]; last != nil {
		tries += last.Tries
	}
	pause := maxBackoff
	if tries < 7 {
		pause = min(minBackoff<<(tries-1), maxBackoff)
	}
	return Backoff{
		Key: key, Since: stamp(now), Until: stamp(now).Add(pause), Tries: tries,
		Reason: f.Reason, Message: f.Message,
	}
}

// failureKey is the scope of a failure: one subnet, the number of interfaces, or this
// kind of action on this object. A full subnet stops neither another subnet nor a
// release.
func failureKey(a cloud.Action, why cloud.FailReason) string {
	switch why {
	case cloud.FailSubnetExhausted:
		return "subnet/" + string(a.Subnet)
	case cloud.FailENILimit:
		return "interfaces"
	case cloud.FailAddressLimit, cloud.FailThrottled, cloud.FailUnauthorized, cloud.FailNotFound, cloud.FailFrozen, cloud.FailOther:
	}
	switch {
	case a.Kind == cloud.CreateENI:
		return string(a.Kind) + "/" + string(a.Subnet)
	case a.Kind == cloud.RestoreAddresses && len(a.Addresses) > 0:
		return string(a.Kind) + "/" + a.Addresses[0].String()
	}
	return string(a.Kind) + "/" + string(a.ENI)
}

// clearBackoff ends the back-offs with a cause that the success of a rules out.
func (l *Ledger) clearBackoff(a cloud.Action) []Record {
	reasons := []cloud.FailReason{cloud.FailOther}
	switch a.Kind {
	case cloud.CreateENI:
		reasons = append(reasons, cloud.FailSubnetExhausted, cloud.FailENILimit)
	case cloud.AssignAddresses:
		reasons = append(reasons, cloud.FailSubnetExhausted)
	case cloud.DeleteENI:
		reasons = append(reasons, cloud.FailENILimit)
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach:
	}
	var records []Record
	for _, why := range reasons {
		if key := failureKey(a, why); l.rows.backoffs[key] != nil {
			records = append(records, Record{Op: DropBackoff, Scope: key})
		}
	}
	return records
}
