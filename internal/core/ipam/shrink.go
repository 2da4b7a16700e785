package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// shrink releases what has been idle. Whole interfaces come first, because two calls
// release all their addresses, and all of them in one plan: one after the other would cost
// as many calls. Single addresses follow, one call at a time.
func (p *planner) shrink() {
	if !p.s.Brake.AllowsRelease() {
		return
	}
	r := releaser{enis: p.s.ENIs, c: p.c, have: p.numbers.Have, needed: p.s.Idle, schedule: p.schedule, pauses: p.pauses, steps: p.steps}
	r.finishReleases()
	if p.steps.growing() || p.steps.releasing() {
		return
	}
	// What was needed at the peak of the idle time is kept, so that churn at a constant
	// number of pods makes no calls. Removing an interface may leave as few addresses as
	// the low warm target; releasing single addresses keeps the headroom.
	n, warm := p.numbers, p.c.warm(p.s.Limits)
	need := max(p.s.Peak, n.used()+n.Cooling) + n.Demand
	least, keep := max(need+warm.low, p.c.MinIPs), max(need+warm.high, p.c.MinIPs)
	p.schedule.at(p.s.PeakFalls)
	if n.Have < least {
		return
	}
	if at := p.s.PeakSince.Add(p.s.Idle); p.schedule.now.Before(at) {
		p.schedule.at(at)
		return
	}
	r.onlyRepeats = p.paced()
	removed := false
	for r.removeENI(least) {
		removed = true
	}
	if removed || p.c.wholeENIs() {
		return
	}
	if n.Have-keep >= max(1, p.c.Headroom/2) {
		r.removeAddresses(keep)
	}
}

// paced reports whether the last release began so lately that no other one may begin yet.
func (p *planner) paced() bool {
	if p.s.Released.IsZero() {
		return false
	}
	next := p.s.Released.Add(p.c.jitter(p.c.ReleaseEvery))
	p.schedule.at(next)
	return p.schedule.now.Before(next)
}

// releaser picks what to release.
type releaser struct {
	enis     []ENIView
	c        Config
	have     int           // addresses held or incoming
	needed   time.Duration // over which their need was measured
	schedule *schedule
	pauses   *pauses
	steps    *steps
	// onlyRepeats: the last release was lately. Releases that EC2 refused are repeated by
	// their own back-offs, because they released nothing.
	onlyRepeats bool
}

// paused reports whether a release of this kind may not begin yet: EC2 refused it, and its
// back-off has not ended, or another release began lately.
func (r *releaser) paused(e ENIView, kind cloud.Kind) bool {
	key := string(kind) + "/" + string(e.ID)
	_, paused := r.pauses.apply(key)
	return paused || r.onlyRepeats && !r.pauses.ended[key]
}

// finishReleases repeats releases with an unknown outcome: their addresses are still
// fenced. Those that a pod turned out to use are not released.
func (r *releaser) finishReleases() {
	for _, e := range r.enis {
		if !r.steps.free(e) || e.Phase == Detaching || e.Phase == Deleting || e.Count(Releasing) == 0 {
			continue
		}
		if r.paused(e, cloud.UnassignAddresses) {
			continue
		}
		fenced := e.unclaimed(Releasing)
		if len(fenced) == 0 {
			continue
		}
		r.steps.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: e.ID, Subnet: e.Subnet, Addresses: fenced, Why: "an earlier release has an unknown outcome"})
	}
}

// unclaimed lists the addresses in a state that no claim names.
func (e ENIView) unclaimed(in State) (out []netip.Addr) {
	for _, a := range e.Addresses {
		claimed := slices.ContainsFunc(e.Claimed, func(c Claimed) bool { return c.Addr == a.Addr })
		if a.State == in && !claimed {
			out = append(out, a.Addr)
		}
	}
	return out
}

// unused reports whether no address of e is in use or cooling down; it requests a plan
// when the last cool-down ends.
func (r *releaser) unused(e ENIView) bool {
	if e.Count(Assigned, Quarantined) > 0 {
		return false
	}
	var last time.Time
	for _, a := range e.Addresses {
		if a.State == Cooling && a.Until.After(last) {
			last = a.Until
		}
	}
	r.schedule.at(last)
	return last.IsZero()
}

// removeENI detaches one idle interface without which the node has keep addresses or more.
func (r *releaser) removeENI(keep int) bool {
	best := -1
	for i, e := range r.enis {
		if e.Phase != Ready || e.Primary || !r.steps.free(e) || e.Kept() != "" || !r.unused(e) {
			continue
		}
		if e.Count(Free) > r.have-keep {
			continue
		}
		if old := e.Created.Add(r.c.MinENIAge); r.schedule.now.Before(old) {
			r.schedule.at(old)
			continue
		}
		if r.paused(e, cloud.Detach) {
			continue
		}
		if best < 0 || e.Count(Free) >= r.enis[best].Count(Free) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	e := r.enis[best]
	r.steps.do(cloud.Action{Kind: cloud.Detach, ENI: e.ID, Attachment: e.Attachment, Why: r.idle(keep) + ", and no pod uses this interface"})
	r.have -= e.Count(Free)
	return true
}

// removeAddresses releases idle addresses beyond keep of the interface with the fewest
// pods, so that the whole interface can be removed later.
func (r *releaser) removeAddresses(keep int) {
	best := -1
	for i, e := range r.enis {
		if !e.pooled() || !r.steps.free(e) || e.Kept() != "" || e.Count(Free) == 0 {
			continue
		}
		if r.paused(e, cloud.UnassignAddresses) {
			continue
		}
		if best < 0 || r.enis[best].Primary || e.Count(Assigned) <= r.enis[best].Count(Assigned) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	e := r.enis[best]
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
	idle = idle[:min(len(idle), r.have-keep, r.c.ReleaseBatch)]
	act := cloud.Action{Kind: cloud.UnassignAddresses, ENI: e.ID, Subnet: e.Subnet, Why: r.idle(keep)}
	for _, a := range idle {
		act.Addresses = append(act.Addresses, a.Addr)
	}
	r.steps.do(act)
}

func (r *releaser) idle(keep int) string {
	return fmt.Sprintf("%d addresses are held and no more than %d were needed for %s",
		r.have, keep, r.needed.Round(time.Second))
}
