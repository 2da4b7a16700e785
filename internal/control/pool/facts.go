package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// Facts about the node are one value, state.Node. The identity and the limits are read
// once; followGroups and followRanges follow the groups of the primary interface and the
// VPC's ranges. The last facts are journaled: an agent that starts again works from them until their sources
// answer (Resume).

// Resume takes over what an earlier process recorded, if that is complete and this
// instance's, and reports whether it has: then the pool works before its sources answer,
// and begins actions at EC2 once it has observed EC2. The record is this instance's if the
// caller knows that (confirmed), or if ReadIdentity has found so.
func (o *Observer) Resume(confirmed bool) bool {
	recorded, read := o.p.State.Recorded, o.known()
	view, _ := o.p.State.View(time.Now())
	if !recorded.Complete() || len(view.ENIs) == 0 {
		return false
	}
	if read.Instance != "" {
		if read.Type != recorded.Type { // the instance was stopped, and has other limits
			return false
		}
		recorded = read.Else(recorded)
	} else if !confirmed {
		return false
	}
	o.mu.Lock()
	o.node = recorded
	o.mu.Unlock()
	o.publish()
	return true
}

// ReadIdentity reads from instance metadata which instance this is. It fails with
// state.ErrOtherInstance if the journal is that of another one. If the instance has another type than
// recorded, because it was stopped and changed, it reads the limits of that type too.
func (o *Observer) ReadIdentity(ctx context.Context) error {
	identity, err := o.p.Metadata.Identity(ctx)
	o.p.note(state.Metadata, err)
	if err != nil {
		return err
	}
	if was := o.p.State.Recorded.Instance; was != "" && was != identity.Instance {
		return fmt.Errorf("this is %s, the journal has %s: %w", identity.Instance, was, state.ErrOtherInstance)
	}
	primary, err := o.p.Metadata.Interface(ctx, identity.PrimaryMAC)
	o.p.note(state.Metadata, err)
	if err != nil {
		return err
	}
	for _, line := range primary.Unreadable {
		o.p.Log.Warn("a line of instance metadata cannot be read and is not used", "line", line)
	}
	was := o.known().Type
	limits, another := vpc.Limits{}, was != "" && was != identity.Type
	if another {
		if limits, err = o.limits(ctx, identity.Type); err != nil {
			return err
		}
		o.p.Log.Info("the instance has another type than recorded", "type", identity.Type, "was", was)
	}
	o.mu.Lock()
	n := o.node
	if another {
		n = n.With(time.Now(), state.FactLimits)
		n.Limits = limits
	}
	n.Instance, n.Type, n.Region, n.Zone = identity.Instance, identity.Type, identity.Region, identity.Zone
	n.PrimaryMAC, n.PrimaryIP = identity.PrimaryMAC, identity.PrimaryIP
	n.VPC, n.Subnet, n.Groups, n.Ranges = primary.VPC, primary.Subnet, primary.Groups, primary.VPCv4CIDRs
	o.node = n.With(time.Now(), state.FactIdentity, state.FactRanges)
	o.mu.Unlock()
	o.publish()
	return nil
}

// ReadLimits reads how many interfaces and addresses the instance type allows.
func (o *Observer) ReadLimits(ctx context.Context) error {
	of := o.known().Type
	limits, err := o.limits(ctx, of)
	if err != nil {
		return err
	}
	o.mu.Lock()
	if o.node.Type == of { // otherwise ReadIdentity has read those of the type that the instance has now
		o.node.Limits = limits
		o.node = o.node.With(time.Now(), state.FactLimits)
	}
	o.mu.Unlock()
	o.publish()
	return nil
}

func (o *Observer) limits(ctx context.Context, instanceType string) (vpc.Limits, error) {
	limits, err := o.p.EC2.InstanceLimits(ctx, instanceType)
	o.p.noteEC2(err)
	return limits, err
}

// ReadInterfaces observes EC2 for the first time.
func (o *Observer) ReadInterfaces(ctx context.Context) error {
	return o.readEC2(ctx, everything("the first observation"))
}

// publish writes the node's row and journals it.
func (o *Observer) publish() {
	_, err := o.p.State.Update(func(tx *state.Tx) error { return tx.PutNode(o.known()) })
	if err != nil { // the table has no unique index beside the primary one
		panic("pool: row of the node refused: " + err.Error())
	}
}

// actor is the node as the one that acts at EC2.
func (p *Pool) actor(n state.Node) cloud.Node {
	return cloud.Node{Instance: n.Instance, Cluster: p.ClusterName, Tags: p.ENITags}
}

// followGroups updates the groups of the primary interface, which new interfaces get.
func (o *Observer) followGroups(interfaces []ec2.Interface) {
	was := o.known()
	for _, i := range interfaces {
		if i.MAC != was.PrimaryMAC || len(i.Groups) == 0 || slices.Equal(i.Groups, was.Groups) {
			continue
		}
		o.p.Log.Info("security groups of new interfaces changed", "groups", i.Groups, "was", was.Groups)
		o.mu.Lock()
		o.node.Groups = i.Groups
		o.mu.Unlock()
	}
}
