package trunk

import (
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Observe compares the state with what EC2 showed. A branch or an association
// that EC2 shows settles the unknown outcome of the action that made it. All else that EC2 shows
// counts only once the record is older than MinAge: a describe may be stale.
func Observe(s State, o Observation, c Config, now time.Time) State {
	s = s.clone()
	s.Observed = o.At
	w := shown{o: o, c: c, now: now, byENI: make(map[vpc.ENIID]Seen), byIntent: make(map[cloud.ActionID]Seen), vlans: make(map[int]bool)}
	for _, e := range o.Interfaces {
		w.byENI[e.ENI] = e
		if e.Intent != "" {
			w.byIntent[e.Intent] = e
		}
		w.vlans[e.VLAN] = true
		if e.Type == vpc.TypeTrunk {
			s.Trunk = w.trunk(s.Trunk, e)
		}
	}
	if i := s.Trunk.Intent; i != nil && i.Lost && w.absent(s.Trunk.ENI, i) {
		s.Trunk = Trunk{} // not created, or deleted
	}
	s.Trunk = w.missing(s.Trunk)
	for _, b := range s.sorted() {
		w.branch(s, b)
	}
	w.unowned(s)
	w.freeDoubtful(s)
	return s
}

// shown is an observation, by the interfaces of it.
type shown struct {
	o        Observation
	c        Config
	now      time.Time
	byENI    map[vpc.ENIID]Seen
	byIntent map[cloud.ActionID]Seen
	vlans    map[int]bool
}

// old reports whether the observation may contradict a record of that time.
func (w shown) old(t time.Time) bool { return !w.o.At.Before(t.Add(w.c.MinAge)) }

// absent reports whether the interface of a lost intent does not exist.
func (w shown) absent(eni vpc.ENIID, i *Intent) bool {
	_, listed := w.byENI[eni]
	_, made := w.byIntent[i.Action.ID]
	return !listed && !made && w.o.Complete && w.old(i.At) && (i.Action.Kind == CreateTrunk || i.Action.Kind == DeleteTrunk || i.Action.Kind == CreateBranch || i.Action.Kind == DeleteBranch)
}

// trunk is the state of the trunk once EC2 has shown e.
func (w shown) trunk(t Trunk, e Seen) Trunk {
	created := t.Stage == Creating && t.Intent.Lost && t.Intent.Action.ID == e.Intent
	attached := t.Stage == Attaching && t.ENI == e.ENI && e.Device > 0 && (t.Intent == nil || t.Intent.Lost)
	if t.Stage != Absent && !created && !attached {
		return t
	}
	t = Trunk{Stage: Attaching, ENI: e.ENI, MAC: e.MAC, Device: e.Device, Subnet: e.Subnet, Groups: e.Groups}
	if e.Device > 0 {
		t.Stage = Ready
	}
	return t
}

// missing is the state of a trunk that EC2 does not show, or not attached. After two observations that
// are MinAge apart it is attached or created again; EC2 has ended its associations, which are
// made again under their VLANs.
func (w shown) missing(t Trunk) Trunk {
	e, listed := w.byENI[t.ENI]
	switch {
	case t.Stage == Attaching && t.Intent != nil:
	case t.Stage != Ready && t.Stage != Attaching, listed && (e.Device > 0 || t.Stage == Attaching):
		t.Missing = time.Time{}
	case !listed && !w.o.Complete:
	case t.Missing.IsZero():
		t.Missing = w.o.At
	case !w.old(t.Missing):
	case listed:
		t.Stage, t.Device, t.Missing = Attaching, 0, time.Time{}
	default:
		t = Trunk{}
	}
	return t
}

// branch compares one branch.
func (w shown) branch(s State, b Branch) {
	e, listed := w.byENI[b.ENI]
	if b.ENI == "" {
		e, listed = w.byIntent[cloud.ActionID(b.ID)]
	}
	switch i := b.Intent; {
	case i == nil && !w.old(b.Changed): // a describe may be older than the record
	case i == nil && listed:
		s.Branches[b.ID] = w.repair(s, b, e)
	case i == nil && w.o.Complete && b.Pod == "" && b.ENI != "":
		s.Branches[b.ID] = s.vanished(b, w.c, w.now)
	case i == nil, !i.Lost: // a pod has it, or its outcome comes
	case !listed:
		if w.absent(b.ENI, i) {
			delete(s.Branches, b.ID)
			delete(s.Backoffs, keyBranch+string(b.ID))
		}
	case !w.o.At.Before(i.At):
		w.resolve(s, b, e)
	}
}

// vanished gives up a branch without a pod that EC2 does not show any more: another program has deleted it,
// and its association with it. To delete it again changes nothing.
func (s State) vanished(b Branch, c Config, now time.Time) Branch {
	b.Association = ""
	return s.giveUp(b, c, now)
}

// resolve settles an intent with an unknown outcome by what EC2 shows of its branch.
func (w shown) resolve(s State, b Branch, e Seen) {
	a := b.Intent.Action
	var done bool
	switch a.Kind {
	case CreateBranch:
		done = true
	case Associate:
		done = e.Association != "" && e.VLAN == a.VLAN
	case SetGroups:
		done = e.Groups.Equal(a.Groups) && w.old(b.Intent.At)
	case Disassociate:
		done = e.Association == "" && w.old(b.Intent.At)
	case CreateTrunk, AttachTrunk, DeleteTrunk, TagBranch, Bind, Release, Adopt, DeleteBranch:
		return
	}
	switch {
	case done:
		s.settle(b, Outcome{ENI: e.ENI, MAC: e.MAC, IPv4: e.IPv4, IPv6: e.IPv6, Groups: e.Groups, Association: e.Association}, w.c, w.now)
	case w.old(b.Intent.At) && a.Kind != Disassociate:
		b.Intent, b.Groups, b.Changed = nil, e.Groups, w.now
		s.Branches[b.ID] = b
	}
}

// repair takes over what another program changed at EC2, so that the plan repairs it.
func (w shown) repair(s State, b Branch, e Seen) Branch {
	b.Groups = NewGroups(e.Groups...)
	if b.Association == "" || e.Association == b.Association {
		return b
	}
	b.Association = e.Association
	switch {
	case e.Association != "":
	case b.Stage == Disassociating || b.Stage == Cooling:
		s.coolVLAN(b, w.now.Add(w.c.CoolDown))
		b.VLAN = 0
		return b.to(Deleting, w.now)
	default:
		return b.to(Associating, w.now)
	}
	return b
}

// unowned counts the observations of branches that the state does not have. Their VLANs are
// theirs.
func (w shown) unowned(s State) {
	owned := make(map[vpc.ENIID]bool)
	for _, b := range s.Branches {
		owned[b.ENI] = true
	}
	for eni := range s.Unowned {
		if _, listed := w.byENI[eni]; owned[eni] || w.o.Complete && !listed {
			delete(s.Unowned, eni)
		}
	}
	for _, e := range w.o.Interfaces {
		if v, taken := s.VLANs[e.VLAN]; taken && v.Owner == "" && v.Until.IsZero() {
			s.VLANs[e.VLAN] = VLAN{Owner: BranchID(e.ENI)}
		}
		_, made := s.Branches[BranchID(e.Intent)]
		if e.Type == vpc.TypeTrunk || owned[e.ENI] || made && e.Intent != "" {
			continue
		}
		u, before := s.Unowned[e.ENI]
		if !before {
			u.First = w.o.At
		}
		u.Seen = e
		u.Passes++
		s.Unowned[e.ENI] = u
		w.reserve(s, e)
	}
}

// reserve gives an unowned branch its VLAN in the ledger, if the VLAN is free or reserved for a
// branch that is not being associated yet; that one gets another.
func (w shown) reserve(s State, e Seen) {
	if e.VLAN < minVLAN || e.VLAN > maxVLAN { // another program's: none is given above it
		return
	}
	v, taken := s.VLANs[e.VLAN]
	b, ours := s.Branches[v.Owner]
	unused := ours && b.Intent == nil && (b.Stage == Tagging || b.Stage == Associating)
	if !taken || v.free(w.now) || unused {
		s.VLANs[e.VLAN] = VLAN{Owner: BranchID(e.ENI)}
	}
	if unused {
		b.VLAN = 0
		s.Branches[b.ID] = b.to(Tagging, w.now)
	}
}

// freeDoubtful begins the cool-down of VLANs of branches that do not exist.
func (w shown) freeDoubtful(s State) {
	if !w.o.Complete {
		return
	}
	for vlan, v := range s.VLANs {
		_, exists := s.Branches[v.Owner]
		if !exists && v.Until.IsZero() && !w.vlans[vlan] {
			s.VLANs[vlan] = VLAN{Owner: v.Owner, Until: w.now.Add(w.c.CoolDown)}
		}
	}
}
