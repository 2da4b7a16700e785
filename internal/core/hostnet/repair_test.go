package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// agrees returns an actual state without a difference from a desired one.
func agrees(want State) State {
	have := Join(want)
	have.Absent, have.Leave = nil, nil
	return have
}

// Each case is one difference from a state that has a secondary ENI and a pod.
func TestADifferenceInOneObjectIsRepairedByOneStep(t *testing.T) {
	want := Join(ForENI(eni1()), ForEndpoint(web()))
	pod := web().Link
	const eth1 = "change link eth1 address 02:00:00:00:00:01 mtu 9001 up alias \"trunkline:eni/eni-1\": "
	for name, c := range map[string]struct {
		change func(have *State)
		want   string
	}{
		"no difference":         {func(*State) {}, ""},
		"the MTU of a link":     {func(s *State) { s.Links[0].MTU = 1500 }, eth1 + "mtu is 1500"},
		"a link that is down":   {func(s *State) { s.Links[0].Admin = AdminDown }, eth1 + "is down"},
		"the alias of a link":   {func(s *State) { s.Links[0].Alias = "theirs" }, eth1 + `alias is "theirs"`},
		"the group of a link":   {func(s *State) { s.Links[1].Group = 7 }, "change " + want.Links[1].String() + ": group is 7"},
		"an address is missing": {func(s *State) { s.Addresses = nil }, "add address 10.0.32.9/19 dev eth1 noprefixroute: is missing"},
		"an address has another prefix length": {
			func(s *State) { s.Addresses[0].Prefix = prefix("10.0.32.9/24") },
			"change address 10.0.32.9/19 dev eth1 noprefixroute: is 10.0.32.9/24",
		},
		"an address on the link of a detached ENI": {func(s *State) {
			s.Links = append(s.Links, Link{Name: "eth2", Alias: ENIAlias("eni-2")})
			s.Addresses = append(s.Addresses, Address{Link: "eth2", Prefix: prefix("10.0.64.9/19")})
		}, "delete address 10.0.64.9/19 dev eth2: is not an address of the node"},
		"an address on a link that is not ours": {func(s *State) {
			s.Addresses = append(s.Addresses, Address{Link: "eth0", Prefix: prefix("10.0.0.4/19")})
		}, ""},
		"a neighbour is missing": {func(s *State) { s.Neighbours = nil }, "add " + want.Neighbours[0].String() + ": is missing"},
		"a neighbour has another address": {
			func(s *State) { s.Neighbours[0].MAC = vpc.MAC{2, 9} },
			"change " + want.Neighbours[0].String() + ": has address 02:09:00:00:00:00",
		},
		"a neighbour that no pod has": {func(s *State) {
			s.Neighbours = append(s.Neighbours, Neighbour{Link: pod, Address: addr("10.0.32.41"), MAC: vpc.MAC{2, 9}})
		}, "delete neighbour 10.0.32.41 lladdr 02:09:00:00:00:00 dev " + pod + " permanent: belongs to no pod"},
		"a route with another scope": {
			func(s *State) { s.Routes[0].Scope = ScopeGlobal },
			"change " + want.Routes[0].String() + ": is route 10.0.32.1/32 dev eth1 table 2 proto 211",
		},
		"a route via another gateway": {
			func(s *State) { s.Routes[1].Via = addr("10.0.32.2") },
			"change " + want.Routes[1].String() + ": is route default via 10.0.32.2 dev eth1 table 2 proto 211",
		},
		"a second route of ours beside the desired one": {func(s *State) {
			other := s.Routes[1]
			other.Via = addr("10.0.32.2")
			s.Routes = append(s.Routes, other)
		}, "delete route default via 10.0.32.2 dev eth1 table 2 proto 211: differs from the desired route"},
		"a rule that no pod has": {func(s *State) {
			s.Rules = append(s.Rules, Rule{Family: vpc.IPv4, Priority: RuleToPod, To: prefix("10.0.32.41/32"), Table: TableMain, Protocol: RouteProtocol})
		}, "delete rule 512: from all to 10.0.32.41/32 lookup main proto 211: belongs to no pod or ENI"},
		"a pod's link that waits to be deleted": {func(s *State) {
			alias := "trunkline:pod/x/eth0/10.0.32.99"
			s.Links = append(s.Links, Link{Name: "eniold", Alias: alias, Group: LinkGroupTrash}, Link{Name: "eniolder", Alias: alias, Group: LinkGroupDying})
			s.Neighbours = append(s.Neighbours, Neighbour{Link: "eniold", Address: addr("10.0.32.99")})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			have := agrees(want)
			c.change(&have)
			var steps []string
			if c.want != "" {
				steps = []string{c.want}
			}
			if diff := cmp.Diff(steps, lines(Diff(want, have))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What a desired link leaves open is not a difference, whatever the kernel has.
func TestALinkIsComparedInWhatIsDesiredOfItOnly(t *testing.T) {
	have := State{
		Links:     []Link{{Name: "eth1", MAC: vpc.MAC{2, 1}, MTU: 1500, Admin: AdminDown, Alias: ENIAlias("eni-1"), Group: 7}},
		Addresses: []Address{{Link: "eth1", Prefix: prefix("10.0.32.9/19")}},
	}
	got := lines(Diff(State{Links: []Link{{Name: "eth1"}}}, have))
	// The alias says that the link is ours, and so the address on it.
	if diff := cmp.Diff([]string{"delete address 10.0.32.9/19 dev eth1: is not an address of the node"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnAddressOfAnotherLengthOnALinkThatIsNotOursIsReported(t *testing.T) {
	want := State{Addresses: []Address{{Link: "eth0", Prefix: prefix("10.0.0.4/19")}}}
	have := State{Links: []Link{{Name: "eth0"}}, Addresses: []Address{{Link: "eth0", Prefix: prefix("10.0.0.4/24")}}}
	got := lines(Diff(want, have))
	if diff := cmp.Diff([]string{"report address 10.0.0.4/19 dev eth0: is 10.0.0.4/24 on a link that is not ours"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestObjectsOnALinkThatIsNotUsableAreLeftAlone(t *testing.T) {
	want := State{
		Links:      []Link{{Name: "eni1", MAC: vpc.MAC{2, 1}, Alias: "trunkline:pod/a/eth0/10.0.32.40"}},
		Addresses:  []Address{{Link: "eni1", Prefix: prefix("10.0.32.40/32")}},
		Neighbours: []Neighbour{{Link: "eni1", Address: addr("10.0.32.40"), MAC: vpc.MAC{2, 2}}},
		Routes:     []Route{{Table: TableMain, To: prefix("10.0.32.40/32"), Link: "eni1", Scope: ScopeLink, Protocol: RouteProtocol}},
		Absent:     []Route{{Table: TableMain, To: prefix("10.0.32.0/19"), Link: "eni1", Protocol: ProtocolKernel}},
	}
	found := func(l Link) State {
		return State{
			Links:      []Link{l},
			Addresses:  []Address{{Link: "eni1", Prefix: prefix("10.0.32.77/19")}},
			Neighbours: []Neighbour{{Link: "eni1", Address: addr("10.0.32.77")}},
			Routes:     []Route{want.Absent[0]},
		}
	}
	link := want.Links[0]
	for name, c := range map[string]struct {
		have    State
		pending bool
		report  string
	}{
		"its ADD is in flight":      {have: State{}, pending: true},
		"it is gone":                {have: State{}, report: "is gone"},
		"it waits to be deleted":    {have: found(Link{Name: "eni1", MAC: link.MAC, Alias: link.Alias, Group: LinkGroupTrash}), report: "waits to be deleted"},
		"another link has its name": {have: found(Link{Name: "eni1", MAC: vpc.MAC{2, 7}, Alias: link.Alias}), report: "has address 02:07:00:00:00:00: another link has its name"},
	} {
		t.Run(name, func(t *testing.T) {
			want := want
			want.Links = []Link{link}
			want.Links[0].Pending = c.pending
			var steps []string
			if c.report != "" {
				steps = []string{"report " + link.String() + ": " + c.report}
			}
			if diff := cmp.Diff(steps, lines(Diff(want, c.have))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestObjectsOnTheLinkOfAnADDInFlightAreAddedOnceItExists(t *testing.T) {
	want := State{
		Links:      []Link{{Name: "eni1", Pending: true}},
		Addresses:  []Address{{Link: "eni1", Prefix: prefix("10.0.32.40/32")}},
		Neighbours: []Neighbour{{Link: "eni1", Address: addr("10.0.32.40"), MAC: vpc.MAC{2, 2}}},
	}
	got := lines(Diff(want, State{Links: []Link{{Name: "eni1"}}}))
	if diff := cmp.Diff([]string{"add " + want.Addresses[0].String() + ": is missing", "add " + want.Neighbours[0].String() + ": is missing"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Two pods of one ENI need the same routes to its gateway.
func TestAnObjectThatIsDesiredTwiceIsAddedOnce(t *testing.T) {
	one := ForENI(eni1())
	if diff := cmp.Diff(lines(Diff(Join(one, State{Routes: one.Routes, Rules: one.Rules}), State{Links: one.Links})), lines(Diff(one, State{Links: one.Links}))); diff != "" {
		t.Errorf("(-twice +once):\n%s", diff)
	}
}

// Only the kernel's own route to the subnet takes it away from the primary ENI.
func TestOtherRoutesToTheSubnetOfAnENIStay(t *testing.T) {
	want := ForENI(eni1())
	subnet := Route{Table: TableMain, To: prefix("10.0.32.0/19"), Link: "eth1", Scope: ScopeLink, Metric: 100, Protocol: ProtocolKernel}
	have := agrees(want)
	have.Routes = append(have.Routes, subnet)
	if got := lines(Diff(want, have)); !slices.Equal(got, []string{"delete " + subnet.String() + ": takes the subnet away from the primary ENI"}) {
		t.Fatalf("the kernel's route: %q", got)
	}
	for name, change := range map[string]func(*Route){
		"of another protocol": func(r *Route) { r.Protocol = 3 },
		"in another table":    func(r *Route) { r.Table = 2 },
		"by another link":     func(r *Route) { r.Link = "eth0" },
		"to another subnet":   func(r *Route) { r.To = prefix("10.0.64.0/19") },
	} {
		other := subnet
		change(&other)
		have := agrees(want)
		have.Routes = append(have.Routes, other)
		if got := lines(Diff(want, have)); len(got) != 0 {
			t.Errorf("a route %s: %q", name, got)
		}
	}
}

func TestASettingIsChangedUnlessTheKernelHasItOrMore(t *testing.T) {
	for name, c := range map[string]struct {
		want    Sysctl
		have    string
		changed bool
	}{
		"equal":                         {Sysctl{Value: "1"}, "1", false},
		"less":                          {Sysctl{Value: "1"}, "0", true},
		"more, where it must be equal":  {Sysctl{Value: "1"}, "2", true},
		"the minimum":                   {Sysctl{Value: "1024", AtLeast: true}, "1024", false},
		"above the minimum":             {Sysctl{Value: "1024", AtLeast: true}, "4096", false},
		"below the minimum":             {Sysctl{Value: "1024", AtLeast: true}, "128", true},
		"not a number":                  {Sysctl{Value: "1024", AtLeast: true}, "many", true},
		"a minimum that is no number":   {Sysctl{Value: "many", AtLeast: true}, "1024", true},
		"optional, and it has another":  {Sysctl{Value: "1", Optional: true}, "0", true},
		"optional, and it has the same": {Sysctl{Value: "1", Optional: true}, "1", false},
	} {
		c.want.Name = "net/x"
		ops := Diff(State{Sysctls: []Sysctl{c.want}}, State{Sysctls: []Sysctl{{Name: "net/x", Value: c.have}}})
		if changed := len(ops) == 1 && ops[0].Verb == Change; changed != c.changed || len(ops) > 1 {
			t.Errorf("%s: %v, want a change: %v", name, lines(ops), c.changed)
		}
	}
}

func TestEveryObjectOfOneENIIsOfItsFamily(t *testing.T) {
	e := eni1()
	e.Device, e.MTU = 2, 1500
	e.Addresses = []netip.Prefix{prefix("10.0.32.9/19"), prefix("2600:1f14::9/64")}
	e.Gateways = []netip.Addr{addr("2600:1f14::1"), addr("10.0.32.7")}
	s := ForENI(e)
	if diff := cmp.Diff(`address 10.0.32.9/19 dev eth1 noprefixroute
address 2600:1f14::9/64 dev eth1 noprefixroute
link eth1 address 02:00:00:00:00:01 mtu 1500 up alias "trunkline:eni/eni-1"
no route 10.0.32.0/19 dev eth1 table main proto 2
no route 2600:1f14::/64 dev eth1 table main proto 2
route 10.0.32.7/32 dev eth1 table 3 scope link proto 211
route default via 10.0.32.7 dev eth1 table 3 proto 211
route 2600:1f14::1/128 dev eth1 table 3 proto 211
route default(6) via 2600:1f14::1 dev eth1 table 3 proto 211
rule 32765: from 10.0.32.9/32 lookup 3 proto 211
rule 32765: from 2600:1f14::9/128 lookup 3 proto 211`, s.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p := web()
	p.Addresses.IPv6 = addr("2600:1f14::40")
	s = Join(s, ForEndpoint(p), ForNode([]vpc.Family{vpc.IPv4, vpc.IPv6}, []netip.Prefix{prefix("172.31.0.0/16"), prefix("2600:1f15::/32")}))
	var marked []vpc.Family
	for _, r := range s.Rules {
		selector := r.From
		if r.To.IsValid() {
			selector = r.To
		}
		if r.Mask != 0 {
			marked = append(marked, r.Family)
		} else if want := vpc.FamilyOf(selector.Addr()); r.Family != want {
			t.Errorf("%s is of family %s, want %s", r, r.Family, want)
		}
	}
	if !slices.Equal(marked, []vpc.Family{vpc.IPv4, vpc.IPv6}) {
		t.Errorf("rules for marked packets of %v, want one of each family", marked)
	}
	for _, r := range PodSide(p).Routes {
		if r.To == host(addr(PodGateway6)) {
			t.Errorf("%s: a link-local gateway needs no route", r)
		}
	}
}

func TestThePrimaryENIIsLeftToTheOperatingSystem(t *testing.T) {
	e := eni1()
	e.Device, e.MTU = 0, 0
	if got := ForENI(e).String(); got != "link eth1 address 02:00:00:00:00:01 mtu 9001 up" {
		t.Errorf("%s, want its link with MTU and admin state only", got)
	}
	if got := e.Table(); got != TableMain {
		t.Errorf("table %d, want main", got)
	}
}
