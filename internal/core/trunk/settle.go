package trunk

import (
	"cmp"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Keys of back-offs.
const (
	keySubnet = "subnet/" // + its id: nothing is created in it
	keyBranch = "branch/" // + its ID
	keyPod    = "pod/"    // + its uid: no branch is created for it
	keyWarm   = "warm"    // no branch is created for pods to come
	keyTrunk  = "trunk"
	// keyQuarantine: EC2 has refused the quarantine groups. No branch is given them, so that what cannot
	// be used again is given up.
	keyQuarantine = "quarantine/" // + the first of the groups
)

// notFoundTries is how often EC2 must not have found a branch until it is taken for gone.
const notFoundTries = 3

// Settle records that an action in flight has succeeded. An action that is not in flight, such as
// one that is settled twice, changes nothing.
func Settle(s State, id cloud.ActionID, o Outcome, c Config, now time.Time) State {
	if i := s.Trunk.Intent; i != nil && i.Action.ID == id {
		s = s.clone()
		s.Trunk = s.Trunk.settled(i.Action, o)
		delete(s.Backoffs, keyTrunk)
		return s
	}
	b, ok := s.inFlight(id)
	if !ok {
		return s
	}
	s = s.clone()
	s.settle(b, o, c, now)
	return s
}

func (t Trunk) settled(a Action, o Outcome) Trunk {
	t.Intent = nil
	switch a.Kind {
	case CreateTrunk:
		t.Stage, t.ENI, t.MAC = Attaching, o.ENI, o.MAC
		if len(o.Groups) > 0 {
			t.Groups = NewGroups(o.Groups...)
		}
	case AttachTrunk:
		t.Stage, t.Device = Ready, a.Device
	default:
		t = Trunk{}
	}
	return t
}

func (s State) settle(b Branch, o Outcome, c Config, now time.Time) {
	a := b.Intent.Action
	b.Intent, b.Changed = nil, now
	delete(s.Backoffs, keyBranch+string(b.ID))
	if c.quarantines(a) {
		maps.DeleteFunc(s.Backoffs, func(key string, _ Backoff) bool { return strings.HasPrefix(key, keyQuarantine) })
	}
	switch a.Kind {
	case CreateBranch:
		b.ENI, b.MAC, b.IPv4, b.IPv6 = o.ENI, o.MAC, o.IPv4, o.IPv6
		s.vacate(b)
		b.Groups = a.Groups
		if len(o.Groups) > 0 {
			b.Groups = NewGroups(o.Groups...)
		}
		b = b.to(Tagging, now)
		delete(s.Backoffs, keySubnet+string(a.Subnet))
		delete(s.Backoffs, cmp.Or(podKey(a.Pod), keyWarm))
	case TagBranch:
		if b.Stage == Tagging {
			b = b.to(Associating, now)
		}
	case Associate:
		b.Association = o.Association
		if b.Stage == Associating {
			b = b.to(Idle, now)
		}
	case SetGroups:
		b.Groups = a.Groups
		if b.Stage == Cooling {
			b.Since = now // the cool-down is that in quarantine
		}
	case Bind:
		b = b.to(Bound, now)
	case Disassociate:
		s.coolVLAN(b, now.Add(c.CoolDown))
		b.Association, b.VLAN = "", 0
		b = b.to(Deleting, now)
	case DeleteBranch:
		delete(s.Branches, b.ID)
		return
	case CreateTrunk, AttachTrunk, DeleteTrunk, Release, Adopt:
	}
	s.Branches[b.ID] = b
}

// vacate takes the MAC and the addresses that EC2 gave b from the branch that had them. Another program
// has deleted that one, as EC2 gives none of them to two interfaces. A record with both could not be read.
func (s State) vacate(b Branch) {
	for id, other := range s.Branches {
		if id == b.ID {
			continue
		}
		if other.MAC == b.MAC {
			other.MAC = vpc.MAC{}
		}
		if other.IPv4 == b.IPv4 {
			other.IPv4 = netip.Addr{}
		}
		if other.IPv6 == b.IPv6 {
			other.IPv6 = netip.Addr{}
		}
		s.Branches[id] = other
	}
}

func podKey(pod PodUID) string {
	if pod == "" {
		return ""
	}
	return keyPod + string(pod)
}

// Fail records that a try of an action has failed. If its outcome is unknown, or that of an
// earlier try is, the intent remains and is repeated after a back-off.
func Fail(s State, id cloud.ActionID, f Failure, c Config, now time.Time) State {
	if i := s.Trunk.Intent; i != nil && i.Action.ID == id {
		s = s.clone()
		s.failTrunk(f, c, now)
		return s
	}
	b, ok := s.inFlight(id)
	if !ok {
		return s
	}
	s = s.clone()
	i := *b.Intent
	b.Changed = now
	switch {
	case b.gone(f, s.Backoffs[keyBranch+string(b.ID)], c, now):
		b.Intent = nil
		if !b.Used || b.Pod == "" {
			b.Pod = ""
			b = s.giveUp(b, c, now)
		}
		s.Branches[b.ID] = b
		s.backOff(keyBranch+string(b.ID), f, c, now)
	case f.open(i):
		b.Intent = i.lost(f, c, now)
		s.Branches[b.ID] = b
	default:
		b.Intent = nil
		s.refused(b, i.Action, f, c, now)
	}
	return s
}

// open reports whether an action may have had an effect although a try of it failed. EC2 refuses
// groups of an action on every try of it or on none.
func (f Failure) open(i Intent) bool {
	return !f.Definite || i.Unknown && f.Reason != FailGroups
}

// lost is the intent after a try with an unknown outcome.
func (i Intent) lost(f Failure, c Config, now time.Time) *Intent {
	i.Unknown = i.Unknown || !f.Definite
	i.Lost, i.At, i.Retry = true, now, now.Add(c.pause(i.Tries))
	return &i
}

// gone reports whether a failure shows that EC2 has no such branch any more: it was not found
// repeatedly, and it is too old not to be shown yet.
func (b Branch) gone(f Failure, earlier Backoff, c Config, now time.Time) bool {
	if f.Reason != FailNotFound || !f.Definite || b.ENI == "" || b.Intent.Action.Kind == Bind || now.Before(b.Since.Add(c.MinAge)) {
		return false
	}
	tries := b.Intent.Tries
	if earlier.Reason == FailNotFound {
		tries += earlier.Tries
	}
	return tries >= notFoundTries
}

// refused records that an action had no effect.
func (s State) refused(b Branch, a Action, f Failure, c Config, now time.Time) {
	if f.Reason == FailGroups && a.Pod != "" {
		s.Refused[a.Pod] = Refusal{Groups: a.Groups, Message: f.Message}
	}
	quarantine := f.Reason == FailGroups && c.quarantines(a)
	if quarantine && !now.Before(s.Backoffs[keyQuarantine+string(a.Groups[0])].Until) { // once for the calls of a plan
		s.backOff(keyQuarantine+string(a.Groups[0]), f, c, now)
	}
	if a.Kind == CreateBranch {
		delete(s.Branches, b.ID) // EC2 has no interface for it
		switch {
		case quarantine:
		case f.Reason == FailSubnet:
			s.backOff(keySubnet+string(a.Subnet), f, c, now)
		case f.Reason != FailGroups || a.Pod == "":
			s.backOff(cmp.Or(podKey(a.Pod), keyWarm), f, c, now)
		}
		return
	}
	if a.Kind == Associate && f.Reason == FailVLAN {
		s.VLANs[b.VLAN] = VLAN{} // until an observation shows that it is free
		b.VLAN = 0
		if b.Stage == Associating {
			b = b.to(Tagging, now)
		}
	}
	s.Branches[b.ID] = b
	if !quarantine {
		s.backOff(keyBranch+string(b.ID), f, c, now)
	}
}

func (s *State) failTrunk(f Failure, c Config, now time.Time) {
	i := *s.Trunk.Intent
	if f.open(i) {
		s.Trunk.Intent = i.lost(f, c, now)
		return
	}
	s.Trunk.Intent = nil
	switch i.Action.Kind {
	case CreateTrunk:
		s.Trunk = Trunk{}
	case DeleteTrunk:
		s.Trunk.Stage = Attaching
	default:
	}
	if f.Reason == FailSubnet {
		s.backOff(keySubnet+string(i.Action.Subnet), f, c, now)
		return
	}
	s.backOff(keyTrunk, f, c, now)
}

// backOff begins or extends a back-off.
func (s State) backOff(key string, f Failure, c Config, now time.Time) {
	tries := s.Backoffs[key].Tries + 1
	s.Backoffs[key] = Backoff{Since: now, Until: now.Add(c.pause(tries)), Tries: tries, Reason: f.Reason, Message: f.Message}
}

// Restart returns the state that a new process continues with: of no intent is a call in flight.
func Restart(s State, now time.Time) State {
	s = s.clone()
	lost := func(i *Intent) *Intent {
		if i == nil || i.Lost {
			return i
		}
		again := *i
		again.Lost, again.Unknown, again.At, again.Retry = true, true, now, now
		return &again
	}
	s.Trunk.Intent = lost(s.Trunk.Intent)
	for id, b := range s.Branches {
		b.Intent = lost(b.Intent)
		s.Branches[id] = b
	}
	return s
}
