package trunk

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Decision is the result of Plan.
type Decision struct {
	// Actions to begin now, in order. Each is of another branch, and may run at the same time as
	// the others.
	Actions []Action
	// Next is when to plan again if no event occurs before; zero: only on events.
	Next time.Time
	// Observe is why the branches should be read from EC2 before the next regular observation;
	// empty without a reason.
	Observe string
	// Confirm are pods that have a branch and are not in the snapshot: a live GET shows whether
	// they have ended. Until then their branches are kept.
	Confirm  []PodUID
	Problems []Problem
	Numbers  Numbers
}

// Problem is what a pod or the node waits for.
type Problem struct {
	Pod PodUID // empty: of the node
	Why string
}

// Numbers are counts for status and metrics.
type Numbers struct {
	Limit    int // branches that the node can have
	Bound    int
	Reserved int // for a pod that does not use it yet
	Warm     int // idle, for pods to come
	Cooling  int
	Incoming int // being made, for no pod
	Leaving  int
	Unowned  int
	Unserved int // pods without a branch, in the state or in this plan
	VLANs    int // free ones
}

// Add returns the sums of the counts of two nodes.
func (n Numbers) Add(m Numbers) Numbers {
	return Numbers{
		Limit: n.Limit + m.Limit, Bound: n.Bound + m.Bound, Reserved: n.Reserved + m.Reserved, Warm: n.Warm + m.Warm, Cooling: n.Cooling + m.Cooling,
		Incoming: n.Incoming + m.Incoming, Leaving: n.Leaving + m.Leaving, Unowned: n.Unowned + m.Unowned, Unserved: n.Unserved + m.Unserved, VLANs: n.VLANs + m.VLANs,
	}
}

// Plan decides which actions to begin. It is deterministic and reaches a fixpoint: once its
// actions are settled and nothing else changed, the next plan has none. For an invalid
// configuration it has no actions and names the cause as a problem.
func Plan(s Snapshot, c Config, now time.Time) Decision {
	if err := c.Validate(); err != nil {
		return Decision{Problems: []Problem{{Why: err.Error()}}}
	}
	p := newPlanner(s, c, now)
	p.ended()
	p.repeat()
	if s.Observed.IsZero() {
		p.d.Observe = "the state is new: it is compared with EC2 before anything is created"
		p.d.Numbers = s.numbers(p.unserved, now)
		return p.d
	}
	trunking{p}.plan()
	p.serve()
	if !s.Replaced {
		warmth{p}.grow()
	}
	p.advance()
	p.giveUp()
	p.collect()
	p.observe()
	p.d.Numbers = s.numbers(p.unserved, now)
	return p.d
}

// planner is the working state of one Plan.
type planner struct {
	s        Snapshot
	c        Config
	now      time.Time
	d        Decision
	place    Placement
	problem  string // why nothing is created
	pods     map[PodUID]Pod
	branches []Branch
	busy     map[BranchID]bool // has an action in flight or planned
	keep     map[BranchID]bool // of the spare branches, those that are not given up
	making   map[vpc.SubnetID]int
	slots    int // branches that the limit permits beside those that exist
	vlans    int // free VLANs that no branch is being made for
	unserved int
}

func newPlanner(s Snapshot, c Config, now time.Time) *planner {
	c.Quarantine = NewGroups(c.Quarantine...)
	p := &planner{
		s: s, c: c, now: now, branches: s.sorted(), pods: make(map[PodUID]Pod), busy: make(map[BranchID]bool),
		keep: make(map[BranchID]bool), making: make(map[vpc.SubnetID]int),
	}
	if s.Replaced {
		p.s.Limits.Branches = 0
		p.report("", "%s", s.replaced())
	}
	p.place, p.problem = s.placement()
	for _, pod := range s.Pods {
		pod.Groups = NewGroups(pod.Groups...)
		p.pods[pod.UID] = pod
	}
	p.slots, p.vlans = p.s.Limits.branches(), len(s.freeVLANs(now))
	for _, b := range p.branches {
		if b.associated() {
			p.slots--
		}
		switch b.Stage {
		case Creating:
			p.making[b.Subnet]++
			p.vlans--
		case Tagging:
			if b.VLAN == 0 {
				p.vlans--
			}
		default:
		}
		p.busy[b.ID] = b.Intent != nil
	}
	return p
}

// at requests a plan at t. A time that has passed is no request.
func (p *planner) at(t time.Time) {
	if t.After(p.now) && (p.d.Next.IsZero() || t.Before(p.d.Next)) {
		p.d.Next = t
	}
}

// do plans an action of a branch, unless a brake forbids it. It reports whether it did.
func (p *planner) do(b Branch, a Action, why string, args ...any) bool {
	if !a.Kind.AllowedBy(p.s.Brake) {
		return false
	}
	a.Instance, a.Branch, a.Why = p.s.Instance, b.ID, fmt.Sprintf(why, args...)
	if b.ENI != "" {
		a.ENI = b.ENI
	}
	p.d.Actions = append(p.d.Actions, a)
	if b.ID != "" {
		p.busy[b.ID] = true
	}
	return true
}

func (p *planner) report(pod PodUID, why string, args ...any) {
	p.d.Problems = append(p.d.Problems, Problem{pod, fmt.Sprintf(why, args...)})
}

// paused reports whether a back-off delays an action, and requests a plan when it ends.
func (p *planner) paused(key string) (Backoff, bool) {
	b, ok := p.s.Backoffs[key]
	if !ok || !p.now.Before(b.Until) {
		return b, false
	}
	p.at(b.Until)
	return b, true
}

// free reports whether an action of a branch can begin.
func (p *planner) free(b Branch) bool {
	if p.busy[b.ID] {
		return false
	}
	_, paused := p.paused(keyBranch + string(b.ID))
	return !paused
}

// repeat plans the actions with an unknown outcome again, under their first ID.
func (p *planner) repeat() {
	repeat := func(i *Intent) {
		switch {
		case i == nil || !i.Lost || !i.Action.Kind.AllowedBy(p.s.Brake):
		case i.Action.Kind == Bind && !p.live(i.Action.Pod):
		case p.now.Before(i.Retry):
			p.at(i.Retry)
		default:
			a := i.Action
			a.Why = fmt.Sprintf("its outcome is not known after %d tries; %s", i.Tries, a.Why)
			if i.Tries == 1 {
				a.Why = "its outcome is not known; " + i.Action.Why
			}
			p.d.Actions = append(p.d.Actions, a)
		}
	}
	repeat(p.s.Trunk.Intent)
	for _, b := range p.branches {
		repeat(b.Intent)
	}
}

// live reports whether a pod is known not to have ended.
func (p *planner) live(uid PodUID) bool {
	pod, known := p.pods[uid]
	return known && !pod.Ended && !p.s.Terminated
}

// ended releases the branches of pods that have ended, and of pods that want none and do not use
// theirs yet.
func (p *planner) ended() {
	for _, pod := range p.forgettable() {
		p.do(Branch{}, Action{Kind: Release, Pod: pod}, "the pod has ended, and what EC2 refused of it is of no use")
	}
	for _, b := range p.branches {
		if b.Pod == "" {
			continue
		}
		pod, known := p.pods[b.Pod]
		release := Action{Kind: Release, Pod: b.Pod}
		switch {
		case p.s.Terminated:
			p.do(b, release, "the instance is terminated")
		case !known:
			p.d.Confirm = append(p.d.Confirm, b.Pod)
			p.busy[b.ID] = true
		case pod.Ended:
			p.do(b, release, "the pod %s has ended", pod.Name)
		case p.s.Replaced && !b.Used:
			p.do(b, release, "the node of the pod %s has another instance now", pod.Name)
		case len(pod.Groups) == 0 && !b.Used:
			p.do(b, release, "no policy selects the pod %s any more", pod.Name)
		}
	}
}

// forgettable are the pods without a branch that have ended, and of which the state has a
// refusal or a back-off.
func (p *planner) forgettable() (out []PodUID) {
	uids := make(map[PodUID]bool)
	for uid := range p.s.Refused {
		uids[uid] = true
	}
	for key := range p.s.Backoffs {
		if uid, ok := strings.CutPrefix(key, keyPod); ok {
			uids[PodUID(uid)] = true
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		pod, known := p.pods[uid]
		if _, has := p.s.Of(uid); !has && (!known || pod.Ended) {
			out = append(out, uid)
		}
	}
	return out
}

// subnet picks the subnet of a new branch; why says why there is none. A warm branch takes
// nothing of the last third of a subnet.
func (p *planner) subnet(warm bool) (id vpc.SubnetID, why string) {
	if p.problem != "" {
		return "", p.problem
	}
	for _, n := range p.place.Subnets {
		free := n.Free - p.making[n.ID]
		b, paused := p.paused(keySubnet + string(n.ID))
		switch {
		case paused:
			why = fmt.Sprintf("subnet %s: %s, tried again at %s", n.ID, b.Reason, b.Until.Format(clock))
		case n.Free >= 0 && free < 1:
			why = fmt.Sprintf("subnet %s has no free address", n.ID)
		case warm && (n.Free < 0 || 3*(free-1) < n.Total):
			why = fmt.Sprintf("the last third of subnet %s is for pods", n.ID)
		default:
			return n.ID, ""
		}
	}
	return "", why
}

// placed reports whether a pod may get a branch of a subnet.
func (p *planner) placed(subnet vpc.SubnetID) bool {
	return slices.ContainsFunc(p.place.Subnets, func(n Subnet) bool { return n.ID == subnet })
}

// create plans a new branch and reports why it does not.
func (p *planner) create(pod PodUID, groups Groups, why string) (refused string) {
	if p.slots < 1 || p.vlans < 1 {
		return fmt.Sprintf("the node has all of the %d branches that its type or its free VLANs permit", p.s.Limits.branches())
	}
	subnet, refused := p.subnet(pod == "")
	if refused != "" {
		return refused
	}
	if !p.do(Branch{}, Action{Kind: CreateBranch, Pod: pod, Subnet: subnet, Groups: groups}, "%s", why) {
		return fmt.Sprintf("brake: %s", p.s.Brake)
	}
	p.slots--
	p.vlans--
	p.making[subnet]++
	return ""
}

// advance takes the next step of each branch that is kept.
func (p *planner) advance() {
	free := p.s.freeVLANs(p.now)
	for _, b := range p.branches {
		if b.Pod == "" && !p.keep[b.ID] || !p.free(b) {
			continue
		}
		ready := p.s.Trunk.Stage == Ready
		switch b.Stage {
		case Tagging:
			vlan := b.VLAN
			if vlan == 0 && len(free) > 0 {
				vlan, free = free[0], free[1:]
			}
			if ready && vlan != 0 {
				p.do(b, Action{Kind: TagBranch, Pod: b.Pod, VLAN: vlan, Trunk: p.s.Trunk.ENI}, "it exists, and VLAN %d is free", vlan)
			}
		case Associating:
			if ready {
				p.do(b, Action{Kind: Associate, Pod: b.Pod, VLAN: b.VLAN, Trunk: p.s.Trunk.ENI}, "it is tagged and not associated")
			}
		case Idle, Binding, Bound:
			p.pod(b)
		case Absent, Creating, Attaching, Ready, Cooling, Disassociating, Deleting:
		}
	}
}

// pod takes the next step of an associated branch of a pod.
func (p *planner) pod(b Branch) {
	pod := p.pods[b.Pod]
	r, refused := p.s.Refused[b.Pod]
	switch {
	case b.Pod == "" || len(pod.Groups) == 0:
	case b.Groups.Equal(pod.Groups):
		if b.Stage != Bound {
			p.do(b, Action{Kind: Bind, Pod: b.Pod, Groups: b.Groups}, "it carries %s, the groups of the pod %s", b.Groups, pod.Name)
		}
	case refused && r.Groups.Equal(pod.Groups):
		p.report(b.Pod, "EC2 refuses %s: %s", r.Groups, r.Message)
	case b.Stage == Bound:
		p.do(b, Action{Kind: SetGroups, Pod: b.Pod, Groups: pod.Groups}, "the groups of the pod %s have changed from %s", pod.Name, b.Groups)
	default:
		p.do(b, Action{Kind: SetGroups, Pod: b.Pod, Groups: pod.Groups}, "the pod %s wants them, the branch has %s", pod.Name, b.Groups)
	}
}

// observation says why the plan depends on an observation that has not been made; empty if it
// does not.
func (s Snapshot) observation() (why string) {
	for _, b := range s.sorted() {
		if i := b.Intent; i != nil && i.Lost && i.Tries > 2 && s.Observed.Before(i.At) {
			why = fmt.Sprintf("the outcome of %s is not known after %d tries", i.Action, i.Tries)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.Backoffs)) {
		switch b := s.Backoffs[key]; b.Reason {
		case FailLimit, FailVLAN, FailNotFound:
			if s.Observed.Before(b.Since) {
				why = fmt.Sprintf("%s: EC2 and the state differ: %s", key, b.Reason)
			}
		case FailSubnet, FailGroups, FailDevice, FailThrottled, FailRefused, FailOther:
		}
	}
	for _, vlan := range slices.Sorted(maps.Keys(s.VLANs)) {
		if s.VLANs[vlan].Owner == "" && s.VLANs[vlan].Until.IsZero() {
			why = fmt.Sprintf("VLAN %d is in use by a branch that is not in the state", vlan)
		}
	}
	return why
}

// observe asks for the observation that confirms an unowned branch, or that the plan depends on.
func (p *planner) observe() {
	for _, eni := range slices.Sorted(maps.Keys(p.s.Unowned)) {
		due := p.s.Unowned[eni].First.Add(p.c.MinAge)
		switch {
		case p.now.Before(due):
			p.at(due)
		case p.s.Observed.Before(due):
			p.d.Observe = fmt.Sprintf("%s is not in the state: it is given up if EC2 shows it again", eni)
		}
	}
	if missing := p.s.Trunk.Missing; !missing.IsZero() {
		p.at(missing.Add(p.c.MinAge))
		p.report("", "EC2 does not show the trunk %s attached since %s", p.s.Trunk.ENI, missing.Format(clock))
		if !p.now.Before(missing.Add(p.c.MinAge)) {
			p.d.Observe = "EC2 does not show the trunk attached: it is made again if that is confirmed"
		}
	}
	if why := p.s.observation(); why != "" {
		p.d.Observe = why
	}
}

func (s Snapshot) numbers(unserved int, now time.Time) Numbers {
	n := Numbers{Limit: s.Limits.branches(), Unowned: len(s.Unowned), Unserved: unserved, VLANs: len(s.freeVLANs(now))}
	for _, b := range s.Branches {
		switch {
		case b.Stage == Disassociating || b.Stage == Deleting:
			n.Leaving++
		case b.Stage == Cooling:
			n.Cooling++
		case b.Stage == Bound:
			n.Bound++
		case b.Pod != "":
			n.Reserved++
		case b.Stage == Idle:
			n.Warm++
		default:
			n.Incoming++
		}
	}
	return n
}
