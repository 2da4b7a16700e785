package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// shrink releases what has been idle, one release at a time. Whole interfaces come
// first, because two calls release all their addresses, then single addresses.
func (p *planner) shrink() {
	if !p.mayFree() {
		return
	}
	p.finishReleases()
	if p.grew || p.releasing() {
		return
	}
	// What was needed at the peak of the idle time is kept, so that churn at a constant
	// number of pods makes no calls. Removing an interface may leave as few addresses as
	// the low warm target; releasing single addresses keeps the headroom.
	n := &p.d.Numbers
	low, high := p.warmTargets()
	need := max(p.s.Peak, n.Assigned+n.Quarantined+n.Cooling) + n.Demand
	least, keep := max(need+low, p.c.MinIPs), max(need+high, p.c.MinIPs)
	p.replanAt(p.s.PeakFalls)
	if n.Have < least {
		return
	}
	if at := p.releaseAt(); p.now.Before(at) {
		p.replanAt(at)
		return
	}
	if p.removeENI(n.Have-least, least) || p.c.wholeENIs() {
		return
	}
	if surplus := n.Have - keep; surplus >= max(1, p.c.Headroom/2) {
		p.removeAddresses(surplus, keep)
	}
}

// releaseAt is the earliest time of the next release.
func (p *planner) releaseAt() time.Time {
	at := p.s.PeakSince.Add(p.c.jitter(p.c.IdleAfter))
	if p.s.Released.IsZero() {
		return at
	}
	if next := p.s.Released.Add(p.c.jitter(p.c.ReleaseEvery)); next.After(at) {
		return next
	}
	return at
}

// releasing reports whether a release is in flight or planned.
func (p *planner) releasing() bool {
	for _, a := range p.s.InFlight {
		if a.Kind.Frees() {
			return true
		}
	}
	for _, a := range p.d.Actions {
		if a.Kind.Frees() {
			return true
		}
	}
	return false
}

// finishReleases repeats releases with an unknown outcome: their addresses are still
// fenced.
func (p *planner) finishReleases() {
	for _, e := range p.s.ENIs {
		if !p.free(e) || e.Phase == Detaching || e.Phase == Deleting || e.Count(Releasing) == 0 {
			continue
		}
		if _, found := p.backoff(string(cloud.UnassignAddresses) + "/" + string(e.ID)); found {
			continue
		}
		var fenced []netip.Addr
		for _, a := range e.Addresses {
			if a.State == Releasing {
				fenced = append(fenced, a.Addr)
			}
		}
		p.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: e.ID, Subnet: e.Subnet, Addresses: fenced, Why: "an earlier release has an unknown outcome"})
	}
}

// unused reports whether no address of e is in use or cooling down; it requests a plan
// when the last cool-down ends.
func (p *planner) unused(e ENIView) bool {
	if e.Count(Assigned, Quarantined) > 0 {
		return false
	}
	var last time.Time
	for _, a := range e.Addresses {
		if a.State == Cooling && a.Until.After(last) {
			last = a.Until
		}
	}
	p.replanAt(last)
	return last.IsZero()
}

// removeENI detaches one idle interface that the node does not need.
func (p *planner) removeENI(surplus, keep int) bool {
	best := -1
	for i, e := range p.s.ENIs {
		if e.Phase != Ready || e.Primary || !p.free(e) || !p.unused(e) {
			continue
		}
		if e.Count(Free) > surplus {
			continue
		}
		if old := e.Created.Add(p.c.MinENIAge); p.now.Before(old) {
			p.replanAt(old)
			continue
		}
		if _, found := p.backoff(string(cloud.Detach) + "/" + string(e.ID)); found {
			continue
		}
		if best < 0 || e.Count(Free) >= p.s.ENIs[best].Count(Free) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	e := p.s.ENIs[best]
	p.do(cloud.Action{Kind: cloud.Detach, ENI: e.ID, Attachment: e.Attachment, Why: p.idle(keep) + ", and no pod uses this interface"})
	return true
}

// removeAddresses releases idle addresses of the interface with the fewest pods, so
// that the whole interface can be removed later.
func (p *planner) removeAddresses(surplus, keep int) {
	best := -1
	for i, e := range p.s.ENIs {
		if !e.pooled() || !p.free(e) || e.Count(Free) == 0 {
			continue
		}
		if _, found := p.backoff(string(cloud.UnassignAddresses) + "/" + string(e.ID)); found {
			continue
		}
		if best < 0 || p.s.ENIs[best].Primary || e.Count(Assigned) <= p.s.ENIs[best].Count(Assigned) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	e := p.s.ENIs[best]
	var idle []Address
	for _, a := range e.Addresses {
		if a.State == Free {
			idle = append(idle, a)
		}
	}
	// Longest unused first: peers send no more packets of the previous holder to them.
	slices.SortFunc(idle, func(a, b Address) int {
		return cmp.Or(a.Used.Compare(b.Used), a.Addr.Compare(b.Addr))
	})
	idle = idle[:min(len(idle), surplus, p.c.ReleaseBatch)]
	act := cloud.Action{Kind: cloud.UnassignAddresses, ENI: e.ID, Subnet: e.Subnet, Why: p.idle(keep)}
	for _, a := range idle {
		act.Addresses = append(act.Addresses, a.Addr)
	}
	p.do(act)
}

func (p *planner) idle(keep int) string {
	return fmt.Sprintf("%d addresses are held and no more than %d were needed for %s",
		p.d.Numbers.Have, keep, p.c.IdleAfter)
}
