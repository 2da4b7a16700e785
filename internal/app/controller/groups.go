package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/control/groupfeed"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// feedGroups keeps the SecurityGroups that nodes read equal to EC2's, until ctx ends.
func feedGroups(ctx context.Context, o Options) {
	var feed *groupfeed.Feed
	policies := kube.NewGroupObjects(kube.GroupOptions{Client: o.Client, Changed: func() { feed.Loop.Mark() }, Log: o.Log})
	feed = groupfeed.New(groupfeed.Deps{
		Log: o.Log, Policies: policies, EC2: o.Groups, Client: o.Client,
		Nodes: func(ctx context.Context) ([]vpc.InstanceID, error) {
			nodes, err := kube.Nodes(ctx, o.Client)
			return slices.Sorted(maps.Values(instancesOf(nodes))), err
		},
	})
	feed.Loop.Report = func(err error, pause time.Duration) {
		o.Log.Warn("security groups for nodes not read or written, retrying", "in", pause, "err", err)
	}
	var g errgroup.Group
	g.Go(func() error { return policies.Run(ctx) })
	g.Go(func() error { return feed.Loop.Run(ctx) })
	_ = g.Wait() // both return nil
}
