package hostnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func eni1() ENI {
	return ENI{ID: "eni-1", Link: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Device: 1, Addresses: []netip.Prefix{prefix("10.0.32.9/19")}}
}

func web() endpoint.Endpoint {
	pod := endpoint.Pod{Namespace: "default", Name: "web"}
	e := endpoint.New(1, endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}, pod, "trunkline", time.Time{}, time.Time{})
	e.Addresses, e.Attachment.Table, e.MTU = endpoint.AddressesOf(addr("10.0.32.40")), 2, vpc.MTU
	e.Link, e.Stage = endpoint.LinkName(endpoint.DefaultLinkPrefix, pod.Namespace, pod.Name), endpoint.Ready
	return e
}

func lines(ops []Op) []string {
	var list []string
	for _, o := range ops {
		list = append(list, o.String())
	}
	return list
}

func TestADesiredStateReadsLikeIP(t *testing.T) {
	got := Join(ForNode([]vpc.Family{vpc.IPv4}, []netip.Prefix{prefix("172.31.0.0/16")}), ForENI(eni1()), ForEndpoint(web())).String()
	want := `address 10.0.32.9/19 dev eth1 noprefixroute
link eth1 address 02:00:00:00:00:01 mtu 9001 up alias "trunkline:eni/eni-1"
link eni68caf03a5f4 address ` + mac(web(), 0) + ` mtu 9001 up alias "trunkline:pod/4f3a/eth0/10.0.32.40"
neighbour 10.0.32.40 lladdr ` + mac(web(), 1) + ` dev eni68caf03a5f4 permanent
no route 10.0.32.0/19 dev eth1 table main proto 2
route 10.0.32.1/32 dev eth1 table 2 scope link proto 211
route default via 10.0.32.1 dev eth1 table 2 proto 211
route 10.0.32.40/32 dev eni68caf03a5f4 table main scope link proto 211
rule 1024: from all fwmark 0x80/0x80 lookup main proto 211
rule 1535: from all to 172.31.0.0/16 lookup main proto 211
rule 32765: from 10.0.32.9/32 lookup 2 proto 211
rule 512: from all to 10.0.32.40/32 lookup main proto 211
rule 1536: from 10.0.32.40/32 lookup 2 proto 211`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	side := PodSide(web()).String()
	want = `address 10.0.32.40/32 dev eth0
link eth0 address ` + mac(web(), 1) + ` mtu 9001 up
neighbour 169.254.1.1 lladdr ` + mac(web(), 0) + ` dev eth0 permanent
route 169.254.1.1/32 dev eth0 table main scope link proto 211
route default via 169.254.1.1 dev eth0 table main proto 211`
	if diff := cmp.Diff(want, side); diff != "" {
		t.Errorf("in the pod (-want +got):\n%s", diff)
	}
}

// Two interfaces of a pod have the same default route: by metric and by table, each has its own.
func TestAFurtherInterfaceHasRoutesOfItsOwnInThePod(t *testing.T) {
	e := web()
	e.Key.IfName = "net1"
	side := PodSide(e)
	// The low 16 bits of FNV-1a of "net1", 0x99bfe84b, are added to the table and to the metric.
	want := `address 10.0.32.40/32 dev net1
link net1 address ` + mac(e, 1) + ` mtu 9001 up
neighbour 169.254.1.1 lladdr ` + mac(e, 0) + ` dev net1 permanent
route 169.254.1.1/32 dev net1 table main scope link metric 125003 proto 211
route default via 169.254.1.1 dev net1 table main metric 125003 proto 211
route 169.254.1.1/32 dev net1 table 2052122699 scope link metric 125003 proto 211
route default via 169.254.1.1 dev net1 table 2052122699 metric 125003 proto 211
rule 512: from 10.0.32.40/32 lookup 2052122699 proto 211`
	if diff := cmp.Diff(want, side.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, r := range side.Rules {
		if r.Family != vpc.IPv4 {
			t.Errorf("%s is of family %s", r, r.Family)
		}
	}
}

func mac(e endpoint.Endpoint, end int) string {
	return []vpc.MAC{e.HostMAC, e.PodMAC}[end].String()
}

func TestAPodOnThePrimaryENINeedsNoRuleOfItsOwn(t *testing.T) {
	p := web()
	p.Attachment.Table = TableMain
	for _, r := range ForEndpoint(p).Rules {
		if r.Priority == RuleFromPod {
			t.Errorf("it has %s", r)
		}
	}
	p.Stage = endpoint.Wiring
	if s := ForEndpoint(p); len(s.Routes)+len(s.Neighbours) > 0 || !s.Links[0].Pending {
		t.Errorf("desired for a pod that is held\n%s", s)
	}
}

func TestEveryFamilyHasItsOwnRoutesAndRules(t *testing.T) {
	e := eni1()
	e.Addresses = append(e.Addresses, prefix("2600:1f14::9/64"))
	p := web()
	p.Addresses.IPv6 = addr("2600:1f14::40")
	text := Join(ForENI(e), ForEndpoint(p), PodSide(p)).String()
	for _, want := range []string{
		"route default(6) via fe80:ec2::1 dev eth1 table 2", "rule 32765: from 2600:1f14::9/128 lookup 2",
		"route 2600:1f14::40/128 dev eni68caf03a5f4 table main proto", "rule 512: from all to 2600:1f14::40/128 lookup main",
		"rule 1536: from 2600:1f14::40/128 lookup 2", "route default(6) via fe80::1 dev eth0 table main",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestDiffReturnsStepsWithReasons(t *testing.T) {
	base := Join(ForENI(eni1()), ForEndpoint(web()))
	node := func() State {
		return model{}.apply(State{Links: []Link{
			{Name: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500, Admin: AdminDown},
			base.Links[1],
		}}, Diff(base, State{Links: []Link{{Name: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}}, base.Links[1]}}))
	}
	for _, c := range []struct {
		name   string
		change func(have *State)
		want   []string
	}{
		{"no difference", func(*State) {}, nil},
		{"a rule is gone", func(s *State) { s.Rules = s.Rules[1:] }, []string{
			"add rule 32765: from 10.0.32.9/32 lookup 2 proto 211: is missing",
		}},
		{"a route has another next hop", func(s *State) { s.Routes[0].Link = "eth9" }, []string{
			"change route 10.0.32.1/32 dev eth1 table 2 scope link proto 211: is route 10.0.32.1/32 dev eth9 table 2 scope link proto 211",
		}},
		{"a foreign route in its place", func(s *State) { s.Routes[0].Link, s.Routes[0].Protocol = "eth9", 4 }, []string{
			"report route 10.0.32.1/32 dev eth1 table 2 scope link proto 211: conflicts with route 10.0.32.1/32 dev eth9 table 2 scope link proto 4, which is not ours",
		}},
		{"an equal foreign route is accepted", func(s *State) { s.Routes[0].Protocol = 4 }, nil},
		{"an equal foreign rule is accepted", func(s *State) { s.Rules[0].Protocol = 0 }, nil},
		{"foreign rules, routes, links and neighbours", func(s *State) {
			s.Rules = append(s.Rules, Rule{Family: vpc.IPv4, Priority: 512, To: prefix("10.9.9.9/32"), Table: TableMain})
			s.Routes = append(s.Routes, Route{Table: 2, To: prefix("10.9.0.0/16"), Link: "eth1", Protocol: 3})
			s.Links = append(s.Links, Link{Name: "eni00000000000", Alias: "theirs"})
			s.Neighbours = append(s.Neighbours, Neighbour{Link: "eni00000000000", Address: addr("10.9.9.9")})
		}, nil},
		{"the pod's link is gone", func(s *State) { s.Links = s.Links[:1]; s.Neighbours = nil; s.Routes = slices.Delete(s.Routes, 1, 2) }, []string{
			"report " + base.Links[1].String() + ": is gone",
		}},
		{"a foreign link has the name of the pod's", func(s *State) {
			s.Links[1] = Link{Name: base.Links[1].Name, MAC: vpc.MAC{2, 2}, Alias: "theirs"}
			s.Neighbours = nil
			s.Routes = slices.Delete(s.Routes, 1, 2)
		}, []string{"report " + base.Links[1].String() + ": has address 02:02:00:00:00:00: another link has its name"}},
		{"the kernel's subnet route", func(s *State) {
			s.Routes = append(s.Routes, Route{Table: TableMain, To: prefix("10.0.32.0/19"), Link: "eth1", Scope: ScopeLink, Protocol: ProtocolKernel},
				Route{Table: TableMain, To: prefix("10.0.32.0/19"), Link: "eth0", Scope: ScopeLink, Protocol: ProtocolKernel})
		}, []string{"delete route 10.0.32.0/19 dev eth1 table main scope link proto 2: takes the subnet away from the primary ENI"}},
		{"an old address of an ENI", func(s *State) {
			s.Addresses = append(s.Addresses, Address{Link: "eth1", Prefix: prefix("10.0.32.77/19")}, Address{Link: "eth1", Prefix: prefix("fe80::1/64")})
		}, []string{"delete address 10.0.32.77/19 dev eth1: is not an address of the node"}},
		{"a link that no pod has", func(s *State) {
			s.Links = append(s.Links, Link{Name: "eniff", Alias: "trunkline:pod/x/eth0/10.0.32.99"}, Link{Name: "enihalf", Group: LinkGroupPod}, Link{Name: "enidying", Group: LinkGroupTrash})
		}, []string{
			"delete link enihalf: belongs to no pod", `delete link eniff alias "trunkline:pod/x/eth0/10.0.32.99": belongs to no pod`,
		}},
		{"another ENI has the name", func(s *State) { s.Links[0].MAC = vpc.MAC{2, 7} }, []string{
			"delete route default via 10.0.32.1 dev eth1 table 2 proto 211: is ours and not desired",
			"delete route 10.0.32.1/32 dev eth1 table 2 scope link proto 211: is ours and not desired",
			"report " + base.Links[0].String() + ": has address 02:07:00:00:00:00: another link has its name",
		}},
		{"the device of a detached ENI", func(s *State) {
			s.Links = append(s.Links, Link{Name: "eth2", Alias: "trunkline:eni/eni-2"})
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := node()
			c.change(&have)
			if diff := cmp.Diff(c.want, lines(Diff(base, have))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestASysctlAboveItsMinimumStays(t *testing.T) {
	want := []Sysctl{{Name: "a", Value: "1024", AtLeast: true}, {Name: "b", Value: "1", Why: "test"}, {Name: "c", Value: "1", Optional: true}, {Name: "d", Value: "1", Why: "test"}}
	got := lines(Diff(State{Sysctls: want}, State{Sysctls: []Sysctl{{Name: "a", Value: "9000"}, {Name: "b", Value: "0"}}}))
	if diff := cmp.Diff([]string{"change sysctl b=1: is 0: test", "report sysctl d=1: the kernel has no such setting (test)"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// model is a kernel: it carries out ops and does not check ownership.
type model struct{}

func (model) apply(have State, ops []Op) State {
	s := State{
		Links: slices.Clone(have.Links), Addresses: slices.Clone(have.Addresses), Routes: slices.Clone(have.Routes),
		Rules: slices.Clone(have.Rules), Neighbours: slices.Clone(have.Neighbours),
	}
	for _, op := range ops {
		if op.Verb == Report {
			continue
		}
		switch o := op.Object.(type) {
		case Link:
			s.Links = setLinkIn(s.Links, o, op.Verb)
		case Address:
			s.Addresses = set(s.Addresses, o, op.Verb, func(h Address) bool { return h.Key() == o.Key() })
		case Route:
			if op.Verb == Delete {
				s.Routes = set(s.Routes, o, op.Verb, func(h Route) bool { return h == o })
			} else {
				replaced := false // the kernel replaces the first of the key
				s.Routes = set(s.Routes, o, op.Verb, func(h Route) bool {
					hit := !replaced && h.Key() == o.Key() && h.Ours()
					replaced = replaced || hit
					return hit
				})
			}
		case Rule:
			s.Rules = set(s.Rules, o, op.Verb, func(h Rule) bool { return h == o })
		case Neighbour:
			s.Neighbours = set(s.Neighbours, o, op.Verb, func(h Neighbour) bool { return h.Key() == o.Key() })
		}
	}
	return s
}

func set[T any](list []T, o T, v Verb, same func(T) bool) []T {
	list = slices.DeleteFunc(list, same)
	if v != Delete {
		list = append(list, o)
	}
	return list
}

func setLinkIn(list []Link, o Link, v Verb) []Link {
	for i := range list {
		if list[i].Name != o.Name {
			continue
		}
		if v == Delete {
			return slices.Delete(list, i, i+1)
		}
		if o.MTU != 0 {
			list[i].MTU = o.MTU
		}
		if o.Admin != AdminAny {
			list[i].Admin = o.Admin
		}
		if o.Alias != "" {
			list[i].Alias = o.Alias
		}
		if o.Group != 0 {
			list[i].Group = o.Group
		}
	}
	return list
}

// foreign reports whether an object of an actual state is not ours.
func foreign(o Object, s State) bool {
	ours := func(link string) bool {
		for _, l := range s.Links {
			if l.Name == link {
				return l.Ours() && !l.Dying()
			}
		}
		return false
	}
	switch o := o.(type) {
	case Link:
		return !o.Ours() || o.Dying()
	case Address:
		return !ours(o.Link)
	case Neighbour:
		return !ours(o.Link)
	case Route:
		return !o.Ours()
	case Rule:
		return !o.Ours()
	default:
		return false
	}
}

func TestApplyingADiffReachesTheDesiredStateAndChangesNothingForeign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawWanted(t)
		have := drawFound(t, want)
		ops := Diff(want, have)
		after := model{}.apply(have, ops)

		for _, op := range Diff(want, after) {
			if op.Verb != Report {
				t.Fatalf("a second diff returns %s\nfirst:\n%s", op, strings.Join(lines(ops), "\n"))
			}
		}
		deleting := false
		for _, op := range ops {
			if op.Verb == Delete {
				deleting = true
				if foreign(op.Object, have) && !absent(want, op.Object) && !adopted(want, op.Object) {
					t.Fatalf("deletes a foreign object: %s", op)
				}
			} else if deleting && op.Verb != Report {
				t.Fatalf("%s after a delete", op)
			}
		}
		for _, o := range have.Objects() {
			if foreign(o, have) && !absent(want, o) && !adopted(want, o) && !slices.ContainsFunc(after.Objects(), func(a Object) bool { return a == o }) {
				t.Fatalf("gone or changed: %s\n%s", o, strings.Join(lines(ops), "\n"))
			}
		}
	})
}

// absent reports whether o is a route that want lists as Absent.
func absent(want State, o Object) bool {
	r, ok := o.(Route)
	return ok && slices.ContainsFunc(want.Absent, func(a Route) bool { return a.Key() == r.Key() && a.Link == r.Link && a.Protocol == r.Protocol })
}

// adopted reports whether an object is, or is on, a link that want names.
func adopted(want State, o Object) bool {
	name := ""
	switch o := o.(type) {
	case Link:
		name = o.Name
	case Address:
		name = o.Link
	case Neighbour:
		name = o.Link
	}
	return slices.ContainsFunc(want.Links, func(l Link) bool { return l.Name == name })
}

func drawWanted(t *rapid.T) State {
	states := []State{ForNode([]vpc.Family{vpc.IPv4, vpc.IPv6}, nil)}
	for i := range rapid.IntRange(0, 2).Draw(t, "enis") {
		e := eni1()
		e.MAC, e.Device, e.Link, e.ID = vpc.MAC{}, i, []string{"eth0", "eth1"}[i], vpc.ENIID([]string{"eni-0", "eni-1"}[i])
		states = append(states, ForENI(e))
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "pods") {
		p := web()
		p.Key.ContainerID = string(rune('a' + i))
		p.HostMAC, p.PodMAC = endpoint.MACs(p.Key)
		p.Link = endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", p.Key.ContainerID)
		for range i {
			p.Addresses.IPv4 = p.Addresses.IPv4.Next()
		}
		p.Attachment.Table = rapid.SampledFrom([]uint32{TableMain, 2}).Draw(t, "table")
		p.Stage = rapid.SampledFrom([]endpoint.Stage{endpoint.Wiring, endpoint.Ready}).Draw(t, "stage")
		states = append(states, ForEndpoint(p))
	}
	return Join(states...)
}

// drawFound draws an actual state: part of what is desired, other objects of ours,
// foreign ones, and some with changed fields.
func drawFound(t *rapid.T, want State) State {
	var s State
	p := rapid.IntRange(0, 3)
	proto := rapid.SampledFrom([]uint8{RouteProtocol, 3, ProtocolKernel})
	for _, l := range Join(want, drawWanted(t)).Links {
		if slices.ContainsFunc(s.Links, func(h Link) bool { return h.Name == l.Name }) {
			continue
		}
		switch p.Draw(t, "link") {
		case 0:
			continue
		case 1:
			l.MAC = vpc.MAC{2, 1}
		case 2:
			l.Alias, l.MTU, l.Group = "", 1500, rapid.SampledFrom([]uint32{0, LinkGroupPod, LinkGroupTrash}).Draw(t, "group")
		}
		l.Pending, l.Admin = false, rapid.SampledFrom([]Admin{AdminUp, AdminDown}).Draw(t, "admin")
		s.Links = append(s.Links, l)
	}
	links := []string{"eth0", "eth1", "eth9"}
	for _, l := range s.Links {
		links = append(links, l.Name)
	}
	other := Join(want, drawWanted(t))
	for _, r := range other.Routes {
		if slices.ContainsFunc(s.Routes, func(h Route) bool { return h.Key() == r.Key() }) || p.Draw(t, "route") == 0 {
			continue
		}
		r.Protocol, r.Link = proto.Draw(t, "proto"), rapid.SampledFrom(append(links, r.Link)).Draw(t, "dev")
		s.Routes = append(s.Routes, r)
	}
	for _, r := range want.Absent {
		if p.Draw(t, "absent") > 0 {
			s.Routes = append(s.Routes, r)
		}
	}
	for _, r := range other.Rules {
		r.Protocol = proto.Draw(t, "proto")
		if p.Draw(t, "rule") > 0 && !slices.ContainsFunc(s.Rules, func(h Rule) bool { return h.Key() == r.Key() }) {
			s.Rules = append(s.Rules, r)
		}
	}
	for _, a := range other.Addresses {
		a.Link = rapid.SampledFrom(links).Draw(t, "dev")
		if p.Draw(t, "address") > 0 && !slices.ContainsFunc(s.Addresses, func(h Address) bool { return h.Key() == a.Key() }) {
			s.Addresses = append(s.Addresses, a)
		}
	}
	for _, n := range other.Neighbours {
		n.Link = rapid.SampledFrom(links).Draw(t, "dev")
		if p.Draw(t, "neighbour") > 0 && !slices.ContainsFunc(s.Neighbours, func(h Neighbour) bool { return h.Key() == n.Key() }) {
			s.Neighbours = append(s.Neighbours, n)
		}
	}
	return s
}

// The program that configured it would configure it again.
func TestAnAddressThatAnotherProgramConfiguredIsLeft(t *testing.T) {
	want := ForENI(ENI{ID: "eni-1", Link: "eth1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Device: 1, Addresses: []netip.Prefix{prefix("10.0.32.9/19")}})
	have := want
	have.Absent = nil
	theirs := Address{Link: "eth1", Prefix: prefix("10.0.32.77/19")}
	have.Addresses = append(slices.Clone(want.Addresses), theirs)
	if ops := Diff(want, have); len(ops) != 1 || ops[0].Verb != Delete {
		t.Fatalf("%v, want that an old address is deleted", ops)
	}
	want.Leave = []Address{{Link: "eth1", Prefix: prefix("10.0.32.77/32")}}
	if ops := Diff(want, have); len(ops) != 0 {
		t.Errorf("%v", ops)
	}
	have.Addresses = want.Addresses
	if ops := Diff(want, have); len(ops) != 0 {
		t.Errorf("once it is gone: %v", ops)
	}
}
