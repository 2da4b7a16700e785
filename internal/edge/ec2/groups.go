package ec2

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// GroupAPI is the part of the SDK's client that reads security groups with their members.
type GroupAPI interface {
	DescribeSecurityGroups(context.Context, *ec2.DescribeSecurityGroupsInput, ...func(*ec2.Options)) (*ec2.DescribeSecurityGroupsOutput, error)
	DescribeSecurityGroupRules(context.Context, *ec2.DescribeSecurityGroupRulesInput, ...func(*ec2.Options)) (*ec2.DescribeSecurityGroupRulesOutput, error)
	DescribeNetworkInterfaces(context.Context, *ec2.DescribeNetworkInterfacesInput, ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error)
	GetManagedPrefixListEntries(context.Context, *ec2.GetManagedPrefixListEntriesInput, ...func(*ec2.Options)) (*ec2.GetManagedPrefixListEntriesOutput, error)
}

// SecurityGroup is a security group as EC2 describes it.
type SecurityGroup struct {
	grouprules.Group
	VPC  vpc.ID
	Name string
	// NotUsed is what of the group or its members could not be read.
	NotUsed []string
}

// Bounds of the reads of groups, and the last number of a protocol.
const (
	groupPage  = 1000
	groupBatch = 200 // values of a filter; EC2's limit

	lastProtocol = 1<<8 - 1
)

// ReadGroups reads groups by id, and the groups that their rules refer to, with their members. nodes are the
// instances of the cluster's nodes, of which the interfaces have addresses for pods. Those that EC2
// does not have are missing. What cannot be read of a group, a rule or an interface is left out
// and named, and concerns nothing else; an error is that the reading is incomplete, and nothing of
// it may be used.
//
// It takes three calls if no rule names a prefix list and all answers have one page.
func ReadGroups(ctx context.Context, api GroupAPI, ids []vpc.SecurityGroupID, nodes []vpc.InstanceID) (map[vpc.SecurityGroupID]SecurityGroup, error) {
	g := groupReader{api: api, rules: map[vpc.SecurityGroupID][]grouprules.Rule{}, lists: map[string]prefixList{}}
	rules, err := g.describeRules(ctx, ids)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(ids)
	for _, r := range rules {
		rule, err := g.rule(ctx, r)
		if err != nil {
			return nil, err
		}
		id := vpc.SecurityGroupID(aws.ToString(r.GroupId))
		g.rules[id] = append(g.rules[id], rule)
		if rule.Group != "" {
			all = append(all, rule.Group)
		}
	}
	slices.Sort(all)
	out, err := g.describeGroups(ctx, slices.Compact(all))
	if err != nil {
		return nil, err
	}
	return out, g.members(ctx, out, nodes)
}

// groupReader reads groups.
type groupReader struct {
	api   GroupAPI
	rules map[vpc.SecurityGroupID][]grouprules.Rule
	lists map[string]prefixList
}

// prefixList is a list with its ranges, or why they are not known.
type prefixList struct {
	ranges   []netip.Prefix
	unusable string
}

// paged reads all pages.
func paged[T any](action, object string, page func(token *string) (items []T, next *string, err error)) (all []T, err error) {
	var token *string
	for range maxPages {
		items, next, err := page(token)
		if err != nil {
			return nil, wrap(action, object, err)
		}
		all = append(all, items...)
		if aws.ToString(next) == "" {
			return all, nil
		}
		token = next
	}
	return nil, fmt.Errorf("%s %s: more than %d pages", action, object, maxPages)
}

// batched reads for ids as values of a filter.
func batched[T any](ids []vpc.SecurityGroupID, name string, describe func(types.Filter) ([]T, error)) (all []T, err error) {
	for batch := range slices.Chunk(ids, groupBatch) {
		var values []string
		for _, id := range batch {
			values = append(values, string(id))
		}
		some, err := describe(filter(name, values...))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func (g *groupReader) describeRules(ctx context.Context, ids []vpc.SecurityGroupID) ([]types.SecurityGroupRule, error) {
	return batched(ids, "group-id", func(by types.Filter) ([]types.SecurityGroupRule, error) {
		return paged("DescribeSecurityGroupRules", describe([]types.Filter{by}), func(token *string) ([]types.SecurityGroupRule, *string, error) {
			page, err := g.api.DescribeSecurityGroupRules(ctx, &ec2.DescribeSecurityGroupRulesInput{Filters: []types.Filter{by}, MaxResults: aws.Int32(groupPage), NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return page.SecurityGroupRules, page.NextToken, nil
		})
	})
}

func (g *groupReader) describeGroups(ctx context.Context, ids []vpc.SecurityGroupID) (map[vpc.SecurityGroupID]SecurityGroup, error) {
	found, err := batched(ids, "group-id", func(by types.Filter) ([]types.SecurityGroup, error) {
		return paged("DescribeSecurityGroups", describe([]types.Filter{by}), func(token *string) ([]types.SecurityGroup, *string, error) {
			page, err := g.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{by}, MaxResults: aws.Int32(groupPage), NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return page.SecurityGroups, page.NextToken, nil
		})
	})
	if err != nil {
		return nil, err
	}
	out := map[vpc.SecurityGroupID]SecurityGroup{}
	for _, n := range found {
		s := SecurityGroup{VPC: vpc.ID(aws.ToString(n.VpcId)), Name: aws.ToString(n.GroupName)}
		s.ID = vpc.SecurityGroupID(aws.ToString(n.GroupId))
		s.Rules = g.rules[s.ID]
		slices.SortFunc(s.Rules, func(a, b grouprules.Rule) int { return cmp.Compare(a.ID, b.ID) })
		if s.ID != "" && s.VPC != "" {
			out[s.ID] = s
		}
	}
	for _, s := range out { // groups of other VPCs are members of nothing here
		for i, r := range s.Rules {
			if of, known := out[r.Group]; known && of.VPC != s.VPC {
				s.Rules[i].Group, s.Rules[i].Unusable = "", fmt.Sprintf("security group %s is of %s", r.Group, of.VPC)
			}
		}
	}
	return out, nil
}

// rule reads a rule. An error is one of a call.
func (g *groupReader) rule(ctx context.Context, n types.SecurityGroupRule) (grouprules.Rule, error) {
	r := grouprules.Rule{ID: aws.ToString(n.SecurityGroupRuleId), Direction: policy.Ingress, From: grouprules.All, To: grouprules.All}
	if aws.ToBool(n.IsEgress) {
		r.Direction = policy.Egress
	}
	if n.FromPort != nil && n.ToPort != nil {
		r.From, r.To = int(*n.FromPort), int(*n.ToPort)
	}
	if r.Protocol, r.Unusable = protocolOf(aws.ToString(n.IpProtocol)); r.Unusable != "" {
		return r, nil
	}
	switch {
	case n.IsEgress == nil:
		r.Unusable = "EC2 described it without a direction"
	case n.ReferencedGroupInfo != nil:
		refer(&r, n.ReferencedGroupInfo)
	case n.PrefixListId != nil:
		list, err := g.list(ctx, *n.PrefixListId)
		if err != nil {
			return r, err
		}
		r.Prefixes, r.Unusable = list.ranges, list.unusable
	default:
		r.Prefixes, r.Unusable = rangeOf(cmp.Or(aws.ToString(n.CidrIpv4), aws.ToString(n.CidrIpv6)))
	}
	return r, nil
}

// refer enters the group that a rule refers to.
func refer(r *grouprules.Rule, to *types.ReferencedSecurityGroup) {
	id := aws.ToString(to.GroupId)
	switch {
	case aws.ToString(to.VpcPeeringConnectionId) != "":
		r.Unusable = fmt.Sprintf("security group %s is of the peer %s of the VPC", id, aws.ToString(to.VpcPeeringConnectionId))
	case id == "":
		r.Unusable = "EC2 described its group without an id"
	default:
		r.Group = vpc.SecurityGroupID(id)
	}
}

// rangeOf reads a range, or says why it cannot be read.
func rangeOf(text string) (list []netip.Prefix, unusable string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, fmt.Sprintf("its range %q cannot be read", text)
	}
	return []netip.Prefix{p.Masked()}, ""
}

// protocolOf reads a protocol by its name or number, or says why it cannot be read. Source:
// API_SecurityGroupRule.html.
func protocolOf(text string) (number int, unusable string) {
	switch text {
	case "tcp":
		return int(policy.TCP), ""
	case "udp":
		return int(policy.UDP), ""
	case "icmp":
		return 1, ""
	case "icmpv6":
		return 58, ""
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < grouprules.All || n > lastProtocol {
		return 0, fmt.Sprintf("its protocol %q is unknown", text)
	}
	return n, ""
}

// list reads a prefix list once. One that may not be read concerns the rules that name it only.
func (g *groupReader) list(ctx context.Context, id string) (prefixList, error) {
	if l, read := g.lists[id]; read {
		return l, nil
	}
	var l prefixList
	entries, err := paged("GetManagedPrefixListEntries", id, func(token *string) ([]types.PrefixListEntry, *string, error) {
		page, err := g.api.GetManagedPrefixListEntries(ctx, &ec2.GetManagedPrefixListEntriesInput{PrefixListId: aws.String(id), NextToken: token})
		if err != nil {
			return nil, nil, err
		}
		return page.Entries, page.NextToken, nil
	})
	switch {
	case err != nil && (IsThrottled(err) || Code(err) == ""):
		return l, err // the next reading may succeed
	case err != nil:
		l.unusable = fmt.Sprintf("prefix list %s: %s", id, Code(err))
	}
	for _, e := range entries {
		p, err := netip.ParsePrefix(aws.ToString(e.Cidr))
		if err != nil {
			l = prefixList{unusable: fmt.Sprintf("prefix list %s: its range %q cannot be read", id, aws.ToString(e.Cidr))}
			break
		}
		l.ranges = append(l.ranges, p.Masked())
	}
	g.lists[id] = l
	return l, nil
}

// members enters the addresses of interfaces in groups.
func (g *groupReader) members(ctx context.Context, groups map[vpc.SecurityGroupID]SecurityGroup, nodes []vpc.InstanceID) error {
	var ids []vpc.SecurityGroupID
	for _, s := range groups {
		for _, r := range s.Rules {
			if _, known := groups[r.Group]; known && !slices.Contains(ids, r.Group) {
				ids = append(ids, r.Group)
			}
		}
	}
	slices.Sort(ids)
	found, err := batched(ids, "group-id", func(by types.Filter) ([]types.NetworkInterface, error) {
		return paged("DescribeNetworkInterfaces", describe([]types.Filter{by}), func(token *string) ([]types.NetworkInterface, *string, error) {
			page, err := g.api.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{by}, MaxResults: aws.Int32(groupPage), NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return page.NetworkInterfaces, page.NextToken, nil
		})
	})
	if err != nil {
		return err
	}
	var interfaces []grouprules.Interface
	for _, n := range found {
		i := readInterface(n)
		interfaces = append(interfaces, memberOf(i, n, nodes))
		for _, id := range i.Groups {
			if s, known := groups[id]; known && len(i.Unreadable) > 0 {
				s.NotUsed = append(s.NotUsed, fmt.Sprintf("interface %s: %v", i.ID, i.Unreadable))
				groups[id] = s
			}
		}
	}
	for id, m := range grouprules.Membership(interfaces) {
		if slices.Contains(ids, id) {
			s := groups[id]
			s.Members, s.Pools = m.Members, m.Pools
			groups[id] = s
		}
	}
	return nil
}

// memberOf are the addresses of an interface. Secondary IPv4 addresses and prefixes of a node's are for
// pods; its IPv6 addresses are the node's own.
func memberOf(i Interface, n types.NetworkInterface, nodes []vpc.InstanceID) grouprules.Interface {
	out := grouprules.Interface{Groups: i.Groups}
	node := i.Attachment != nil && slices.Contains(nodes, i.Attachment.Instance)
	if i.Primary.IsValid() {
		out.Fixed = append(out.Fixed, netip.PrefixFrom(i.Primary, i.Primary.BitLen()))
	}
	for _, a := range n.Ipv6Addresses {
		if addr, err := netip.ParseAddr(aws.ToString(a.Ipv6Address)); err == nil {
			out.Fixed = append(out.Fixed, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	others := slices.Clone(i.Prefixes)
	for _, a := range i.Addresses {
		others = append(others, netip.PrefixFrom(a, a.BitLen()))
	}
	if node {
		out.ForPods = others
	} else {
		out.Fixed = append(out.Fixed, others...)
	}
	return out
}
