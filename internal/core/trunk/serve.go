package trunk

import "fmt"

// trunking plans the trunk.
type trunking struct{ *planner }

// plan makes the trunk of a node that can have one.
func (p trunking) plan() {
	t := p.s.Trunk
	if t.Intent != nil {
		return
	}
	if p.s.Terminated {
		p.deleteTrunk("the instance is terminated and the trunk is not attached")
		return
	}
	if p.s.CustomNetworking && t.Stage == Ready && p.problem == "" && !p.placed(t.Subnet) {
		p.report("", "the trunk is in subnet %s, which the ENIConfig does not name: replace the node", t.Subnet)
	}
	if t.Stage == Ready {
		return
	}
	if b, paused := p.paused(keyTrunk); paused && p.s.Limits.branches() > 0 {
		p.report("", "the trunk waits until %s: %s", b.Until.Format(clock), b.Message)
		return
	} else if p.s.Limits.branches() < 1 { // its type or its mode has changed
		if !paused {
			p.deleteTrunk("the node has no branches, and the trunk is not attached")
		}
		return
	}
	p.make(t)
}

// deleteTrunk deletes a trunk that is not attached. An attached one is deleted with the instance.
func (p trunking) deleteTrunk(why string) {
	if t := p.s.Trunk; t.Stage == Attaching {
		p.do(Branch{ENI: t.ENI}, Action{Kind: DeleteTrunk}, "%s", why)
	}
}

// make creates the trunk, or attaches it.
func (p trunking) make(t Trunk) {
	device, ok := p.device()
	if !ok {
		p.report("", "the trunk needs a device index, and other interfaces have all %d: lower the limit of interfaces for addresses", p.s.Limits.ENIs)
		return
	}
	if t.Stage == Attaching {
		p.do(Branch{ENI: t.ENI}, Action{Kind: AttachTrunk, Device: device}, "it exists and is not on the instance; %d is the highest free device index", device)
		return
	}
	subnet, why := p.subnet(false)
	if why != "" {
		p.report("", "the trunk cannot be created: %s", why)
		return
	}
	if p.do(Branch{}, Action{Kind: CreateTrunk, Subnet: subnet, Groups: NewGroups(p.place.Groups...)}, "the node has no trunk, and its type has %d branches", p.s.Limits.Branches) {
		p.making[subnet]++
	}
}

// device is the highest free device index: interfaces for addresses are attached from the lowest
// on.
func (p trunking) device() (int, bool) {
	used := make(map[int]bool)
	for _, n := range p.s.Devices {
		used[n] = true
	}
	for n := p.s.Limits.ENIs - 1; n > 0; n-- {
		if !used[n] {
			return n, true
		}
	}
	return 0, false
}

// serve gives a branch to each pod that wants one.
func (p *planner) serve() {
	has := make(map[PodUID]bool)
	for _, b := range p.branches {
		has[b.Pod] = b.Pod != ""
	}
	for _, pod := range p.s.Pods {
		if pod = p.pods[pod.UID]; has[pod.UID] || pod.Ended || len(pod.Groups) == 0 || p.s.Terminated {
			continue
		}
		if !p.s.Replaced && p.adopt(pod) {
			continue
		}
		if why := p.give(pod); why != "" {
			p.unserved++
			p.report(pod.UID, "%s", why)
		}
	}
	if p.unserved > 0 {
		p.at(p.s.nextFreeVLAN(p.now))
	}
}

// give plans the first action that gives a pod a branch, and says why it does not.
func (p *planner) give(pod Pod) (why string) {
	if p.s.Replaced {
		return p.s.replaced()
	}
	if r, ok := p.s.Refused[pod.UID]; ok && r.Groups.Equal(pod.Groups) {
		return fmt.Sprintf("EC2 refuses %s: %s", r.Groups, r.Message)
	}
	if b, paused := p.paused(keyPod + string(pod.UID)); paused {
		return fmt.Sprintf("tried again at %s: %s %s", b.Until.Format(clock), b.Reason, b.Message)
	}
	switch {
	case pod.ENI != "":
		return fmt.Sprintf("its annotation names %s, which is not in the state: delete the pod", pod.ENI)
	case p.s.Trunk.Stage != Ready:
		return "the node has no trunk yet"
	}
	if b, ok := p.best(pod.Groups); ok {
		a, why := Action{Kind: Bind, Pod: pod.UID, Groups: pod.Groups}, "the pod %s wants its groups"
		if !b.Groups.Equal(pod.Groups) {
			a.Kind, why = SetGroups, "the pod %s wants them, and the branch is warm"
		}
		if !p.do(b, a, why, pod.Name) {
			return fmt.Sprintf("brake: %s", p.s.Brake)
		}
		return ""
	}
	return p.create(pod.UID, pod.Groups, fmt.Sprintf("the pod %s wants %s, and no branch is warm", pod.Name, pod.Groups))
}

// best returns the spare branch that a pod gets with the fewest calls: one with its groups, else
// a quarantined one, else any.
func (p *planner) best(groups Groups) (best Branch, ok bool) {
	rank := func(b Branch) int {
		switch {
		case b.Groups.Equal(groups):
			return 3
		case b.Groups.Equal(p.c.Quarantine):
			return 2
		}
		return 1
	}
	for _, b := range p.branches {
		if p.available(b) && (!ok || rank(b) > rank(best)) {
			best, ok = b, true
		}
	}
	return best, ok
}

// available reports whether a pod can get a spare branch now. One that carries the groups of a
// branch in Cooling is quarantined and has cooled down, and becomes another pod's by SetGroups.
func (p *planner) available(b Branch) bool {
	if b.Pod != "" || !p.placed(b.Subnet) || !p.free(b) {
		return false
	}
	if b.Stage == Cooling && b.Groups.Equal(p.c.Quarantine) {
		p.at(b.Since.Add(p.c.CoolDown))
	}
	return b.Stage == Idle || b.cooled(p.c, p.now)
}

// adopt takes a branch over that the state does not have and the annotation of a pod names: the
// state was lost.
func (p *planner) adopt(pod Pod) bool {
	u, ok := p.s.Unowned[pod.ENI]
	if pod.ENI == "" || !ok || u.Seen.Association == "" || !p.s.owns(u) {
		return false
	}
	return p.do(Branch{ENI: pod.ENI}, Action{Kind: Adopt, Pod: pod.UID}, "the annotation of the pod %s names it", pod.Name)
}
