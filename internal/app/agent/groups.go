package agent

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/branch"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// GroupPolicies decides which pods have security groups of their own; *kube.GroupPolicies is one.
type GroupPolicies interface {
	branch.Policies
	Run(ctx context.Context) error
}

// GroupSnapshot is the file in which the agent of a node keeps SecurityGroupPolicies and accounts.
func GroupSnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "groups.json") }

// CNINodeSnapshot is the file in which the agent of a node keeps the record of the node's branches.
func CNINodeSnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "cninode.json") }

// CNINode is the CNINode of the node; *kube.OwnCNINode is one.
type CNINode interface {
	branch.Record
	branch.Features
	Run(ctx context.Context) error
}

// groups gives pods their own security groups. It is nil if that is off.
type groups struct {
	*branch.Controller
	objects GroupPolicies // nil: there is no cluster
	node    CNINode       // nil: there is no cluster
	check   branch.Check
	request *branch.Request // nil: AWS's controller does not own branches
}

// newGroups makes the controller of pods on branches.
func newGroups(a *agent) *groups {
	if !a.cfg.Branches() {
		return nil
	}
	g := &groups{}
	deps := branch.Deps{
		Log: a.log, State: a.state, Pods: a.cluster, Mode: a.cfg.EnforcingMode, Wait: a.cfg.AddWait, Missing: a.backend.missing, Read: a.host.Read,
		Owned: a.cfg.SecurityGroups == config.SecurityGroupsOwn, Events: a.events,
		SetUp:    func(ctx context.Context, e endpoint.Endpoint) error { return network.SetUpBranch(ctx, a.network, e) },
		TakeDown: func(ctx context.Context) error { return network.TakeDownBranches(ctx, a.network) },
	}
	if a.deps.CNINode != nil {
		g.node = a.deps.CNINode(g.changed)
		deps.Record = g.node
		if a.cfg.SecurityGroups == config.SecurityGroupsManaged {
			g.request = branch.NewRequest(branch.RequestDeps{Log: a.log, State: a.state, Features: g.node, Events: a.events})
		}
	}
	g.Controller = branch.New(deps)
	if a.deps.Groups != nil {
		g.objects = a.deps.Groups()
		g.check = branch.Check{Policies: g.objects, Events: a.events, Excluded: []string{metav1.NamespaceSystem, a.cfg.PodNamespace}}
	}
	return g
}

// components are those of each ADD.
func (g *groups) components() []cni.Component {
	if g == nil || g.objects == nil {
		return nil
	}
	return []cni.Component{g.check}
}

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
	if g == nil || g.request == nil {
		return nil
	}
	return map[string]*loop.Loop{"trunk request": g.request.Loop}
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
