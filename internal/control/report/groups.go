package report

import (
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// podGroups is how the node treats security groups of pods, by its settings.
func podGroups(cfg config.Config, in vpc.ID) *trunkline.PodGroups {
	g := &trunkline.PodGroups{Mode: trunkline.GroupsOff, NodeEnforces: cfg.NodeGroups(), VPCID: string(in), GroupLimit: int32(cfg.GroupsPerInterface)}
	switch cfg.SecurityGroups {
	case config.SecurityGroupsManaged:
		g.Mode = trunkline.GroupsManaged
	case config.SecurityGroupsOwn:
		g.Mode = trunkline.GroupsOwn
	case config.SecurityGroupsEBPF:
		g.Mode = trunkline.GroupsEBPF
	}
	return g
}
