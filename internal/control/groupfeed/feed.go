// Package groupfeed keeps the SecurityGroups of the cluster equal to EC2's security groups, for nodes
// that enforce groups without branches.
//
// It decides which groups nodes need: those that SecurityGroupPolicies name, also if EC2 has none of the
// id, and those that the rules of these refer to. It reads no table and writes none. It drives edge/ec2, which reads groups, rules
// and members, and edge/kube, from which it has the policies and to which it writes. The elected
// leader of app/controller runs its loop; nodes read what it writes by control/groups.
//
// A pass in which anything of EC2 could not be read writes nothing: nodes keep what they have.
package groupfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Policies are the SecurityGroupPolicies; *kube.GroupObjects is one.
type Policies interface {
	Synced() bool
	State() *kube.GroupState
}

// Deps is what the feed works with.
type Deps struct {
	Log      *slog.Logger
	Policies Policies
	EC2      ec2.GroupAPI
	Client   *kube.Client
	// Nodes returns the instances of the cluster's nodes.
	Nodes func(ctx context.Context) ([]vpc.InstanceID, error)
}

// Feed writes SecurityGroups.
type Feed struct {
	Deps
	// Loop runs a pass at each mark, and every Interval: changes at EC2 are found by reading.
	Loop *loop.Loop

	missing map[string]bool // at EC2, in the last pass
}

// Interval is the time between two readings of EC2 without a change of policies: the bound on how late
// nodes follow rules and members, but for their own pods.
const Interval = 15 * time.Second

// minInterval is that between two readings because of changes.
const minInterval = time.Second

// New returns a feed.
func New(d Deps) *Feed {
	f := &Feed{Deps: d, missing: map[string]bool{}}
	f.Loop = loop.New(func(ctx context.Context, _ bool) (time.Time, error) { return time.Time{}, f.Pass(ctx) })
	f.Loop.MinInterval, f.Loop.Every, f.Loop.MaxBackoff = minInterval, Interval, 4*Interval
	return f
}

// Pass reads once, and writes what differs.
func (f *Feed) Pass(ctx context.Context) error {
	if !f.Policies.Synced() {
		return nil // a mark follows
	}
	wanted := named(f.Policies.State())
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return err
	}
	groups, err := ec2.ReadGroups(ctx, f.EC2, wanted, nodes)
	if err != nil {
		return fmt.Errorf("read security groups: %w", err)
	}
	have, err := kube.SecurityGroups(ctx, f.Client)
	if err != nil {
		return err
	}
	return f.write(ctx, wanted, groups, have)
}

// named are the groups that policies name. Texts that are no ids are refused by each node.
func named(s *kube.GroupState) (ids []vpc.SecurityGroupID) {
	for _, p := range s.Policies {
		for _, id := range p.Groups {
			if g := vpc.SecurityGroupID(id); g.Valid() {
				ids = append(ids, g)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// write makes the objects equal to the groups. One that a policy names, and that EC2 does not show, is
// published as absent, so that nodes and the status of policies refuse it by name. If EC2 showed it
// before, the next pass must not see it either: an answer of EC2 may be older than the last one.
func (f *Feed) write(ctx context.Context, wanted []vpc.SecurityGroupID, groups map[vpc.SecurityGroupID]ec2.SecurityGroup, have []trunkline.SecurityGroup) error {
	var errs []error
	missing := map[string]bool{}
	existing := map[vpc.SecurityGroupID]bool{}
	for _, object := range have {
		id := vpc.SecurityGroupID(object.Name)
		existing[id] = true
		g, exists := groups[id]
		named := slices.Contains(wanted, id)
		spec := trunkline.SecurityGroupSpec{Absent: true}
		if exists {
			spec = specOf(g)
		}
		switch {
		case !exists && !named:
			f.Log.Info("security group removed for nodes", "group", object.Name)
			errs = append(errs, kube.DeleteSecurityGroup(ctx, f.Client, object.Name))
		case !exists && !object.Spec.Absent && !f.missing[object.Name]:
			missing[object.Name] = true
		case !reflect.DeepEqual(spec, object.Spec):
			object.Spec = spec
			errs = append(errs, f.put(ctx, object, "changed"))
		}
	}
	f.missing = missing
	add := func(id vpc.SecurityGroupID, spec trunkline.SecurityGroupSpec) {
		if existing[id] {
			return
		}
		existing[id] = true
		object := trunkline.SecurityGroup{Spec: spec}
		object.Name = string(id)
		errs = append(errs, f.put(ctx, object, "added"))
	}
	for id, g := range groups {
		add(id, specOf(g))
	}
	for _, id := range wanted {
		add(id, trunkline.SecurityGroupSpec{Absent: true})
	}
	return errors.Join(errs...)
}

func (f *Feed) put(ctx context.Context, object trunkline.SecurityGroup, how string) error {
	f.Log.Info("security group "+how+" for nodes", "group", object.Name, "absent", object.Spec.Absent, "rules", len(object.Spec.Rules), "members", len(object.Spec.Members))
	return kube.PutSecurityGroup(ctx, f.Client, object)
}

// Bounds of the definition (deploy/crds/trunkline.dev_securitygroups.yaml).
const (
	maxRules    = 1000
	maxRanges   = 1000
	maxMembers  = 20000
	maxUnusable = 256
)

var ruleID = regexp.MustCompile(`^sgr-[0-9a-f]{1,36}$`)

// specOf is a group as nodes read it. What does not fit allows nothing, and is named.
func specOf(g ec2.SecurityGroup) trunkline.SecurityGroupSpec {
	s := trunkline.SecurityGroupSpec{VPCID: string(g.VPC), GroupName: g.Name, NotUsed: slices.Clone(g.NotUsed)}
	for _, r := range g.Rules {
		rule, fits := ruleOf(r)
		switch {
		case !fits:
			s.NotUsed = append(s.NotUsed, fmt.Sprintf("rule %q: it is no id of a rule", r.ID))
		case len(s.Rules) == maxRules:
			s.NotUsed = append(s.NotUsed, fmt.Sprintf("rule %s: it is beyond the first %d", r.ID, maxRules))
		case len(rule.Prefixes) > 0 || rule.GroupID != "" || rule.Unusable != "": // not an empty prefix list
			s.Rules = append(s.Rules, rule)
		}
	}
	bounded := func(field string, ranges []netip.Prefix) []string {
		if len(ranges) > maxMembers {
			s.NotUsed = append(s.NotUsed, fmt.Sprintf("%s: %d ranges are more than %d", field, len(ranges), maxMembers))
			return nil
		}
		return texts(ranges)
	}
	s.Members, s.Pools = bounded("members", g.Members), bounded("pools", g.Pools)
	if len(s.NotUsed) > maxRules {
		s.NotUsed = s.NotUsed[:maxRules]
	}
	return s
}

// ruleOf is false for a rule that has no id.
func ruleOf(r grouprules.Rule) (out trunkline.SecurityGroupRule, fits bool) {
	out = trunkline.SecurityGroupRule{
		ID: r.ID, Direction: trunkline.RuleIngress, Protocol: int32(r.Protocol), FromPort: int32(r.From), ToPort: int32(r.To),
	}
	if r.Direction == policy.Egress {
		out.Direction = trunkline.RuleEgress
	}
	switch {
	case r.Unusable != "":
		out.Unusable = r.Unusable[:min(len(r.Unusable), maxUnusable)]
	case len(r.Prefixes) > maxRanges:
		out.Unusable = fmt.Sprintf("%d ranges are more than %d", len(r.Prefixes), maxRanges)
	case r.Group != "" && !r.Group.Valid():
		out.Unusable = fmt.Sprintf("%q is not the id of a security group", r.Group)
	case r.Group != "":
		out.GroupID = string(r.Group)
	default:
		out.Prefixes = texts(r.Prefixes)
	}
	return out, ruleID.MatchString(r.ID)
}

func texts(ranges []netip.Prefix) (list []string) {
	for _, p := range ranges {
		list = append(list, p.String())
	}
	return list
}
