package agent

import (
	"context"

	"github.com/trunkline/trunkline/internal/control/branch"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// groups gives pods their own security groups. It is nil if that is off.
type groups struct {
	*branch.Controller
}

// newGroups makes the controller of pods on branches.
func newGroups(a *agent) *groups {
	if !a.cfg.Branches() {
		return nil
	}
	return &groups{branch.New(branch.Deps{
		Log: a.log, State: a.state, Pods: a.cluster, Mode: a.cfg.EnforcingMode, Wait: a.cfg.AddWait, Missing: a.backend.missing, Read: a.host.Read,
		SetUp:    func(ctx context.Context, e endpoint.Endpoint) error { return network.SetUpBranch(ctx, a.network, e) },
		TakeDown: func(ctx context.Context) error { return network.TakeDownBranches(ctx, a.network) },
	})}
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
