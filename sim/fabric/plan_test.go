package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// small is a state of two ports in two subnets.
func small() State {
	return State{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd10::/56")},
		Subnets: []Subnet{
			{ID: "subnet-a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/20"), netip.MustParsePrefix("fd10::/64")}},
			{ID: "subnet-b", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.16.0/20")}},
		},
		Groups: []Group{{ID: "sg-1"}},
		Ports: []Port{
			{
				ID: "eni-1", Subnet: "subnet-a", MAC: vpc.MAC{2, 1}, Guest: "a", Device: "eth0",
				Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("fd10::10")},
				Prefixes:  []netip.Prefix{netip.MustParsePrefix("10.0.1.16/28")},
				Groups:    []vpc.SecurityGroupID{"sg-1"},
			},
			{
				ID: "eni-2", Subnet: "subnet-b", MAC: vpc.MAC{2, 2}, Guest: "b", Device: "eth0",
				Addresses: []netip.Addr{netip.MustParseAddr("10.0.16.11")}, Groups: []vpc.SecurityGroupID{"sg-1"},
			},
		},
	}
}

func TestAnInvalidStateIsRejectedWithTheReason(t *testing.T) {
	for _, try := range []struct {
		name   string
		change func(*State)
		want   string
	}{
		{"nothing wrong (control)", func(*State) {}, ""},
		{"an address of two ports", func(s *State) { s.Ports[1].Addresses[0] = netip.MustParseAddr("10.0.0.10") }, "10.0.0.10/32 is held by both eni-1 and eni-2"},
		{"an address inside another port's prefix", func(s *State) { s.Ports[1].Addresses[0] = netip.MustParseAddr("10.0.1.17") }, "10.0.1.17/32 of port eni-2 overlaps 10.0.1.16/28 of port eni-1"},
		{"an address outside the VPC", func(s *State) { s.Ports[1].Addresses[0] = netip.MustParseAddr("10.1.0.1") }, "outside the VPC's ranges"},
		{"the gateway's address", func(s *State) { s.Ports[1].Addresses[0] = netip.MustParseAddr("10.0.16.1") }, "an address of the VPC itself"},
		{"a service's address", func(s *State) {
			s.Services = []Service{{Address: netip.MustParseAddr("10.0.16.11")}}
		}, "an address of the VPC itself"},
		{"a public address inside the VPC", func(s *State) {
			s.Ports[1].Public = []Public{{netip.MustParseAddr("10.0.16.11"), netip.MustParseAddr("10.0.9.9")}}
		}, "the public address 10.0.9.9 of port eni-2 is inside"},
		{"a public address of two ports", func(s *State) {
			public := netip.MustParseAddr("198.18.0.1")
			s.Ports[0].Public = []Public{{netip.MustParseAddr("10.0.0.10"), public}}
			s.Ports[1].Public = []Public{{netip.MustParseAddr("10.0.16.11"), public}}
		}, "10.0.16.11 of port eni-2 is public as 198.18.0.1, which another"},
		{"a VLAN of two branches", func(s *State) {
			branch := s.Ports[1]
			branch.Key = PortKey{ENI: "eni-1", VLAN: 7}
			s.Ports[1] = branch
			branch.ID, branch.Addresses = "eni-3", []netip.Addr{netip.MustParseAddr("10.0.16.12")}
			s.Ports = append(s.Ports, branch)
		}, "VLAN 7 on eni-1 is of both eni-2 and eni-3"},
		{"a port twice", func(s *State) { s.Ports[1].ID = "eni-1" }, "names port eni-1 twice"},
		{"a subnet twice", func(s *State) { s.Subnets[1].ID = "subnet-a" }, "names subnet subnet-a twice"},
	} {
		t.Run(try.name, func(t *testing.T) {
			s := small()
			try.change(&s)
			_, refused, err := newPlan(s)
			if len(refused) > 0 {
				t.Errorf("single ports refused: %v", refused)
			}
			if got := fmt.Sprint(err); (err == nil) != (try.want == "") || err != nil && !strings.Contains(got, try.want) {
				t.Errorf("got %v, want %q", err, try.want)
			}
		})
	}
}

func TestOnlyAPortThatCannotBeWiredIsRejectedWithTheReason(t *testing.T) {
	for _, try := range []struct {
		name   string
		change func(*Port)
		want   string
		is     error
	}{
		{"a branch without a trunk", func(p *Port) { p.Key = PortKey{ENI: "eni-x", VLAN: 7} }, "VLAN 7 on eni-x", ErrNoTrunk},
		{"a branch of itself", func(p *Port) { p.Key = PortKey{ENI: "eni-2", VLAN: 7} }, "VLAN 7 on its own link", nil},
		{"another's link without a VLAN", func(p *Port) { p.Key = PortKey{ENI: "eni-1"} }, "VLAN 0 on the link of eni-1: must be from 1 to 4094", nil},
		{"a VLAN beyond 4094", func(p *Port) { p.Key = PortKey{ENI: "eni-1", VLAN: 4095} }, "VLAN 4095 on the link of eni-1: must be from 1 to 4094", nil},
		{"an unknown subnet", func(p *Port) { p.Subnet = "subnet-x" }, "subnet subnet-x is not in the state", nil},
		{"an unknown group", func(p *Port) { p.Groups = append(p.Groups, "sg-x") }, "security group sg-x is not in the state", nil},
		{"no guest", func(p *Port) { p.Guest = "" }, "both are needed", nil},
		{"a guest that is a path", func(p *Port) { p.Guest = "../x" }, "both are needed", nil},
	} {
		t.Run(try.name, func(t *testing.T) {
			s := small()
			try.change(&s.Ports[1])
			p, refused, err := newPlan(s)
			if err != nil || len(refused) != 1 || refused[0].Port != "eni-2" {
				t.Fatalf("got %v and %v, want eni-2 refused alone", refused, err)
			}
			if !strings.Contains(refused[0].Error(), try.want) || try.is != nil && !errors.Is(refused[0], try.is) {
				t.Errorf("got %v, want %q", refused[0], try.want)
			}
			if len(p.links) != 1 {
				t.Errorf("%d links, want eni-1's", len(p.links))
			}
		})
	}
}

func TestLinksOfLongIdentifiersHaveUniqueNamesFromTheLastDigits(t *testing.T) {
	s := small()
	s.Ports[0].ID, s.Ports[1].ID = "eni-0a1b2c3d4e5f67890", "eni-ffffff3d4e5f67890"
	p, refused, err := newPlan(s)
	if err != nil || len(p.links) != 1 {
		t.Fatalf("links %v, %v", p.links, err)
	}
	for name := range p.links {
		if len(name) > 15 || !strings.HasSuffix("eni-0a1b2c3d4e5f67890", strings.TrimPrefix(name, "eni-")) {
			t.Errorf("link name %q", name)
		}
	}
	if len(refused) != 1 || !strings.Contains(refused[0].Error(), "link name") {
		t.Errorf("two ports with one link name: %v", refused)
	}
}

func TestBranchesArePlannedAfterTheirTrunkAndNeedNoGuest(t *testing.T) {
	s := small()
	s.Ports[0], s.Ports[1] = s.Ports[1], s.Ports[0] // the branch first
	s.Ports[0].Key, s.Ports[0].Guest, s.Ports[0].Device = PortKey{ENI: "eni-1", VLAN: 7}, "", ""
	p, refused, err := newPlan(s)
	if err != nil || len(refused) != 0 {
		t.Fatalf("%v, %v", refused, err)
	}
	if got := p.links["eni-2"].trunk; got != "eni-1" {
		t.Errorf("the branch's trunk is %q", got)
	}
	if a, b := taggedEnd(deviceName("eni-0a1b2c3d4e5f67890")), taggedEnd(deviceName("eni-0a1b2c3d4e5f67891")); a == b || len(a) > 15 {
		t.Errorf("tagged ends %s and %s", a, b)
	}
}

func TestTheLayoutRoutesEveryAddressToItsPortAndTheRestToABlackhole(t *testing.T) {
	s := small()
	s.Subnets[1].Routes = []Route{
		{Destination: netip.MustParsePrefix("192.168.0.0/16"), Target: Target{Port: "eni-1"}},
		{Destination: netip.MustParsePrefix("192.168.1.0/24"), Target: Target{Port: "eni-gone"}},
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Target: Target{Internet: true}},
	}
	p, _, err := newPlan(s)
	if err != nil {
		t.Fatal(err)
	}
	const second = tableBase + 1
	got := map[string]string{}
	for key, to := range p.layout().routes {
		got[fmt.Sprintf("%d %s", key.table, key.dst)] = strings.TrimSpace(to.device + " " + optional(to.source))
	}
	want := map[string]string{
		fmt.Sprintf("%d 10.0.0.0/16", unix.RT_TABLE_MAIN):   "",
		fmt.Sprintf("%d fd10::/56", unix.RT_TABLE_MAIN):     "",
		fmt.Sprintf("%d 10.0.0.10/32", unix.RT_TABLE_MAIN):  "eni-1 10.0.0.1",
		fmt.Sprintf("%d fd10::10/128", unix.RT_TABLE_MAIN):  "eni-1 fd10::1",
		fmt.Sprintf("%d 10.0.1.16/28", unix.RT_TABLE_MAIN):  "eni-1 10.0.0.1",
		fmt.Sprintf("%d 10.0.16.11/32", unix.RT_TABLE_MAIN): "eni-2 10.0.16.1",
		fmt.Sprintf("%d 192.168.0.0/16", second):            "eni-1",
		fmt.Sprintf("%d 192.168.1.0/24", second):            "",
		fmt.Sprintf("%d 0.0.0.0/0", second):                 "", // no gateway in the state
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("routes %v\nwant   %v", got, want)
	}
	s.Ports[0].Down = true
	if p, _, err = newPlan(s); err != nil {
		t.Fatal(err)
	}
	for key, to := range p.layout().routes {
		if to.device == "eni-1" {
			t.Errorf("%s leads to a link that is down", key.dst)
		}
	}
}

func TestSubnetsKeepTheNumbersOfTheirTables(t *testing.T) {
	var numbers map[vpc.SubnetID]int
	for _, step := range []struct {
		subnets string
		want    map[vpc.SubnetID]int
	}{
		{"b c", map[vpc.SubnetID]int{"b": 0, "c": 1}},
		{"a b c", map[vpc.SubnetID]int{"a": 2, "b": 0, "c": 1}},
		{"a c", map[vpc.SubnetID]int{"a": 2, "c": 1}},
		{"a c d e", map[vpc.SubnetID]int{"a": 2, "c": 1, "d": 0, "e": 3}},
	} {
		var s State
		for _, id := range strings.Fields(step.subnets) {
			s.Subnets = append(s.Subnets, Subnet{ID: vpc.SubnetID(id)})
		}
		p, _, err := newPlan(s)
		if err != nil {
			t.Fatal(err)
		}
		p.keepNumbers(numbers)
		if numbers = p.number; !maps.Equal(numbers, step.want) {
			t.Errorf("%s: numbers %v, want %v", step.subnets, numbers, step.want)
		}
	}
}

func optional(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func TestPortErrorsAreFoundThroughJoinsAndWraps(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("apply: %w", errors.Join(errors.New("other"), errors.Join(&PortError{"eni-1", cause}, &PortError{"eni-2", ErrGuestMissing})))
	got := PortErrors(err)
	if len(got) != 2 || !errors.Is(got["eni-1"], cause) || !errors.Is(got["eni-2"], ErrGuestMissing) {
		t.Errorf("got %v", got)
	}
	if got := PortErrors(nil); len(got) != 0 {
		t.Errorf("of no error: %v", got)
	}
}
