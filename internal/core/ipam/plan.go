package ipam

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Decision is the result of Plan.
type Decision struct {
	// Actions to begin now, in order. Those on different interfaces do not depend
	// on each other and may run at the same time.
	Actions []cloud.Action
	// Next is when to plan again if no event occurs before; zero: only on events.
	Next time.Time
	// Observe is why the node's interfaces should be read from EC2 before the next regular
	// observation; empty without a reason.
	Observe string
	// Survey is why the subnets should be read before the pool grows; empty without a
	// reason.
	Survey string
	// Condition says whether the next ADD can be served.
	Condition Condition
	Numbers   Numbers
	// Claimed counts the pods on addresses that are not in Numbers, such as those of prefixes,
	// which pods of another CNI have.
	Claimed int
}

// Numbers are counts for status and metrics. Addresses are secondary ones, those
// of unmanaged interfaces excluded.
type Numbers struct {
	ENIs        int // interfaces of the default network card in any phase, unmanaged ones included
	MaxENIs     int // its limit, or the configured cap below it
	Capacity    int // addresses the node can hold at most
	Assigned    int
	Quarantined int
	Cooling     int
	Free        int // can be assigned to a pod now
	Incoming    int // requested, or on an interface that is not ready
	Releasing   int
	Unconfirmed int
	Demand      int // pods without an address that count
	Unmet       int // pods of Demand without an address in the pool or in this plan
	Want        int // addresses the plan aims to hold
	Have        int // addresses held or incoming, without those being released
	Attainable  int // how many more pods can be served at most, subnets considered
}

// String prints the decision for people.
func (d Decision) String() string {
	var b strings.Builder
	n := d.Numbers
	fmt.Fprintf(&b, "have %d, want %d of %d: %d assigned, %d quarantined, %d cooling, %d free, %d incoming\n",
		n.Have, n.Want, n.Capacity, n.Assigned, n.Quarantined, n.Cooling, n.Free, n.Incoming)
	if n.Demand > 0 {
		fmt.Fprintf(&b, "demand %d pods, %d unmet\n", n.Demand, n.Unmet)
	}
	for _, a := range d.Actions {
		fmt.Fprintf(&b, "do: %s\n    because %s\n", a, a.Why)
	}
	if len(d.Actions) == 0 {
		b.WriteString("do: nothing\n")
	}
	if d.Observe != "" {
		fmt.Fprintf(&b, "observe: %s\n", d.Observe)
	}
	if d.Survey != "" {
		fmt.Fprintf(&b, "survey: %s\n", d.Survey)
	}
	if !d.Next.IsZero() {
		fmt.Fprintf(&b, "plan again: %s\n", d.Next.Format(clock))
	}
	fmt.Fprintf(&b, "next ADD: %s\n", d.Condition)
	return b.String()
}

// Plan decides which actions to begin: it grows the pool to what pods need, advances
// interfaces through their phases, and releases what has been idle. It is deterministic
// and reaches a fixpoint: once its actions are settled and nothing else changed, the
// next plan has none.
//
// Growing and releasing share no state, so neither blocks the other: an exhausted node
// recovers as soon as an address is free, without a restart. For a configuration or a
// snapshot that this version does not support, the plan has no actions and its Condition
// names the cause.
func Plan(s Snapshot, c Config, now time.Time) Decision {
	if err := supported(s, c); err != nil {
		return Decision{Condition: Condition{Reason: ReasonInvalid, Message: err.Error()}}
	}
	p := newPlanner(s, c, now)
	p.advance()
	p.restore()
	p.grow()
	p.shrink()
	condition := p.condition()
	return Decision{
		Actions: p.steps.planned, Next: p.schedule.next, Observe: s.contradiction(), Survey: p.survey,
		Condition: condition, Numbers: p.numbers, Claimed: s.claimed(),
	}
}

func supported(s Snapshot, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if s.Limits.ENIs < 1 || s.Limits.AddressesPerENI < 1 {
		return fmt.Errorf("limits of the instance type: %d interfaces with %d addresses; they are not known yet",
			s.Limits.ENIs, s.Limits.AddressesPerENI)
	}
	return nil
}

// planner is the working state of one Plan. Its parts keep what the phases of a plan
// share: each phase adds steps, and takes from the budget.
type planner struct {
	s        Snapshot
	c        Config
	numbers  Numbers // what the node holds, with what is in flight and planned
	want     target
	schedule *schedule
	pauses   *pauses
	budget   *budget
	steps    *steps
	blocked  obstacles
	survey   string // why the subnets are read before the pool grows
}

func newPlanner(s Snapshot, c Config, now time.Time) *planner {
	p := &planner{s: s, c: c, schedule: &schedule{now: now}, steps: newSteps(s, now)}
	p.pauses = newPauses(s.Backoffs, p.schedule)
	p.budget = newBudget(s, p.pauses)
	p.numbers = s.numbers(c)
	for _, pod := range s.Pending {
		until := pod.Bound.Add(c.DemandFor)
		if pod.Waiting || now.Before(until) {
			p.numbers.Demand++
		}
		if !pod.Waiting {
			p.schedule.at(until)
		}
	}
	p.want = c.target(p.numbers, s.Limits, s.claimed(), s.waiting())
	p.numbers.Want = p.want.high
	return p
}

// numbers counts what the node holds, with what is in flight.
func (s Snapshot) numbers(c Config) (n Numbers) {
	n.MaxENIs = s.Limits.ENIs
	if c.KeepTrunkSlot && !slices.ContainsFunc(s.ENIs, func(e ENIView) bool { return e.Type == vpc.TypeTrunk }) {
		n.MaxENIs--
	}
	if c.MaxENIs > 0 {
		n.MaxENIs = min(n.MaxENIs, c.MaxENIs)
	}
	usable := n.MaxENIs
	for _, e := range s.ENIs {
		if e.Card != vpc.DefaultCard {
			continue // it takes no slot of the default card
		}
		n.ENIs++
		if !e.managed() {
			usable--
			continue
		}
		n.add(e)
	}
	for _, a := range s.InFlight {
		n.addInFlight(a)
	}
	n.Capacity = max(0, max(0, usable)*s.Limits.perENI()-s.prefixes4())
	n.Have = n.used() + n.Cooling + n.Free + n.Incoming
	return n
}

// add adds the addresses of a managed interface.
func (n *Numbers) add(e ENIView) {
	n.Assigned += e.Count(Assigned)
	n.Quarantined += e.Count(Quarantined)
	n.Releasing += e.Count(Releasing)
	n.Unconfirmed += e.Count(Unconfirmed)
	if !e.pooled() || !e.Missing.IsZero() {
		return
	}
	n.Cooling += e.Count(Cooling)
	if e.Phase == Ready {
		n.Free += e.Count(Free)
	} else {
		n.Incoming += e.Count(Free)
	}
}

// addInFlight adds what an action in flight requests.
func (n *Numbers) addInFlight(a cloud.Action) {
	switch a.Kind {
	case cloud.CreateENI:
		n.ENIs++
		n.Incoming += a.Count
	case cloud.AssignAddresses:
		n.Incoming += a.Count
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI:
	}
}

// used counts the addresses that pods have or had until their links are gone.
func (n Numbers) used() int { return n.Assigned + n.Quarantined }

// target is a number of addresses: the pool grows below low, up to high.
type target struct{ low, high int }

// target is how many addresses the node should hold. claimed counts the pods on addresses
// that are not in n. MaxPods bounds what is predicted and not the ADDs that wait: the kubelet has
// admitted their pods, and a pod with several interfaces has several addresses.
func (c Config) target(n Numbers, limits Limits, claimed, waiting int) target {
	want := func(warm int) int {
		pods := n.used() + n.Demand + warm
		if limits.MaxPods > 0 {
			pods = max(n.used()+waiting, min(pods, limits.MaxPods-claimed))
		}
		return min(max(pods+n.Cooling, c.MinIPs), max(n.Capacity, n.used()))
	}
	warm := c.warm(limits)
	return target{low: want(warm.low), high: want(warm.high)}
}

// warm is how many free addresses beyond need the pool keeps.
func (c Config) warm(limits Limits) target {
	if c.wholeENIs() {
		whole := c.WarmENIs * limits.perENI()
		return target{whole, whole}
	}
	return target{c.WarmIPs, c.WarmIPs + c.Headroom}
}

// contradiction is why EC2 should be observed: a failure since the last observation that
// shows a difference from the ledger. Empty without one.
func (v View) contradiction() string {
	for _, b := range v.Backoffs {
		if b.Since.Before(v.Observed) {
			continue
		}
		switch b.Reason {
		case cloud.FailAddressLimit, cloud.FailNotFound, cloud.FailENILimit, cloud.FailInUse:
			return fmt.Sprintf("%s: EC2 and the ledger differ: %s", b.Key, b.Message)
		case cloud.FailSubnetExhausted, cloud.FailThrottled, cloud.FailUnauthorized, cloud.FailCredentials, cloud.FailFrozen, cloud.FailOther:
		}
	}
	return ""
}
