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
