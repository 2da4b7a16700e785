package grouprules_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestPoliciesAreListedByNameWithTheTwoOfEveryPodWithGroups(t *testing.T) {
	var got []string
	for _, c := range grouprules.Compile([]grouprules.Group{{ID: "sg-0000000b"}, {ID: "sg-0000000c"}, {ID: "sg-0000000a"}}) {
		if c.Policy.Ref.Kind != grouprules.Kind || c.Policy.Tier != policy.Admin || c.Problems != nil {
			t.Errorf("%+v", c)
		}
		got = append(got, c.Policy.Ref.Name)
	}
	if want := []string{grouprules.Implicit, "sg-0000000a", "sg-0000000b", "sg-0000000c", grouprules.Unfiltered}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Cluster-wide policies have orders from 0 on: none may allow what groups deny.
func TestGroupsDecideBeforeClusterWidePoliciesAndDenyLast(t *testing.T) {
	order := map[string]int{}
	for _, c := range grouprules.Compile([]grouprules.Group{{ID: "sg-0000000a"}}) {
		order[c.Policy.Ref.Name] = c.Policy.Order
	}
	deny := order[grouprules.Implicit]
	if deny >= 0 || order["sg-0000000a"] >= deny || order[grouprules.Unfiltered] >= deny {
		t.Errorf("orders %v, want that of %s below 0 and above the others", order, grouprules.Implicit)
	}
}

// A pod without groups of its own has those of its node, which the VPC enforces.
func TestEachPolicySubjectsOnlyPodsWithItsGroup(t *testing.T) {
	plain := grouprules.Labels(labels.Set{"app": "web"}, grouprules.Groups{Inherited: []vpc.SecurityGroupID{"sg-0000000a"}})
	own := grouprules.Labels(nil, grouprules.Groups{Isolated: true, Own: []vpc.SecurityGroupID{"sg-0000000b"}})
	for _, c := range grouprules.Compile([]grouprules.Group{{ID: "sg-0000000a"}, {ID: "sg-0000000b"}}) {
		name, subject := c.Policy.Ref.Name, c.Policy.Subject.Pods
		if subject.Matches(plain) || subject.Matches(own) != (name != "sg-0000000a") {
			t.Errorf("%s: a pod without groups %v, a pod with sg-0000000b %v", name, subject.Matches(plain), subject.Matches(own))
		}
	}
}

// A verdict names the rule that gave it.
func TestRulesHaveTheNamesThatVerdictsShow(t *testing.T) {
	list := grouprules.Compile([]grouprules.Group{{ID: "sg-0000000a", Rules: []grouprules.Rule{{ID: "sgr-1", Protocol: grouprules.All}}}})
	implicit, group := list[0].Policy, list[1].Policy
	for d, rules := range implicit.Rules {
		if len(rules) != 1 || rules[0].Name != "no group allows it" {
			t.Errorf("%s, %s: %+v", implicit.Ref.Name, policy.Direction(d), rules)
		}
	}
	if rules := group.Rules[policy.Ingress]; len(rules) != 1 || rules[0].Name != "sgr-1" {
		t.Errorf("%s: %+v", group.Ref.Name, rules)
	}
}

// EC2 reads the ports of TCP and UDP only; a rule for another protocol is for all of it.
// Source: EC2 API reference, AuthorizeSecurityGroupIngress.
func TestWhichPortsARuleAllows(t *testing.T) {
	every := func(p policy.Protocol) []policy.Port { return []policy.Port{{Protocol: p, Last: 65535}} }
	for name, tt := range map[string]struct {
		protocol, from, to int
		any                bool
		want               []policy.Port // nil: the rule is a problem, unless it allows any
	}{
		"every protocol":            {-1, -1, -1, true, nil},
		"every port of TCP":         {6, -1, -1, false, every(policy.TCP)},
		"every port of UDP":         {17, -1, -1, false, every(policy.UDP)},
		"the first and last port":   {6, 0, 65535, false, every(policy.TCP)},
		"one port":                  {17, 53, 53, false, []policy.Port{{Protocol: policy.UDP, First: 53, Last: 53}}},
		"SCTP without ports":        {132, -1, -1, false, every(policy.SCTP)},
		"SCTP, with ports":          {132, 5, 10, false, every(policy.SCTP)},
		"only the first is all":     {6, -1, 80, false, nil},
		"only the last is all":      {6, 80, -1, false, nil},
		"a first port below zero":   {6, -5, 80, false, nil},
		"the first protocol number": {0, -1, -1, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			rule := grouprules.Rule{ID: "sgr-1", Protocol: tt.protocol, From: tt.from, To: tt.to, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
			c := grouprules.Compile([]grouprules.Group{{ID: "sg-0000000a", Rules: []grouprules.Rule{rule}}})[1]
			rules := c.Policy.Rules[policy.Ingress]
			if !tt.any && tt.want == nil {
				if len(rules) != 0 || len(c.Problems) != 1 {
					t.Errorf("%+v, %q, want one problem", rules, c.Problems)
				}
				return
			}
			if len(rules) != 1 || rules[0].AnyPort != tt.any || !reflect.DeepEqual(rules[0].Ports, tt.want) || c.Problems != nil {
				t.Errorf("%+v, %q, want %+v", rules, c.Problems, tt.want)
			}
		})
	}
}

func TestMembershipIsThatOfInterfacesWithTheGroup(t *testing.T) {
	ranges := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	got := grouprules.Membership([]grouprules.Interface{
		{Groups: []vpc.SecurityGroupID{"sg-0000000a", "sg-0000000b"}, Fixed: ranges("10.0.0.5/32"), ForPods: ranges("10.0.0.48/28")},
		{Groups: []vpc.SecurityGroupID{"sg-0000000a"}, Fixed: ranges("10.0.0.4/32", "10.0.9.1/32"), ForPods: ranges("10.0.0.32/28", "fd00::/80")},
		{Fixed: ranges("10.0.0.6/32")},
	})
	want := map[vpc.SecurityGroupID]grouprules.Group{
		"sg-0000000a": {ID: "sg-0000000a", Members: ranges("10.0.0.4/31", "10.0.9.1/32"), Pools: ranges("10.0.0.32/27", "fd00::/80")},
		"sg-0000000b": {ID: "sg-0000000b", Members: ranges("10.0.0.5/32"), Pools: ranges("10.0.0.48/28")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
