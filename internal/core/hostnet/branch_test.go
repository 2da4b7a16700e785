package hostnet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// onBranch is the pod default/web on the branch of VLAN 1.
func onBranch(mode endpoint.Mode, addresses ...string) endpoint.Endpoint {
	e := web()
	var list []netip.Addr
	for _, a := range addresses {
		list = append(list, addr(a))
	}
	prefixOf := map[endpoint.Mode]string{endpoint.Strict: endpoint.StrictLinkPrefix, endpoint.Standard: endpoint.DefaultLinkPrefix}
	e.Addresses, e.Link = endpoint.AddressesOf(list...), endpoint.LinkName(prefixOf[mode], "default", "web")
	e.Attachment = endpoint.Attachment{Kind: endpoint.Branch, Interface: "eni-0bf8102e8bf0fa369", Table: 101, Branch: endpoint.BranchLink{
		VLAN: 1, MAC: vpc.MAC{2, 0x78, 0x59, 0x8f, 0xee, 0xb2}, Trunk: "eni-1", Mode: mode, Gateways: BranchGateways(prefix("172.31.0.0/20"), prefix("fd10::/64")),
	}}
	return e
}

// listed is the rules, or the routes of a table, as ip(8) lists those of AWS's plugin: without the
// number of the owner, a host's address without its length.
func listed(s State, kind, table string) (lines []string) {
	for line := range strings.SplitSeq(s.String(), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		rest, _, _ = strings.Cut(rest, " proto ")
		if word != kind || table != "" && !strings.Contains(rest, " table "+table) {
			continue
		}
		rest = strings.ReplaceAll(strings.ReplaceAll(rest, " table "+table, ""), "/32", "")
		lines = append(lines, rest)
	}
	return lines
}

// Source: listings of a node of Amazon EKS with a strict pod on the branch of VLAN 1: `ip rule` and
// `ip route show table 101`.
func TestAStrictPodHasTheRulesAndRoutesOfAWSsPlugin(t *testing.T) {
	e := onBranch(endpoint.Strict, "172.31.2.37")
	s := Join(ForStrict([]vpc.Family{vpc.IPv4}), ForBranch(e), ForEndpoint(e), ForNode([]vpc.Family{vpc.IPv4}, nil))
	link := "vlan68caf03a5f4"
	if diff := cmp.Diff([]string{
		"20: from all lookup local", "10: from all iif vlan.eth.1 lookup 101", "10: from all iif " + link + " lookup 101", "1024: from all fwmark 0x80/0x80 lookup main",
	}, listed(s, "rule", "")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"172.31.0.1 dev vlan.eth.1 scope link", "default via 172.31.0.1 dev vlan.eth.1", "172.31.2.37 dev " + link + " scope link",
	}, listed(s, "route", "101")); diff != "" {
		t.Errorf("table 101 (-want +got):\n%s", diff)
	}
	if !strings.Contains(s.String(), "no rule 0: from all lookup local") {
		t.Errorf("the kernel's first rule stays:\n%s", s)
	}
}

func TestAStandardPodKeepsItsPacketsOnTheNode(t *testing.T) {
	e := onBranch(endpoint.Standard, "172.31.2.37")
	s := Join(ForBranch(e), ForEndpoint(e))
	if diff := cmp.Diff([]string{"512: from all to 172.31.2.37 lookup main", "1536: from 172.31.2.37 lookup 101"}, listed(s, "rule", "")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"172.31.0.1 dev vlan.eth.1 scope link", "default via 172.31.0.1 dev vlan.eth.1"}, listed(s, "route", "101")); diff != "" {
		t.Errorf("table 101 (-want +got):\n%s", diff)
	}
	if HasStrict([]endpoint.Endpoint{e}) {
		t.Error("the node counts as one with strict pods")
	}
}

func TestAStrictPodOfBothFamiliesFindsItsRouters(t *testing.T) {
	e := onBranch(endpoint.Strict, "172.31.2.37", "fd10::25")
	want := `rule 20: from all lookup local proto 211
rule 0: from fe80::/10 ipproto 58 lookup local proto 211
no rule 0: from all lookup local (ipv6) proto 2`
	s := Join(ForStrict([]vpc.Family{vpc.IPv6}), ForBranch(e), ForEndpoint(e)).String()
	for _, line := range append(strings.Split(want, "\n")[1:],
		"address fe80::78:59ff:fe8f:eeb2/64 dev vlan.eth.1", "route default(6) via fe80:ec2::1 dev vlan.eth.1 table 101 proto 211",
		"route fd10::25/128 dev vlan68caf03a5f4 table 101 proto 211", "rule 10: from all iif vlan.eth.1 lookup 101 (ipv6) proto 211",
	) {
		if !strings.Contains(s, line) {
			t.Errorf("no %q in\n%s", line, s)
		}
	}
}

func TestVLANsWithTheKernelsTablesAreRefusedByName(t *testing.T) {
	for vlan, want := range map[int]error{-1: ErrVLAN, 0: ErrVLAN, 1: nil, 120: nil, 152: nil, 153: ErrVLANTable, 154: ErrVLANTable, 155: ErrVLANTable, 156: nil, 4094: nil, 4095: ErrVLAN} {
		if table, err := VLANTable(vlan); !errors.Is(err, want) || err == nil && table != uint32(vlan+100) {
			t.Errorf("VLAN %d: table %d, %v, want %v", vlan, table, err, want)
		}
	}
}

// The first rule is never deleted before the one that takes its place was observed, nor that one
// before the first rule is back.
func TestANodeHasARuleOfTheLocalTableAtAnyMoment(t *testing.T) {
	first, part := LocalRule(vpc.IPv4), ForStrict([]vpc.Family{vpc.IPv4})
	moved := part.Rules[0]
	has := func(rules ...Rule) *Actual { return NewActual(State{Rules: rules}) }
	for _, c := range []struct {
		what string
		ops  []Op
		want []string
	}{
		{"the first pod", has(first).Diff(part), []string{"add rule 20"}},
		{"then", has(first, moved).Diff(part), []string{"delete rule 0"}},
		{"at the end", has(moved).Diff(part), nil},
		{"the last pod has ended", has(moved).Remove(part, nil), []string{"add rule 0"}},
		{"then", has(first, moved).Remove(part, nil), []string{"delete rule 20"}},
		{"at the end", has(first).Remove(part, nil), nil},
		{"pruned, without the first rule", has(moved).Extra(nil), nil},
		{"pruned", has(first, moved).Extra(nil), []string{"delete rule 20"}},
	} {
		var got []string
		for _, op := range c.ops {
			got = append(got, strings.SplitN(op.String(), ":", 2)[0])
		}
		if !cmp.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// AWS's daemon moves the rule, without our number, and leaves it.
func TestTheRuleThatAWSLeftMovedIsPutBackOnceNoPodOfItsIsStrict(t *testing.T) {
	aws := Rule{Family: vpc.IPv4, Priority: RuleLocalStrict, Table: TableLocal}
	pod := Rule{Family: vpc.IPv4, Priority: RuleBranch, In: "vlan.eth.1", Table: 101}
	if got := (State{Rules: []Rule{aws}}).Returned(); len(got) != 1 || got[0] != LocalRule(vpc.IPv4) {
		t.Errorf("%v, want the first rule", got)
	}
	if got := (State{Rules: []Rule{aws, LocalRule(vpc.IPv4)}}).Returned(); len(got) != 0 {
		t.Errorf("it is there: %v", got)
	}
	if !(State{Rules: []Rule{aws, pod}}).ForeignStrict() || (State{Rules: []Rule{aws}}).ForeignStrict() {
		t.Error("strict pods of another CNI are not known by their rules")
	}
}

func TestTheDeviceOfABranchHasTheAttachmentOfItsPod(t *testing.T) {
	for _, e := range []endpoint.Endpoint{onBranch(endpoint.Strict, "172.31.2.37", "fd10::25"), onBranch(endpoint.Standard, "172.31.2.37")} {
		l := ForBranch(e).Links[0]
		key, a, ok := ParseBranch(l)
		if !ok || key != e.Key || a != e.Attachment || len(l.Alias) > 255 {
			t.Errorf("%v, %+v, %+v, want %+v; alias %q", ok, key, a, e.Attachment, l.Alias)
		}
	}
	for _, l := range []Link{{Name: "vlan.eth.1"}, {Name: "tag.eth.1", Alias: BranchAlias(web())}, {Name: "vlan.eth.154", Alias: BranchAlias(web())}, {Name: "vlan.eth.1x", Alias: BranchAlias(web())}} {
		if key, a, ok := ParseBranch(l); ok {
			t.Errorf("%s: %v %+v", l, key, a)
		}
	}
}

// The alias of another program, or of another form, is of no branch.
func TestOnlyTheAliasOfABranchIsParsed(t *testing.T) {
	e := onBranch(endpoint.Strict, "172.31.2.37")
	alias := BranchAlias(e)
	for _, text := range []string{"", alias + "/more", strings.TrimSuffix(alias, "/"+e.Key.IfName), "other" + alias, "a/b/c/d/e/f", strings.Replace(alias, LinkAliasPrefix, "", 1)} {
		l := Link{Name: "vlan.eth.1", Alias: text}
		if key, a, ok := ParseBranch(l); ok {
			t.Errorf("alias %q: %v %+v", text, key, a)
		}
		if got, want := l.OfBranch(), strings.HasPrefix(text, alias[:len(alias)-len(e.Key.IfName)-1]); got != want {
			t.Errorf("alias %q is of a branch: %v, want %v", text, got, want)
		}
	}
	if !(Link{Name: "tag.eth.1", Alias: alias}).OfBranch() {
		t.Error("the tagged end is of no branch")
	}
	e.Attachment.Branch.Gateways = endpoint.Addresses{}
	if _, a, ok := ParseBranch(Link{Name: "vlan.eth.1", Alias: BranchAlias(e)}); !ok || a.Branch.Gateways != (endpoint.Addresses{}) {
		t.Errorf("without routers: %v, %+v", ok, a.Branch.Gateways)
	}
}

func TestABranchHasARouterForEachRangeOfItsSubnet(t *testing.T) {
	v4, v6 := prefix("172.31.0.0/20"), prefix("fd10::/64")
	for _, c := range []struct {
		v4, v6 netip.Prefix
		want   endpoint.Addresses
	}{
		{v4, v6, endpoint.AddressesOf(addr("172.31.0.1"), addr("fe80:ec2::1"))},
		{v4, netip.Prefix{}, endpoint.AddressesOf(addr("172.31.0.1"))},
		{netip.Prefix{}, v6, endpoint.AddressesOf(addr("fe80:ec2::1"))},
		{netip.Prefix{}, netip.Prefix{}, endpoint.Addresses{}},
	} {
		if got := BranchGateways(c.v4, c.v6); got != c.want {
			t.Errorf("%s and %s: %+v, want %+v", c.v4, c.v6, got, c.want)
		}
	}
}

// Every object of a branch is ours by its number or its alias, and the device is as the pod's link.
func TestTheObjectsOfABranchAreOurs(t *testing.T) {
	e := onBranch(endpoint.Strict, "172.31.2.37", "fd10::25")
	s := ForBranch(e)
	want := Link{Name: "vlan.eth.1", MAC: e.Attachment.Branch.MAC, MTU: e.MTU, Admin: AdminUp, Alias: BranchAlias(e)}
	if e.MTU == 0 || len(s.Links) != 1 || s.Links[0] != want {
		t.Errorf("%+v, want %+v", s.Links, want)
	}
	for _, r := range s.Routes {
		if !r.Ours() {
			t.Errorf("%s is not ours", r)
		}
	}
	for _, r := range s.Rules {
		if !r.Ours() {
			t.Errorf("%s is not ours", r)
		}
	}
	if len(s.Routes) != 4 || len(s.Rules) != 2 {
		t.Errorf("%s", s)
	}
}

func TestTheNodesRulesOfStrictPodsAreOfEachFamily(t *testing.T) {
	local := func(f vpc.Family, priority int, protocol uint8) Rule {
		return Rule{Family: f, Priority: priority, Table: TableLocal, Protocol: protocol}
	}
	neighbours := Rule{Family: vpc.IPv6, From: prefix("fe80::/10"), IPProto: 58, Table: TableLocal, Protocol: RouteProtocol}
	want := State{
		Rules: []Rule{local(vpc.IPv4, 20, RouteProtocol), local(vpc.IPv6, 20, RouteProtocol), neighbours},
		Moved: []Rule{local(vpc.IPv4, 0, ProtocolKernel), local(vpc.IPv6, 0, ProtocolKernel)},
	}
	if diff := cmp.Diff(want, ForStrict([]vpc.Family{vpc.IPv4, vpc.IPv6}), cmp.Comparer(func(a, b Rule) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOnlyAPodOnABranchInStrictModeIsStrict(t *testing.T) {
	strict := onBranch(endpoint.Strict, "172.31.2.37")
	strict.Stage = endpoint.Ready
	routed := strict
	routed.Attachment.Kind = endpoint.Routed
	ended := strict
	ended.Stage = endpoint.Removing
	for name, c := range map[string]struct {
		e    endpoint.Endpoint
		want bool
	}{"strict": {strict, true}, "of another kind": {routed, false}, "ended": {ended, false}} {
		if got := HasStrict([]endpoint.Endpoint{c.e}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTheRuleThatIsPutBackIsThatOfTheLocalTableAlone(t *testing.T) {
	moved := Rule{Family: vpc.IPv4, Priority: RuleLocalStrict, Table: TableLocal}
	narrow, elsewhere, own := moved, moved, moved
	narrow.From, elsewhere.Priority, own.Protocol = prefix("10.0.0.0/8"), RuleLocalStrict+1, RouteProtocol
	for _, r := range []Rule{narrow, elsewhere, own} {
		if got := (State{Rules: []Rule{r}}).Returned(); len(got) > 0 {
			t.Errorf("%s: %v", r, got)
		}
	}
}

func TestARuleOfAForeignStrictPodLeadsFromALinkToTheTableOfAVLAN(t *testing.T) {
	pod := Rule{Family: vpc.IPv4, Priority: RuleBranch, In: "vlan.eth.1", Table: TableVLANOffset + 1}
	own, later, all, low := pod, pod, pod, pod
	own.Protocol, later.Priority, all.In, low.Table = RouteProtocol, RuleBranch+1, "", TableVLANOffset
	if !(State{Rules: []Rule{pod}}).ForeignStrict() {
		t.Errorf("%s is that of no pod", pod)
	}
	for _, r := range []Rule{own, later, all, low} {
		if (State{Rules: []Rule{r}}).ForeignStrict() {
			t.Errorf("%s is that of a pod", r)
		}
	}
}

// A rule for one protocol, or for what arrives by one link, selects less than a pod.
func TestARuleThatSelectsMoreIsThatOfNoPod(t *testing.T) {
	one := prefix("10.0.0.7/32")
	parts := []Part{{Owner: "endpoint 1", State: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: one, Table: TableMain, Protocol: RouteProtocol}}}}}
	enis := Interfaces{Subnets: []netip.Prefix{prefix("10.0.0.0/24")}}
	for name, more := range map[string]func(*Rule){"by a link": func(r *Rule) { r.In = "eth0" }, "of a protocol": func(r *Rule) { r.IPProto = 6 }} {
		early := Rule{Family: vpc.IPv4, Priority: 100, To: one, Table: 77}
		more(&early)
		if ops := NewActual(State{Rules: []Rule{early}}).Captured(parts); len(ops) > 0 {
			t.Errorf("%s: %v", name, ops)
		}
		if of, ok := early.OfPod(); ok {
			t.Errorf("%s: it is that of %s", name, of)
		}
		left := Rule{Family: vpc.IPv4, Priority: RuleFromPod, From: one, Table: 3}
		more(&left)
		if ops := NewActual(State{Rules: []Rule{left}}).Leftovers(nil, enis, func(netip.Addr) bool { return false }); len(ops) > 0 {
			t.Errorf("%s: %v", name, ops)
		}
		if list := (State{Rules: []Rule{left}}).Replaced(parts[0].State.Rules); len(list) > 0 {
			t.Errorf("%s: a rule of a pod takes the place of %v", name, list)
		}
	}
}

func TestStatesWithOtherMovedRulesDiffer(t *testing.T) {
	a := ForStrict([]vpc.Family{vpc.IPv4})
	b := a
	b.Moved = nil
	if (Part{State: a}).Equal(Part{State: b}) || !(Part{State: a}).Equal(Part{State: a}) {
		t.Error("the rules that are taken away are not compared")
	}
}

func TestANodeWithStrictPodsForwardsTheirReplies(t *testing.T) {
	var names []string
	for _, s := range StrictSysctls() {
		if s.Value != "0" || s.Why == "" || s.Optional || s.AtLeast {
			t.Errorf("%+v", s)
		}
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{"net/ipv4/tcp_early_demux", "net/ipv4/udp_early_demux"}, names); diff != "" {
		t.Error(diff)
	}
}
