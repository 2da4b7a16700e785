package report

import (
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// podGroups is how the node treats security groups of pods, by its settings and what was chosen for it.
func podGroups(cfg config.Config, in vpc.ID, choice func() groupmode.Choice) *trunkline.PodGroups {
	g := &trunkline.PodGroups{Mode: trunkline.GroupsOff, NodeEnforces: cfg.NodeGroups(), VPCID: string(in), GroupLimit: int32(cfg.GroupsPerInterface)}
	switch cfg.SecurityGroups {
	case config.SecurityGroupsManaged:
		g.Mode = trunkline.GroupsManaged
	case config.SecurityGroupsOwn:
		g.Mode = trunkline.GroupsOwn
	case config.SecurityGroupsEBPF:
		g.Mode = trunkline.GroupsEBPF
	case config.SecurityGroupsAuto:
		c := choice()
		g.Mode, g.Reason, g.Message = trunkline.GroupMode(c.Mode.String()), string(c.Reason), c.Message
	}
	return g
}
