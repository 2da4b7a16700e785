package ipam

import (
	"fmt"
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
	// Observe is why EC2 should be observed before the next periodic observation; empty
	// without a reason.
	Observe string
	// Condition says whether the next ADD can be served.
	Condition Condition
	Numbers   Numbers
}

// Numbers are counts for status and metrics. Addresses are secondary ones, those
// of unmanaged interfaces excluded.
type Numbers struct {
	ENIs        int // interfaces of the instance in any phase, unmanaged ones included
	MaxENIs     int // limit of the instance type, or the configured cap below it
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
	p := &planner{s: s, c: c, now: now}
	p.index()
	p.advance()
	p.restore()
	p.grow()
	p.shrink()
	p.observe()
	p.d.Condition = p.condition()
	return p.d
}

func supported(s Snapshot, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if len(s.Reservations) > 0 {
		return fmt.Errorf("reservation of %s for %s/%s: %w",
			s.Reservations[0].Addr, s.Reservations[0].Namespace, s.Reservations[0].Name, ErrUnsupported)
	}
	if s.Limits.ENIs < 1 || s.Limits.AddressesPerENI < 1 {
		return fmt.Errorf("limits of the instance type: %d interfaces with %d addresses; they are not known yet",
			s.Limits.ENIs, s.Limits.AddressesPerENI)
	}
	return nil
}

// planner is the working state of one Plan.
type planner struct {
	s   Snapshot
	c   Config
	now time.Time
	d   Decision

	perENI   int                        // addresses an interface can hold beside its own
	maxENIs  int                        // interfaces the node may have
	busy     map[vpc.ENIID]cloud.Action // interfaces with an action in flight or planned
	devices  map[int]bool               // device indexes in use
	backoffs map[string]Backoff         // back-offs that have not ended, by key
	taken    map[vpc.SubnetID]int       // addresses this plan takes from each subnet
	creates  int                        // CreateENI in flight
	low      int                        // the pool grows if it has fewer addresses
	high     int                        // the pool grows up to this
	grew     bool
	blocked  []string // what blocked growth
	// backoffEnds is when the first back-off ends that applied to this plan.
	backoffEnds time.Time
}

// index counts what the node holds and what it should hold.
func (p *planner) index() {
	p.perENI = p.s.Limits.AddressesPerENI - 1
	p.maxENIs = p.s.Limits.ENIs
	if p.c.MaxENIs > 0 {
		p.maxENIs = min(p.maxENIs, p.c.MaxENIs)
	}
	p.busy = make(map[vpc.ENIID]cloud.Action)
	p.devices = make(map[int]bool)
	p.backoffs = make(map[string]Backoff)
	p.taken = make(map[vpc.SubnetID]int)
	for _, b := range p.s.Backoffs {
		if p.now.Before(b.Until) {
			p.backoffs[b.Key] = b
		}
	}
	n := &p.d.Numbers
	n.MaxENIs = p.maxENIs
	others := 0
	for _, e := range p.s.ENIs {
		n.ENIs++
		if e.Device >= 0 {
			p.devices[e.Device] = true
		}
		if e.Unmanaged || e.Type != vpc.TypeInterface {
			others++
			continue
		}
		p.count(e)
	}
	for _, a := range p.s.InFlight {
		p.countInFlight(a)
	}
	n.ENIs += p.creates
	n.Capacity = max(0, p.maxENIs-others) * p.perENI
	p.wants()
}

// count adds the addresses of a managed interface to the numbers.
func (p *planner) count(e ENIView) {
	n := &p.d.Numbers
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

// countInFlight adds an action in flight to the numbers.
func (p *planner) countInFlight(a cloud.Action) {
	switch a.Kind {
	case cloud.CreateENI:
		p.creates++
		p.d.Numbers.Incoming += a.Count
		p.taken[a.Subnet] += a.Count + 1
	case cloud.AssignAddresses:
		p.d.Numbers.Incoming += a.Count
		p.taken[a.Subnet] += a.Count
	case cloud.Attach:
		p.devices[a.Device] = true
	case cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI:
	}
	if a.ENI != "" {
		p.busy[a.ENI] = a
	}
}

// wants computes how many addresses the node should hold.
func (p *planner) wants() {
	n := &p.d.Numbers
	for _, pod := range p.s.Pending {
		until := pod.Bound.Add(p.c.DemandFor)
		if pod.Waiting || p.now.Before(until) {
			n.Demand++
		}
		if !pod.Waiting {
			p.replanAt(until)
		}
	}
	used := n.Assigned + n.Quarantined
	n.Have = used + n.Cooling + n.Free + n.Incoming
	lowWarm, highWarm := p.warmTargets()
	target := func(warm int) int {
		pods := used + n.Demand + warm
		if p.s.Limits.MaxPods > 0 {
			pods = max(used, min(pods, p.s.Limits.MaxPods))
		}
		return min(max(pods+n.Cooling, p.c.MinIPs), max(n.Capacity, used))
	}
	p.low, p.high = target(lowWarm), target(highWarm)
	n.Want = p.high
}

// warmTargets returns how many free addresses beyond need the pool keeps: it grows
// below low, up to high.
func (p *planner) warmTargets() (low, high int) {
	if p.c.wholeENIs() {
		whole := p.c.WarmENIs * p.perENI
		return whole, whole
	}
	return p.c.WarmIPs, p.c.WarmIPs + p.c.Headroom
}

// replanAt requests the next plan at t.
func (p *planner) replanAt(t time.Time) {
	if t.After(p.now) && (p.d.Next.IsZero() || t.Before(p.d.Next)) {
		p.d.Next = t
	}
}

// backoff returns the first back-off of the keys that has not ended, and requests a
// plan when it ends.
func (p *planner) backoff(keys ...string) (Backoff, bool) {
	for _, k := range keys {
		if b, ok := p.backoffs[k]; ok {
			p.replanAt(b.Until)
			if p.backoffEnds.IsZero() || b.Until.Before(p.backoffEnds) {
				p.backoffEnds = b.Until
			}
			return b, true
		}
	}
	return Backoff{}, false
}

// do adds an action, completed for the node. Its interface gets no other action in this
// plan.
func (p *planner) do(a cloud.Action) {
	p.d.Actions = append(p.d.Actions, p.s.Node.Complete(a, p.now))
	if a.ENI != "" {
		p.busy[a.ENI] = a
	}
}

// mayCall reports whether the brake allows calls that allocate at EC2, mayFree whether
// it allows releases.
func (p *planner) mayCall() bool { return p.s.Brake.AllowsAllocate() }
func (p *planner) mayFree() bool { return p.s.Brake.AllowsRelease() }

// free reports whether e exists at EC2 and has no action in flight or planned.
func (p *planner) free(e ENIView) bool {
	_, busy := p.busy[e.ID]
	return !busy && !e.Unmanaged && e.Type == vpc.TypeInterface && e.Missing.IsZero()
}

// observe requests an observation of EC2 after a failure that shows a difference
// from the ledger.
func (p *planner) observe() {
	for _, b := range p.s.Backoffs {
		if b.Since.Before(p.s.Observed) {
			continue
		}
		switch b.Reason {
		case cloud.FailAddressLimit, cloud.FailNotFound, cloud.FailENILimit:
			p.d.Observe = fmt.Sprintf("%s: EC2 and the ledger differ: %s", b.Key, b.Message)
			return
		case cloud.FailSubnetExhausted, cloud.FailThrottled, cloud.FailUnauthorized, cloud.FailFrozen, cloud.FailOther:
		}
	}
}
