package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// groupClient is the SDK's client of the embedded EC2.
func (w *world) groupClient() *sdk.Client {
	cfg := w.config
	cfg.HTTPClient = &http.Client{Transport: w.wire}
	return ec2.NewReader(cfg)
}

// group makes a group without rules.
func (w *world) newGroup(c *sdk.Client, name string) string {
	w.t.Helper()
	made, err := c.CreateSecurityGroup(w.t.Context(), &sdk.CreateSecurityGroupInput{GroupName: aws.String(name), Description: aws.String(name), VpcId: aws.String(w.vpcID(c))})
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = c.RevokeSecurityGroupEgress(w.t.Context(), &sdk.RevokeSecurityGroupEgressInput{GroupId: made.GroupId, IpPermissions: []types.IpPermission{
		{IpProtocol: aws.String("-1"), IpRanges: []types.IpRange{{CidrIp: aws.String("0.0.0.0/0")}}},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return *made.GroupId
}

func (w *world) vpcID(c *sdk.Client) string {
	w.t.Helper()
	found, err := c.DescribeNetworkInterfaces(w.t.Context(), &sdk.DescribeNetworkInterfacesInput{})
	if err != nil {
		w.t.Fatal(err)
	}
	return *found.NetworkInterfaces[0].VpcId
}

func TestGroupsAreReadWithTheirMembers(t *testing.T) {
	w := start(t)
	c := w.groupClient()
	web, db := w.newGroup(c, "web"), w.newGroup(c, "db")
	node := string(w.group)
	port := func(n int32) *int32 { return aws.Int32(n) }
	_, err := c.AuthorizeSecurityGroupIngress(t.Context(), &sdk.AuthorizeSecurityGroupIngressInput{GroupId: aws.String(db), IpPermissions: []types.IpPermission{
		{IpProtocol: aws.String("tcp"), FromPort: port(5432), ToPort: port(5440), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: aws.String(web)}, {GroupId: aws.String(node)}}},
		{IpProtocol: aws.String("icmp"), FromPort: port(8), ToPort: port(-1), IpRanges: []types.IpRange{{CidrIp: aws.String("10.0.0.0/16")}}},
		{IpProtocol: aws.String("-1"), Ipv6Ranges: []types.Ipv6Range{{CidrIpv6: aws.String("fd00::/16")}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{SubnetId: aws.String(string(w.subnet)), Groups: []string{web}, PrivateIpAddress: aws.String("10.0.0.77")})
	if err != nil {
		t.Fatal(err)
	}
	primary, err := w.Interfaces(t.Context(), w.instance)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.AssignPrivateIpAddresses(t.Context(), &sdk.AssignPrivateIpAddressesInput{NetworkInterfaceId: aws.String(string(primary[0].ID)), PrivateIpAddresses: []string{"10.0.0.88"}})
	if err != nil {
		t.Fatal(err)
	}
	w.wire.mu.Lock()
	w.wire.calls = nil
	w.wire.mu.Unlock()
	groups, err := ec2.ReadGroups(t.Context(), c, []vpc.SecurityGroupID{vpc.SecurityGroupID(db), "sg-00000009"}, []vpc.InstanceID{w.instance})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"DescribeSecurityGroupRules", "DescribeSecurityGroups", "DescribeNetworkInterfaces"}; !slices.Equal(w.wire.calls, want) {
		t.Errorf("calls %v, want %v", w.wire.calls, want)
	}
	if len(groups) != 3 { // sg-00000009 does not exist
		t.Fatalf("%d groups: %v", len(groups), groups)
	}
	var rules []string
	for _, r := range groups[vpc.SecurityGroupID(db)].Rules {
		if !strings.HasPrefix(r.ID, "sgr-") || r.Direction != policy.Ingress || r.Unusable != "" {
			t.Errorf("rule %+v", r)
		}
		rules = append(rules, fmt.Sprintf("%d %d %d %v %s", r.Protocol, r.From, r.To, r.Prefixes, r.Group))
	}
	slices.Sort(rules)
	want := []string{
		"-1 -1 -1 [fd00::/16] ", "1 8 -1 [10.0.0.0/16] ", "6 5432 5440 [] " + node, "6 5432 5440 [] " + web,
	}
	slices.Sort(want)
	if !slices.Equal(rules, want) {
		t.Errorf("rules %q, want %q", rules, want)
	}
	members := func(id string) string {
		return fmt.Sprint(groups[vpc.SecurityGroupID(id)].Members, groups[vpc.SecurityGroupID(id)].Pools)
	}
	if got, want := members(web), "["+*made.NetworkInterface.PrivateIpAddress+"/32] []"; got != want {
		t.Errorf("members of web: %s, want %s", got, want)
	}
	if got, want := members(node), fmt.Sprintf("[%s/32] [10.0.0.88/32]", primary[0].Primary); got != want {
		t.Errorf("members of node: %s, want %s", got, want)
	}
	if got := members(db); got != "[] []" {
		t.Errorf("members of db, which no rule refers to: %s", got)
	}
}

// oddGroups is EC2 with descriptions that lack something.
type oddGroups struct {
	ec2.GroupAPI
	rules      []types.SecurityGroupRule
	interfaces []types.NetworkInterface
	list       error
}

func (o oddGroups) DescribeSecurityGroups(_ context.Context, in *sdk.DescribeSecurityGroupsInput, _ ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupsOutput, error) {
	out := &sdk.DescribeSecurityGroupsOutput{SecurityGroups: []types.SecurityGroup{{}}}
	for _, id := range in.Filters[0].Values {
		of := "vpc-1"
		if id == "sg-00000002" {
			of = "vpc-2"
		}
		out.SecurityGroups = append(out.SecurityGroups, types.SecurityGroup{GroupId: aws.String(id), VpcId: aws.String(of)})
	}
	return out, nil
}

func (o oddGroups) DescribeSecurityGroupRules(context.Context, *sdk.DescribeSecurityGroupRulesInput, ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupRulesOutput, error) {
	return &sdk.DescribeSecurityGroupRulesOutput{SecurityGroupRules: o.rules}, nil
}

func (o oddGroups) DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: o.interfaces}, nil
}

func (o oddGroups) GetManagedPrefixListEntries(_ context.Context, in *sdk.GetManagedPrefixListEntriesInput, _ ...func(*sdk.Options)) (*sdk.GetManagedPrefixListEntriesOutput, error) {
	if in.NextToken == nil {
		return &sdk.GetManagedPrefixListEntriesOutput{Entries: []types.PrefixListEntry{{Cidr: aws.String("192.0.2.0/24")}}, NextToken: aws.String("2")}, o.list
	}
	return &sdk.GetManagedPrefixListEntriesOutput{Entries: []types.PrefixListEntry{{Cidr: aws.String("198.51.100.0/24")}}}, nil
}

func TestARuleThatCannotBeReadConcernsNoOther(t *testing.T) {
	rule := func(change func(*types.SecurityGroupRule)) types.SecurityGroupRule {
		r := types.SecurityGroupRule{
			GroupId: aws.String("sg-00000001"), SecurityGroupRuleId: aws.String("sgr-1"), IsEgress: aws.Bool(true),
			IpProtocol: aws.String("tcp"), FromPort: aws.Int32(80), ToPort: aws.Int32(80), CidrIpv4: aws.String("10.0.0.0/8"),
		}
		change(&r)
		return r
	}
	refer := func(to types.ReferencedSecurityGroup) func(*types.SecurityGroupRule) {
		return func(r *types.SecurityGroupRule) { r.CidrIpv4, r.ReferencedGroupInfo = nil, &to }
	}
	good := rule(func(r *types.SecurityGroupRule) { r.SecurityGroupRuleId = aws.String("sgr-0") })
	refused := &smithy.GenericAPIError{Code: "UnauthorizedOperation"}
	for name, c := range map[string]struct {
		change func(*types.SecurityGroupRule)
		list   error
		want   string // a part of why it is unusable; empty: usable
	}{
		"nothing odd":           {func(*types.SecurityGroupRule) {}, nil, ""},
		"a range":               {func(r *types.SecurityGroupRule) { r.CidrIpv4 = aws.String("10.0.0.0") }, nil, `its range "10.0.0.0" cannot be read`},
		"no peer":               {func(r *types.SecurityGroupRule) { r.CidrIpv4 = nil }, nil, `its range "" cannot be read`},
		"a protocol":            {func(r *types.SecurityGroupRule) { r.IpProtocol = aws.String("quic") }, nil, `its protocol "quic" is unknown`},
		"no direction":          {func(r *types.SecurityGroupRule) { r.IsEgress = nil }, nil, "without a direction"},
		"a group of a peer":     {refer(types.ReferencedSecurityGroup{GroupId: aws.String("sg-00000003"), VpcPeeringConnectionId: aws.String("pcx-1")}), nil, "sg-00000003 is of the peer pcx-1"},
		"a group of another":    {refer(types.ReferencedSecurityGroup{GroupId: aws.String("sg-00000002")}), nil, "security group sg-00000002 is of vpc-2"},
		"a group without an id": {refer(types.ReferencedSecurityGroup{}), nil, "without an id"},
		"a prefix list":         {func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-1") }, nil, ""},
		"a list of another":     {func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-1") }, refused, "prefix list pl-1: UnauthorizedOperation"},
	} {
		t.Run(name, func(t *testing.T) {
			groups, err := ec2.ReadGroups(t.Context(), oddGroups{rules: []types.SecurityGroupRule{good, rule(c.change)}, list: c.list}, []vpc.SecurityGroupID{"sg-00000001"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			rules := groups["sg-00000001"].Rules
			if len(rules) != 2 || rules[0].Unusable != "" || len(rules[0].Prefixes) != 1 {
				t.Fatalf("rules %+v", rules)
			}
			if got := rules[1].Unusable; (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
				t.Errorf("unusable: %q, want %q", got, c.want)
			}
			if name == "a prefix list" && len(rules[1].Prefixes) != 2 {
				t.Errorf("ranges %v of a list of two pages", rules[1].Prefixes)
			}
			compiled := grouprules.Compile([]grouprules.Group{groups["sg-00000001"].Group})
			for _, p := range compiled {
				if p.Policy.Ref.Name == "sg-00000001" && (len(p.Problems) == 1) != (c.want != "") {
					t.Errorf("problems %q", p.Problems)
				}
			}
		})
	}
}

func TestAReadingThatIsIncompleteIsNotUsed(t *testing.T) {
	w := start(t)
	c := w.groupClient()
	lost := errors.New("connection reset by peer")
	for _, action := range []string{"DescribeSecurityGroupRules", "DescribeSecurityGroups", "DescribeNetworkInterfaces"} {
		node := w.group
		_, _ = c.AuthorizeSecurityGroupIngress(t.Context(), &sdk.AuthorizeSecurityGroupIngressInput{GroupId: aws.String(string(node)), IpPermissions: []types.IpPermission{
			{IpProtocol: aws.String("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: aws.String(string(node))}}},
		}}) // once; the same again is refused
		ctx, cancel := context.WithCancel(t.Context())
		w.wire.before = func(a string) error {
			if a == action {
				cancel() // no retries of the SDK
				return lost
			}
			return nil
		}
		if _, err := ec2.ReadGroups(ctx, c, []vpc.SecurityGroupID{node}, nil); err == nil {
			t.Errorf("without a reply to %s the reading succeeds", action)
		}
		cancel()
		w.wire.before = nil
	}
}

func TestAnInterfaceThatCannotBeReadIsNamed(t *testing.T) {
	id := aws.String("sg-00000001")
	odd := described("eni-odd", 1, func(n *types.NetworkInterface) {
		n.Groups, n.Ipv4Prefixes = []types.GroupIdentifier{{GroupId: id}}, []types.Ipv4PrefixSpecification{{}}
	})
	self := types.SecurityGroupRule{GroupId: id, SecurityGroupRuleId: aws.String("sgr-0"), IsEgress: aws.Bool(false), IpProtocol: aws.String("-1"), ReferencedGroupInfo: &types.ReferencedSecurityGroup{GroupId: id}}
	groups, err := ec2.ReadGroups(t.Context(), oddGroups{rules: []types.SecurityGroupRule{self}, interfaces: []types.NetworkInterface{odd}}, []vpc.SecurityGroupID{"sg-00000001"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := groups["sg-00000001"]
	if len(g.NotUsed) != 1 || !strings.Contains(g.NotUsed[0], "eni-odd") || len(g.Members) == 0 || g.Members[0] == (netip.Prefix{}) {
		t.Errorf("group %+v", g)
	}
}
