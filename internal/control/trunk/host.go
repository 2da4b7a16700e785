package trunk

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	core "github.com/trunkline/trunkline/internal/core/trunk"
)

// hostReader reads the instance of a node from EC2.
type hostReader struct{ *node }

// read reads what EC2 and the node's ENIConfig say of a Node.
func (n hostReader) read(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node, now time.Time) error {
	n.seen.limit, _ = core.BranchLimit(typeOf(on), n.c.o.BranchLimits)
	if err := n.readHost(ctx, on, now); err != nil {
		return err
	}
	placer(n).read(ctx, object, on, now)
	return nil
}

// readHost reads the instance from EC2: once, and again while a device index for the trunk is
// needed and the ENIConfig of the node allows one.
func (n hostReader) readHost(ctx context.Context, on *corev1.Node, now time.Time) error {
	if !n.due(now) || now.Before(n.times.host) {
		return nil
	}
	n.times.host = now.Add(hostEvery)
	seen, err := n.c.o.EC2.Host(ctx, n.rec.state.Instance)
	if err != nil {
		return err
	}
	limits, err := n.c.o.EC2.InstanceLimits(ctx, typeOf(on))
	if err != nil {
		return err
	}
	n.seen.host = seen
	n.c.subnets.note(now, seen.Subnet)
	n.rec.host = host{vpc: seen.VPC, subnet: seen.Subnet.ID, groups: seen.Groups, devices: limits.ENIs}
	n.rec.ranges[seen.Subnet.ID] = ranges{seen.Subnet.CIDR, seen.Subnet.IPv6}
	return nil
}

// due reports whether the instance has to be read from EC2: it never was, or a trunk may be made now.
func (n hostReader) due(now time.Time) bool {
	if n.seen.gone || n.rec.host.devices == 0 {
		return !n.seen.gone
	}
	t, paused := n.rec.state.Trunk, n.rec.state.TrunkPaused(now)
	return t.Stage != core.Ready && t.Intent == nil && n.seen.limit > 0 && n.own() && !paused && !n.rec.refusedCustom()
}
