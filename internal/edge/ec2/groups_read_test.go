package ec2_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// groupOf is a security group of vpc-1.
func groupOf(id string) types.SecurityGroup {
	return types.SecurityGroup{GroupId: aws.String(id), VpcId: aws.String("vpc-1"), GroupName: aws.String("name of " + id)}
}

// ruleOf is a rule of a group that allows TCP port 80 from 10.0.0.0/8, with changes.
func ruleOf(group, id string, change func(*types.SecurityGroupRule)) types.SecurityGroupRule {
	r := types.SecurityGroupRule{
		GroupId: aws.String(group), SecurityGroupRuleId: aws.String(id), IsEgress: aws.Bool(false),
		IpProtocol: aws.String("tcp"), FromPort: aws.Int32(80), ToPort: aws.Int32(80), CidrIpv4: aws.String("10.0.0.0/8"),
	}
	change(&r)
	return r
}

// referring has a rule refer to a group.
func referring(to string) func(*types.SecurityGroupRule) {
	return func(r *types.SecurityGroupRule) {
		r.CidrIpv4, r.ReferencedGroupInfo = nil, &types.ReferencedSecurityGroup{GroupId: aws.String(to)}
	}
}

// memberOf is an interface with groups and a primary address.
func memberOf(id, primary string, groups ...string) types.NetworkInterface {
	return described(id, 0, func(n *types.NetworkInterface) {
		n.PrivateIpAddresses[0].PrivateIpAddress = aws.String(primary)
		for _, g := range groups {
			n.Groups = append(n.Groups, types.GroupIdentifier{GroupId: aws.String(g)})
		}
	})
}

// readGroups reads groups of a, where the reading succeeds.
func readGroups(t *testing.T, a *answering, ids ...vpc.SecurityGroupID) map[vpc.SecurityGroupID]ec2.SecurityGroup {
	t.Helper()
	found, err := ec2.ReadGroups(t.Context(), a, ids, []vpc.InstanceID{"i-1"})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func ranges(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// sameAddresses compares addresses and ranges by their values.
func sameAddresses() cmp.Options {
	return cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
}

func TestEachKindOfRuleIsRead(t *testing.T) {
	protocol := func(text string) func(*types.SecurityGroupRule) {
		return func(r *types.SecurityGroupRule) { r.IpProtocol = aws.String(text) }
	}
	web := grouprules.Rule{ID: "sgr-1", Direction: policy.Ingress, Protocol: 6, From: 80, To: 80, Prefixes: ranges("10.0.0.0/8")}
	as := func(change func(*grouprules.Rule)) grouprules.Rule {
		r := web
		change(&r)
		return r
	}
	number := func(n int) grouprules.Rule { return as(func(r *grouprules.Rule) { r.Protocol = n }) }
	unknown := func(text string) grouprules.Rule {
		return as(func(r *grouprules.Rule) {
			r.Protocol, r.Prefixes, r.Unusable = 0, nil, fmt.Sprintf("its protocol %q is unknown", text)
		})
	}
	for name, c := range map[string]struct {
		change func(*types.SecurityGroupRule)
		want   grouprules.Rule
	}{
		"incoming TCP of a range": {func(*types.SecurityGroupRule) {}, web},
		"outgoing": {
			func(r *types.SecurityGroupRule) { r.IsEgress = aws.Bool(true) },
			as(func(r *grouprules.Rule) { r.Direction = policy.Egress }),
		},
		"a range of ports": {
			func(r *types.SecurityGroupRule) { r.FromPort, r.ToPort = aws.Int32(1024), aws.Int32(65535) },
			as(func(r *grouprules.Rule) { r.From, r.To = 1024, 65535 }),
		},
		"no first port": {
			func(r *types.SecurityGroupRule) { r.FromPort = nil },
			as(func(r *grouprules.Rule) { r.From, r.To = grouprules.All, grouprules.All }),
		},
		"no last port": {
			func(r *types.SecurityGroupRule) { r.ToPort = nil },
			as(func(r *grouprules.Rule) { r.From, r.To = grouprules.All, grouprules.All }),
		},
		"an ICMP type of any code": {
			func(r *types.SecurityGroupRule) {
				r.IpProtocol, r.FromPort, r.ToPort = aws.String("icmp"), aws.Int32(8), aws.Int32(-1)
			},
			as(func(r *grouprules.Rule) { r.Protocol, r.From, r.To = 1, 8, -1 }),
		},
		"an ICMPv6 type and code of a range of IPv6": {
			func(r *types.SecurityGroupRule) {
				r.IpProtocol, r.FromPort, r.ToPort, r.CidrIpv4, r.CidrIpv6 = aws.String("icmpv6"), aws.Int32(1), aws.Int32(4), nil, aws.String("2001:db8::/32")
			},
			as(func(r *grouprules.Rule) {
				r.Protocol, r.From, r.To, r.Prefixes = 58, 1, 4, ranges("2001:db8::/32")
			}),
		},
		"a range with bits below its length": {
			func(r *types.SecurityGroupRule) { r.CidrIpv4 = aws.String("10.1.2.3/16") },
			as(func(r *grouprules.Rule) { r.Prefixes = ranges("10.1.0.0/16") }),
		},
		"UDP":                       {protocol("udp"), number(17)},
		"every protocol":            {protocol("-1"), number(grouprules.All)},
		"the first number":          {protocol("0"), number(0)},
		"a protocol by its number":  {protocol("50"), number(50)},
		"the last number":           {protocol("255"), number(255)},
		"a number that is too high": {protocol("256"), unknown("256")},
		"a number that is too low":  {protocol("-2"), unknown("-2")},
		"another name":              {protocol("sctp"), unknown("sctp")},
		"no protocol":               {func(r *types.SecurityGroupRule) { r.IpProtocol = nil }, unknown("")},
		"no direction": {
			func(r *types.SecurityGroupRule) { r.IsEgress = nil },
			as(func(r *grouprules.Rule) { r.Prefixes, r.Unusable = nil, "EC2 described it without a direction" }),
		},
		"a group":                     {referring("sg-2"), as(func(r *grouprules.Rule) { r.Prefixes, r.Group = nil, "sg-2" })},
		"the group itself":            {referring("sg-1"), as(func(r *grouprules.Rule) { r.Prefixes, r.Group = nil, "sg-1" })},
		"a group that does not exist": {referring("sg-9"), as(func(r *grouprules.Rule) { r.Prefixes, r.Group = nil, "sg-9" })},
		"a group of a peer of the VPC": {
			func(r *types.SecurityGroupRule) {
				referring("sg-2")(r)
				r.ReferencedGroupInfo.VpcPeeringConnectionId = aws.String("pcx-1")
			},
			as(func(r *grouprules.Rule) {
				r.Prefixes, r.Unusable = nil, "security group sg-2 is of the peer pcx-1 of the VPC"
			}),
		},
		"a group of another VPC": {
			referring("sg-3"), as(func(r *grouprules.Rule) { r.Prefixes, r.Unusable = nil, "security group sg-3 is of vpc-2" }),
		},
		"a prefix list": {
			func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-1") },
			as(func(r *grouprules.Rule) {
				r.Prefixes = ranges("192.0.2.0/24", "198.51.100.0/24", "2001:db8:1::/48")
			}),
		},
		"an empty prefix list": {
			func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-empty") },
			as(func(r *grouprules.Rule) { r.Prefixes = nil }),
		},
		"a prefix list with an odd range": {
			func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-odd") },
			as(func(r *grouprules.Rule) {
				r.Prefixes, r.Unusable = nil, `prefix list pl-odd: its range "odd" cannot be read`
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			other := groupOf("sg-3")
			other.VpcId = aws.String("vpc-2")
			a := &answering{
				groups: []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2"), other}, rules: []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", c.change)}, page: 2,
				lists: map[string][]string{"pl-1": {"192.0.2.7/24", "198.51.100.0/24", "2001:db8:1::/48"}, "pl-odd": {"192.0.2.0/24", "odd", "198.51.100.0/24"}},
			}
			if diff := cmp.Diff([]grouprules.Rule{c.want}, readGroups(t, a, "sg-1")["sg-1"].Rules, sameAddresses()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAGroupHasItsOwnRulesInTheOrderOfTheirIDs(t *testing.T) {
	none := func(*types.SecurityGroupRule) {}
	a := &answering{
		groups: []types.SecurityGroup{groupOf("sg-2"), groupOf("sg-1"), groupOf("sg-3")}, page: 2,
		rules: []types.SecurityGroupRule{
			ruleOf("sg-1", "sgr-3", none), ruleOf("sg-2", "sgr-2", none), ruleOf("sg-1", "sgr-1", none), ruleOf("sg-1", "sgr-2", referring("sg-3")), ruleOf("sg-3", "sgr-9", none),
		},
	}
	found := readGroups(t, a, "sg-2", "sg-1", "sg-4")
	got := map[vpc.SecurityGroupID]string{}
	for id, g := range found {
		got[id] = fmt.Sprintf("%s %q of %s:", g.ID, g.Name, g.VPC)
		for _, r := range g.Rules {
			got[id] += " " + r.ID
		}
	}
	want := map[vpc.SecurityGroupID]string{ // sg-4 does not exist; the rules of sg-3 are not asked for
		"sg-1": `sg-1 "name of sg-1" of vpc-1: sgr-1 sgr-2 sgr-3`, "sg-2": `sg-2 "name of sg-2" of vpc-1: sgr-2`, "sg-3": `sg-3 "name of sg-3" of vpc-1:`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGroupsAreAskedForByTheirIDs(t *testing.T) {
	a := &answering{
		groups: []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2"), groupOf("sg-3")}, page: 2,
		rules: []types.SecurityGroupRule{
			ruleOf("sg-1", "sgr-1", referring("sg-3")), ruleOf("sg-2", "sgr-2", referring("sg-3")), ruleOf("sg-2", "sgr-3", referring("sg-2")),
			ruleOf("sg-2", "sgr-4", func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-1") }),
		},
		lists:      map[string][]string{"pl-1": {"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"}},
		interfaces: []types.NetworkInterface{memberOf("eni-1", "10.0.0.1", "sg-3"), memberOf("eni-2", "10.0.0.3", "sg-2"), memberOf("eni-3", "10.0.0.5", "sg-3")},
	}
	found := readGroups(t, a, "sg-2", "sg-1")
	by := func(ids string) string { return "Filters:[{Name:group-id,Values:[" + ids + "]}],MaxResults:1000" }
	want := []string{
		"DescribeSecurityGroupRules {" + by("sg-2,sg-1") + "}",
		"DescribeSecurityGroupRules {" + by("sg-2,sg-1") + ",NextToken:2}",
		"GetManagedPrefixListEntries {PrefixListId:pl-1}",
		"GetManagedPrefixListEntries {NextToken:2,PrefixListId:pl-1}",
		"DescribeSecurityGroups {" + by("sg-1,sg-2,sg-3") + "}",
		"DescribeSecurityGroups {" + by("sg-1,sg-2,sg-3") + ",NextToken:2}",
		"DescribeNetworkInterfaces {" + by("sg-2,sg-3") + "}", // no rule refers to sg-1
		"DescribeNetworkInterfaces {" + by("sg-2,sg-3") + ",NextToken:2}",
	}
	if diff := cmp.Diff(want, a.asked); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := found["sg-3"].Members; !slices.Equal(got, ranges("10.0.0.1/32", "10.0.0.5/32")) {
		t.Errorf("members of sg-3, on two pages: %v", got)
	}
}

// A filter of EC2 has 200 values at most.
func TestManyGroupsAreReadInBatches(t *testing.T) {
	a, ids := &answering{}, []vpc.SecurityGroupID(nil)
	for n := range 401 {
		id := fmt.Sprintf("sg-%03d", n)
		ids = append(ids, vpc.SecurityGroupID(id))
		a.groups = append(a.groups, groupOf(id))
		a.rules = append(a.rules, ruleOf(id, "sgr-1", referring(id)))
		a.interfaces = append(a.interfaces, memberOf("eni-1", fmt.Sprintf("10.%d.%d.1", n/200, n%200), id))
	}
	found := readGroups(t, a, ids...)
	for _, id := range ids {
		if g := found[id]; len(g.Rules) != 1 || len(g.Members) != 1 {
			t.Fatalf("%s: %+v", id, g)
		}
	}
	for _, action := range []string{"DescribeSecurityGroupRules", "DescribeSecurityGroups", "DescribeNetworkInterfaces"} {
		var sizes []int
		for _, r := range a.requests(action) {
			sizes = append(sizes, strings.Count(r, "sg-"))
		}
		if !slices.Equal(sizes, []int{200, 200, 1}) {
			t.Errorf("%s for %v groups", action, sizes)
		}
	}
}

func TestWithoutGroupsNothingIsRead(t *testing.T) {
	a := &answering{}
	if found := readGroups(t, a); len(found) != 0 || len(a.asked) != 0 {
		t.Errorf("%v by %q", found, a.asked)
	}
	if found := readGroups(t, a, "sg-1"); len(found) != 0 || a.calls() != "DescribeSecurityGroupRules DescribeSecurityGroups" {
		t.Errorf("a group that does not exist: %v by %s", found, a.calls())
	}
}

func TestAGroupWithoutAnIDOrAVPCIsLeftOut(t *testing.T) {
	unnamed, nowhere := groupOf("sg-1"), groupOf("sg-2")
	unnamed.GroupId, nowhere.VpcId = nil, nil
	a := &answering{groups: []types.SecurityGroup{unnamed, nowhere, groupOf("sg-3")}}
	if found := readGroups(t, a, "sg-1", "sg-2", "sg-3"); len(found) != 1 || found["sg-3"].VPC != "vpc-1" {
		t.Errorf("%+v", found)
	}
}

// Members of a group of another VPC are not peers, and those of this VPC's groups stay.
func TestARuleThatRefersToAnotherVPCConcernsNoOther(t *testing.T) {
	other := groupOf("sg-3")
	other.VpcId = aws.String("vpc-2")
	a := &answering{
		groups:     []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2"), other},
		rules:      []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", referring("sg-3")), ruleOf("sg-1", "sgr-2", referring("sg-2")), ruleOf("sg-3", "sgr-3", referring("sg-3"))},
		interfaces: []types.NetworkInterface{memberOf("eni-2", "10.0.0.2", "sg-2"), memberOf("eni-3", "10.0.0.3", "sg-3")},
	}
	found := readGroups(t, a, "sg-1")
	rules := found["sg-1"].Rules
	if rules[0].Group != "" || rules[0].Unusable == "" || rules[1].Group != "sg-2" || rules[1].Unusable != "" {
		t.Errorf("rules %+v", rules)
	}
	if !slices.Equal(found["sg-2"].Members, ranges("10.0.0.2/32")) || len(found["sg-3"].Members) != 0 {
		t.Errorf("members %v, of the other VPC %v", found["sg-2"].Members, found["sg-3"].Members)
	}
	if found := readGroups(t, a, "sg-3"); found["sg-3"].Rules[0].Group != "sg-3" || !slices.Equal(found["sg-3"].Members, ranges("10.0.0.3/32")) {
		t.Errorf("within the other VPC: %+v", found)
	}
}

// A node's secondary addresses and prefixes are for pods, which have the groups of other interfaces
// where they have some of their own.
func TestWhichAddressesOfAnInterfaceAreMembers(t *testing.T) {
	full := func(change func(*types.NetworkInterface)) types.NetworkInterface {
		n := memberOf("eni-1", "10.0.0.1", "sg-1")
		n.PrivateIpAddresses = append(n.PrivateIpAddresses, types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String("10.0.0.3")})
		n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("2001:db8::1")}}
		n.Ipv4Prefixes = []types.Ipv4PrefixSpecification{{Ipv4Prefix: aws.String("10.0.0.16/28")}}
		n.Ipv6Prefixes = []types.Ipv6PrefixSpecification{{Ipv6Prefix: aws.String("2001:db8:0:0:1::/80")}}
		change(&n)
		return n
	}
	all := ranges("10.0.0.1/32", "10.0.0.3/32", "10.0.0.16/28", "2001:db8::1/128", "2001:db8:0:0:1::/80")
	for name, c := range map[string]struct {
		n              types.NetworkInterface
		members, pools []netip.Prefix
	}{
		"of a node":            {full(func(*types.NetworkInterface) {}), ranges("10.0.0.1/32", "2001:db8::1/128"), ranges("10.0.0.3/32", "10.0.0.16/28", "2001:db8:0:0:1::/80")},
		"of another instance":  {full(func(n *types.NetworkInterface) { n.Attachment.InstanceId = aws.String("i-2") }), all, nil},
		"of no instance":       {full(func(n *types.NetworkInterface) { n.Attachment = nil }), all, nil},
		"of an IPv6-only node": {full(func(n *types.NetworkInterface) { n.PrivateIpAddresses, n.Ipv4Prefixes = nil, nil }), ranges("2001:db8::1/128"), ranges("2001:db8:0:0:1::/80")},
		"with other groups too": {full(func(n *types.NetworkInterface) {
			n.Groups = append([]types.GroupIdentifier{{GroupId: aws.String("sg-2")}}, n.Groups...)
		}), ranges("10.0.0.1/32", "2001:db8::1/128"), ranges("10.0.0.3/32", "10.0.0.16/28", "2001:db8:0:0:1::/80")},
	} {
		a := &answering{
			groups: []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2")}, interfaces: []types.NetworkInterface{c.n},
			rules: []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", referring("sg-1"))},
		}
		found := readGroups(t, a, "sg-1", "sg-2")
		if g := found["sg-1"]; !slices.Equal(g.Members, c.members) || !slices.Equal(g.Pools, c.pools) || g.NotUsed != nil {
			t.Errorf("%s: members %v, for pods %v, not used %q; want %v and %v", name, g.Members, g.Pools, g.NotUsed, c.members, c.pools)
		}
		if g := found["sg-2"]; g.Members != nil || g.Pools != nil {
			t.Errorf("%s: the group that no rule refers to has %v and %v: its interfaces were not all read", name, g.Members, g.Pools)
		}
	}
}

func TestWhatCannotBeReadOfAMemberIsNamedInEachOfItsGroups(t *testing.T) {
	odd := memberOf("eni-odd", "10.0.0.1", "sg-1", "sg-2", "sg-9")
	odd.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("six")}, {Ipv6Address: aws.String("2001:db8::1")}}
	a := &answering{
		groups: []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2"), groupOf("sg-3")}, interfaces: []types.NetworkInterface{odd, memberOf("eni-3", "10.0.0.3", "sg-3")},
		rules: []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", referring("sg-1")), ruleOf("sg-1", "sgr-2", referring("sg-3"))},
	}
	found := readGroups(t, a, "sg-1", "sg-2")
	for id, want := range map[vpc.SecurityGroupID]bool{"sg-1": true, "sg-2": true, "sg-3": false} {
		reasons := strings.Join(found[id].NotUsed, "; ")
		if want != strings.HasPrefix(reasons, "interface eni-odd: [IPv6 address: ") || !want && reasons != "" {
			t.Errorf("%s: not used %q", id, reasons)
		}
	}
	if got := found["sg-1"].Members; !slices.Equal(got, ranges("10.0.0.1/32", "2001:db8::1/128")) || len(found) != 3 {
		t.Errorf("members %v, %d groups", got, len(found))
	}
}

func TestAnErrorOfEachReadOfGroupsIsNamed(t *testing.T) {
	for _, c := range []struct{ refused, object string }{
		{"DescribeSecurityGroupRules", "group-id=sg-1"},
		{"DescribeSecurityGroupRules 2", "group-id=sg-1"},
		{"DescribeSecurityGroups", "group-id=sg-1,sg-2"},
		{"DescribeSecurityGroups 2", "group-id=sg-1,sg-2"},
		{"DescribeNetworkInterfaces", "group-id=sg-2"},
		{"DescribeNetworkInterfaces 2", "group-id=sg-2"},
	} {
		a := &answering{
			groups: []types.SecurityGroup{groupOf("sg-1"), groupOf("sg-2")}, page: 1, refused: map[string]error{c.refused: refusing("UnauthorizedOperation")},
			rules:      []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", referring("sg-2")), ruleOf("sg-1", "sgr-2", referring("sg-2"))},
			interfaces: []types.NetworkInterface{memberOf("eni-1", "10.0.0.1", "sg-2"), memberOf("eni-2", "10.0.0.3", "sg-2")},
		}
		_, err := ec2.ReadGroups(t.Context(), a, []vpc.SecurityGroupID{"sg-1"}, nil)
		action, _, _ := strings.Cut(c.refused, " ")
		if want := "EC2 " + action + " " + c.object + ": UnauthorizedOperation: m"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", c.refused, err, want)
		}
		if last := a.asked[len(a.asked)-1]; !strings.HasPrefix(last, action+" ") {
			t.Errorf("after the error of %s it asks for %s", action, last)
		}
	}
}

// A list that another account owns may not be read; a list that could not be read now can be later.
func TestAnErrorOfAPrefixListConcernsItsRules(t *testing.T) {
	listed := func(r *types.SecurityGroupRule) { r.CidrIpv4, r.PrefixListId = nil, aws.String("pl-1") }
	for _, c := range []struct {
		err  error
		want string // why its rules are unusable; empty: the reading fails
	}{
		{refusing("UnauthorizedOperation"), "prefix list pl-1: UnauthorizedOperation"},
		{refusing("InvalidPrefixListID.NotFound"), "prefix list pl-1: InvalidPrefixListID.NotFound"},
		{refusing("RequestLimitExceeded"), ""},
		{errCut, ""},
	} {
		a := &answering{
			groups: []types.SecurityGroup{groupOf("sg-1")}, page: 1, lists: map[string][]string{"pl-1": {"192.0.2.0/24", "198.51.100.0/24"}},
			rules: []types.SecurityGroupRule{ruleOf("sg-1", "sgr-1", listed), ruleOf("sg-1", "sgr-2", listed)}, refused: map[string]error{"GetManagedPrefixListEntries 2": c.err},
		}
		found, err := ec2.ReadGroups(t.Context(), a, []vpc.SecurityGroupID{"sg-1"}, nil)
		if c.want == "" {
			if !errors.Is(err, c.err) || !strings.HasPrefix(err.Error(), "EC2 GetManagedPrefixListEntries pl-1: ") || found != nil {
				t.Errorf("%v: %v, %v", c.err, found, err)
			}
			continue
		}
		rules := found["sg-1"].Rules
		if err != nil || len(rules) != 2 || rules[0].Unusable != c.want || rules[1].Unusable != c.want || rules[0].Prefixes != nil {
			t.Errorf("%v: %+v, %v", c.err, rules, err)
		}
		if n := len(a.requests("GetManagedPrefixListEntries")); n != 2 {
			t.Errorf("%v: a list of two pages that two rules name was asked for %d times", c.err, n)
		}
	}
}

func TestAReadOfGroupsEndsAfterAHundredPages(t *testing.T) {
	for pages, want := range map[int]bool{100: true, 101: false} {
		a := &answering{groups: []types.SecurityGroup{groupOf("sg-1")}, page: 1}
		for n := range pages {
			a.rules = append(a.rules, ruleOf("sg-1", fmt.Sprintf("sgr-%03d", n), func(*types.SecurityGroupRule) {}))
		}
		found, err := ec2.ReadGroups(t.Context(), a, []vpc.SecurityGroupID{"sg-1"}, nil)
		if (err == nil) != want || want && len(found["sg-1"].Rules) != pages {
			t.Errorf("%d pages: %d rules, %v", pages, len(found["sg-1"].Rules), err)
		}
		if !want && err.Error() != "DescribeSecurityGroupRules group-id=sg-1: more than 100 pages" {
			t.Errorf("%d pages: %v", pages, err)
		}
	}
}
