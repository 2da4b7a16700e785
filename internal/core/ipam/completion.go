package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Back-off after a failed action: the first pause and the longest, doubling. A refusal for
// permission lasts until an operator changes a policy or a tag, and an interface that is attached
// elsewhere until another program detaches it, so their pauses are longer. One
// of credentials ends as soon as others are read, while an ADD may wait (90 s at most).
const (
	minBackoff            = 2 * time.Second
	maxBackoff            = 2 * time.Minute
	minDeniedBackoff      = time.Minute
	maxDeniedBackoff      = 16 * time.Minute
	maxCredentialsBackoff = 30 * time.Second
)

// pausesOf are the first and the longest pause after failures of a cause.
func pausesOf(why cloud.FailReason) (first, longest time.Duration) {
	switch why {
	case cloud.FailUnauthorized, cloud.FailInUse:
		return minDeniedBackoff, maxDeniedBackoff
	case cloud.FailCredentials:
		return minBackoff, maxCredentialsBackoff
	case cloud.FailSubnetExhausted, cloud.FailAddressLimit, cloud.FailENILimit, cloud.FailThrottled, cloud.FailNotFound, cloud.FailFrozen, cloud.FailOther:
	}
	return minBackoff, maxBackoff
}

// pauseAfter is the pause after a number of failures in a row.
func pauseAfter(why cloud.FailReason, tries int) time.Duration {
	first, longest := pausesOf(why)
	return min(first<<min(tries-1, 10), longest)
}

// longest is the longest pause of a back-off of its cause.
func (b Backoff) longest() time.Duration {
	_, longest := pausesOf(b.Reason)
	return longest
}

// completion computes the records of an action that ended, by success or failure.
type completion struct {
	rows    *rows
	now     time.Time
	action  *cloud.Action
	records []Record
}

// complete starts the completion of an action in flight: it drops the action, and what is
// outdated.
func (s *rows) complete(a *cloud.Action, now time.Time) completion {
	return completion{rows: s, now: now, action: a, records: append(s.outdated(now), Record{Op: DropAction, ID: a.ID})}
}

func (c *completion) put(a Address) { c.records = append(c.records, putAddress(a)) }

// succeeded records the effect of the action.
func (c *completion) succeeded(r cloud.Outcome) {
	if c.action.Kind == cloud.CreateENI {
		c.created(r)
		return
	}
	of := c.rows.enis[c.action.ENI]
	if of == nil {
		return // Observe dropped the interface
	}
	switch c.action.Kind {
	case cloud.AssignAddresses:
		c.assigned(of.ID, r.Addresses)
	case cloud.RestoreAddresses:
		c.restored()
	case cloud.UnassignAddresses:
		c.released(c.action.Addresses)
	case cloud.Attach:
		attached := of.moved(SettingUp, c.now)
		attached.Attachment, attached.Device = r.Attachment, r.Device
		c.records = append(c.records, putENI(attached))
	case cloud.SetUp:
		c.records = append(c.records, putENI(of.moved(Ready, c.now)))
	case cloud.Detach:
		c.records = append(c.records, putENI(of.moved(Deleting, c.now)))
	case cloud.DeleteENI:
		c.released(c.rows.addresses.of(of.ID))
		c.records = append(c.records, Record{Op: DropENI, ENIID: of.ID},
			Record{Op: PutGone, Gone: &Gone{ENI: of.ID, At: stamp(c.now)}})
	case cloud.CreateENI: // above
	}
}

func (c *completion) created(r cloud.Outcome) {
	if _, known := c.rows.enis[r.ENI]; known {
		return // Observe recorded it before the outcome was known
	}
	row := ENI{
		ID: r.ENI, Type: vpc.TypeInterface, Phase: Attaching, Device: -1, MAC: r.MAC, PrimaryIP: r.PrimaryIP,
		Subnet: c.action.Subnet, SubnetCIDR: c.action.SubnetCIDR, Groups: r.Groups, Created: stamp(c.now), Since: stamp(c.now),
	}
	if len(row.Groups) == 0 {
		row.Groups = c.action.Groups
	}
	c.records = append(c.records, putENI(row))
	c.assigned(row.ID, r.Addresses)
}

// assigned adds addresses that EC2 assigned; known ones keep their state.
func (c *completion) assigned(id vpc.ENIID, addrs []netip.Addr) {
	for _, addr := range addrs {
		if old, ok := c.rows.addresses.rows[addr]; ok {
			if old.State != Unconfirmed {
				continue
			}
			if old.ENI != id {
				c.records = append(c.records, Record{Op: DropAddress, Addr: addr})
			}
		}
		c.put(Address{Addr: addr, ENI: id, State: Free, Since: stamp(c.now), Used: c.rows.released.addresses[addr]})
	}
}

// released drops addresses that EC2 released and records when.
func (c *completion) released(addrs []netip.Addr) {
	for _, addr := range addrs {
		c.records = append(c.records,
			Record{Op: DropAddress, Addr: addr},
			Record{Op: PutGone, Gone: &Gone{Addr: addr, At: stamp(c.now)}})
	}
}

// restored records that EC2 has the addresses again. Since becomes now, because a stale
// describe may not show them yet.
func (c *completion) restored() {
	for _, addr := range c.action.Addresses {
		if row, ok := c.rows.addresses.rows[addr]; ok && !row.Missing.IsZero() {
			back := *row
			back.Missing, back.Since = time.Time{}, stamp(c.now)
			c.put(back)
		}
	}
}

// unfence makes free again what the action fenced and EC2 did not release.
func (c *completion) unfence() {
	switch c.action.Kind {
	case cloud.UnassignAddresses:
	case cloud.Detach:
		if of := c.rows.enis[c.action.ENI]; of != nil && of.Phase == Detaching && c.action.From != "" {
			c.records = append(c.records, putENI(of.moved(Phase(c.action.From), c.now)))
		}
	case cloud.CreateENI, cloud.Attach, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.DeleteENI:
		return
	}
	for _, addr := range c.action.Addresses {
		if row, ok := c.rows.addresses.rows[addr]; ok && row.State == Releasing {
			back := *row
			back.State, back.Since = Free, stamp(c.now)
			c.put(back)
		}
	}
}

// backOff starts or prolongs the back-off for the scope of a failure.
func (c *completion) backOff(f cloud.Failure) {
	key, tries := failureKey(*c.action, f.Reason), 1
	if last := c.rows.backoffs[key]; last != nil {
		tries += last.Tries
	}
	c.records = append(c.records, Record{Op: PutBackoff, Backoff: &Backoff{
		Key: key, Since: stamp(c.now), Until: stamp(c.now).Add(pauseAfter(f.Reason, tries)), Tries: tries,
		Reason: f.Reason, Message: f.Message,
	}})
}

// clearBackoffs ends the back-offs with a cause that the success of the action rules out.
func (c *completion) clearBackoffs() {
	reasons := []cloud.FailReason{cloud.FailOther}
	switch c.action.Kind {
	case cloud.CreateENI:
		reasons = append(reasons, cloud.FailSubnetExhausted, cloud.FailENILimit)
	case cloud.AssignAddresses:
		reasons = append(reasons, cloud.FailSubnetExhausted)
	case cloud.DeleteENI:
		reasons = append(reasons, cloud.FailENILimit)
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach:
	}
	for _, why := range reasons {
		if key := failureKey(*c.action, why); c.rows.backoffs[key] != nil {
			c.records = append(c.records, Record{Op: DropBackoff, Scope: key})
		}
	}
	if c.action.Kind != cloud.SetUp { // the others are carried out at EC2
		c.records = append(c.records, c.rows.credentialsAccepted()...)
	}
}

// credentialsAccepted lists the records that end all back-offs of refused credentials: EC2 has
// accepted a call. Without this, a node waits although its credentials are valid.
func (s *rows) credentialsAccepted() (records []Record) {
	for _, key := range slices.Sorted(maps.Keys(s.backoffs)) {
		if s.backoffs[key].Reason == cloud.FailCredentials {
			records = append(records, Record{Op: DropBackoff, Scope: key})
		}
	}
	return records
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
	case cloud.FailAddressLimit, cloud.FailThrottled, cloud.FailUnauthorized, cloud.FailInUse, cloud.FailCredentials, cloud.FailNotFound, cloud.FailFrozen, cloud.FailOther:
	}
	switch {
	case a.Kind == cloud.CreateENI:
		return string(a.Kind) + "/" + string(a.Subnet)
	case a.Kind == cloud.RestoreAddresses && len(a.Addresses) > 0:
		return string(a.Kind) + "/" + a.Addresses[0].String()
	}
	return string(a.Kind) + "/" + string(a.ENI)
}
