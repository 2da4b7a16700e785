package trunk

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

type (
	// PodUID is the uid of a Pod object: a pod that is created again under its name has another.
	PodUID string
	// BranchID names a branch in the state, before EC2 has an interface for it: the ID of the
	// action that created it, or for a branch that was found at EC2 the id of its interface.
	BranchID string
	// AssociationID is EC2's id of the association of a branch with a trunk: trunk-assoc-…
	AssociationID string
	// Groups are security groups, sorted and without duplicates. See NewGroups.
	Groups []vpc.SecurityGroupID
)

// NewGroups returns the groups of a list, sorted and without duplicates.
func NewGroups(list ...vpc.SecurityGroupID) Groups {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// Equal reports whether g and h are the same groups.
func (g Groups) Equal(h Groups) bool { return slices.Equal(g, h) }

// String is the groups, separated by commas.
func (g Groups) String() string {
	if len(g) == 0 {
		return "no groups"
	}
	out := make([]string, len(g))
	for i, id := range g {
		out[i] = string(id)
	}
	return strings.Join(out, ",")
}

// Stage is the stage of a trunk or a branch. Each but Absent, Idle, Bound and Ready names the step
// that is pending or in flight.
type Stage string

// Stages.
const (
	Absent         Stage = ""               // of a trunk
	Creating       Stage = "creating"       // not known to exist at EC2
	Attaching      Stage = "attaching"      // of a trunk: exists, not attached
	Ready          Stage = "ready"          // of a trunk: can carry branches
	Tagging        Stage = "tagging"        // of a branch: exists, without the tags of its VLAN
	Associating    Stage = "associating"    // tagged, not associated
	Idle           Stage = "idle"           // associated, no pod uses it
	Binding        Stage = "binding"        // a pod may already use it
	Bound          Stage = "bound"          // a pod uses it
	Cooling        Stage = "cooling"        // its pod has ended
	Disassociating Stage = "disassociating" // to be given up
	Deleting       Stage = "deleting"       // not associated, to be deleted
)

// Intent is a call that has begun and has no known outcome.
type Intent struct {
	Action Action `json:"action"`
	Tries  int    `json:"tries"`
	// Unknown: the outcome of an earlier try is not known. A refusal of a later try does not
	// show that the earlier one had no effect.
	Unknown bool `json:"unknown,omitempty"`
	// Lost: no call is in flight. The action is repeated from Retry on.
	Lost bool `json:"lost,omitempty"`
	// At is when the last try began or ended.
	At    time.Time `json:"at"`
	Retry time.Time `json:"retry,omitzero"`
}

// Trunk is the node's trunk interface.
type Trunk struct {
	Stage  Stage        `json:"stage,omitempty"`
	ENI    vpc.ENIID    `json:"eni,omitempty"`
	MAC    vpc.MAC      `json:"mac,omitzero"`
	Device int          `json:"device,omitempty"` // device index; 0 before attach
	Intent *Intent      `json:"intent,omitempty"`
	Subnet vpc.SubnetID `json:"subnet,omitempty"`
	Groups Groups       `json:"groups,omitempty"`
	// Missing is when EC2 was first found not to show it, or to show it as not attached; zero
	// while EC2 shows it attached.
	Missing time.Time `json:"missing,omitzero"`
}

// Branch is a branch interface.
type Branch struct {
	ID          BranchID      `json:"id"`
	ENI         vpc.ENIID     `json:"eni,omitempty"`
	MAC         vpc.MAC       `json:"mac,omitzero"`
	IPv4        netip.Addr    `json:"ipv4,omitzero"`
	IPv6        netip.Addr    `json:"ipv6,omitzero"`
	Subnet      vpc.SubnetID  `json:"subnet"`
	VLAN        int           `json:"vlan,omitempty"` // that it owns; 0: none
	Association AssociationID `json:"association,omitempty"`
	// Groups are those that EC2 last confirmed. With a SetGroups in flight the branch carries
	// these or those of the action.
	Groups Groups `json:"groups,omitempty"`
	Pod    PodUID `json:"pod,omitempty"` // for which it is reserved, or which uses it
	Stage  Stage  `json:"stage"`
	// Used: a pod may have used it, and it has not cooled down in quarantine since.
	Used bool `json:"used,omitempty"`
	// Since is when it took its stage; of Cooling, when its pod ended or, if later, when it was
	// quarantined.
	Since time.Time `json:"since"`
	// Changed is when an action on it last began or ended: an earlier describe contradicts
	// nothing of the row.
	Changed time.Time `json:"changed"`
	Intent  *Intent   `json:"intent,omitempty"`
}

// spare reports whether b is no pod's and is kept, or being made, for a pod to come. A branch in
// Cooling is spare only in quarantine.
func (b Branch) spare(quarantine Groups) bool {
	if b.Pod != "" {
		return false
	}
	switch b.Stage {
	case Creating, Tagging, Associating, Idle:
		return true
	case Cooling:
		return len(quarantine) > 0 && b.next().Equal(quarantine)
	case Absent, Attaching, Ready, Binding, Bound, Disassociating, Deleting:
	}
	return false
}

// next are the groups of b once its call in flight has succeeded.
func (b Branch) next() Groups {
	if b.Intent != nil && (b.Intent.Action.Kind == CreateBranch || b.Intent.Action.Kind == SetGroups) {
		return b.Intent.Action.Groups
	}
	return b.Groups
}

// associated reports whether b counts for EC2's limit of branches, now or soon.
func (b Branch) associated() bool { return b.Stage != Deleting }

// Backoff delays actions after a failure.
type Backoff struct {
	Since   time.Time `json:"since"` // of the last failure
	Until   time.Time `json:"until"`
	Tries   int       `json:"tries"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
}

// Refusal records that EC2 refused the groups of a pod. They are not tried again; other groups
// are.
type Refusal struct {
	Groups  Groups `json:"groups"`
	Message string `json:"message"`
}

// State is what is recorded of one node. Its zero value, with the instance, is a node without a
// trunk. The functions of this package never change a State that they are given.
type State struct {
	Instance vpc.InstanceID      `json:"instance"`
	Trunk    Trunk               `json:"trunk,omitzero"`
	Branches map[BranchID]Branch `json:"branches,omitempty"`
	VLANs    map[int]VLAN        `json:"vlans,omitempty"`
	LastVLAN int                 `json:"lastVLAN,omitempty"` // the last one given to a branch
	Backoffs map[string]Backoff  `json:"backoffs,omitempty"` // by key
	Refused  map[PodUID]Refusal  `json:"refused,omitempty"`
	// Unowned are the branches that EC2 showed and the state does not have.
	Unowned  map[vpc.ENIID]Unowned `json:"unowned,omitempty"`
	Observed time.Time             `json:"observed,omitzero"` // when EC2 was last observed
	// Collected is not in the record of the CNINode: a new process begins a new interval.
	Collected Collected `json:"collected,omitzero"`
}

// Collected counts the unowned branches that were given up in an interval of MinAge.
type Collected struct {
	Since time.Time `json:"since"`
	Count int       `json:"count"`
}

// at is the count at a time, in the interval that it belongs to.
func (n Collected) at(c Config, now time.Time) Collected {
	if !now.Before(n.Since.Add(c.MinAge)) {
		return Collected{Since: now}
	}
	return n
}

// New returns the state of an instance without a trunk.
func New(instance vpc.InstanceID) State { return State{Instance: instance}.clone() }

// clone returns a copy that shares only what is never changed in place.
func (s State) clone() State {
	s.Branches = copied(s.Branches)
	s.VLANs = copied(s.VLANs)
	s.Backoffs = copied(s.Backoffs)
	s.Refused = copied(s.Refused)
	s.Unowned = copied(s.Unowned)
	return s
}

func copied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return make(map[K]V)
	}
	return maps.Clone(m)
}

// sorted returns the branches by their ID.
func (s State) sorted() []Branch {
	out := make([]Branch, 0, len(s.Branches))
	for _, id := range slices.Sorted(maps.Keys(s.Branches)) {
		out = append(out, s.Branches[id])
	}
	return out
}

// Of returns the branch that a pod has, or is to have.
func (s State) Of(pod PodUID) (Branch, bool) {
	for _, b := range s.Branches {
		if b.Pod == pod && pod != "" {
			return b, true
		}
	}
	return Branch{}, false
}

// Interfaces are the trunk and the branches that exist at EC2 by a state.
func Interfaces(s State) (out []vpc.ENIID) {
	if s.Trunk.ENI != "" {
		out = append(out, s.Trunk.ENI)
	}
	for _, b := range s.sorted() {
		if b.ENI != "" {
			out = append(out, b.ENI)
		}
	}
	return out
}

// inFlight returns the branch with the intent of an action; ok is false if none has it.
func (s State) inFlight(id cloud.ActionID) (b Branch, ok bool) {
	for _, b := range s.Branches {
		if b.Intent != nil && b.Intent.Action.ID == id {
			return b, true
		}
	}
	return Branch{}, false
}

// Call returns the intent of an action that has begun; ok is false if its outcome is known, or if
// none was needed.
func (s State) Call(id cloud.ActionID) (i Intent, ok bool) {
	if t := s.Trunk.Intent; t != nil && t.Action.ID == id {
		return *t, true
	}
	if b, found := s.inFlight(id); found {
		return *b.Intent, true
	}
	return Intent{}, false
}

func (b Branch) to(stage Stage, now time.Time) Branch {
	b.Stage, b.Since = stage, now
	return b
}
