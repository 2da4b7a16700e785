package agent

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/control/branch"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// GroupPolicies decides which pods have security groups of their own; *kube.GroupPolicies is one.
type GroupPolicies interface {
	branch.Policies
	Run(ctx context.Context) error
}

// GroupSnapshot is the file in which the agent of a node keeps SecurityGroupPolicies and accounts.
func GroupSnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "groups.json") }

// groups gives pods their own security groups. It is nil if that is off.
type groups struct {
	*branch.Controller
	objects GroupPolicies // nil: there is no cluster
	check   branch.Check
}

// newGroups makes the controller of pods on branches.
func newGroups(a *agent) *groups {
	if !a.cfg.Branches() {
		return nil
	}
	g := &groups{Controller: branch.New(branch.Deps{
		Log: a.log, State: a.state, Pods: a.cluster, Mode: a.cfg.EnforcingMode, Wait: a.cfg.AddWait, Missing: a.backend.missing, Read: a.host.Read,
		SetUp:    func(ctx context.Context, e endpoint.Endpoint) error { return network.SetUpBranch(ctx, a.network, e) },
		TakeDown: func(ctx context.Context) error { return network.TakeDownBranches(ctx, a.network) },
	})}
	if a.deps.Groups != nil {
		g.objects = a.deps.Groups()
		g.check = branch.Check{Policies: g.objects, Events: a.events}
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

// run reads which pods have groups of their own.
func (g *groups) run(ctx context.Context, group *errgroup.Group) {
	if g != nil && g.objects != nil {
		group.Go(func() error { return g.objects.Run(ctx) })
	}
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

// changed has ADDs that wait read the pods again.
func (g *groups) changed() {
	if g != nil {
		g.Changed()
	}
}
