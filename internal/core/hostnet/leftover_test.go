package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestRulesOfPodsThatAnotherCNIWiredGoOnceThePodHasEnded(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.7")
	enis := Interfaces{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19"), netip.MustParsePrefix("2600:1f14::/64")}}
	to := Rule{Family: vpc.IPv4, Priority: RuleToPod, To: host(address), Table: TableMain}
	from := Rule{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Table: 3}
	ranged := from
	ranged.To = netip.MustParsePrefix("10.0.0.0/16")
	ours := func(r Rule) Rule { r.Protocol = RouteProtocol; return r }
	other := func(r Rule) Rule { r.Table = 2; return r }
	route := Route{Table: TableMain, To: host(address), Link: "eni1", Scope: ScopeLink, Protocol: ProtocolBoot}
	foreign := Link{Name: "eni1"}
	for name, c := range map[string]struct {
		have    State
		desired []Rule
		inUse   bool
		want    []Rule
	}{
		"the pod has ended":               {have: State{Rules: []Rule{to, from}}, want: []Rule{to, from}},
		"one to each range of the VPC":    {have: State{Rules: []Rule{ranged}}, want: []Rule{ranged}},
		"its link exists":                 {have: State{Rules: []Rule{to, from}, Routes: []Route{route}, Links: []Link{foreign}}},
		"the API server has it":           {have: State{Rules: []Rule{to, from}}, inUse: true},
		"a pod of ours has the address":   {have: State{Rules: []Rule{to, from, ours(to), ours(other(from))}}, desired: []Rule{ours(to), ours(other(from))}, want: []Rule{to, from}},
		"ours is wanted and not there":    {have: State{Rules: []Rule{to, from}}, desired: []Rule{ours(to), ours(from)}},
		"the route is that of a pod ours": {have: State{Rules: []Rule{to, ours(to)}, Routes: []Route{route}, Links: []Link{{Name: "eni1", Group: LinkGroupPod}}}, desired: []Rule{ours(to)}, want: []Rule{to}},
		"an address of another network":   {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: netip.MustParsePrefix("192.168.0.7/32"), Table: 3}}}},
		"another program's protocol":      {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Table: 3, Protocol: 3}}}},
		"another priority":                {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromENI, From: host(address), Table: 3}}}},
		"a range":                         {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: netip.MustParsePrefix("10.0.0.0/24"), Table: 3}}}},
		"ours was made first":             {have: State{Rules: []Rule{ours(to), to}}, desired: []Rule{ours(to)}, want: []Rule{to}},
		"to it from one source":           {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: host(address), From: netip.MustParsePrefix("10.0.0.9/32"), Table: TableMain}}}},
		"to it in another table":          {have: State{Rules: []Rule{other(to)}}},
		"to it with another priority":     {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod + 1, To: host(address), Table: TableMain}}}},
		"to a range":                      {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: netip.MustParsePrefix("10.0.0.0/24"), Table: TableMain}}}},
		"an IPv6 address":                 {have: State{Rules: []Rule{{Family: vpc.IPv6, Priority: RuleFromPod, From: netip.MustParsePrefix("2600:1f14::7/128"), Table: 3}}}},
		"a mark":                          {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Mark: 1, Mask: 1, Table: 3}}}},
	} {
		t.Run(name, func(t *testing.T) {
			parts := []Part{{Owner: "endpoint 1", State: State{Rules: c.desired}}}
			var got []Rule
			for _, op := range NewActual(c.have).Leftovers(parts, enis, func(netip.Addr) bool { return c.inUse }) {
				if op.Verb != Delete {
					t.Errorf("%s", op)
				}
				got = append(got, op.Object.(Rule))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("deleted %v, want %v", got, c.want)
			}
		})
	}
}

func TestRulesOfAPodTakeThePlaceOfAllRulesForItsAddress(t *testing.T) {
	const address, another = "10.0.0.7/32", "10.0.0.8/32"
	rule := func(priority int, from, to string, table uint32, protocol uint8) Rule {
		r := Rule{Family: vpc.IPv4, Priority: priority, Table: table, Protocol: protocol}
		if from != "" {
			r.From = netip.MustParsePrefix(from)
		}
		if to != "" {
			r.To = netip.MustParsePrefix(to)
		}
		return r
	}
	pod := []Rule{rule(RuleToPod, "", address, TableMain, RouteProtocol), rule(RuleFromPod, address, "", 3, RouteProtocol)}
	marked := rule(RuleFromPod, address, "", 7, 0)
	marked.Mark, marked.Mask = 1, 1
	primary := pod[:1] // of a pod on the primary interface
	if got := (State{Rules: append([]Rule{marked}, pod...)}).Replaced(primary); !slices.Equal(got, []Rule{marked, pod[1]}) {
		t.Errorf("on the primary interface: %v", got)
	}
	for name, c := range map[string]struct {
		rule Rule
		want bool
	}{
		"the pod's own":       {pod[1], false},
		"another table":       {rule(RuleFromPod, address, "", 7, RouteProtocol), true},
		"another owner":       {rule(RuleFromPod, address, "", 3, 0), true},
		"to the pod":          {rule(RuleToPod, "", address, 7, 0), true},
		"to a range":          {rule(RuleFromPod, address, "10.0.0.0/16", 7, 0), true},
		"a mark":              {marked, true},
		"another address":     {rule(RuleFromPod, another, "", 7, 0), false},
		"another priority":    {rule(RuleFromENI, address, "", 7, 0), false},
		"no address":          {rule(RuleFromPod, "", "10.0.0.0/16", 7, 0), false},
		"the address's range": {rule(RuleFromPod, "10.0.0.0/24", "", 7, 0), false},
	} {
		if got := len(State{Rules: append([]Rule{c.rule}, pod...)}.Replaced(pod)) > 0; got != c.want {
			t.Errorf("%s: %s is replaced: %v", name, c.rule, got)
		}
	}
}

// What counts as a pod of another CNI keeps the SNAT and marks of AWS's daemon on the node, and
// the address out of use.
func TestOnlyRoutesToPodsAreRoutesOfPods(t *testing.T) {
	mac := vpc.MAC{2, 0, 0, 0, 0, 1}
	links := []Link{{Name: "ens5", MAC: mac}, {Name: "eni1"}, {Name: "vlan.eth.1"}, {Name: "eni2", Group: LinkGroupPod}}
	enis := Interfaces{MACs: []vpc.MAC{mac}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19")}}
	const dhcp, static, zebra = 16, 4, 11
	for name, c := range map[string]struct {
		route string
		on    string
		via   string
		table uint32
		proto uint8
		want  bool
	}{
		"a pod of AWS's plugin":                          {"10.0.0.7/32", "eni1", "", TableMain, ProtocolBoot, true},
		"one with a security group, in a branch's table": {"10.0.0.7/32", "eni1", "", TableVLANOffset + 1, ProtocolBoot, true},
		"networkd's route to the router":                 {"10.0.0.1/32", "ens5", "", TableMain, dhcp, false},
		"networkd's route to the VPC's resolver":         {"10.0.0.2/32", "ens5", "", TableMain, dhcp, false},
		"networkd's route to a DNS server":               {"10.0.0.9/32", "ens5", "", TableMain, dhcp, false},
		"dhclient's route to a DNS server":               {"10.0.0.9/32", "ens5", "", TableMain, ProtocolBoot, false},
		"AWS's route to the router of an interface":      {"10.0.0.1/32", "ens5", "", 2, ProtocolBoot, false},
		"AWS's route to the router of a branch":          {"10.0.0.1/32", "vlan.eth.1", "", TableVLANOffset + 1, ProtocolBoot, false},
		"a route of the operator's networkd":             {"10.0.0.7/32", "eni1", "", TableMain, static, false},
		"a route of a routing daemon":                    {"10.0.0.7/32", "eni1", "", TableMain, zebra, false},
		"a route of the kernel":                          {"10.0.0.7/32", "eni1", "", TableMain, ProtocolKernel, false},
		"a pod of ours":                                  {"10.0.0.7/32", "eni2", "", TableMain, RouteProtocol, false},
		"a gateway":                                      {"10.0.0.7/32", "eni1", "10.0.0.1", TableMain, ProtocolBoot, false},
		"a range":                                        {"10.0.0.0/24", "eni1", "", TableMain, ProtocolBoot, false},
		"another network":                                {"192.168.0.7/32", "eni1", "", TableMain, ProtocolBoot, false},
		"a link that is gone":                            {"10.0.0.7/32", "", "", TableMain, ProtocolBoot, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := Route{Table: c.table, To: netip.MustParsePrefix(c.route), Link: c.on, Scope: ScopeLink, Protocol: c.proto}
			if c.via != "" {
				r.Via = netip.MustParseAddr(c.via)
			}
			if got := NewActual(State{Links: links, Routes: []Route{r}}).Foreign(enis)[r.To.Addr()]; got != c.want {
				t.Errorf("%s counts as one of a pod: %v", r, got)
			}
		})
	}
}
