package hostnet

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestPartsAreEqualInTheirOwnerAndInEveryObject(t *testing.T) {
	of := func(change func(*Part)) Part {
		p := Part{Owner: "endpoint 1", State: State{
			Links: []Link{{Name: "a"}}, Addresses: []Address{{Link: "a"}}, Routes: []Route{{Link: "a"}}, Rules: []Rule{{Priority: 1}},
			Neighbours: []Neighbour{{Link: "a"}}, Sysctls: []Sysctl{{Name: "a"}}, Absent: []Route{{Link: "b"}}, Leave: []Address{{Link: "b"}},
		}}
		change(&p)
		return p
	}
	one := of(func(*Part) {})
	if !one.Equal(of(func(*Part) {})) {
		t.Error("a part differs from itself")
	}
	for what, change := range map[string]func(*Part){
		"owner":      func(p *Part) { p.Owner = "endpoint 2" },
		"links":      func(p *Part) { p.State.Links[0].MTU = 1500 },
		"addresses":  func(p *Part) { p.State.Addresses[0].NoPrefixRoute = true },
		"routes":     func(p *Part) { p.State.Routes[0].Table = 2 },
		"rules":      func(p *Part) { p.State.Rules[0].Priority = 2 },
		"neighbours": func(p *Part) { p.State.Neighbours[0].MAC = vpc.MAC{2} },
		"sysctls":    func(p *Part) { p.State.Sysctls[0].Value = "1" },
		"absent":     func(p *Part) { p.State.Absent[0].Table = 2 },
		"leave":      func(p *Part) { p.State.Leave = nil },
	} {
		if other := of(change); one.Equal(other) || other.Equal(one) {
			t.Errorf("parts with other %s are equal", what)
		}
	}
}

// Without its link, whether the objects on it differ cannot be said.
func TestTheDifferencesOfAPartIncludeWhatCannotBeCompared(t *testing.T) {
	part := Join(ForENI(eni1()), ForEndpoint(web()))
	link, neighbour, route := part.Links[1], part.Neighbours[0], part.Routes[2]
	have := agrees(part)
	have.Links, have.Neighbours, have.Routes = have.Links[:1], nil, have.Routes[:2]
	want := []Difference{{Object: link.Key(), Why: link.String() + ": is gone"}, {Object: neighbour.Key()}, {Object: route.Key()}}
	if diff := cmp.Diff(want, NewActual(have).Differences(part)); diff != "" {
		t.Errorf("the pod's link is gone (-want +got):\n%s", diff)
	}
	have = agrees(part)
	have.Links[1].MTU = 1500
	if diff := cmp.Diff([]Difference{{Object: link.Key(), Why: link.String() + ": mtu is 1500"}}, NewActual(have).Differences(part)); diff != "" {
		t.Errorf("the pod's link has another MTU (-want +got):\n%s", diff)
	}
}

func TestTheObjectsOnALinkAreItsAddressesNeighboursAndRoutes(t *testing.T) {
	s := Join(ForENI(eni1()), ForEndpoint(web()))
	for link, want := range map[string][]Object{
		"eth1":     {s.Addresses[0], s.Routes[0], s.Routes[1]},
		web().Link: {s.Neighbours[0], s.Routes[2]},
		"eth0":     nil,
	} {
		if got := s.On(link); !slices.Equal(got, want) {
			t.Errorf("on %s: %v, want %v", link, got, want)
		}
	}
}

func TestEveryObjectOfStatesIsInTheirJoin(t *testing.T) {
	one := State{
		Links: []Link{{Name: "a"}}, Addresses: []Address{{Link: "a"}}, Routes: []Route{{Link: "a"}}, Rules: []Rule{{Priority: 1}},
		Neighbours: []Neighbour{{Link: "a"}}, Sysctls: []Sysctl{{Name: "a"}}, Absent: []Route{{Link: "b"}}, Leave: []Address{{Link: "b"}},
	}
	if got := (Part{State: Join(State{}, one)}); !got.Equal(Part{State: one}) {
		t.Errorf("%+v, want %+v", got.State, one)
	}
	if got := len(one.Objects()); got != 6 {
		t.Errorf("%d objects, want one of each kind", got)
	}
}

func TestAPartIsRemovedWithAllOfItThatExists(t *testing.T) {
	part := ForEndpoint(web())
	var all []string
	for _, o := range part.Objects() {
		all = append(all, o.Key())
	}
	removed := func(part State, keep ...Part) (keys []string) {
		for _, op := range NewActual(agrees(ForEndpoint(web()))).Remove(part, keep) {
			if op.Verb != Delete {
				t.Errorf("%s", op)
			}
			keys = append(keys, op.Object.Key())
		}
		slices.Sort(keys)
		return keys
	}
	slices.Sort(all)
	if got := removed(part); !slices.Equal(got, all) {
		t.Errorf("removed %q, want %q", got, all)
	}
	unnamed := part
	unnamed.Links = slices.Clone(part.Links)
	unnamed.Links[0].MAC = vpc.MAC{}
	if got := removed(unnamed); !slices.Equal(got, all) {
		t.Errorf("removed with a link of any MAC %q, want %q", got, all)
	}
	if got := removed(part, Part{Owner: "its successor", State: part}); len(got) != 0 {
		t.Errorf("removed %q, which another part needs", got)
	}
}

// A part's routes are compared once, with those of their key only.
func TestRoutesThatNoPartHasAreNotDeletedForOne(t *testing.T) {
	part := ForENI(eni1())
	twice := Join(part, State{Routes: part.Routes})
	if got := lines(NewActual(agrees(part)).Diff(twice)); len(got) != 0 {
		t.Errorf("a part with a route twice: %q", got)
	}
	subnet := part.Absent[0]
	subnet.Metric, subnet.Protocol = 7, RouteProtocol
	for what, change := range map[string]func(*Route){
		"in another table":  func(r *Route) { r.Table = 9 },
		"to another subnet": func(r *Route) { r.To = prefix("10.0.64.0/19") },
		"by another link":   func(r *Route) { r.Link = "eth9" },
	} {
		r := subnet
		change(&r)
		have := agrees(part)
		have.Routes = append(have.Routes, r)
		if got := lines(NewActual(have).Diff(part)); len(got) != 0 {
			t.Errorf("a route of ours %s: %q", what, got)
		}
	}
	kernels := part.Absent[0]
	kernels.Metric = 100
	have := agrees(part)
	have.Routes = append(have.Routes, kernels)
	if got := lines(NewActual(have).Diff(part)); !slices.Equal(got, []string{"delete " + kernels.String() + ": takes the subnet away from the primary ENI"}) {
		t.Errorf("the kernel's route with a metric: %q", got)
	}
}

func TestLinksAreOursByAliasOrGroup(t *testing.T) {
	for _, c := range []struct {
		link        Link
		ours, dying bool
	}{
		{Link{Name: "eth0"}, false, false},
		{Link{Name: "eth0", Alias: "theirs", Group: 1}, false, false},
		{Link{Name: "eth1", Alias: ENIAlias("eni-1")}, true, false},
		{Link{Name: "eni1", Group: LinkGroupPod}, true, false},
		{Link{Name: "eni1", Group: LinkGroupTrash}, true, true},
		{Link{Name: "eni1", Group: LinkGroupDying}, true, true},
	} {
		if c.link.Ours() != c.ours || c.link.Dying() != c.dying {
			t.Errorf("%+v: ours %v, dying %v; want %v, %v", c.link, c.link.Ours(), c.link.Dying(), c.ours, c.dying)
		}
	}
	if got := ForEndpoint(web()).Links[0].Group; got != LinkGroupPod {
		t.Errorf("a pod's link is in group %#x, want %#x", got, LinkGroupPod)
	}
}

func TestARuleToAPodSelectsOneAddress(t *testing.T) {
	for r, want := range map[Rule]bool{
		{Priority: RuleToPod, To: prefix("10.0.0.7/32")}:        true,
		{Priority: RuleToPod, To: prefix("10.0.0.0/24")}:        false,
		{Priority: RuleExternalCIDR, To: prefix("10.0.0.7/32")}: false,
		{Priority: RuleToPod}:                                   false,
	} {
		if r.ToPod() != want {
			t.Errorf("%s: %v", r, !want)
		}
	}
}

func TestObjectsReadLikeIP(t *testing.T) {
	for want, o := range map[string]Object{
		"route 10.0.0.0/24 dev eth0 table main metric 100 proto 2":          Route{Table: TableMain, To: prefix("10.0.0.0/24"), Link: "eth0", Metric: 100, Protocol: 2},
		"rule 1024: from all fwmark 0x80/0x80 lookup main (ipv6) proto 211": Rule{Family: vpc.IPv6, Priority: RuleMark, Mark: 0x80, Mask: 0x80, Table: TableMain, Protocol: RouteProtocol},
		"rule 512: from all to fd00::7/128 lookup main proto 211":           Rule{Family: vpc.IPv6, Priority: RuleToPod, To: prefix("fd00::7/128"), Table: TableMain, Protocol: RouteProtocol},
		"rule 1536: from fd00::7/128 lookup 2 proto 211":                    Rule{Family: vpc.IPv6, Priority: RuleFromPod, From: prefix("fd00::7/128"), Table: 2, Protocol: RouteProtocol},
		"link eth0 down": Link{Name: "eth0", Admin: AdminDown},
	} {
		if o.String() != want {
			t.Errorf("%s, want %s", o, want)
		}
	}
	if AdminAny.String() != "any" {
		t.Errorf("an admin state left open is printed as %s", AdminAny)
	}
}
