package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestRulesOfPodsThatAnotherCNIWiredGoOnceThePodHasEnded(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.7")
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19"), netip.MustParsePrefix("2600:1f14::/64")}
	to := Rule{Family: vpc.IPv4, Priority: RuleToPod, To: host(address), Table: TableMain}
	from := Rule{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Table: 3}
	ours := func(r Rule) Rule { r.Protocol = RouteProtocol; return r }
	other := func(r Rule) Rule { r.Table = 2; return r }
	route := Route{Table: TableMain, To: host(address), Link: "eni1", Scope: ScopeLink}
	foreign := Link{Name: "eni1"}
	for name, c := range map[string]struct {
		have    State
		desired []Rule
		inUse   bool
		want    []Rule
	}{
		"the pod has ended":               {have: State{Rules: []Rule{to, from}}, want: []Rule{to, from}},
		"its link exists":                 {have: State{Rules: []Rule{to, from}, Routes: []Route{route}, Links: []Link{foreign}}},
		"the API server has it":           {have: State{Rules: []Rule{to, from}}, inUse: true},
		"a pod of ours has the address":   {have: State{Rules: []Rule{to, from, ours(to), ours(other(from))}}, desired: []Rule{ours(to), ours(other(from))}, want: []Rule{to, from}},
		"ours is wanted and not there":    {have: State{Rules: []Rule{to, from}}, desired: []Rule{ours(to), ours(from)}},
		"the route is that of a pod ours": {have: State{Rules: []Rule{to, ours(to)}, Routes: []Route{route}, Links: []Link{{Name: "eni1", Group: LinkGroupPod}}}, desired: []Rule{ours(to)}, want: []Rule{to}},
		"an address of another network":   {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: netip.MustParsePrefix("192.168.0.7/32"), Table: 3}}}},
		"another program's protocol":      {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Table: 3, Protocol: 3}}}},
		"another priority":                {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromENI, From: host(address), Table: 3}}}},
		"ours was made first":             {have: State{Rules: []Rule{ours(to), to}}, desired: []Rule{ours(to)}, want: []Rule{to}},
		"to it from one source":           {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: host(address), From: netip.MustParsePrefix("10.0.0.9/32"), Table: TableMain}}}},
		"to it in another table":          {have: State{Rules: []Rule{other(to)}}},
		"to it with another priority":     {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod + 1, To: host(address), Table: TableMain}}}},
		"to a range":                      {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: netip.MustParsePrefix("10.0.0.0/24"), Table: TableMain}}}},
		"from it to one target":           {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), To: netip.MustParsePrefix("10.0.0.9/32"), Table: 3}}}},
		"an IPv6 address":                 {have: State{Rules: []Rule{{Family: vpc.IPv6, Priority: RuleFromPod, From: netip.MustParsePrefix("2600:1f14::7/128"), Table: 3}}}},
		"a range":                         {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: netip.MustParsePrefix("10.0.0.0/24"), Table: 3}}}},
		"a mark":                          {have: State{Rules: []Rule{{Family: vpc.IPv4, Priority: RuleFromPod, From: host(address), Mark: 1, Mask: 1, Table: 3}}}},
	} {
		t.Run(name, func(t *testing.T) {
			parts := []Part{{Owner: "endpoint 1", State: State{Rules: c.desired}}}
			var got []Rule
			for _, op := range NewActual(c.have).Leftovers(parts, ranges, func(netip.Addr) bool { return c.inUse }) {
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

func TestForeignPodsHaveARouteToALinkThatIsNotOurs(t *testing.T) {
	pod := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	have := State{
		Links: []Link{{Name: "eni1"}, {Name: "eni2", Group: LinkGroupPod}, {Name: "eth0"}},
		Routes: []Route{
			{Table: TableMain, To: host(pod(1)), Link: "eni1"},
			{Table: TableMain, To: host(pod(2)), Link: "eni2"},                            // ours
			{Table: TableMain, To: host(pod(3)), Via: pod(254), Link: "eth0"},             // of another node
			{Table: TableMain, To: host(pod(4))},                                          // a blackhole
			{Table: TableMain, To: netip.MustParsePrefix("10.0.0.0/24"), Link: "eth0"},    // a subnet
			{Table: TableMain, To: netip.MustParsePrefix("192.168.0.1/32"), Link: "eni1"}, // of another network
			{Table: TableMain, To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: pod(254), Link: "eth0"},
		},
	}
	got := NewActual(have).Foreign([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/19")})
	if len(got) != 1 || !got[pod(1)] {
		t.Errorf("%v, want %s", got, pod(1))
	}
}
