package trunk

import (
	"slices"
	"time"
)

// warmth is the part of a plan that keeps branches for pods to come.
type warmth struct{ *planner }

// grow matches the groups that are wanted with the spare branches, and makes what is missing.
// Spare branches that match nothing are given up later.
func (p warmth) grow() {
	wants, most := p.wants(), p.mostWarm()
	if len(wants) > most {
		wants = wants[:most]
	}
	r := p.refill(wants)
	var generic int
	for _, groups := range wants {
		switch {
		case groups.Equal(p.c.Quarantine):
			generic++
		case p.match(groups) || p.regroup(groups) || p.makes(r, groups):
			r.kept[groups.String()]++
		}
	}
	refused := p.refusedQuarantine()
	for range generic {
		if p.match(p.c.Quarantine) || !refused && (p.quarantineUsed() || p.quarantineSpare() || p.makes(r, p.c.Quarantine)) {
			r.kept[p.c.Quarantine.String()]++
		}
	}
	if !refused {
		p.reuse()
	}
}

// refusedQuarantine reports whether a back-off keeps branches from quarantine, and why: EC2 does not have the
// groups, or has them in another VPC. The problem ends a cool-down after the back-off if nothing is tried again.
func (p warmth) refusedQuarantine() bool {
	if len(p.c.Quarantine) == 0 {
		return false
	}
	b, paused := p.paused(keyQuarantine + string(p.c.Quarantine[0]))
	if end := b.Until.Add(p.c.CoolDown); b.Tries > 0 && p.now.Before(end) {
		p.at(end)
		p.report("", "EC2 refuses the quarantine groups %s: no branch is kept warm in quarantine and none is used again; correct them in the controller's configuration: %s", p.c.Quarantine, b.Message)
	}
	return paused
}

// reuse quarantines used branches for pods that wait, in place of new ones.
func (p warmth) reuse() {
	if len(p.c.Quarantine) == 0 {
		return
	}
	for range p.unserved {
		if !p.match(p.c.Quarantine) && !p.quarantineUsed() {
			return
		}
	}
}

// refillAfter is how long new warm branches wait after a pod has got a branch: the calls and the
// writes of the record that make them would delay the pods that follow.
const refillAfter = 5 * time.Second

// refill is how many branches with the same groups are wanted and kept, and until when new ones wait.
type refill struct {
	until        time.Time // zero: they do not
	wanted, kept map[string]int
}

func (p warmth) refill(wants []Groups) refill {
	r := refill{wanted: map[string]int{}, kept: map[string]int{}}
	for _, groups := range wants {
		r.wanted[groups.String()]++
	}
	for _, b := range p.branches {
		since := b.Since
		if p.taken(b) {
			since = p.now
		} else if b.Pod == "" || b.Stage == Cooling {
			continue
		}
		if until := since.Add(refillAfter); p.now.Before(until) && r.until.Before(until) {
			r.until = until
		}
	}
	return r
}

// makes creates a branch with these groups. It waits while pods get branches, as long as at least a
// quarter of those that are wanted is left.
func (p warmth) makes(r refill, groups Groups) bool {
	if !r.until.IsZero() && 4*r.kept[groups.String()] >= r.wanted[groups.String()] {
		p.at(r.until)
		return false
	}
	p.createWarm(groups)
	return true
}

// wants are the groups of the branches that are kept warm, the exact ones first.
func (p warmth) wants() (out []Groups) {
	if len(p.c.Quarantine) == 0 || p.s.Limits.Branches < p.c.WarmFrom || p.s.Terminated || p.s.Trunk.Stage != Ready {
		return nil
	}
	for _, e := range p.c.Exact {
		out = append(out, slices.Repeat([]Groups{NewGroups(e.Groups...)}, e.Count)...)
	}
	return append(out, slices.Repeat([]Groups{p.c.Quarantine}, p.c.Warm)...)
}

// mostWarm is how many branches may be kept warm: none of the last third of the branches, of the
// VLANs, or of a subnet.
func (p warmth) mostWarm() int {
	branches, vlans, spare := 0, maxVLAN-len(p.s.freeVLANs(p.now)), make(map[Subnet]int)
	for _, b := range p.branches {
		if !b.spare(p.c.Quarantine) || p.taken(b) {
			if b.associated() {
				branches++
			}
			continue
		}
		if b.VLAN != 0 {
			vlans--
		}
		for _, n := range p.place.Subnets {
			if n.ID == b.Subnet {
				spare[n]++
			}
		}
	}
	for _, a := range p.d.Actions {
		if a.Kind == CreateBranch && a.ID == "" {
			branches++
			vlans++
		}
	}
	most := max(0, min(2*p.s.Limits.branches()/3-branches, 2*maxVLAN/3-vlans))
	addresses, limited := 0, true
	for _, n := range p.place.Subnets {
		// those that exist, and those that can be made or must be given up
		addresses += max(0, spare[n]+n.Free-p.making[n.ID]-LastThird(n.Total))
		limited = limited && n.Free >= 0
	}
	if limited {
		most = min(most, addresses)
	}
	return most
}

// LastThird is how many of a subnet's addresses no warm branch takes.
func LastThird(addresses int) int { return (addresses + 2) / 3 }

// taken reports whether an action of this plan gives a branch to a pod.
func (p warmth) taken(b Branch) bool {
	return slices.ContainsFunc(p.d.Actions, func(a Action) bool {
		return a.Branch == b.ID && a.Pod != "" && (a.Kind == Bind || a.Kind == SetGroups)
	})
}

// spares calls f with the spare branches that are not matched yet, until it returns true.
func (p warmth) spares(f func(Branch) bool) bool {
	return slices.ContainsFunc(p.branches, func(b Branch) bool {
		return b.spare(p.c.Quarantine) && !p.keep[b.ID] && !p.taken(b) && p.placed(b.Subnet) && f(b)
	})
}

// match keeps a spare branch that carries the groups, or will.
func (p warmth) match(groups Groups) bool {
	return p.spares(func(b Branch) bool {
		p.keep[b.ID] = b.next().Equal(groups)
		return p.keep[b.ID]
	})
}

// regroup gives groups to a quarantined branch.
func (p warmth) regroup(groups Groups) bool {
	return p.spares(func(b Branch) bool {
		p.keep[b.ID] = b.Groups.Equal(p.c.Quarantine) && p.available(b) &&
			p.do(b, Action{Kind: SetGroups, Groups: groups}, "branches with %s are kept warm", groups)
		return p.keep[b.ID]
	})
}

// quarantineSpare keeps a spare branch with groups that are not wanted any more, and quarantines
// it once it is idle.
func (p warmth) quarantineSpare() bool {
	return p.spares(func(b Branch) bool {
		p.keep[b.ID] = true
		if b.Stage == Idle && p.free(b) {
			p.do(b, Action{Kind: SetGroups, Groups: p.c.Quarantine}, "no pod uses it, and %d quarantined branches are kept warm", p.c.Warm)
		}
		return true
	})
}

// quarantineUsed quarantines a branch of a pod that has ended, for another pod.
func (p warmth) quarantineUsed() bool {
	return slices.ContainsFunc(p.branches, func(b Branch) bool {
		if b.Stage != Cooling || b.Association == "" || b.spare(p.c.Quarantine) || !p.placed(b.Subnet) || !p.free(b) {
			return false
		}
		p.keep[b.ID] = p.do(b, Action{Kind: SetGroups, Groups: p.c.Quarantine}, "its pod has ended, and another one can use it once it has cooled down in quarantine")
		return p.keep[b.ID]
	})
}

// createWarm creates a branch for pods to come, if it takes none of the last third: spare
// branches that match no groups may exist beside it.
func (p warmth) createWarm(groups Groups) {
	limit := p.s.Limits.branches()
	if p.slots <= limit-2*limit/3 || p.vlans <= maxVLAN-2*maxVLAN/3 {
		return
	}
	if _, paused := p.paused(keyWarm); !paused {
		p.create("", groups, "it is kept warm for pods to come")
	}
}

// giveUp takes the next step of each branch that is not kept.
func (p *planner) giveUp() {
	for _, b := range p.branches {
		if b.Pod != "" || p.keep[b.ID] || !p.free(b) {
			continue
		}
		end := Action{Kind: DeleteBranch}
		if b.Association != "" {
			end = Action{Kind: Disassociate, Association: b.Association, VLAN: b.VLAN}
		}
		since, why := p.unneeded(b)
		if p.now.Before(since) {
			p.at(since)
			continue
		}
		p.do(b, end, "%s", why)
	}
}

// unneeded is from when on a branch without a pod that is not kept is given up, and why.
func (p *planner) unneeded(b Branch) (since time.Time, why string) {
	switch {
	case b.Stage == Disassociating:
		return b.Since, "it is given up"
	case b.Stage == Deleting:
		return b.Since, "it is not associated any more"
	case p.s.Terminated:
		return b.Since, "the instance is terminated"
	case b.Stage == Cooling && !b.spare(p.c.Quarantine):
		return b.Since.Add(p.c.CoolDown), "its pod has ended and its cool-down is over"
	case !p.placed(b.Subnet):
		return b.Since.Add(p.c.CoolDown), "no pod gets a branch of subnet " + string(b.Subnet)
	case b.Stage == Idle || b.Stage == Cooling:
		return b.Since.Add(max(p.c.IdleAfter, p.c.CoolDown)), "no pod has needed it for " + max(p.c.IdleAfter, p.c.CoolDown).String()
	}
	return b.Since, "its pod has ended before it was associated"
}
