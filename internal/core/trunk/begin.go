package trunk

import (
	"errors"
	"fmt"
	"time"
)

// Errors of Begin: the state has changed since the plan, which is made again.
var (
	// ErrBusy: the branch or the trunk has another action in flight.
	ErrBusy = errors.New("another action is in flight")
	// ErrStale: the action does not fit the state.
	ErrStale = errors.New("the action does not fit the state")
)

// Begin records an action of a plan before it is carried out. It refuses, with ErrBusy or
// ErrStale and the state unchanged, an action that would give a VLAN or a branch to two, bind a
// pod to a branch that does not carry exactly the groups of the action, or give up a branch that
// a pod has. An action with an intent that has no call in flight is begun again.
func Begin(s State, a Action, c Config, now time.Time) (State, error) {
	if a.ID == "" || a.Instance != s.Instance {
		return s, fmt.Errorf("begin %s: id %q of %q, the state is that of %q: %w", a, a.ID, a.Instance, s.Instance, ErrStale)
	}
	next := s.clone()
	for vlan, v := range next.VLANs {
		if v.free(now) {
			delete(next.VLANs, vlan)
		}
	}
	a.Began = now
	c.Quarantine = NewGroups(c.Quarantine...)
	var err error
	if a.Kind == CreateTrunk || a.Kind == AttachTrunk || a.Kind == DeleteTrunk {
		err = next.beginTrunk(a, now)
	} else {
		err = next.beginBranch(a, c, now)
	}
	if err != nil {
		return s, fmt.Errorf("begin %s: %w", a, err)
	}
	return next, nil
}

// try returns the intent of an action: a new one, or that of the next try of an earlier one.
func try(earlier *Intent, a Action, now time.Time) (*Intent, error) {
	switch {
	case earlier == nil:
		return &Intent{Action: a, Tries: 1, At: now}, nil
	case earlier.Action.ID != a.ID || !earlier.Lost:
		return nil, fmt.Errorf("%s: %w", earlier.Action, ErrBusy)
	}
	again := *earlier
	again.Tries++
	again.Lost, again.At, again.Retry = false, now, time.Time{}
	return &again, nil
}

func (s *State) beginTrunk(a Action, now time.Time) error {
	t := s.Trunk
	intent, err := try(t.Intent, a, now)
	if err != nil {
		return err
	}
	if t.Intent == nil {
		from := map[Kind]Stage{CreateTrunk: Absent, AttachTrunk: Attaching, DeleteTrunk: Attaching}[a.Kind]
		if t.Stage != from || t.ENI != a.ENI {
			return fmt.Errorf("the trunk is %s %s: %w", t.ENI, t.Stage, ErrStale)
		}
		switch a.Kind {
		case CreateTrunk:
			t.Stage, t.Subnet, t.Groups = Creating, a.Subnet, a.Groups
		case DeleteTrunk:
			t.Stage = Deleting
		default:
		}
	}
	t.Intent = intent
	s.Trunk = t
	return nil
}

func (s *State) beginBranch(a Action, c Config, now time.Time) error {
	if a.Kind == Release && a.Branch == "" {
		s.forget(a.Pod)
		return nil
	}
	unowned := a.Branch == "" && a.Kind != CreateBranch
	b, err := s.row(a, now)
	if err != nil {
		return err
	}
	a.Branch = b.ID
	if other, has := s.Of(a.Pod); has && other.ID != b.ID {
		return fmt.Errorf("pod %s has branch %s: %w", a.Pod, other.ID, ErrStale)
	}
	if a.Kind == Release {
		return s.release(b, a, now)
	}
	intent, err := try(b.Intent, a, now)
	if err != nil {
		return err
	}
	if b.Intent == nil {
		if b, err = s.enter(b, a, c, now); err != nil {
			return err
		}
	}
	if !a.Kind.local() {
		b.Intent = intent
	}
	b.Changed = now
	s.Branches[b.ID] = b
	if unowned && a.Kind.frees() {
		s.Collected = s.Collected.at(c, now)
		s.Collected.Count++
	}
	return nil
}

// row is the branch of an action: a new one, one that was unowned, or one of the state.
func (s *State) row(a Action, now time.Time) (Branch, error) {
	b, known := s.Branches[a.Branch]
	switch {
	case a.Kind == CreateBranch && a.Branch == "":
		b = Branch{ID: BranchID(a.ID), Subnet: a.Subnet, Pod: a.Pod}.to(Creating, now)
		if _, taken := s.Branches[b.ID]; taken {
			return b, fmt.Errorf("branch %s exists: %w", b.ID, ErrStale)
		}
	case a.Branch == "":
		u, ok := s.Unowned[a.ENI]
		if !ok || !s.owns(u) {
			return b, fmt.Errorf("%s is not an unowned branch, or another has its VLAN: %w", a.ENI, ErrStale)
		}
		b = u.Seen.branch(now)
		s.vacate(b)
		delete(s.Unowned, a.ENI)
	case !known:
		return b, fmt.Errorf("branch %s does not exist: %w", a.Branch, ErrStale)
	}
	return b, nil
}

// enter changes a branch for a new action.
func (s *State) enter(b Branch, a Action, c Config, now time.Time) (Branch, error) {
	stale := fmt.Errorf("branch %s is %s of %q, with %s and VLAN %d: %w", b.ID, b.Stage, b.Pod, b.Groups, b.VLAN, ErrStale)
	if b.Pod != "" && b.Pod != a.Pod {
		return b, stale
	}
	switch a.Kind {
	case CreateBranch:
		if b.Stage != Creating {
			return b, stale
		}
		return b, nil
	case Adopt:
		b.Pod, b.Used = a.Pod, true
		return b.to(Bound, now), nil
	case TagBranch:
		return s.reserve(b, a.VLAN, now, stale)
	case Associate:
		if b.Stage != Associating || b.VLAN != a.VLAN {
			return b, stale
		}
		return b, nil
	case SetGroups, Bind:
		return use(b, a, c, now, stale)
	case Disassociate, DeleteBranch:
		if b.Pod != "" || (b.Association != "") != (a.Kind == Disassociate) {
			return b, stale
		}
		return s.giveUp(b, c, now), nil
	case CreateTrunk, AttachTrunk, DeleteTrunk, Release:
	}
	return b, stale
}

// reserve gives a VLAN to a branch.
func (s *State) reserve(b Branch, vlan int, now time.Time, stale error) (Branch, error) {
	if b.Stage != Tagging || vlan < minVLAN || vlan > maxVLAN || b.VLAN != 0 && b.VLAN != vlan {
		return b, stale
	}
	if v, taken := s.VLANs[vlan]; taken && v.Owner != b.ID && !v.free(now) {
		return b, fmt.Errorf("VLAN %d is that of %s: %w", vlan, v.Owner, ErrStale)
	}
	s.VLANs[vlan], s.LastVLAN = VLAN{Owner: b.ID}, vlan
	b.VLAN = vlan
	return b, nil
}

// use begins a change of the groups of a branch, or its binding.
func use(b Branch, a Action, c Config, now time.Time, stale error) (Branch, error) {
	switch b.Stage {
	case Idle, Binding:
	case Bound:
		if a.Kind == Bind || a.Pod != b.Pod {
			return b, stale
		}
	case Cooling:
		quarantine := a.Kind == SetGroups && a.Pod == "" && a.Groups.Equal(c.Quarantine)
		if quarantine {
			return b, nil
		}
		if !b.cooled(c, now) {
			return b, stale
		}
		b = b.to(Idle, now)
		b.Used = false
	case Absent, Creating, Attaching, Ready, Tagging, Associating, Disassociating, Deleting:
		return b, stale
	}
	b.Pod = a.Pod
	if a.Kind == Bind {
		if a.Pod == "" || !b.Groups.Equal(a.Groups) {
			return b, stale
		}
		b = b.to(Binding, now)
		b.Used = true
	}
	return b, nil
}

// cooled reports whether a pod may use a branch after its last one: it has been quarantined, and
// has cooled down since.
func (b Branch) cooled(c Config, now time.Time) bool {
	return b.Stage == Cooling && b.Intent == nil && len(c.Quarantine) > 0 && b.Groups.Equal(c.Quarantine) &&
		!now.Before(b.Since.Add(c.CoolDown))
}

// giveUp begins the end of a branch that no pod has. A VLAN that no pod used needs no cool-down
// if the branch is not associated.
func (s *State) giveUp(b Branch, c Config, now time.Time) Branch {
	if b.Association != "" {
		return b.to(Disassociating, now)
	}
	if b.Stage != Deleting {
		until := now
		if b.Used {
			until = now.Add(c.CoolDown)
		}
		s.coolVLAN(b, until)
		b.VLAN = 0
	}
	return b.to(Deleting, now)
}

// release ends the use of a branch by its pod. A binding in flight has no effect any more.
func (s *State) release(b Branch, a Action, now time.Time) error {
	if b.Pod == "" || b.Pod != a.Pod {
		return fmt.Errorf("branch %s is that of %q: %w", b.ID, b.Pod, ErrStale)
	}
	if b.Used {
		b = b.to(Cooling, now)
	}
	if b.Intent != nil && b.Intent.Action.Kind == Bind {
		b.Intent = nil
	}
	b.Pod = ""
	s.Branches[b.ID] = b
	s.forget(a.Pod)
	return nil
}

// forget drops what EC2 refused of a pod.
func (s *State) forget(pod PodUID) {
	delete(s.Refused, pod)
	delete(s.Backoffs, keyPod+string(pod))
}

// owns reports whether an unowned branch has its VLAN in the ledger too. If not, the VLAN is
// reserved for a branch that EC2 will refuse to associate.
func (s State) owns(u Unowned) bool {
	return u.Seen.VLAN == 0 || s.VLANs[u.Seen.VLAN].Owner == BranchID(u.Seen.ENI)
}

// branch is the row of a branch that was found at EC2.
func (u Seen) branch(now time.Time) Branch {
	return Branch{
		ID: BranchID(u.ENI), ENI: u.ENI, MAC: u.MAC, IPv4: u.IPv4, IPv6: u.IPv6, Subnet: u.Subnet,
		VLAN: u.VLAN, Association: u.Association, Groups: u.Groups,
	}.to(Idle, now)
}
