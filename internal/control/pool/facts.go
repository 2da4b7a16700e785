package pool

import (
	"context"
	"slices"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
)

// facts about the node. They are read once, except the groups of the primary interface
// and the VPC's ranges: follow reads these again.
type facts struct {
	identity imds.Identity
	primary  imds.Interface
	limits   vpc.Limits
	node     cloud.Node
}

// ReadIdentity reads from instance metadata which instance this is.
func (o *Observer) ReadIdentity(ctx context.Context) error {
	identity, err := o.p.Metadata.Identity(ctx)
	if err != nil {
		return err
	}
	primary, err := o.p.Metadata.Interface(ctx, identity.PrimaryMAC)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.facts.identity, o.facts.primary = identity, primary
	o.facts.node = cloud.Node{Instance: identity.Instance, Cluster: o.p.ClusterName}
	o.mu.Unlock()
	o.publish()
	return nil
}

// ReadLimits reads how many interfaces and addresses the instance type allows.
func (o *Observer) ReadLimits(ctx context.Context) error {
	known, _ := o.known()
	limits, err := o.p.EC2.InstanceLimits(ctx, known.identity.Type)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts.limits = limits
	return nil
}

// ReadInterfaces observes EC2 for the first time.
func (o *Observer) ReadInterfaces(ctx context.Context) error { return o.readEC2(ctx, true) }

// publish writes the node's row.
func (o *Observer) publish() {
	known, _ := o.known()
	state.Set(o.p.State, o.p.Owned.Node, state.Node{
		Instance: known.identity.Instance, Type: known.identity.Type, Zone: known.identity.Zone,
		PrimaryMAC: known.identity.PrimaryMAC, PrimaryIP: known.identity.PrimaryIP, Ranges: known.primary.VPCv4CIDRs,
	})
}

// follow updates the facts that users may change: the groups of the primary interface,
// which new interfaces get, and the ranges of the VPC, to which pods send without SNAT.
func (o *Observer) follow(ctx context.Context, interfaces []ec2.Interface) {
	was, _ := o.known()
	groups, ranges := was.primary.Groups, was.primary.VPCv4CIDRs
	for _, i := range interfaces {
		if i.MAC == was.primary.MAC && len(i.Groups) > 0 {
			groups = i.Groups
		}
	}
	fresh, err := o.p.Metadata.VPCCIDRs(ctx, was.primary.MAC)
	if err != nil {
		o.p.Log.Warn("the VPC's ranges could not be read again; the last ones are used", "error", err)
	} else {
		ranges = fresh
	}
	if !slices.Equal(groups, was.primary.Groups) {
		o.p.Log.Info("security groups of new interfaces changed", "groups", groups, "was", was.primary.Groups)
	}
	if !slices.Equal(ranges, was.primary.VPCv4CIDRs) {
		o.p.Log.Info("the VPC's ranges changed", "ranges", ranges, "was", was.primary.VPCv4CIDRs)
	}
	o.mu.Lock()
	o.facts.primary.Groups, o.facts.primary.VPCv4CIDRs = groups, ranges
	o.mu.Unlock()
	o.publish()
}
