package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// StaleReport is the age from which a node's report says nothing about the node any more. Agents
// write one at least every minute.
const StaleReport = 3 * time.Minute

// NodeGroupObjects is the cache of how nodes enforce groups of pods without branches: the reports of
// their agents, and the SecurityGroups that they judge by. Its methods may be called from any
// goroutine.
type NodeGroupObjects struct {
	networks cache.SharedIndexInformer
	groups   cache.SharedIndexInformer
}

// NewNodeGroupObjects prepares the informers. changed is called after each change that concerns groups;
// it must not block.
func NewNodeGroupObjects(c *Client, changed func(), log *slog.Logger) *NodeGroupObjects {
	n := &NodeGroupObjects{
		networks: informer(c.Trunkline, trunkline.ResourceNodeNetworks, &trunkline.NodeNetwork{}, fields.Everything(), stripNetwork),
		groups:   informer(c.Trunkline, trunkline.ResourceSecurityGroups, &trunkline.SecurityGroup{}, fields.Everything(), stripGroup),
	}
	report(n.informers(), func(any) { changed() }, log)
	return n
}

func (n *NodeGroupObjects) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{n.networks, n.groups}
}

// Run watches until ctx ends. It retries without a limit while the server does not respond.
func (n *NodeGroupObjects) Run(ctx context.Context) { runInformers(ctx, n.informers()) }

// Wait returns true once everything was read, and false if ctx ends before.
func (n *NodeGroupObjects) Wait(ctx context.Context) bool { return waitFor(ctx, n.informers()) }

// read reports whether everything was read.
func (n *NodeGroupObjects) read() bool { return n.networks.HasSynced() && n.groups.HasSynced() }

// stripNetwork drops all of a report that says nothing about groups.
func stripNetwork(obj any) (any, error) {
	in, ok := obj.(*trunkline.NodeNetwork)
	if !ok {
		return obj, nil
	}
	out := &trunkline.NodeNetwork{}
	out.Name, out.UID, out.ResourceVersion = in.Name, in.UID, in.ResourceVersion
	out.Status.ObservedAt, out.Status.PodGroups = in.Status.ObservedAt, in.Status.PodGroups
	if c := meta.FindStatusCondition(in.Status.Conditions, trunkline.ConditionPoliciesEnforced); c != nil {
		out.Status.Conditions = []metav1.Condition{*c}
	}
	return out, nil
}

// stripGroup drops the rules and members of a group.
func stripGroup(obj any) (any, error) {
	in, ok := obj.(*trunkline.SecurityGroup)
	if !ok {
		return obj, nil
	}
	out := &trunkline.SecurityGroup{Spec: trunkline.SecurityGroupSpec{VPCID: in.Spec.VPCID, Absent: in.Spec.Absent}}
	out.Name, out.UID, out.ResourceVersion = in.Name, in.UID, in.ResourceVersion
	return out, nil
}

// sameForGroups reports whether an update of a report or a SecurityGroup changes nothing of what is
// cached of it, but the time of a report that was not stale.
func sameForGroups(was, is any) bool {
	switch after := is.(type) {
	case *trunkline.NodeNetwork:
		before, ok := was.(*trunkline.NodeNetwork)
		stale := ok && after.Status.ObservedAt.Sub(before.Status.ObservedAt.Time) > StaleReport
		return ok && !stale && before.UID == after.UID && apiequality.Semantic.DeepEqual(before.Status.PodGroups, after.Status.PodGroups) &&
			apiequality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions)
	case *trunkline.SecurityGroup:
		before, ok := was.(*trunkline.SecurityGroup)
		return ok && before.UID == after.UID && before.Spec.VPCID == after.Spec.VPCID && before.Spec.Absent == after.Spec.Absent
	}
	return false
}

// KnownGroup is what a SecurityGroup says about its group at EC2.
func KnownGroup(g *trunkline.SecurityGroup) securitygroup.Group {
	if g.Spec.Absent {
		return securitygroup.Group{}
	}
	return securitygroup.Group{Exists: true, VPCs: []vpc.ID{vpc.ID(g.Spec.VPCID)}}
}

// Known is what each VPC of the cluster's nodes knows of groups, by VPC.
func (n *NodeGroupObjects) Known() (list []securitygroup.Known) {
	groups := n.known()
	var seen []vpc.ID
	for _, of := range objects[*trunkline.NodeNetwork](n.networks) {
		g := of.Status.PodGroups
		if g == nil || g.VPCID == "" || slices.Contains(seen, vpc.ID(g.VPCID)) {
			continue
		}
		seen = append(seen, vpc.ID(g.VPCID))
		list = append(list, securitygroup.Known{VPC: vpc.ID(g.VPCID), Groups: groups})
	}
	return list
}

func (n *NodeGroupObjects) known() map[string]securitygroup.Group {
	groups := map[string]securitygroup.Group{}
	for _, g := range objects[*trunkline.SecurityGroup](n.groups) {
		groups[g.Name] = KnownGroup(g)
	}
	return groups
}

// Judge returns the decision on a pod as its node makes it, by the groups that are known to the node,
// and why the node does not enforce exactly these now; empty if it does.
func (n *NodeGroupObjects) Judge(p *corev1.Pod, d securitygroup.Decision, now time.Time) (judged securitygroup.Decision, why string) {
	switch {
	case p.Spec.NodeName == "":
		return d, "the pod is on no node"
	case !n.read():
		return d, "the controller has not read what nodes enforce: see whether it may list nodenetworks and securitygroups of trunkline.dev (deploy/components/node-groups)"
	}
	of, exists := object[*trunkline.NodeNetwork](n.networks, p.Spec.NodeName)
	g, why := enforces(p.Spec.NodeName, of, exists, now)
	if g == nil || g.VPCID == "" {
		return d, why
	}
	k := securitygroup.Known{VPC: vpc.ID(g.VPCID), Limit: int(g.GroupLimit), Groups: map[string]securitygroup.Group{}}
	for _, id := range d.Groups {
		if group, published := object[*trunkline.SecurityGroup](n.groups, id); published {
			k.Groups[id] = KnownGroup(group)
		}
	}
	d = k.Judge(d)
	switch {
	case why != "":
	case d.Verdict != securitygroup.Selected:
		why = d.Why
	case !Wired(p):
		why = fmt.Sprintf("node %s has not set up its network", p.Spec.NodeName)
	}
	return d, why
}

// enforces returns what a node reports about groups if it enforces those of pods without branches, and
// why it enforces nothing now.
func enforces(node string, of *trunkline.NodeNetwork, exists bool, now time.Time) (*trunkline.PodGroups, string) {
	if !exists || of.Status.PodGroups == nil {
		return nil, fmt.Sprintf("node %s reports no mode of security groups: it has no agent of Trunkline, or one of an earlier build", node)
	}
	g := of.Status.PodGroups
	if !g.NodeEnforces {
		return nil, fmt.Sprintf("node %s enforces no groups: its agent reports security-groups-for-pods: %s", node, g.Mode)
	}
	c := meta.FindStatusCondition(of.Status.Conditions, trunkline.ConditionPoliciesEnforced)
	switch age := now.Sub(of.Status.ObservedAt.Time).Round(time.Second); {
	case age > StaleReport:
		return g, fmt.Sprintf("the report of node %s is %s old: see whether its agent runs", node, age)
	case c == nil:
		return g, fmt.Sprintf("node %s does not report whether it enforces policies", node)
	case c.Status != metav1.ConditionTrue:
		return g, fmt.Sprintf("node %s enforces nothing now (%s): %s", node, c.Reason, c.Message)
	case g.VPCID == "":
		return g, fmt.Sprintf("node %s does not know its VPC, because EC2 has not shown it", node)
	}
	return g, ""
}
