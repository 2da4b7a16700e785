package trunk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Reasons of events, and texts. Source: pkg/provider/branch/provider.go and pkg/utils/events.go of
// AWS's VPC resource controller.
const (
	eventRequested       = "SecurityGroupRequested"
	eventAllocated       = "ResourceAllocated"
	eventNotAllocated    = "BranchAllocationFailed"
	eventNotAnnotated    = "BranchENIAnnotationFailed"
	eventTrunkReady      = "NodeTrunkInitiated"
	eventTrunkNotReady   = "NodeTrunkFailedInit"
	eventTrunkNotCreated = "TrunkENICreationFailed"
	eventUnsupported     = "Unsupported"
	eventBadRecord       = "BranchRecordInvalid" // Trunkline's own

	textNotAllocated = "failed to allocate branch ENI to pod: "
	textTrunkReady   = "The node has trunk interface initialized successfully"
)

// view is what a pass found, by pod.
type view struct {
	applied map[types.UID]bool   // the pod has a branch with exactly its groups
	refused map[types.UID]string // EC2 refuses its groups, and why
	network vpc.ID               // of the node
	choice  groupmode.Choice     // of the node, where each has a mode of its own
	numbers core.Numbers
}

// said is what events have reported of a node.
type said struct {
	unsupported bool
	requested   map[core.PodUID]string // groups
	allocated   map[core.PodUID]string // the annotation
	refused     map[types.UID]string   // why
	waits       waits
	record      string // why the record cannot be read
}

// publish keeps what a pass found for the status of policies.
func (n *node) publish(pods []decided, d core.Decision) {
	v := view{applied: map[types.UID]bool{}, refused: map[types.UID]string{}, network: n.rec.host.vpc, numbers: d.Numbers}
	for _, p := range pods {
		uid := core.PodUID(p.pod.UID)
		if b, has := n.rec.state.Of(uid); has && b.Stage == core.Bound && slices.Equal(writeGroups(b.Groups), p.Groups) {
			v.applied[p.pod.UID] = true
		}
		if r, ok := n.rec.state.Refused[uid]; ok && slices.Equal(writeGroups(r.Groups), p.Groups) {
			v.refused[p.pod.UID] = r.Message
		}
	}
	n.announceRefused(pods)
	n.times.waits = waitReporter{n}.emit(d.Problems, clock())
	n.mu.Lock()
	v.choice = n.view.choice
	changed := n.view.network != v.network || !maps.Equal(n.view.applied, v.applied) || !maps.Equal(n.view.refused, v.refused)
	n.view = v
	n.mu.Unlock()
	if changed {
		n.c.status.Mark()
	}
}

// announce reports which groups a pod gets, once.
func (n *node) announce(f flight) {
	a := f.Action
	if a.Pod == "" {
		return
	}
	if n.said.requested == nil {
		n.said.requested, n.said.allocated = map[core.PodUID]string{}, map[core.PodUID]string{}
	}
	if a.Kind == core.Bind {
		n.said.allocated[a.Pod] = f.text
	}
	if groups := strings.Join(writeGroups(a.Groups), " "); groups != "" && n.said.requested[a.Pod] != groups {
		n.said.requested[a.Pod] = groups
		n.podEvent(a.Pod, corev1.EventTypeNormal, eventRequested, fmt.Sprintf("Pod will get the following Security Groups [%s]", groups))
	}
}

// announceRefused reports why pods get no branch, once for each reason.
func (n *node) announceRefused(pods []decided) {
	now := map[types.UID]string{}
	for _, p := range pods {
		why := n.rec.refusal(p)
		if why == "" {
			continue
		}
		if now[p.pod.UID] = why; n.said.refused[p.pod.UID] != why {
			ref := kube.PodRef{Namespace: p.pod.Namespace, Name: p.pod.Name}
			n.c.o.Events.PodWarning(ref, string(p.pod.UID), eventNotAllocated, textNotAllocated+securitygroup.Cut(why))
		}
	}
	n.said.refused = now
}

// refusal is why a pod gets no branch: by its groups, or by the ENIConfig of the node.
func (r record) refusal(p decided) string {
	_, has := r.state.Of(core.PodUID(p.pod.UID))
	switch {
	case p.Verdict == securitygroup.Refused && !errors.Is(p.Refusal, securitygroup.ErrGroupNotRead):
		return p.Why
	case p.Verdict == securitygroup.Selected && p.requests && !has && r.refusedCustom():
		return r.custom.message
	}
	return ""
}

// notify reports the result of a call by an event.
func (n *node) notify(a core.Action, r result) {
	failed := r.failure != nil
	if failed {
		n.c.o.Log.Info("call failed", "node", n.name, "action", a.String(), "id", a.ID, "reason", string(r.failure.Reason), "definite", r.failure.Definite, "err", r.failure.Message)
	}
	switch a.Kind {
	case core.Bind:
		if failed {
			n.podEvent(a.Pod, corev1.EventTypeWarning, eventNotAnnotated, r.failure.Message)
			return
		}
		n.waiting.end(a.Pod, n.c.metrics, clock())
		n.podEvent(a.Pod, corev1.EventTypeNormal, eventAllocated, fmt.Sprintf("Allocated %s to the pod", n.said.allocated[a.Pod]))
		delete(n.said.allocated, a.Pod)
	case core.CreateBranch, core.TagBranch, core.Associate, core.SetGroups:
		if failed && a.Pod != "" {
			n.podEvent(a.Pod, corev1.EventTypeWarning, eventNotAllocated, textNotAllocated+r.failure.Message)
		}
	case core.CreateTrunk:
		if failed {
			n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, eventTrunkNotCreated, r.failure.Message)
		}
	case core.AttachTrunk:
		if failed {
			n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, eventTrunkNotReady, r.failure.Message)
			return
		}
		n.c.o.Events.NodeEvent(n.name, corev1.EventTypeNormal, eventTrunkReady, textTrunkReady)
	case core.DeleteTrunk, core.Release, core.Adopt, core.Disassociate, core.DeleteBranch:
	}
}

// advertise writes the number of branches to the node's capacity, once the trunk is ready if they are
// made, and reports a type that has none. It reports whether it succeeded.
func (n *node) advertise(ctx context.Context, on *corev1.Node) bool {
	if on == nil || n.seen.gone || replaced(n.rec.state, on) {
		return true // the capacity is that of the instance of the record
	}
	limit, why := core.BranchLimit(typeOf(on), n.c.o.BranchLimits)
	if n.own() && limit < 1 && !n.said.unsupported {
		n.said.unsupported = true
		n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, eventUnsupported, fmt.Sprintf("The instance type %s is not supported for trunk interface: %s", typeOf(on), why))
	}
	want, known := chooser{n}.capacity(on)
	if !known {
		return true
	}
	if err := n.c.objects.SetBranchCapacity(ctx, n.name, want); err != nil {
		n.c.o.Log.Warn("capacity not written, retrying", "node", n.name, "err", err)
		return false
	}
	n.seen.ebpf = false
	return true
}

func (n *node) podEvent(pod core.PodUID, kind, reason, message string) {
	name := n.rec.names[pod]
	ref := kube.PodRef{Namespace: name.Namespace, Name: name.Name}
	if kind == corev1.EventTypeNormal {
		n.c.o.Events.PodNormal(ref, string(pod), reason, message)
		return
	}
	n.c.o.Events.PodWarning(ref, string(pod), reason, message)
}

// writeStatus writes the status of each policy that has another one than it should.
func (c *Controller) writeStatus(ctx context.Context, _ bool) (time.Time, error) {
	v, networks, choices := c.views()
	var counted securitygroup.PodCounts
	for _, d := range c.decideAll(networks) {
		counted.Add(d.pod.Name, d.Decision, c.stateOf(d, v, choices))
	}
	in := slices.Sorted(maps.Values(networks))
	return time.Time{}, c.objects.WriteStatus(ctx, &counted, securitygroup.ReasonWithoutBranch, func(p *v1beta1.SecurityGroupPolicy) error {
		if err := c.unusable(p.Spec.SecurityGroups.Groups, in); err != nil {
			return err
		}
		if slices.Contains(c.o.Excluded, p.Namespace) {
			return errExcluded
		}
		return nil
	})
}

// stateOf is whether a pod has its groups: at a branch, or, without one, on its node.
func (c *Controller) stateOf(d decided, v view, choices map[string]groupmode.Choice) securitygroup.PodState {
	why, refused := v.refused[d.pod.UID]
	switch {
	case refused:
		return securitygroup.PodState{RefusedBy: "RefusedByEC2", Message: why}
	case v.applied[d.pod.UID]:
		return securitygroup.PodState{Applied: true}
	}
	if c.o.Choose && c.byNode != nil {
		if is, known := c.chosen(d, choices[d.pod.Spec.NodeName]); known {
			return is
		}
	}
	switch {
	case c.byNode == nil || d.requests:
		return securitygroup.PodState{}
	}
	_, why = c.byNode.Judge(d.pod, d.Decision, time.Now())
	return securitygroup.PodState{Applied: why == "", Message: why}
}

// unusable is why the first group that no node can apply cannot be. Of nodes that enforce groups
// themselves EC2 is not read here: their reports have their VPCs.
func (c *Controller) unusable(ids []string, in []vpc.ID) error {
	if len(in) == 0 && c.o.Choose && c.byNode != nil {
		return securitygroup.Unusable(ids, c.byNode.Known())
	}
	return c.groups.problem(ids, in)
}

// views are those of all nodes as one, and the nodes' VPCs and modes.
func (c *Controller) views() (all view, networks map[string]vpc.ID, choices map[string]groupmode.Choice) {
	all, networks = view{applied: map[types.UID]bool{}, refused: map[types.UID]string{}}, map[string]vpc.ID{}
	choices = map[string]groupmode.Choice{}
	c.mu.Lock()
	nodes := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	c.mu.Unlock()
	for _, n := range nodes {
		n.mu.Lock()
		for uid := range n.view.applied {
			all.applied[uid] = true
		}
		for uid, why := range n.view.refused {
			all.refused[uid] = why
		}
		if n.view.network != "" {
			networks[n.name] = n.view.network
		}
		all.numbers = all.numbers.Add(n.view.numbers)
		choices[n.name] = n.view.choice
		n.mu.Unlock()
	}
	return all, networks, choices
}

// decideAll decides for all pods. Groups are checked against the VPC of the pod's node.
func (c *Controller) decideAll(networks map[string]vpc.ID) (out []decided) {
	by := map[vpc.ID][]*corev1.Pod{}
	for _, p := range c.objects.Pods() {
		by[networks[p.Spec.NodeName]] = append(by[networks[p.Spec.NodeName]], p)
	}
	for in, pods := range by {
		out = append(out, c.decide(pods, in)...)
	}
	slices.SortFunc(out, func(a, b decided) int { return cmp.Compare(podName(a.pod), podName(b.pod)) })
	return out
}

// errExcluded is why a policy of an excluded namespace is not enforced.
var errExcluded = fmt.Errorf("%w: in kube-system and in Trunkline's namespace no pod is required to have a branch, so that no policy keeps DNS or Trunkline from starting: "+
	"selected pods that request "+vpc.ResourcePodENI+" themselves get the groups, and others run with those of their node", securitygroup.ErrExcluded)
