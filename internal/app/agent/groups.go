package agent

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/branch"
	"github.com/trunkline/trunkline/internal/control/cni"
	podgroups "github.com/trunkline/trunkline/internal/control/groups"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// GroupObjects are what the security groups of pods depend on; *kube.GroupObjects is one.
type GroupObjects interface {
	branch.Policies
	podgroups.Groups
	Run(ctx context.Context) error
}

// GroupSnapshot is the file in which the agent of a node keeps what the groups of pods depend on.
func GroupSnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "groups.json") }

// CNINodeSnapshot is the file in which the agent of a node keeps the record of the node's branches.
func CNINodeSnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "cninode.json") }

// CNINode is the CNINode of the node; *kube.OwnCNINode is one.
type CNINode interface {
	branch.Record
	branch.Features
	Run(ctx context.Context) error
}

// groups gives pods branches with their own security groups. It is nil if no pod of the node can have one.
type groups struct {
	*branch.Controller
	objects GroupObjects // nil: there is no cluster, or the node enforces groups and runs them
	node    CNINode      // nil: there is no cluster
	check   branch.Check
	request *branch.Request // nil: AWS's controller never makes branches
	audit   *branch.Audit   // nil: there is no cluster
}

// newGroups makes the controller of pods on branches.
func newGroups(a *agent) (*groups, error) {
	if !a.cfg.Branches() {
		return nil, nil
	}
	g := &groups{}
	deps := branch.Deps{
		Log: a.log, State: a.state, Pods: a.cluster, Mode: a.cfg.EnforcingMode, Wait: a.cfg.AddWait, Missing: a.backend.missing, Read: a.host.Read,
		Owned: a.cluster.modes.Owned, Events: a.events,
		SetUp:    func(ctx context.Context, e endpoint.Endpoint) error { return network.SetUpBranch(ctx, a.network, e) },
		TakeDown: func(ctx context.Context) error { return network.TakeDownBranches(ctx, a.network) },
	}
	if node := a.cluster.modes.node; node != nil {
		g.node, deps.Record = node, node
		if a.cfg.SecurityGroups == config.SecurityGroupsManaged || a.cluster.modes.Chosen() {
			deps.Groups = a.backend.groupsOf
			g.request = branch.NewRequest(branch.RequestDeps{Log: a.log, State: a.state, Features: g.node, Events: a.events, Wanted: a.cluster.modes.Managed})
		}
	}
	g.Controller = branch.New(deps)
	g.check = branch.Check{Events: a.events, Modes: a.cluster.modes.Modes, Wait: groupsWithin, Excluded: excludedNamespaces(a.cfg)}
	switch {
	case a.policies != nil && a.policies.groups != nil:
		g.check.Policies = a.policies.groups.objects
	case a.deps.Groups != nil:
		g.objects = a.deps.Groups(g.Changed)
		g.check.Policies = g.objects
	default:
		return g, nil
	}
	g.Policies = g.check.Policies
	audit := branch.AuditDeps{
		Log: a.log, State: a.state, Pods: a.cluster, Policies: g.check.Policies, Events: a.events, Record: deps.Record, Owned: a.cluster.modes.Records,
		NodeEnforces: a.cfg.NodeGroups(), Unable: a.policies.unable, Excluded: g.check.Excluded, Registry: a.deps.Registry,
	}
	if deps.Groups != nil {
		audit.Groups = a.backend.allGroups
	}
	var err error
	g.audit, err = branch.NewAudit(audit)
	return g, err
}

// excludedNamespaces are those in which no pod is refused, and none without a branch is cut off, so that no
// policy keeps DNS or Trunkline from starting.
func excludedNamespaces(c config.Config) []string {
	return []string{metav1.NamespaceSystem, c.PodNamespace}
}

// newModes makes the modes of the node.
func newModes(a *agent, cluster Cluster) (m modes) {
	d := branch.ModesDeps{Setting: groupmode.Mode(a.cfg.SecurityGroups), State: a.state, Node: cluster.Node, Limits: a.cfg.BranchLimits}
	if a.cfg.ChoosesGroups() {
		d.Setting = groupmode.Undecided
	}
	if a.cfg.Branches() && a.deps.CNINode != nil {
		m.node = a.deps.CNINode(func() { recordChanged(a) })
		d.Record = m.node
	}
	m.Modes = branch.NewModes(d)
	return m
}

// recordChanged is called when the CNINode changed, with the record of the node's branches and mode.
func recordChanged(a *agent) {
	a.backend.groups.changed()
	if reportMode(a) {
		a.markPlan()
	}
}

// reportMode has a mode reported that is another one than before.
func reportMode(a *agent) (changed bool) {
	m := a.cluster.modes
	if !m.Chosen() || !m.Changed() {
		return false
	}
	a.log.Info("mode of security groups", "mode", m.Choice().String())
	a.reporter.Loop.Mark()
	return true
}

// components are those of each ADD.
func (g *groups) components() []cni.Component {
	if g == nil || g.check.Policies == nil {
		return nil
	}
	return []cni.Component{g.check}
}

// listed reports whether the API server has listed which pods have groups of their own.
func (g *groups) listed() bool { return g == nil || g.objects == nil || g.objects.Synced() }

// run reads which pods have groups of their own, and the record of the node's branches.
func (g *groups) run(ctx context.Context, group *errgroup.Group) {
	if g != nil && g.objects != nil {
		group.Go(func() error { return g.objects.Run(ctx) })
	}
	if g != nil && g.node != nil {
		group.Go(func() error { return g.node.Run(ctx) })
	}
}

// loops are those of the groups, by name.
func (g *groups) loops() map[string]*loop.Loop {
	all := map[string]*loop.Loop{}
	if g != nil && g.request != nil {
		all["trunk request"] = g.request.Loop
	}
	if g != nil && g.audit != nil {
		all["audit of security groups"] = g.audit.Loop
	}
	return all
}

// devices makes the devices of branches.
func devices(k kernel) network.Branches {
	if k.branches == nil {
		return nil
	}
	return k.branches
}

// branches are those of each ADD.
func (g *groups) branches() cni.Branches {
	if g == nil {
		return nil
	}
	return g
}

// wake has ADDs that wait for the trunk look for it: EC2 may have shown it.
func (g *groups) wake() {
	if g != nil {
		g.Changed()
	}
}

// changed has ADDs that wait read the pods again, and the loops what they depend on.
func (g *groups) changed() {
	if g == nil {
		return
	}
	g.Changed()
	for _, l := range g.loops() {
		l.Mark()
	}
}

// enforcedGroups are security groups of pods without branches, which the programs of network policies
// enforce. It is nil where the node enforces none.
type enforcedGroups struct {
	objects GroupObjects
	judged  *podgroups.Objects
	events  Events
	denied  atomic.Bool // it was reported that the groups may not be read
}

// groupsWithin bounds how long an ADD waits for groups that are not known. EC2 is read a second after
// a policy has changed.
const groupsWithin = 10 * time.Second

// newEnforcedGroups makes what control/policy judges groups on.
func newEnforcedGroups(a *agent, p *policies) *enforcedGroups {
	if !a.cfg.NodeGroups() || a.deps.Groups == nil {
		return nil
	}
	g := &enforcedGroups{events: a.events}
	g.objects = a.deps.Groups(func() {
		p.changed()
		g.reportDenied(a.reporter.Loop.Mark)
	})
	g.judged = podgroups.New(podgroups.Deps{
		Policies: p.objects, Groups: g.objects, VPC: func() vpc.ID { return a.state.Node().VPC }, Limit: a.cfg.GroupsPerInterface, Branches: a.cfg.Branches(), Judges: a.cluster.modes.NodeJudges,
	})
	if a.cfg.Branches() {
		g.judged.Excluded = excludedNamespaces(a.cfg)
	}
	return g
}

// reasonNotRead is the reason of the event on a node that may not read the groups that it is to enforce.
const reasonNotRead = "SecurityGroupsNotRead"

// reportDenied reports once that the groups may not be read, and has the node reported when that changes.
func (g *enforcedGroups) reportDenied(report func()) {
	denied := g.objects.Denied()
	if g.denied.Swap(denied != "") == (denied != "") {
		return
	}
	if denied != "" {
		g.events.NodeWarning(reasonNotRead, "Pods without a branch that a SecurityGroupPolicy selects have on this node what their groups allowed when they were last read; without that they are cut off, or refused. Others are not concerned: "+denied+".")
	}
	report()
}

// pods are those of the node, with their groups.
func (g *enforcedGroups) pods(of Cluster) policy.Pods {
	if g == nil {
		return of
	}
	return podgroups.Pods{Objects: g.judged, Of: of}
}

// spared reports whether a pod may start on a node that cannot enforce; nil where none may: without branches every
// pod of the node that has groups depends on the programs.
func (g *enforcedGroups) spared(cfg config.Config) func(kube.Pod) bool {
	if g == nil || !cfg.Branches() {
		return nil
	}
	return g.judged.Spared
}

// component refuses pods that have groups which cannot be applied.
func (g *enforcedGroups) component(next *policy.Controller) cni.Component {
	return podgroups.Component{Objects: g.judged, Events: g.events, Wait: groupsWithin, Next: next}
}
