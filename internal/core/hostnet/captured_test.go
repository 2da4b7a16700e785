package hostnet

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestRulesThatTakeThePacketsOfAPodAwayAreDeleted(t *testing.T) {
	one := netip.MustParsePrefix
	pods := []Part{
		{Owner: "endpoint 1", State: State{Rules: []Rule{ // on a secondary interface
			{Family: vpc.IPv4, Priority: RuleToPod, To: one("10.0.1.1/32"), Table: TableMain, Protocol: RouteProtocol},
			{Family: vpc.IPv4, Priority: RuleFromPod, From: one("10.0.1.1/32"), Table: 2, Protocol: RouteProtocol},
		}}},
		{Owner: "endpoint 2", State: State{Rules: []Rule{ // on the primary interface
			{Family: vpc.IPv4, Priority: RuleToPod, To: one("10.0.1.2/32"), Table: TableMain, Protocol: RouteProtocol},
			{Family: vpc.IPv4, Priority: RuleToPod, To: one("10.0.2.0/32"), Table: TableMain, Protocol: RouteProtocol},
		}}},
		{Owner: "endpoint 3", State: State{Rules: []Rule{ // in the other order
			{Family: vpc.IPv4, Priority: RuleFromPod, From: one("10.0.1.3/32"), Table: 2, Protocol: RouteProtocol},
			{Family: vpc.IPv4, Priority: RuleToPod, To: one("10.0.1.3/32"), Table: TableMain, Protocol: RouteProtocol},
		}}},
		{Owner: "node", State: State{Rules: []Rule{
			{Family: vpc.IPv4, Priority: RuleExternalCIDR, To: one("10.9.0.0/16"), Table: TableMain, Protocol: RouteProtocol},
			{Family: vpc.IPv4, Priority: RuleFromENI, From: one("10.0.1.8/32"), Table: 3, Protocol: RouteProtocol},
			{Family: vpc.IPv4, Priority: RuleFromPod, From: one("10.8.0.0/16"), Table: 3, Protocol: RouteProtocol},
		}}},
	}
	rule := func(priority int, from, to string, table uint32) Rule {
		r := Rule{Family: vpc.IPv4, Priority: priority, Table: table}
		if from != "" {
			r.From = one(from)
		}
		if to != "" {
			r.To = one(to)
		}
		return r
	}
	marked, own := rule(511, "10.0.1.1/32", "", 77), rule(511, "10.0.1.1/32", "", 77)
	marked.Mark, marked.Mask = 1, 1
	own.Protocol = RouteProtocol
	for _, c := range []struct {
		what string
		rule Rule
		goes bool
	}{
		{"without a priority", rule(511, "10.0.1.1/32", "", 77), true},
		{"to a pod", rule(511, "", "10.0.1.1/32", 77), true},
		{"from a pod, just before ours", rule(RuleFromPod-1, "10.0.1.1/32", "", 77), true},
		{"from a pod, after ours", rule(RuleFromPod+1, "10.0.1.1/32", "", 77), false},
		{"from a pod on the primary interface", rule(10001, "10.0.1.2/32", "", 10001), true},
		{"the same, after the main table", rule(RuleMain+1, "10.0.1.2/32", "", 10001), false},
		{"the same, to the main table", rule(10001, "10.0.1.2/32", "", TableMain), false},
		{"from a pod to its own table", rule(511, "10.0.1.1/32", "", 2), false},
		{"from a pod to the main table", rule(511, "10.0.1.1/32", "", TableMain), true},
		{"to a pod by the main table", rule(511, "", "10.0.1.2/32", TableMain), false},
		{"to a pod, after ours", rule(RuleToPod+1, "", "10.0.1.1/32", 77), false},
		{"from a pod, with our priority", rule(RuleFromPod, "10.0.1.1/32", "", 77), false},
		{"from a pod with its rules in another order", rule(511, "10.0.1.3/32", "", 77), true},
		{"the same, to its own table", rule(511, "10.0.1.3/32", "", 2), false},
		{"to an address of no pod", rule(511, "", "10.0.1.9/32", 77), false},
		{"to the first address of a range of the node", rule(511, "", "10.9.0.0/32", 77), false},
		{"from the node's own address", rule(511, "10.0.1.8/32", "", 77), false},
		{"from the first address of a range of the node", rule(511, "10.8.0.0/32", "", 77), false},
		{"to a range that begins with a pod's address", rule(511, "", "10.0.2.0/24", 77), false},
		{"from a range that begins with a pod's address", rule(511, "10.0.2.0/24", "", 77), false},
		{"to a pod, from a range", rule(511, "10.9.0.0/16", "10.0.1.1/32", 77), false},
		{"of an address of no pod", rule(511, "10.0.1.9/32", "", 77), false},
		{"of a subnet", rule(511, "10.0.1.0/24", "", 77), false},
		{"of all", rule(511, "", "", 77), false},
		{"with two selectors", rule(511, "10.0.1.1/32", "10.9.0.0/16", 77), false},
		{"with a mark", marked, false},
		{"ours", own, false},
		{"the local table's", rule(RuleLocal, "10.0.1.1/32", "", 77), false},
		{"without a table", rule(511, "10.0.1.1/32", "", 0), false},
	} {
		ops := NewActual(State{Rules: []Rule{c.rule}}).Captured(pods)
		if (len(ops) == 1) != c.goes || len(ops) == 1 && (ops[0].Verb != Delete || ops[0].Object != Object(c.rule)) {
			t.Errorf("%s: %v, want deleted %v", c.what, ops, c.goes)
		}
	}
}

func TestTheSamePodIsFoundByARuleFromItAndToIt(t *testing.T) {
	pod := Rule{Family: vpc.IPv4, Priority: RuleToPod, To: netip.MustParsePrefix("10.0.1.1/32"), Table: TableMain, Protocol: RouteProtocol}
	for _, r := range []Rule{{Family: vpc.IPv4, Priority: 511, From: pod.To, Table: 77}, {Family: vpc.IPv4, Priority: 3, To: pod.To, Table: 9}} {
		if of, ok := r.OfPod(); !ok || of.Key() != pod.Key() || of.Family != pod.Family {
			t.Errorf("%s: %s, %v", r, of, ok)
		}
		again := r
		again.Priority = 510
		if again.Selector() != r.Selector() {
			t.Errorf("%s is another rule with another priority", r)
		}
	}
	for _, r := range []Rule{pod, {Family: vpc.IPv4, Priority: 5, Table: 77}} {
		if of, ok := r.OfPod(); ok {
			t.Errorf("%s: %s", r, of)
		}
	}
}
