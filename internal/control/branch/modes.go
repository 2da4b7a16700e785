package branch

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// ModesDeps is what Modes work with.
type ModesDeps struct {
	// Setting is the mode of all nodes; Undecided: each node has one of its own.
	Setting groupmode.Mode
	State   *state.Store
	// Record is the CNINode of the node; nil: there is no cluster.
	Record Record
	// Node is the node's own; false while it is not known.
	Node func() (kube.Node, bool)
	// Limits are numbers of branches by instance type or family, in the place of the known ones.
	Limits map[string]int
}

// Modes are how pods of the node get their security groups: by the setting, or by what was chosen for the
// node. Its methods may be called from any goroutine.
type Modes struct {
	ModesDeps

	mu   sync.Mutex
	last groupmode.Choice // that Changed compares with
}

// NewModes returns the modes of a node.
func NewModes(d ModesDeps) *Modes { return &Modes{ModesDeps: d} }

// Chosen reports whether the mode is one that was chosen for the node.
func (m *Modes) Chosen() bool { return m != nil && m.Setting == groupmode.Undecided }

// Choice is the mode in force. The controller records its decision in the CNINode, of which the agent keeps
// a copy on disk. In the CNINode of AWS's controller it records none: there the agent decides, by facts that
// no call of EC2 shows.
func (m *Modes) Choice() groupmode.Choice {
	if !m.Chosen() {
		return groupmode.Choice{Mode: m.Setting, Reason: groupmode.BySetting}
	}
	undecided := func(format string, args ...any) groupmode.Choice {
		return groupmode.Choice{Reason: groupmode.NotRecorded, Message: fmt.Sprintf(format, args...)}
	}
	if m.Record == nil {
		return undecided("the agent has no cluster")
	}
	object, known := m.Record.Object()
	switch {
	case !known:
		return undecided("the API server has not shown the CNINode of the node yet, and the node has no copy of it: see whether the API server answers and serves cninodes.vpcresources.k8s.aws")
	case object == nil:
		return undecided("the node has no CNINode: Trunkline's controller creates it: see whether that runs")
	}
	if l := object.Status.Trunkline; l != nil && l.Unreadable != "" {
		return undecided("the record of Trunkline's controller in the CNINode cannot be decoded, and is to be corrected: %s", l.Unreadable)
	}
	if c, recorded := m.recorded(object); recorded {
		return c
	}
	owned := object.OwnedByAWS()
	node, exists := m.Node()
	switch {
	case owned == "":
		return undecided("Trunkline's controller has recorded no decision in the CNINode yet: see whether that runs, with security-groups-for-pods: auto")
	case !exists:
		return undecided("the API server has not shown the Node yet, and the node has no copy of it")
	}
	return groupmode.Choose(facts(node, owned, m.Limits))
}

// recorded is the decision of the controller on this instance.
func (m *Modes) recorded(object *vpcresources.CNINode) (c groupmode.Choice, ok bool) {
	l, instance := object.Status.Trunkline, m.State.Node().Instance
	if l == nil || l.Mode == nil || !l.Mode.Mode.Known() || instance != "" && l.InstanceID != string(instance) {
		return c, false
	}
	return groupmode.Choice{Mode: groupmode.Mode(l.Mode.Mode), Reason: groupmode.Reason(l.Mode.Reason), Message: l.Mode.Message}, true
}

// facts of a node that AWS's controller owns the CNINode of.
func facts(node kube.Node, owned string, limits map[string]int) groupmode.Facts {
	f := groupmode.Facts{AWS: owned, Type: node.Labels[corev1.LabelInstanceTypeStable]}
	if value, labelled := node.Labels[groupmode.Label]; labelled {
		f.Label = &value
	}
	f.Branches, f.BranchesFrom = trunk.BranchLimit(f.Type, limits)
	return f
}

// Changed reports whether the choice is another one than at the last call.
func (m *Modes) Changed() bool {
	now := m.Choice()
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := now != m.last
	m.last = now
	return changed
}

// Wanted is a pod that is being added: it is to have a branch if it requests one and the node does not
// enforce its groups itself. While the node is undecided the pod waits for that.
func (m *Modes) Wanted(p kube.Pod) kube.Pod {
	if m.Chosen() {
		p.BranchInterface = p.BranchInterface && m.Choice().Mode != groupmode.EBPF
	}
	return p
}

// Have are the pods of the node, of which each has a branch if it was wired with one, in all of its sandboxes:
// an older one may still be there. The mode decides on those that are not wired yet. A pod that requests a
// branch may have been wired without one in an earlier mode of the node, and its node enforces its groups.
func (m *Modes) Have(pods []kube.Pod) []kube.Pod {
	if m == nil || m.Setting != groupmode.Undecided && m.Setting != groupmode.Own && m.Setting != groupmode.Managed {
		return pods
	}
	branch := map[string]bool{}
	for _, e := range m.State.Endpoints() {
		if e.Stage != endpoint.Removing {
			earlier, wired := branch[e.Pod.UID]
			branch[e.Pod.UID] = e.Attachment.Kind == endpoint.Branch && (earlier || !wired)
		}
	}
	ebpf := m.Choice().Mode == groupmode.EBPF
	pods = slices.Clone(pods)
	for i := range pods {
		p := &pods[i]
		has, wired := branch[p.UID]
		if p.Static != "" && !wired {
			has, wired = branch[p.Static]
		}
		if wired {
			p.BranchInterface = has
		} else if ebpf {
			p.BranchInterface = false
		}
	}
	return pods
}

// Owned reports whether Trunkline's controller has the record of branches that pods get now.
func (m *Modes) Owned() bool { return m.Choice().Mode == groupmode.Own }

// Records reports whether Trunkline's record has branches of pods that run: also of those that were wired
// in the mode own that the node had before.
func (m *Modes) Records() bool {
	if m.Owned() || !m.Chosen() || m.Record == nil {
		return m.Owned()
	}
	object, _ := m.Record.Object()
	return object != nil && object.Status.Trunkline != nil && object.OwnedByAWS() == "" &&
		object.Status.Trunkline.InstanceID == string(m.State.Node().Instance) && len(object.Status.Trunkline.Branches) > 0
}

// WithoutTrunk reports that the instance type can have no trunk, where each node has a mode of its own.
func (m *Modes) WithoutTrunk() bool {
	kind := m.State.Node().Type
	if !m.Chosen() || kind == "" {
		return false
	}
	n, _ := trunk.BranchLimit(kind, m.Limits)
	return n < 1
}

// Managed reports whether AWS's controller makes branches.
func (m *Modes) Managed() bool { return m.Choice().Mode == groupmode.Managed }

// NodeJudges reports whether the node enforces the groups of pods that are being added.
func (m *Modes) NodeJudges() bool { return m.Choice().Mode == groupmode.EBPF }
