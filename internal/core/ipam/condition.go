package ipam

import (
	"cmp"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// Reason is why the next ADD can or cannot be served, as one word.
type Reason string

// Reasons of a condition, usable as the reason of a Kubernetes node condition.
const (
	ReasonReady           Reason = "AddressesAvailable"
	ReasonGrowing         Reason = "WaitingForEC2"
	ReasonCooling         Reason = "AddressesCoolingDown"
	ReasonNodeFull        Reason = "NodeFull"
	ReasonSubnetExhausted Reason = "SubnetExhausted"
	ReasonFrozen          Reason = "EC2Frozen"
	ReasonRefused         Reason = "EC2Refuses"
	ReasonInvalid         Reason = "InvalidConfiguration"
)

// Condition is whether the next ADD can be served.
type Condition struct {
	// CanAdd: an address is free now.
	CanAdd bool
	Reason Reason
	// Message is a sentence for users that says what to do.
	Message string
	// RetryAt is when the condition may change without an event; zero: not known.
	RetryAt time.Time
}

func (c Condition) String() string {
	if c.CanAdd {
		return "yes, " + c.Message
	}
	return fmt.Sprintf("no (%s), %s", c.Reason, c.Message)
}

// Err is the condition as an error that wraps ErrNoAddress; nil when the next ADD
// can be served.
func (c Condition) Err() error {
	if c.CanAdd {
		return nil
	}
	err := ErrPoolEmpty
	switch c.Reason {
	case ReasonReady:
		return nil
	case ReasonGrowing:
	case ReasonCooling:
		err = ErrAllCooling
	case ReasonNodeFull:
		err = ErrNodeFull
	case ReasonSubnetExhausted:
		err = ErrSubnetExhausted
	case ReasonFrozen:
		err = ErrFrozen
	case ReasonRefused, ReasonInvalid:
		err = ErrRefused
	}
	return fmt.Errorf("%w: %s", err, c.Message)
}

// condition derives the condition from the numbers and from the plan: what is in
// flight, what blocks growth, and what can still be assigned.
func (p *planner) condition() Condition {
	p.numbers.Attainable = p.attainable()
	n := p.numbers
	if n.Free == 0 { // the end of a cool-down can serve an ADD before EC2 does
		p.schedule.at(p.s.nextCoolDownEnd())
	}
	switch {
	case n.Free > 0:
		return Condition{CanAdd: true, Reason: ReasonReady, Message: some(n.Free, "is free", "are free")}
	case n.Incoming > 0:
		return Condition{Reason: ReasonGrowing, Message: some(n.Incoming, "is in flight: ", "are in flight: ") + cmp.Or(p.steps.adding(), p.notReady())}
	case n.Cooling > 0:
		at := p.s.nextCoolDownEnd()
		return Condition{
			Reason: ReasonCooling, RetryAt: at,
			Message: some(n.Cooling, "cools down, until ", "cool down, the first until ") + at.Format(clock) + p.blocked.String(),
		}
	case n.Assigned+n.Quarantined >= n.Capacity:
		return Condition{Reason: ReasonNodeFull, Message: fmt.Sprintf(
			"all %d addresses that this instance type allows (%d interfaces x %d%s) are in use; remove pods, or use a larger instance type",
			n.Capacity, p.numbers.MaxENIs, p.s.Limits.perENI(), suffix(p.s.prefixes4() > 0, fmt.Sprintf(", less %d prefixes", p.s.prefixes4())))}
	case !p.s.Brake.AllowsAllocate():
		return Condition{Reason: ReasonFrozen, Message: "an operator froze EC2 calls, and no address is free; end the freeze"}
	case p.survey != "":
		return Condition{Reason: ReasonGrowing, Message: "the subnets are read first: " + p.survey}
	case p.exhausted():
		return Condition{
			Reason: ReasonSubnetExhausted, RetryAt: p.pauses.ends,
			Message: "no subnet has enough free addresses" + p.blocked.String() + "; release addresses in them, or add a subnet in the zone",
		}
	case len(p.blocked) > 0:
		return Condition{Reason: ReasonRefused, RetryAt: p.pauses.ends, Message: "EC2 refuses more addresses" + p.blocked.String()}
	}
	return Condition{Reason: ReasonNodeFull, Message: fmt.Sprintf(
		"%d addresses are held, all in use, and no more are allowed (%d pods, %d interfaces)",
		n.Have, p.s.Limits.MaxPods, p.numbers.MaxENIs)}
}

// notReady says why addresses cannot be assigned although no action is to add them: their
// interface is not ready, and EC2 or the kernel may have refused what it needs.
func (p *planner) notReady() string {
	for _, e := range p.s.ENIs {
		kind := cloud.Attach
		switch e.Phase {
		case SettingUp:
			kind = cloud.SetUp
		case Attaching:
		case Ready, Detaching, Deleting:
			continue
		}
		for _, key := range []string{string(kind) + "/" + string(e.ID), "interfaces"} {
			if b, paused := p.pauses.active[key]; paused {
				return fmt.Sprintf("%s of %s is paused (%s)", kind, e.ID, b.obstacle())
			}
		}
	}
	return "an interface is not ready yet"
}

// some returns a phrase such as "2 addresses are free".
func some(n int, one, many string) string {
	if n == 1 {
		return "1 address " + one
	}
	return fmt.Sprintf("%d addresses %s", n, many)
}

// nextCoolDownEnd is when the first cool-down ends; zero without one.
func (v View) nextCoolDownEnd() (first time.Time) {
	for _, e := range v.ENIs {
		for _, a := range e.Addresses {
			if a.State == Cooling && e.pooled() && (first.IsZero() || a.Until.Before(first)) {
				first = a.Until
			}
		}
	}
	return first
}

// exhausted reports whether the subnets limit growth: an interface, or the instance,
// has free slots, and no subnet has free addresses for them.
func (p *planner) exhausted() bool {
	hasSlots := false
	for _, e := range p.s.ENIs {
		if e.pooled() && e.Missing.IsZero() && e.slots(p.s.Limits) > 0 {
			if !p.budget.lacks(e.Subnet, 1) {
				return false
			}
			hasSlots = true
		}
	}
	if p.numbers.ENIs >= p.numbers.MaxENIs {
		return hasSlots
	}
	for _, n := range p.s.Subnets {
		if !p.budget.lacks(n.ID, 2) {
			return false
		}
		hasSlots = true
	}
	return hasSlots
}

// attainable is how many more pods the node can serve at most: free, cooling and
// incoming addresses, and what limits and subnets still allow.
func (p *planner) attainable() int {
	n := p.numbers
	have := n.Free + n.Cooling + n.Incoming
	total := have + p.budget.attainable(max(0, n.Capacity-n.used()-have))
	if p.s.Limits.MaxPods > 0 {
		total = min(total, max(p.s.waiting(), p.s.Limits.MaxPods-n.used()-p.s.claimed()))
	}
	return total
}
