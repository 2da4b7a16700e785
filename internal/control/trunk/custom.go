package trunk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	eniconfig "github.com/trunkline/trunkline/api/eniconfig/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Reasons for which a node with custom networking gets no interface. The first is AWS's; AWS's
// controller reports the others in its log only. Source of it: pkg/utils/events.go of AWS's VPC
// resource controller.
const (
	reasonNoName        = "EniConfigNameNotFound"
	reasonUnread        = "EniConfigNotRead"
	reasonAbsent        = "EniConfigNotFound"
	reasonNoSubnet      = "EniConfigSubnetMissing"
	reasonTooManyGroups = "EniConfigTooManyGroups"
	reasonAbsentSubnet  = "EniConfigSubnetNotFound"
	reasonOtherVPC      = "EniConfigSubnetInAnotherVPC"
	reasonOtherZone     = "EniConfigSubnetInAnotherZone"
	reasonUnusable      = "EniConfigSubnetUnusable"
)

// Bounds of what a record can have.
const (
	longestName = 253
	mostGroups  = 16
)

// custom is what became of the ENIConfig of a node.
type custom struct {
	name string
	// subnet is the last one that EC2 has shown to be in the node's VPC and zone; empty: none yet.
	subnet vpc.SubnetID
	groups core.Groups // of a new trunk
	// reason is why nothing is created; empty: it is created in the subnet.
	reason, message string
}

// refused is c with a reason not to create anything.
func (c custom) refused(reason, format string, args ...any) custom {
	c.reason, c.message = reason, securitygroup.Cut(fmt.Sprintf(format, args...))
	return c
}

// customNetworking is what a process knows beside the record.
type customNetworking struct {
	on      bool
	waits   string // why the ENIConfig is not judged yet
	checked checked
	recheck time.Time // when EC2 is asked again; zero: it need not be
}

// checked is what EC2 showed of the subnet of an ENIConfig, and of the node's.
type checked struct {
	id          vpc.SubnetID
	home, found ec2.Subnet // without an ID: EC2 did not show it
	err         error
	until       time.Time
}

// placer is the part of a pass that decides where interfaces are created.
type placer struct{ *node }

// eniConfigOf is the name of the ENIConfig of a node: the label precedes the feature, as in
// pkg/node/manager of AWS's VPC resource controller. on is false without custom networking.
func eniConfigOf(object *vpcresources.CNINode, of *corev1.Node) (name string, on bool) {
	if name, on = of.Labels[vpc.LabelControllerENIConfig]; on {
		return name, true
	}
	for _, f := range object.Spec.Features {
		if f.Name == vpcresources.CustomNetworking && name == "" {
			name, on = f.Value, true
		}
	}
	return name[:min(len(name), longestName)], on
}

// read judges the ENIConfig of a node. Without the Node, the last judgement remains.
func (n placer) read(ctx context.Context, object *vpcresources.CNINode, of *corev1.Node, now time.Time) {
	if n.seen.gone || of == nil || n.rec.host.devices == 0 {
		return
	}
	name, on := eniConfigOf(object, of)
	n.seen.custom.on, n.seen.custom.waits, n.seen.custom.recheck = on, "", time.Time{}
	if !on {
		n.rec.custom = nil
		return
	}
	last := custom{}
	if n.rec.custom != nil {
		last = *n.rec.custom
	}
	next := n.judge(ctx, name, last, now)
	if n.seen.custom.waits != "" {
		return
	}
	if next.reason != "" && (next.reason != last.reason || next.message != last.message) {
		n.c.o.Log.Warn("custom networking: no interface is created", "node", n.name, "eniconfig", name, "reason", next.reason, "err", next.message)
		n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, next.reason, next.message)
	}
	n.rec.custom = &next
}

// judge decides where interfaces are created. It sets waits if that is not known yet.
func (n placer) judge(ctx context.Context, name string, last custom, now time.Time) custom {
	next := custom{name: name, subnet: last.subnet, groups: last.groups}
	if name == "" {
		return next.refused(reasonNoName, "custom networking names no ENIConfig: give the feature %s of the CNINode its name as value, or label the Node with %s", vpcresources.CustomNetworking, vpc.LabelControllerENIConfig)
	}
	of, exists, err := n.c.objects.ENIConfig(name)
	switch {
	case err != nil && last.name == name:
		return last // a new process: the record is valid until the ENIConfigs are read
	case errors.Is(err, kube.ErrENIConfigsUnreadable):
		return next.refused(reasonUnread, "ENIConfig %s: %v", name, err)
	case err != nil:
		n.seen.custom.waits = err.Error()
		return next
	case !exists:
		return next.refused(reasonAbsent, "ENIConfig %s does not exist: create it, or have the CNINode name another one", name)
	case of.Spec.Subnet == "":
		return next.refused(reasonNoSubnet, "ENIConfig %s has no subnet: add spec.subnet", name)
	}
	groups := groupsOf(of)
	if len(groups) > mostGroups {
		return next.refused(reasonTooManyGroups, "ENIConfig %s has %d security groups: an interface has at most %d", name, len(groups), mostGroups)
	}
	if len(groups) == 0 {
		groups = n.rec.host.groups
	}
	if vpc.SubnetID(of.Spec.Subnet) != last.subnet {
		return n.judgeSubnet(ctx, next, vpc.SubnetID(of.Spec.Subnet), groups, now)
	}
	next.groups = groups
	return next
}

func groupsOf(of *eniconfig.ENIConfig) core.Groups {
	return core.NewGroups(readGroups(of.Spec.SecurityGroups)...)
}

// judgeSubnet decides about a subnet that was not judged yet, by what EC2 shows of it. EC2 is asked
// again at intervals while the subnet cannot be used: it may be created or corrected.
func (n placer) judgeSubnet(ctx context.Context, next custom, id vpc.SubnetID, groups core.Groups, now time.Time) custom {
	if n.seen.custom.checked.id != id || !now.Before(n.seen.custom.checked.until) {
		n.seen.custom.checked = n.checkSubnet(ctx, id, now)
	}
	c := n.seen.custom.checked
	n.seen.custom.recheck = c.until
	switch {
	case c.err != nil:
		n.seen.custom.waits = fmt.Sprintf("subnet %s of ENIConfig %s was not read from EC2: %v", id, next.name, c.err)
		return next
	case c.found.ID == "":
		return next.refused(reasonAbsentSubnet, "ENIConfig %s: EC2 has no subnet %s in this account and region: correct spec.subnet", next.name, id)
	case c.found.VPC != c.home.VPC:
		return next.refused(reasonOtherVPC, "ENIConfig %s: subnet %s is in %s, and the node in %s: name a subnet of the node's VPC", next.name, id, c.found.VPC, c.home.VPC)
	case c.found.Zone != c.home.Zone:
		return next.refused(reasonOtherZone, "ENIConfig %s: subnet %s is in the zone %s, and the node in %s: name an ENIConfig of the node's zone", next.name, id, c.found.Zone, c.home.Zone)
	case c.found.Unusable != "":
		return next.refused(reasonUnusable, "ENIConfig %s: subnet %s: %s: name a subnet with addresses for pods", next.name, id, c.found.Unusable)
	}
	n.seen.custom.recheck = time.Time{}
	n.c.subnets.note(now, c.found)
	n.rec.ranges[id] = ranges{c.found.CIDR, c.found.IPv6}
	next.subnet, next.groups = id, groups
	return next
}

func (n placer) checkSubnet(ctx context.Context, id vpc.SubnetID, now time.Time) checked {
	c := checked{id: id, until: now.Add(absentFor)}
	home := n.rec.host.subnet
	var found []ec2.Subnet
	if found, c.err = n.c.o.EC2.SubnetsByID(ctx, home, id); c.err == nil {
		of := func(id vpc.SubnetID) (out ec2.Subnet) {
			if i := slices.IndexFunc(found, func(s ec2.Subnet) bool { return s.ID == id }); i >= 0 {
				out = found[i]
			}
			return out
		}
		if c.home, c.found = of(home), of(id); c.home.ID == "" {
			c.err = fmt.Errorf("EC2 does not show the subnet %s of the node", home)
		}
	}
	if c.err != nil {
		c.until = now.Add(hostEvery)
		n.c.o.Log.Warn("subnet of an ENIConfig not read from EC2, retrying", "node", n.name, "in", hostEvery, "err", c.err)
	}
	return c
}

// without is why nothing is created on a node with custom networking; empty if interfaces are.
func (n placer) without() string {
	switch c := n.rec.custom; {
	case n.seen.custom.waits != "":
		return n.seen.custom.waits
	case c == nil || c.reason == "" && c.subnet == "":
		return "the ENIConfig was not read yet"
	case c.reason != "":
		return c.message
	}
	return ""
}

// place gives a plan the placement by the ENIConfig, on a node with custom networking.
func (n placer) place(s *core.Snapshot, warm bool) {
	if s.CustomNetworking = n.seen.custom.on || n.rec.custom != nil; !s.CustomNetworking {
		return
	}
	if s.WithoutCustom = n.without(); s.WithoutCustom != "" {
		return
	}
	c := n.rec.custom
	free, total := n.c.subnets.of(n.rec.host.vpc, c.subnet, warm)
	s.Custom = &core.Placement{Subnets: []core.Subnet{{ID: c.subnet, Total: total, Free: free}}, Groups: c.groups}
}

// refusedCustom reports whether no trunk can be made until the ENIConfig changes.
func (r record) refusedCustom() bool { return r.custom != nil && r.custom.reason != "" }

// Record.

func (r record) customRecord() *vpcresources.CustomNetworkingRecord {
	c := r.custom
	if c == nil {
		return nil
	}
	at := r.ranges[c.subnet]
	return &vpcresources.CustomNetworkingRecord{
		ENIConfig: c.name, SubnetID: string(c.subnet), SubnetCIDR: prefixText(at.v4), SubnetV6CIDR: prefixText(at.v6),
		SecurityGroups: writeGroups(c.groups), Reason: c.reason, Message: c.message,
	}
}

func (p *parser) custom(in *vpcresources.CustomNetworkingRecord) *custom {
	if in == nil {
		return nil
	}
	c := &custom{
		name: in.ENIConfig, subnet: vpc.SubnetID(in.SubnetID), groups: readGroups(in.SecurityGroups), reason: in.Reason, message: in.Message,
	}
	p.ranges(c.subnet, in.SubnetCIDR, in.SubnetV6CIDR)
	return c
}
