package ipam

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// advance moves interfaces to their next phase, towards Ready or towards deletion.
func (p *planner) advance() {
	excess := p.d.Numbers.ENIs - p.s.Limits.ENIs
	for i := len(p.s.ENIs) - 1; i >= 0; i-- { // backwards: of unattached interfaces the one with the highest id is discarded first
		e := p.s.ENIs[i]
		if !p.free(e) {
			continue
		}
		switch e.Phase {
		case Attaching:
			if excess > 0 || p.unattachable(e) {
				p.discard(e)
				excess--
			}
		case Deleting:
			p.retry(e, cloud.Action{Kind: cloud.DeleteENI, ENI: e.ID, Why: "it is detached"})
		case Detaching:
			p.retry(e, cloud.Action{Kind: cloud.Detach, ENI: e.ID, Attachment: e.Attachment, Why: "it was fenced for removal and is still attached"})
		case SettingUp, Ready:
		}
	}
	for _, e := range p.s.ENIs {
		if !p.free(e) {
			continue
		}
		switch e.Phase {
		case Attaching:
			p.attach(e)
		case SettingUp:
			if _, found := p.backoff(string(cloud.SetUp) + "/" + string(e.ID)); !found {
				p.do(cloud.Action{Kind: cloud.SetUp, ENI: e.ID, Device: e.Device, Why: "it is on the instance and not set up"})
			}
		case Ready, Detaching, Deleting:
		}
	}
}

// retry plans a release of e, unless a brake or a back-off forbids it.
func (p *planner) retry(e ENIView, a cloud.Action) {
	if !p.mayFree() {
		return
	}
	if _, found := p.backoff(string(a.Kind) + "/" + string(e.ID)); !found {
		p.do(a)
	}
}

// unattachable reports whether EC2 rejected an attachment because the instance has no
// free slot, and e is old enough to be deleted.
func (p *planner) unattachable(e ENIView) bool {
	b, full := p.backoffs["interfaces"]
	if !full || b.Reason != cloud.FailENILimit {
		return false
	}
	old := e.Created.Add(p.c.MinENIAge)
	p.replanAt(old)
	return !p.now.Before(old)
}

func (p *planner) discard(e ENIView) {
	p.retry(e, cloud.Action{Kind: cloud.DeleteENI, ENI: e.ID, Why: "the instance can attach no more interfaces"})
}

func (p *planner) attach(e ENIView) {
	if !p.mayCall() {
		return
	}
	if _, found := p.backoff("interfaces", string(cloud.Attach)+"/"+string(e.ID)); found {
		return
	}
	for device := range p.s.Limits.ENIs {
		if !p.devices[device] {
			p.devices[device] = true
			p.do(cloud.Action{Kind: cloud.Attach, ENI: e.ID, Device: device, Why: "it exists and is not on the instance"})
			return
		}
	}
}

// grow requests the missing addresses in the fewest calls: first on interfaces with
// free slots, one call each; then on new interfaces, created with their addresses.
func (p *planner) grow() {
	n := &p.d.Numbers
	if n.Have < p.low && !p.mayCall() {
		p.blocked = append(p.blocked, fmt.Sprintf("brake %q", string(p.s.Brake)))
	}
	if n.Have < p.low && p.mayCall() {
		why := p.why()
		short := p.fill(p.high-n.Have, why)
		// Headroom alone does not justify a new interface.
		if need := short - (p.high - p.low); need > 0 {
			p.create(need, short, why)
		}
	}
	n.Unmet = max(0, n.Demand-n.Free-n.Incoming)
}

// why is the reason the pool grows.
func (p *planner) why() string {
	n := p.d.Numbers
	s := fmt.Sprintf("%d addresses are wanted and %d held: ", p.high, n.Have)
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
		take := min(short, f.slots, p.freeIn(f.eni.Subnet))
		if take <= 0 {
			p.blocked = append(p.blocked, fmt.Sprintf("subnet %s has no free address", f.eni.Subnet))
			continue
		}
		p.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: f.eni.ID, Subnet: f.eni.Subnet, Count: take, Why: why})
		p.taken[f.eni.Subnet] += take
		p.d.Numbers.Have += take
		p.d.Numbers.Incoming += take
		p.grew = true
		short -= take
	}
	return short
}

// withFreeSlots lists interfaces that can take more addresses now, most slots first.
func (p *planner) withFreeSlots() []freeSlots {
	var out []freeSlots
	for _, e := range p.s.ENIs {
		slots := p.perENI - len(e.Addresses)
		if slots <= 0 || !e.pooled() || !p.free(e) {
			continue
		}
		if b, found := p.backoff("subnet/"+string(e.Subnet), string(cloud.AssignAddresses)+"/"+string(e.ID)); found {
			p.blocked = append(p.blocked, blockedBy(b))
			continue
		}
		out = append(out, freeSlots{e, slots})
	}
	slices.SortStableFunc(out, func(a, b freeSlots) int { return cmp.Compare(b.slots, a.slots) })
	return out
}

func blockedBy(b Backoff) string {
	return fmt.Sprintf("%s, tried %d times, again at %s", cmp.Or(b.Message, string(b.Reason)), b.Tries, b.Until.Format(clock))
}

// freeIn is how many addresses of subnet id this plan can still request. A subnet
// without a known count is assumed to have enough: EC2 rejects the call if it has not.
func (p *planner) freeIn(id vpc.SubnetID) int {
	for _, n := range p.s.Subnets {
		if n.ID == id && n.Free >= 0 {
			return n.Free - p.taken[id]
		}
	}
	return 1 << 16
}

// create plans as many interfaces as need requires, with up to want addresses in
// all.
func (p *planner) create(need, want int, why string) {
	if b, found := p.backoff("interfaces"); found {
		p.blocked = append(p.blocked, blockedBy(b))
		return
	}
	for slots := p.maxENIs - p.d.Numbers.ENIs; slots > 0 && need > 0 && p.perENI > 0; slots-- {
		n, ok := p.subnet(min(want, p.perENI))
		if !ok {
			return
		}
		take := min(want, p.perENI, p.freeIn(n.ID)-1) // the interface itself takes one
		if p.c.wholeENIs() {
			take = min(p.perENI, p.freeIn(n.ID)-1)
		}
		p.do(cloud.Action{
			Kind: cloud.CreateENI, Subnet: n.ID, SubnetCIDR: n.CIDR, Groups: p.s.Groups, Count: take,
			Why: why + suffix(!n.SameRoutes, "; no subnet with the node's route table has enough free addresses"),
		})
		p.taken[n.ID] += take + 1
		p.d.Numbers.ENIs++
		p.d.Numbers.Have += take
		p.d.Numbers.Incoming += take
		p.grew = true
		need -= take
		want -= take
	}
}

// subnet picks the subnet of the next interface. It prefers a subnet with the route
// table of the node's own subnet, then one with enough addresses, then the one with the
// most.
func (p *planner) subnet(want int) (Subnet, bool) {
	best, found := Subnet{}, false
	for _, n := range p.s.Subnets {
		if b, found := p.backoff("subnet/"+string(n.ID), string(cloud.CreateENI)+"/"+string(n.ID)); found {
			p.blocked = append(p.blocked, blockedBy(b))
			continue
		}
		if p.freeIn(n.ID) < 2 {
			p.blocked = append(p.blocked, fmt.Sprintf("subnet %s has %d free, a new interface needs 2", n.ID, max(0, p.freeIn(n.ID))))
			continue
		}
		if !found || p.better(n, best, want) {
			best, found = n, true
		}
	}
	return best, found
}

func (p *planner) better(a, b Subnet, want int) bool {
	if a.SameRoutes != b.SameRoutes {
		return a.SameRoutes
	}
	la, lb := p.freeIn(a.ID), p.freeIn(b.ID)
	if (la > want) != (lb > want) {
		return la > want
	}
	if la != lb {
		return la > lb
	}
	return a.ID < b.ID
}
