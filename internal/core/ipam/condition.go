package ipam

import (
	"fmt"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
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
	n := &p.d.Numbers
	n.Attainable = p.attainable()
	if n.Free == 0 { // the end of a cool-down can serve an ADD before EC2 does
		p.replanAt(p.nextCoolDownEnd())
	}
	switch {
	case n.Free > 0:
		return Condition{CanAdd: true, Reason: ReasonReady, Message: some(n.Free, "is free", "are free")}
	case n.Incoming > 0:
		return Condition{Reason: ReasonGrowing, Message: some(n.Incoming, "is in flight: ", "are in flight: ") + p.inFlight()}
	case n.Cooling > 0:
		at := p.nextCoolDownEnd()
		return Condition{
			Reason: ReasonCooling, RetryAt: at,
			Message: some(n.Cooling, "cools down, until ", "cool down, the first until ") + at.Format(clock) + p.obstacles(),
		}
	case n.Assigned+n.Quarantined >= n.Capacity:
		return Condition{Reason: ReasonNodeFull, Message: fmt.Sprintf(
			"all %d addresses that this instance type allows (%d interfaces x %d) are in use; remove pods, or use a larger instance type",
			n.Capacity, p.maxENIs, p.perENI)}
	case !p.mayCall():
		return Condition{Reason: ReasonFrozen, Message: "an operator froze EC2 calls, and no address is free; end the freeze"}
	case p.exhausted():
		return Condition{
			Reason: ReasonSubnetExhausted, RetryAt: p.backoffEnds,
			Message: "no subnet has enough free addresses" + p.obstacles() + "; release addresses in them, or add a subnet in the zone",
		}
	case len(p.blocked) > 0:
		return Condition{Reason: ReasonRefused, RetryAt: p.backoffEnds, Message: "EC2 refuses more addresses" + p.obstacles()}
	}
	return Condition{Reason: ReasonNodeFull, Message: fmt.Sprintf(
		"%d addresses are held, all in use, and no more are allowed (%d pods, %d interfaces)",
		n.Have, p.s.Limits.MaxPods, p.maxENIs)}
}

// some returns a phrase such as "2 addresses are free".
func some(n int, one, many string) string {
	if n == 1 {
		return "1 address " + one
	}
	return fmt.Sprintf("%d addresses %s", n, many)
}

// inFlight names the actions, in flight or planned, that add addresses.
func (p *planner) inFlight() string {
	var out []string
	for _, list := range [][]cloud.Action{p.s.InFlight, p.d.Actions} {
		for _, a := range list {
			if !a.Kind.Frees() {
				out = append(out, a.String())
			}
		}
	}
	if len(out) == 0 {
		return "an interface is not ready yet"
	}
	return strings.Join(out, ", ")
}

// obstacles lists what blocks growth, each once.
func (p *planner) obstacles() string {
	if len(p.blocked) == 0 {
		return ""
	}
	seen := make(map[string]bool)
	var out []string
	for _, b := range p.blocked {
		if !seen[b] {
			seen[b] = true
			out = append(out, b)
		}
	}
	return " (" + strings.Join(out, "; ") + ")"
}

// nextCoolDownEnd is when the first cool-down ends; zero without one.
func (p *planner) nextCoolDownEnd() time.Time {
	var first time.Time
	for _, e := range p.s.ENIs {
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
		if e.pooled() && e.Missing.IsZero() && len(e.Addresses) < p.perENI {
			if !p.lacks(e.Subnet, 1) {
				return false
			}
			hasSlots = true
		}
	}
	if p.d.Numbers.ENIs >= p.maxENIs {
		return hasSlots
	}
	for _, n := range p.s.Subnets {
		if !p.lacks(n.ID, 2) {
			return false
		}
		hasSlots = true
	}
	return hasSlots
}

// lacks reports whether a subnet has fewer than want free addresses, by its count or by
// EC2's last error.
func (p *planner) lacks(id vpc.SubnetID, want int) bool {
	b, found := p.backoffs["subnet/"+string(id)]
	return found && b.Reason == cloud.FailSubnetExhausted || p.freeIn(id) < want
}

// attainable is how many more pods the node can serve at most: free, cooling and
// incoming addresses, and what limits and subnets still allow.
func (p *planner) attainable() int {
	n := p.d.Numbers
	more := max(0, n.Capacity-n.Assigned-n.Quarantined-n.Cooling-n.Free-n.Incoming)
	known, open := 0, len(p.s.Subnets) == 0
	for _, s := range p.s.Subnets {
		if p.lacks(s.ID, 1) {
			continue
		}
		if s.Free < 0 {
			open = true
		}
		known += max(0, p.freeIn(s.ID))
	}
	if !open {
		more = min(more, known)
	}
	total := n.Free + n.Cooling + n.Incoming + more
	if p.s.Limits.MaxPods > 0 {
		total = min(total, max(0, p.s.Limits.MaxPods-n.Assigned-n.Quarantined))
	}
	return total
}
