package ipam

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// grow requests the missing addresses in the fewest calls: first on interfaces with
// free slots, one call each; then on new interfaces, created with their addresses.
func (p *planner) grow() {
	n := &p.numbers
	if n.Have < p.want.low && !p.s.Brake.AllowsAllocate() {
		p.blocked = append(p.blocked, fmt.Sprintf("brake %q", string(p.s.Brake)))
	}
	if n.Have < p.want.low && p.s.Brake.AllowsAllocate() {
		why := p.why()
		short := p.fill(p.want.high-n.Have, why)
		// Headroom alone does not justify a new interface.
		if need := short - (p.want.high - p.want.low); need > 0 {
			p.create(need, short, why)
		}
	}
	n.Unmet = max(0, n.Demand-n.Free-n.Incoming)
}

// why is the reason the pool grows.
func (p *planner) why() string {
	n := p.numbers
	s := fmt.Sprintf("%d addresses are wanted and %d held: ", p.want.high, n.Have)
	if n.Demand > 0 {
		s += fmt.Sprintf("%d pods have none yet, ", n.Demand)
	}
	if n.Cooling > 0 {
		s += fmt.Sprintf("%d cool down, ", n.Cooling)
	}
	if p.c.wholeENIs() {
		return s + fmt.Sprintf("%d interfaces are kept warm", p.c.WarmENIs)
	}
	return s + fmt.Sprintf("%d are kept warm", p.c.WarmIPs)
}

// freeSlots is an interface and how many more addresses it can hold.
type freeSlots struct {
	eni   ENIView
	slots int
}

// fill assigns up to short addresses to interfaces with free slots and returns how
// many are still missing. Interfaces with the most slots come first, for the fewest
// calls; the last call uses the interface with the fewest slots that suffice.
func (p *planner) fill(short int, why string) int {
	open := p.withFreeSlots()
	for short > 0 && len(open) > 0 {
		pick := 0
		for i, f := range open {
			if f.slots >= short {
				pick = i // sorted: the fewest slots that suffice come last
			}
		}
		f := open[pick]
		open = slices.Delete(open, pick, pick+1)
		// Two interfaces may share a subnet that has too few addresses for both.
		take := min(short, f.slots, p.budget.free(f.eni.Subnet))
		if take <= 0 {
			p.surveyFirst(fmt.Sprintf("subnet %s had no free address", f.eni.Subnet))
			p.blocked = append(p.blocked, fmt.Sprintf("subnet %s has no free address", f.eni.Subnet))
			continue
		}
		p.request(cloud.Action{Kind: cloud.AssignAddresses, ENI: f.eni.ID, Subnet: f.eni.Subnet, Count: take, Why: why})
		short -= take
	}
	return short
}

// withFreeSlots lists interfaces that can take more addresses now, most slots first.
func (p *planner) withFreeSlots() []freeSlots {
	var out []freeSlots
	for _, e := range p.s.ENIs {
		slots := e.slots(p.s.Limits)
		if slots <= 0 || !e.pooled() || !p.steps.free(e) {
			continue
		}
		if b, found := p.pauses.apply("subnet/"+string(e.Subnet), string(cloud.AssignAddresses)+"/"+string(e.ID)); found {
			p.blocked = append(p.blocked, b.obstacle())
			continue
		}
		out = append(out, freeSlots{e, slots})
	}
	slices.SortStableFunc(out, func(a, b freeSlots) int { return cmp.Compare(b.slots, a.slots) })
	return out
}

// obstacle describes b as what blocks growth.
func (b Backoff) obstacle() string {
	return fmt.Sprintf("%s, tried %d times, again at %s", cmp.Or(b.Message, string(b.Reason)), b.Tries, b.Until.Format(clock))
}

// create plans as many interfaces as need requires, with up to want addresses in
// all.
func (p *planner) create(need, want int, why string) {
	if b, found := p.pauses.apply("interfaces"); found {
		p.blocked = append(p.blocked, b.obstacle())
		return
	}
	perENI := p.s.Limits.perENI()
	for slots := p.numbers.MaxENIs - p.numbers.ENIs; slots > 0 && need > 0 && perENI > 0; slots-- {
		if p.surveyFirst("a new interface is wanted") {
			return
		}
		n, ok, ruledOut := p.budget.pick()
		p.blocked = append(p.blocked, ruledOut...)
		if !ok {
			return
		}
		take := min(want, perENI, p.budget.free(n.ID)-1) // the interface itself takes one
		if p.c.wholeENIs() {
			take = min(perENI, p.budget.free(n.ID)-1)
		}
		p.request(cloud.Action{
			Kind: cloud.CreateENI, Subnet: n.ID, SubnetCIDR: n.CIDR, Groups: p.s.Groups, Count: take,
			Why: why + suffix(!n.SameRoutes, "; no subnet with the node's route table has enough free addresses"),
		})
		need -= take
		want -= take
	}
}

const (
	// surveyAfter is how old the record of the subnets may be when an interface is created
	// in one of them: other nodes take their addresses.
	surveyAfter = 5 * time.Minute
	// surveyWithin is how long a plan waits for the subnets. EC2 throttles reads and changes
	// separately, and a throttled read is repeated for a minute.
	surveyWithin = 5 * time.Second
)

// surveyFirst requests that the subnets are read, if their record is old, and reports
// whether the plan waits for that. A call that assigns addresses to an interface needs no
// survey: its subnet is given, and EC2's refusal costs as much as a read.
func (p *planner) surveyFirst(why string) bool {
	now, asked := p.schedule.now, p.s.SurveyAsked
	age := now.Sub(p.s.Surveyed)
	if p.s.Surveyed.IsZero() || age < surveyAfter {
		return false
	}
	if asked.IsZero() {
		asked = now
	}
	until := asked.Add(surveyWithin)
	if !now.Before(until) {
		return false
	}
	p.schedule.at(until)
	p.survey = fmt.Sprintf("%s, and the subnets were read %s ago", why, age.Round(time.Second))
	return true
}

// request plans an action that adds addresses.
func (p *planner) request(a cloud.Action) {
	p.steps.do(a)
	p.budget.take(a)
	p.numbers.addInFlight(a)
	p.numbers.Have += a.Count
}
