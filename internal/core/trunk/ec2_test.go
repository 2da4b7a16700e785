package trunk_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// eni is an interface of the simulation.
type eni struct {
	trunk.Seen
	leaked bool
	// tampered: another program has changed it.
	tampered bool
	// dirty: a pod has used it, and it has not been quarantined for a cool-down since.
	dirty bool
	quiet time.Time // since when it carries the quarantine groups; zero if it does not
	user  trunk.PodUID
}

// simulation is what the tests need of EC2: tokens, associations, limits, and descriptions that
// may be stale. It fails the test at a call that breaks a guarantee.
type simulation struct {
	t       reporter
	c       trunk.Config
	limits  trunk.Limits
	subnets []trunk.Subnet
	enis    map[vpc.ENIID]*eni
	made    map[cloud.ActionID]vpc.ENIID // by client token
	freed   map[int]time.Time            // when a VLAN was last disassociated
	gone    map[trunk.PodUID]time.Time   // pods that have ended, and when
	ended   bool                         // the instance is terminated
	calls   map[trunk.Kind]int
	unknown trunk.Groups // groups that EC2 refuses
	serial  int
	history []description
}

type description struct {
	at   time.Time
	list []trunk.Seen
}

func newSimulation(t reporter, c trunk.Config, limits trunk.Limits, subnets ...trunk.Subnet) *simulation {
	return &simulation{
		t: t, c: c, limits: limits, subnets: subnets, enis: make(map[vpc.ENIID]*eni), made: make(map[cloud.ActionID]vpc.ENIID),
		freed: make(map[int]time.Time), gone: make(map[trunk.PodUID]time.Time), calls: make(map[trunk.Kind]int),
	}
}

// make creates an interface.
func (s *simulation) make(kind vpc.InterfaceType, subnet vpc.SubnetID, intent cloud.ActionID, groups trunk.Groups, now time.Time) *eni {
	s.serial++
	e := &eni{Seen: trunk.Seen{
		ENI: vpc.ENIID(fmt.Sprintf("eni-%03d", s.serial)), Type: kind, Intent: intent, Subnet: subnet, Groups: groups,
		MAC: vpc.MAC{2, 0, 0, 0, byte(s.serial >> 8), byte(s.serial)}, IPv4: netip.AddrFrom4([4]byte{10, 0, byte(s.serial >> 8), byte(s.serial)}),
	}}
	if groups.Equal(s.c.Quarantine) {
		e.quiet = now
	}
	s.enis[e.ENI] = e
	return e
}

func (s *simulation) subnet(id vpc.SubnetID) *trunk.Subnet {
	return &s.subnets[slices.IndexFunc(s.subnets, func(n trunk.Subnet) bool { return n.ID == id })]
}

func (s *simulation) branches() (out []*eni) {
	for _, id := range slices.Sorted(maps.Keys(s.enis)) {
		if s.enis[id].Type != vpc.TypeTrunk {
			out = append(out, s.enis[id])
		}
	}
	return out
}

func (s *simulation) describe() (out []trunk.Seen) {
	for _, id := range slices.Sorted(maps.Keys(s.enis)) {
		out = append(out, s.enis[id].Seen)
	}
	return out
}

// stale is what EC2 showed at an earlier time.
func (s *simulation) stale(at time.Time) (out []trunk.Seen) {
	for _, h := range s.history {
		if !h.at.After(at) {
			out = h.list
		}
	}
	return out
}

// call carries out an action.
func (s *simulation) call(a trunk.Action, now time.Time) (o trunk.Outcome, f *trunk.Failure) {
	s.calls[a.Kind]++
	defer func() { s.history = append(s.history, description{now, s.describe()}) }()
	if a.Kind == trunk.CreateBranch || a.Kind == trunk.CreateTrunk {
		return s.create(a, now)
	}
	e := s.enis[a.ENI]
	if e == nil {
		if a.Kind == trunk.Disassociate || a.Kind == trunk.DeleteBranch || a.Kind == trunk.DeleteTrunk {
			return o, nil
		}
		return o, refuse(trunk.FailNotFound)
	}
	switch a.Kind {
	case trunk.AttachTrunk:
		e.Device = a.Device
	case trunk.TagBranch:
	case trunk.Associate:
		return s.associate(e, a, now)
	case trunk.SetGroups:
		if len(s.unknown) > 0 && slices.Contains(a.Groups, s.unknown[0]) {
			return o, refuse(trunk.FailGroups)
		}
		s.setGroups(e, a, now)
	case trunk.Bind:
		s.bind(e, a)
	case trunk.Disassociate:
		s.checkUnused(e, a)
		if at := s.gone[e.user]; e.dirty && e.quiet.IsZero() && now.Before(at.Add(s.c.CoolDown)) && !s.ended {
			s.t.Fatalf("%s: its address cools down, its pod ended at %s", a, at)
		}
		if e.Association == a.Association {
			s.freed[e.VLAN] = now
			e.Association, e.VLAN = "", 0
		}
	case trunk.DeleteBranch, trunk.DeleteTrunk:
		s.checkUnused(e, a)
		if e.Association != "" {
			s.t.Fatalf("%s of an associated branch", a)
		}
		s.subnet(e.Subnet).Free++
		delete(s.enis, e.ENI)
	default:
		s.t.Fatalf("%s is no call", a)
	}
	return o, nil
}

func refuse(r trunk.Reason) *trunk.Failure {
	return &trunk.Failure{Reason: r, Definite: true, Message: "EC2 says: " + string(r)}
}

func (s *simulation) create(a trunk.Action, now time.Time) (o trunk.Outcome, f *trunk.Failure) {
	e := s.enis[s.made[a.ID]]
	switch {
	case e != nil:
	case len(s.unknown) > 0 && slices.Contains(a.Groups, s.unknown[0]):
		return o, refuse(trunk.FailGroups)
	case s.subnet(a.Subnet).Free < 1:
		return o, refuse(trunk.FailSubnet)
	default:
		kind := vpc.TypeInterface
		if a.Kind == trunk.CreateTrunk {
			kind = vpc.TypeTrunk
		}
		s.subnet(a.Subnet).Free--
		e = s.make(kind, a.Subnet, a.ID, a.Groups, now)
		s.made[a.ID] = e.ENI
	}
	return trunk.Outcome{ENI: e.ENI, MAC: e.MAC, IPv4: e.IPv4}, nil
}

func (s *simulation) associate(e *eni, a trunk.Action, now time.Time) (o trunk.Outcome, f *trunk.Failure) {
	if e.Association != "" && e.VLAN == a.VLAN { // a repetition
		return trunk.Outcome{Association: e.Association}, nil
	}
	n := 0
	for _, other := range s.branches() {
		if other.Association == "" {
			continue
		}
		n++
		if other.VLAN == a.VLAN {
			if !other.leaked {
				s.t.Fatalf("%s: %s has the VLAN", a, other.ENI)
			}
			return o, refuse(trunk.FailVLAN)
		}
	}
	if at, ok := s.freed[a.VLAN]; ok && now.Before(at.Add(s.c.CoolDown)) {
		s.t.Fatalf("%s: the VLAN cools down since %s", a, at)
	}
	if n >= s.limits.Branches {
		if !slices.ContainsFunc(s.branches(), func(e *eni) bool { return e.leaked }) {
			s.t.Fatalf("%s: the trunk has %d branches already", a, n)
		}
		return o, refuse(trunk.FailLimit)
	}
	s.serial++
	e.Association, e.VLAN, e.Type = trunk.AssociationID(fmt.Sprintf("trunk-assoc-%03d", s.serial)), a.VLAN, vpc.TypeBranch
	return trunk.Outcome{Association: e.Association}, nil
}

// setGroups fails the test at allow → allow: another pod gets a branch that was not quarantined
// for a cool-down.
func (s *simulation) setGroups(e *eni, a trunk.Action, now time.Time) {
	quarantine := a.Groups.Equal(s.c.Quarantine)
	if e.dirty && !quarantine && a.Pod != e.user {
		if e.quiet.IsZero() || now.Before(e.quiet.Add(s.c.CoolDown)) {
			s.t.Fatalf("%s: a pod used the branch, and it is quarantined since %s only", a, e.quiet)
		}
		e.dirty = false
	}
	if s.used(e) && a.Pod != e.user {
		s.t.Fatalf("%s: pod %s uses the branch", a, e.user)
	}
	e.Groups = a.Groups
	switch {
	case !quarantine:
		e.quiet = time.Time{}
	case e.quiet.IsZero():
		e.quiet = now
	}
}

func (s *simulation) bind(e *eni, a trunk.Action) {
	switch {
	case !s.gone[a.Pod].IsZero(): // the API server has no pod of that uid
		return
	case e.Association == "" && !e.tampered:
		s.t.Fatalf("%s: it is not associated", a)
	case !e.Groups.Equal(a.Groups) && !e.tampered:
		s.t.Fatalf("%s: it carries %s, not %s", a, e.Groups, a.Groups)
	case e.user != a.Pod && (e.dirty || s.used(e)):
		s.t.Fatalf("%s: pod %s has used it", a, e.user)
	}
	for _, other := range s.branches() {
		if other.user == a.Pod && other != e {
			s.t.Fatalf("%s: the pod has %s", a, other.ENI)
		}
	}
	e.user, e.dirty = a.Pod, true
}

func (s *simulation) checkUnused(e *eni, a trunk.Action) {
	if s.used(e) {
		s.t.Fatalf("%s: pod %s uses it", a, e.user)
	}
}

// used reports whether a pod that has not ended uses e.
func (s *simulation) used(e *eni) bool { return e.user != "" && s.gone[e.user].IsZero() }
