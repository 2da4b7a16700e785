package trunk

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// eventMode is the reason of the event on a Node of which the mode changes.
const eventMode = "SecurityGroupModeChosen"

// own reports whether branches are made for pods of the node.
func (n *node) own() bool { return !n.c.o.Choose || n.rec.choice.Mode == groupmode.Own }

// chooser chooses the mode of a node, and does what depends on it.
type chooser struct{ *node }

// choose decides how pods of the node get their groups, where each node has a mode of its own. The
// decision is written with the record.
func (n chooser) choose(object *vpcresources.CNINode, on *corev1.Node) {
	if !n.c.o.Choose || on == nil {
		return // the pods of a node that is gone have ended
	}
	f := groupmode.Facts{AWS: object.OwnedByAWS(), Type: typeOf(on), Held: held(n.rec.state), Before: n.rec.choice}
	if value, labelled := on.Labels[groupmode.Label]; labelled {
		f.Label = &value
	}
	f.Branches, f.BranchesFrom = core.BranchLimit(f.Type, n.c.o.BranchLimits)
	last, answered := n.c.probe.get()
	f.Probe = groupmode.Probe{Answered: answered, Refusal: last.Refusal, Tries: last.Tries}
	before, next := n.rec.choice, groupmode.Choose(f)
	if next == before {
		return
	}
	n.rec.choice = next
	n.mu.Lock()
	n.view.choice = next
	n.mu.Unlock()
	n.c.status.Mark()
	if next.Mode == before.Mode && next.Reason == before.Reason {
		return
	}
	n.seen.ebpf = before.Mode == groupmode.EBPF && next.Mode == groupmode.Managed
	n.c.o.Log.Info("mode of security groups", "node", n.name, "mode", next.Mode.String(), "reason", string(next.Reason), "why", next.Message, "before", before.Mode.String())
	kind := corev1.EventTypeNormal
	if next.Mode == groupmode.Undecided || next.Reason == groupmode.InvalidLabel {
		kind = corev1.EventTypeWarning
	}
	n.c.o.Events.NodeEvent(n.name, kind, eventMode, fmt.Sprintf("security-groups-for-pods is %s on this node: %s", next.Mode, next.Message))
}

// held is how many branches pods have or are to have.
func held(s core.State) (count int) {
	for _, b := range s.Branches {
		if b.Pod != "" {
			count++
		}
	}
	return count
}

// without reports whether nothing of a state is, or may be, at EC2.
func without(s core.State) bool {
	return s.Trunk.Stage == core.Absent && s.Trunk.Intent == nil && len(s.Branches) == 0 && len(s.Unowned) == 0
}

// idle reports whether a pass has nothing to do at EC2: Trunkline makes no branches on the node, and has
// none there.
func (n chooser) idle(object *vpcresources.CNINode, on *corev1.Node) bool {
	if n.own() || !without(n.rec.state) {
		return false
	}
	if on == nil {
		return !slices.Contains(object.Finalizers, finalizer)
	}
	return instanceOf(on) == n.rec.state.Instance
}

// rest is the pass of an idle node: the decision is written, but not into a CNINode of AWS's controller
// that has no record of Trunkline's. There the node's agent decides by the same facts.
func (n chooser) rest(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node) (time.Time, error) {
	n.mu.Lock()
	changed := len(n.view.applied) > 0 || len(n.view.refused) > 0
	n.view = view{network: n.view.network, choice: n.view.choice} // no pod waits for a branch or is refused one
	n.mu.Unlock()
	if changed {
		n.c.status.Mark()
	}
	if on == nil {
		return time.Time{}, nil
	}
	if object.Status.Trunkline != nil || object.OwnedByAWS() == "" {
		if err := n.write(ctx, object, core.Probed(n.rec.state, core.Probe{})); err != nil {
			return time.Time{}, err
		}
	}
	if !n.advertise(ctx, on) {
		return clock().Add(advertiseAgain), nil
	}
	return time.Time{}, nil
}

// capacity is the number of branches that the node's capacity should have; known is false if it stays
// as it is, and -1 is none.
//
// A node that enforces groups itself has as many as it has pods: selected pods request one wherever they
// run. Where AWS's controller serves the node, the capacity is its own: it writes one where there is none
// (AdvertiseCapacityIfNotSet in pkg/provider/branch of aws/amazon-vpc-resource-controller-k8s), so that one that
// was written for the node's mode ebpf is removed.
func (n chooser) capacity(on *corev1.Node) (want int, known bool) {
	have, has := kube.BranchCapacity(on)
	pods := int(on.Status.Capacity.Pods().Value())
	switch limit, _ := core.BranchLimit(typeOf(on), n.c.o.BranchLimits); {
	case !n.own() && n.rec.choice.Mode == groupmode.EBPF:
		want, known = pods, pods > 0
	case !n.own():
		return -1, n.seen.ebpf && has && have == pods
	default:
		want, known = limit, limit > 0 && (n.rec.state.Trunk.Stage == core.Ready || n.c.o.Choose && has)
	}
	return want, known && (!has || have != want)
}

// ofPods are those that the record has a branch for, where Trunkline makes no branches: they keep theirs
// until they end. Where it does, a pod that was wired without one before gets none: its node goes on enforcing
// its groups.
func (n chooser) ofPods(list []decided) []decided {
	if n.own() {
		for i := range list {
			list[i].requests = list[i].requests && (!n.c.o.Choose || !kube.WiredWithoutBranch(list[i].pod))
		}
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(d decided) bool {
		_, has := n.rec.state.Of(core.PodUID(d.pod.UID))
		return !has
	})
}

// annotated are the pods without a branch in the record of which the annotation names one. No such branch is given
// up while its pod runs, by whichever controller it was made.
func (n chooser) annotated(list []decided) (out []core.Pod) {
	for _, d := range list {
		d.requests = false
		if p, _ := d.input(n.rec.state); p.ENI != "" && len(p.Groups) == 0 {
			out = append(out, p)
		}
	}
	return out
}

// writeChoice is the decision as it is recorded.
func writeChoice(c groupmode.Choice) *vpcresources.ModeRecord {
	if c.Reason == "" {
		return nil
	}
	return &vpcresources.ModeRecord{Mode: vpcresources.GroupMode(c.Mode), Reason: string(c.Reason), Message: securitygroup.Cut(c.Message)}
}

// readChoice is the decision that a record has.
func readChoice(r *vpcresources.ModeRecord) groupmode.Choice {
	if r == nil {
		return groupmode.Choice{}
	}
	return groupmode.Choice{Mode: groupmode.Mode(r.Mode), Reason: groupmode.Reason(r.Reason), Message: r.Message}
}

// chosen is the state of a pod without a branch on a node that was chosen a mode for; decided is false
// where it waits for a branch of Trunkline's.
func (c *Controller) chosen(d decided, on groupmode.Choice) (is securitygroup.PodState, decided bool) {
	switch on.Mode {
	case groupmode.Own:
		if d.requests && !kube.WiredWithoutBranch(d.pod) {
			return is, false
		}
		_, why := c.byNode.Judge(d.pod, d.Decision, time.Now())
		return securitygroup.PodState{Applied: why == "", Message: why}, true
	case groupmode.Managed:
		_, annotated := d.pod.Annotations[vpc.AnnotationPodENI]
		return securitygroup.PodState{Applied: annotated && kube.Wired(d.pod)}, true
	case groupmode.EBPF:
		_, why := c.byNode.Judge(d.pod, d.Decision, time.Now())
		return securitygroup.PodState{Applied: why == "", Message: why}, true
	case groupmode.Undecided:
		return securitygroup.PodState{Message: fmt.Sprintf("node %s is undecided: %s", d.pod.Spec.NodeName, on.Message)}, d.pod.Spec.NodeName != ""
	}
	return is, false
}
