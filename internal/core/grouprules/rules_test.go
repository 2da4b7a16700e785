package grouprules_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestARuleThatCannotBeEnforcedAllowsNothingAndIsNamed(t *testing.T) {
	anywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	for name, c := range map[string]struct {
		rule grouprules.Rule
		want string
	}{
		"an ICMP type":                    {grouprules.Rule{Protocol: 1, From: 8, To: 0, Prefixes: anywhere}, "rule sgr-1: ICMP cannot be enforced in the node, only all protocols together; it allows nothing"},
		"all of ICMPv6":                   {grouprules.Rule{Protocol: 58, From: -1, To: -1, Prefixes: anywhere}, "ICMPv6 cannot be enforced in the node"},
		"a protocol number":               {grouprules.Rule{Protocol: 47, From: -1, To: -1, Prefixes: anywhere}, "protocol 47 cannot be enforced in the node"},
		"a protocol that does not exist":  {grouprules.Rule{Protocol: 300, Prefixes: anywhere}, "protocol 300 is unknown"},
		"a protocol below zero":           {grouprules.Rule{Protocol: -2, Prefixes: anywhere}, "protocol -2 is unknown"},
		"the first protocol number":       {grouprules.Rule{Protocol: 0, Prefixes: anywhere}, "protocol 0 cannot be enforced in the node"},
		"the last protocol number":        {grouprules.Rule{Protocol: 255, Prefixes: anywhere}, "protocol 255 cannot be enforced in the node"},
		"ports in the wrong order":        {grouprules.Rule{Protocol: 6, From: 90, To: 80, Prefixes: anywhere}, "ports 90 to 80 are no range"},
		"a port beyond the last":          {grouprules.Rule{Protocol: 17, From: 0, To: 65536, Prefixes: anywhere}, "ports 0 to 65536 are no range"},
		"a direction that does not exist": {grouprules.Rule{Direction: 2, Protocol: -1, Prefixes: anywhere}, "direction 2 is unknown"},
		"a group that is not known":       {grouprules.Rule{Protocol: -1, Group: "sg-00000009"}, "security group sg-00000009, which it refers to, is not known"},
		"a group of another VPC":          {grouprules.Rule{Protocol: -1, Group: "sg-00000001", Unusable: "security group sg-00000001 is of vpc-2"}, "its peers are not known: security group sg-00000001 is of vpc-2"},
		"a range of IPv4 written as IPv6": {grouprules.Rule{Protocol: -1, Prefixes: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}, "its range ::ffff:10.0.0.0/104 cannot be read"},
		"a range that cannot be read":     {grouprules.Rule{Protocol: -1, Prefixes: make([]netip.Prefix, 1)}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			c.rule.ID = "sgr-1"
			for _, compiled := range grouprules.Compile([]grouprules.Group{{ID: "sg-00000001", Rules: []grouprules.Rule{c.rule}}}) {
				if compiled.Policy.Ref.Name != "sg-00000001" {
					continue
				}
				if n := len(compiled.Policy.Rules[0]) + len(compiled.Policy.Rules[1]); n != 0 {
					t.Errorf("it has %d rules", n)
				}
				if len(compiled.Problems) != 1 || !strings.Contains(compiled.Problems[0], c.want) {
					t.Errorf("problems %q, want one with %q", compiled.Problems, c.want)
				}
			}
		})
	}
}

func TestLabelsOfGroupsCannotBeForged(t *testing.T) {
	forged := labels.Set{
		"app": "web", grouprules.MemberLabel("sg-00000001"): "true", grouprules.SubjectLabel("sg-00000001"): "true",
		"groups.trunkline.dev/isolated": "false", "any.groups.trunkline.dev/x": "y",
	}
	before := len(forged)
	if got := grouprules.Labels(forged, grouprules.Groups{}); !labels.Equals(got, labels.Set{"app": "web"}) {
		t.Errorf("labels %v, want app=web alone", got)
	}
	if len(forged) != before {
		t.Error("the argument was modified")
	}
	got := grouprules.Labels(forged, grouprules.Groups{Isolated: true, Inherited: []vpc.SecurityGroupID{"sg-00000001"}})
	if want := (labels.Set{"app": "web", "groups.trunkline.dev/isolated": "true"}); !labels.Equals(got, want) {
		t.Errorf("labels of a pod with groups that are not known: %v, want %v", got, want)
	}
	if got := grouprules.Labels(nil, grouprules.Groups{Own: []vpc.SecurityGroupID{"sg-00000001"}}); len(got) != 0 {
		t.Errorf("labels of a pod without groups: %v", got)
	}
}

func TestOneForgedLabelAmongManyIsRemoved(t *testing.T) {
	for i := range 20 {
		own, want := labels.Set{}, labels.Set{}
		for j := range 20 {
			key := fmt.Sprintf("example.com/label-%d", j)
			own[key], want[key] = "x", "x"
		}
		own[grouprules.MemberLabel(vpc.SecurityGroupID(fmt.Sprintf("sg-%08x", i)))] = "true"
		if got := grouprules.Labels(own, grouprules.Groups{}); !labels.Equals(got, want) {
			t.Fatalf("labels %v, want %v", got, want)
		}
	}
}

func TestLabelsOfOtherDomainsAreKept(t *testing.T) {
	own := labels.Set{"groups.trunkline.dev": "no domain", "trunkline.dev/x": "parent", "app.kubernetes.io/name": "web", "xgroups.trunkline.dev/x": "other"}
	want := labels.Merge(own, labels.Set{"groups.trunkline.dev/isolated": "true"})
	if got := grouprules.Labels(own, grouprules.Groups{Isolated: true}); !labels.Equals(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if got := grouprules.Labels(nil, grouprules.Groups{Isolated: true}); !labels.Equals(got, labels.Set{"groups.trunkline.dev/isolated": "true"}) {
		t.Errorf("labels of a pod without any: %v", got)
	}
}

func TestAPodInheritsTheGroupsThatAllOfItsAddressesHave(t *testing.T) {
	pool := func(id vpc.SecurityGroupID, texts ...string) grouprules.Group {
		g := grouprules.Group{ID: id, Rules: []grouprules.Rule{{Group: id}}}
		for _, text := range texts {
			g.Pools = append(g.Pools, netip.MustParsePrefix(text))
		}
		return g
	}
	unreferred := pool("sg-00000003", "10.0.0.0/8", "fd00::/16")
	unreferred.Rules = nil
	pools := grouprules.NewPools([]grouprules.Group{
		unreferred, pool("sg-00000002", "10.0.0.64/28", "10.0.0.72/32", "10.0.0.16/28"), pool("sg-00000001", "10.0.0.64/28", "fd00::/80"),
	})
	for text, want := range map[string][]vpc.SecurityGroupID{
		"":                   nil,
		"10.0.0.15":          nil,
		"10.0.0.16":          {"sg-00000002"},
		"10.0.0.31":          {"sg-00000002"},
		"10.0.0.32":          nil,
		"10.0.0.79":          {"sg-00000001", "sg-00000002"},
		"10.0.0.70":          {"sg-00000001", "sg-00000002"},
		"10.0.0.70 fd00::9":  {"sg-00000001"},
		"10.0.0.70 fd01::9":  nil,
		"10.0.0.20 10.0.0.9": nil,
	} {
		var list []netip.Addr
		for _, a := range strings.Fields(text) {
			list = append(list, netip.MustParseAddr(a))
		}
		if got := pools.Of(list); !slices.Equal(got, want) {
			t.Errorf("%q inherits %v, want %v", text, got, want)
		}
	}
}

func TestAggregatedRangesHaveTheSameAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		"10.0.0.5/32 10.0.0.4/32 10.0.0.4/32":   "10.0.0.4/31",
		"10.0.0.6/32 10.0.0.5/32":               "10.0.0.5/32 10.0.0.6/32",
		"10.0.0.9/28 10.0.0.3/32 10.0.0.16/28":  "10.0.0.0/27",
		"fd00::/81 fd00::8000:0:0/81 0.0.0.0/1": "0.0.0.0/1 fd00::/80",
		"10.0.0.0/31 10.0.0.2/32 10.0.0.3/32":   "10.0.0.0/30",
		"128.0.0.0/1 0.0.0.0/1":                 "0.0.0.0/0",
		"10.0.0.0/32 10.0.0.0/24 10.0.0.0/28":   "10.0.0.0/24",
		"10.0.0.0/31 10.0.0.2/32":               "10.0.0.0/31 10.0.0.2/32",
		"0.0.0.0/0 ::/0":                        "0.0.0.0/0 ::/0",
		"254.0.0.0/7 ::/7":                      "254.0.0.0/7 ::/7",
	} {
		var list []netip.Prefix
		for _, p := range strings.Fields(text) {
			list = append(list, netip.MustParsePrefix(p))
		}
		var got []string
		for _, p := range grouprules.Aggregate(list) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %q", text, got, want)
		}
	}
}
