package trunk

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// A pass halts when more than alarmAbove branches are unowned and they are more than half of all:
// the state was lost, rather than that many branches leaked.
const alarmAbove = 5

// collect gives up the branches that EC2 shows, that are in no state and that no pod names, after
// two observations that are MinAge apart. Within MinAge it gives up Collect of them at most, and none in a dry run.
func (p *planner) collect() {
	named := make(map[string]bool)
	for _, pod := range p.s.Pods { // a branch that was used again is named by ended pods too
		named[string(pod.ENI)] = named[string(pod.ENI)] || !pod.Ended && !p.s.Terminated
	}
	if n := p.s.lost(); n > alarmAbove && n > len(p.branches) && !p.s.Terminated {
		p.report("", "%d branches at EC2 are not in the state, which has %d: none is deleted; check whether the status of the CNINode was lost", n, len(p.branches))
		return
	}
	done := p.s.Collected.at(p.c, p.now)
	left := p.c.Collect - done.Count
	if p.s.Terminated { // no pod can have lost a branch by mistake
		left = p.c.Collect
	}
	var kept []string
	for _, eni := range slices.Sorted(maps.Keys(p.s.Unowned)) {
		u := p.s.Unowned[eni]
		if named[string(eni)] || !p.s.unused(u, p.c.MinAge) {
			continue
		}
		if p.c.DryRun {
			kept = append(kept, string(eni))
			continue
		}
		if left < 1 {
			p.at(done.Since.Add(p.c.MinAge))
			return
		}
		if p.do(Branch{ENI: eni}, u.end(), "EC2 showed it %d times since %s, and neither the state nor a pod has it", u.Passes, u.First.Format(clock)) {
			left--
		}
	}
	if len(kept) > 0 {
		p.report("", "dry run: %d branches that neither the state nor a pod has are not given up: %s", len(kept), strings.Join(kept, " "))
	}
}

// end is the action that gives up an unowned branch.
func (u Unowned) end() Action {
	if u.Seen.Association != "" {
		return Action{Kind: Disassociate, Association: u.Seen.Association, VLAN: u.Seen.VLAN}
	}
	return Action{Kind: DeleteBranch}
}

// lost counts the unowned branches that are Trunkline's.
func (s Snapshot) lost() (n int) {
	for _, u := range s.Unowned {
		if s.ours(u) {
			n++
		}
	}
	return n
}

// ours reports whether an unowned branch is none of another controller.
func (s Snapshot) ours(u Unowned) bool { return u.Seen.Intent != "" || !s.Shared }

// unused reports whether an unowned branch is Trunkline's to give up, by two observations.
func (s Snapshot) unused(u Unowned, minAge time.Duration) bool {
	return s.ours(u) && s.owns(u) && u.Passes >= 2 && !s.Observed.Before(u.First.Add(minAge))
}
