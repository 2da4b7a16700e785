package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestOnlyRulesForOneAddressAreThoseOfAPod(t *testing.T) {
	enis := Interfaces{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19")}}
	one, some := netip.MustParsePrefix("10.0.0.70/32"), netip.MustParsePrefix("10.0.0.70/31")
	for name, c := range map[string]struct {
		rule Rule
		want bool
	}{
		"to one address":     {Rule{Family: vpc.IPv4, Priority: RuleToPod, To: one, Table: TableMain}, true},
		"to a range":         {Rule{Family: vpc.IPv4, Priority: RuleToPod, To: some, Table: TableMain}, false},
		"from one address":   {Rule{Family: vpc.IPv4, Priority: RuleFromPod, From: one, Table: 3}, true},
		"from a range":       {Rule{Family: vpc.IPv4, Priority: RuleFromPod, From: some, Table: 3}, false},
		"without an address": {Rule{Family: vpc.IPv4, Priority: RuleFromPod, Table: 3}, false},
	} {
		ops := NewActual(State{Rules: []Rule{c.rule}}).Leftovers(nil, enis, func(netip.Addr) bool { return false })
		if got := len(ops) > 0; got != c.want {
			t.Errorf("%s: %s is a leftover of a pod: %v", name, c.rule, got)
		}
	}
}

func TestOnlyRoutesToOneAddressAreThoseOfAForeignPod(t *testing.T) {
	for name, c := range map[string]struct {
		to       string
		protocol uint8
		want     bool
	}{
		"of AWS's plugin":    {"10.0.0.70/32", ProtocolBoot, true},
		"without a protocol": {"10.0.0.70/32", ProtocolUnspecified, true},
		"to a range":         {"10.0.0.70/31", ProtocolBoot, false},
	} {
		s := State{
			Links:  []Link{{Name: "eni1"}},
			Routes: []Route{{Table: TableMain, To: netip.MustParsePrefix(c.to), Link: "eni1", Scope: ScopeLink, Protocol: c.protocol}},
		}
		if got := len(s.ForeignPods(nil)) > 0; got != c.want {
			t.Errorf("%s: %s is that of a pod: %v", name, s.Routes[0], got)
		}
	}
}

// A rule for another pod stays; one that selects the pod's address and more does not.
func TestRulesToOtherPodsAreNotReplaced(t *testing.T) {
	address, another := netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("10.0.0.8/32")
	pod := []Rule{{Family: vpc.IPv4, Priority: RuleToPod, To: address, Table: TableMain, Protocol: RouteProtocol}}
	for name, c := range map[string]struct {
		rule Rule
		want bool
	}{
		"to another pod":             {Rule{Family: vpc.IPv4, Priority: RuleToPod, To: another, Table: 7}, false},
		"to any address":             {Rule{Family: vpc.IPv4, Priority: RuleToPod, Table: 7}, false},
		"to the pod from one source": {Rule{Family: vpc.IPv4, Priority: RuleToPod, To: address, From: another, Table: 7}, true},
	} {
		if got := slices.Contains(State{Rules: []Rule{c.rule}}.Replaced(pod), c.rule); got != c.want {
			t.Errorf("%s: %s is replaced: %v", name, c.rule, got)
		}
	}
}

// The node answers for addresses of its own, whatever routes of ours lead to them by a gateway.
func TestOnlyTheLocalRouteOfARouteByALinkIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		to, via string
		want    int
	}{
		"by a link":    {"10.0.0.7/32", "", 1},
		"by a gateway": {"10.0.0.7/32", "10.0.0.1", 0},
		"of a range":   {"10.0.0.0/24", "", 0},
	} {
		r := Route{Table: TableMain, To: netip.MustParsePrefix(c.to), Link: "eth1", Protocol: RouteProtocol}
		if c.via != "" {
			r.Via = netip.MustParseAddr(c.via)
		}
		local := Route{Table: TableLocal, To: r.To, Link: "eth1", Protocol: ProtocolKernel}
		link := []Link{{Name: "eth1"}}
		ops := Diff(State{Links: link, Routes: []Route{r}}, State{Links: link, Routes: []Route{r}, Local: []Route{local}})
		if len(ops) != c.want {
			t.Errorf("%s: %v, want %d steps", name, ops, c.want)
		}
	}
}

func TestTheLocalRoutesOfStatesAreInTheirJoin(t *testing.T) {
	local := Route{Table: TableLocal, To: netip.MustParsePrefix("10.0.0.7/32"), Link: "eth1", Protocol: ProtocolKernel}
	if got := Join(State{}, State{Local: []Route{local}}).Local; !slices.Equal(got, []Route{local}) {
		t.Errorf("%v, want %v", got, local)
	}
	const want = "route 10.0.0.7/32 dev eth1 table local proto 2"
	if got := local.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A number of more than 64 bits is read as the largest one.
func TestAValueThatIsNoNumberMeetsNoMinimum(t *testing.T) {
	for value, want := range map[string]int{"16384": 0, "16383": 1, "99999999999999999999": 1, "": 1} {
		s := Sysctl{Name: "net/ipv4/neigh/default/gc_thresh3", Value: "16384", AtLeast: true}
		have := s
		have.Value = value
		if ops := Diff(State{Sysctls: []Sysctl{s}}, State{Sysctls: []Sysctl{have}}); len(ops) != want {
			t.Errorf("%q: %v, want %d steps", value, ops, want)
		}
	}
}

func TestASettingOfAnotherFolderIsOfNoLink(t *testing.T) {
	for _, name := range []string{"ens5/forwarding", "net/ipv4/conf/ens5", "net/ipv6/conf/ens5/forwarding"} {
		if link, devconf, ok := (Sysctl{Name: name}).Device(); ok || link != "" || devconf != 0 {
			t.Errorf("%s is the setting %d of link %q", name, devconf, link)
		}
	}
}
