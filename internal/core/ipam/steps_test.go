package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// filled is an interface with this number of addresses of pods.
func filled(device, pods int, states ...ipam.State) ipam.ENIView {
	return given(device, ipam.Ready, append(slices.Repeat([]ipam.State{ipam.Assigned}, pods), states...)...)
}

// pausedBy is a view with one back-off that lasts a minute more.
func pausedBy(key string, why cloud.FailReason) ipam.View {
	return ipam.View{Backoffs: []ipam.Backoff{{Key: key, Since: epoch.Add(-time.Second), Until: epoch.Add(time.Minute), Tries: 1, Reason: why, Message: "EC2 says no"}}}
}

func demand(pods int) (list []ipam.Pending) {
	for i := range pods {
		list = append(list, ipam.Pending{UID: fmt.Sprint(i), Bound: epoch})
	}
	return list
}

func TestTheActionsOfAPlanAreComplete(t *testing.T) {
	subnet := ipam.Subnet{ID: "subnet-5", CIDR: netip.MustParsePrefix("10.0.5.0/24"), Free: 100, SameRoutes: true}
	for name, c := range map[string]struct {
		s    ipam.Snapshot
		enis []ipam.ENIView
		want cloud.Action
	}{
		"to set up":       {ipam.Snapshot{}, []ipam.ENIView{filled(0, 1, ipam.Free, ipam.Free), given(2, ipam.SettingUp)}, cloud.Action{Kind: cloud.SetUp, ENI: "eni-2", Device: 2}},
		"to detach again": {ipam.Snapshot{}, []ipam.ENIView{filled(0, 1, ipam.Free, ipam.Free), given(1, ipam.Detaching)}, cloud.Action{Kind: cloud.Detach, ENI: "eni-1", Attachment: "attach-1"}},
		"to delete":       {ipam.Snapshot{}, []ipam.ENIView{given(1, ipam.Deleting), filled(0, 1, ipam.Free, ipam.Free)}, cloud.Action{Kind: cloud.DeleteENI, ENI: "eni-1"}},
		"to delete one that has no slot": {
			ipam.Snapshot{Limits: ipam.Limits{ENIs: 2, AddressesPerENI: 15}},
			[]ipam.ENIView{filled(0, 1, ipam.Free, ipam.Free), filled(1, 1), given(2, ipam.Attaching)},
			cloud.Action{Kind: cloud.DeleteENI, ENI: "eni-2"},
		},
		"to create": {
			ipam.Snapshot{Subnets: []ipam.Subnet{subnet}, Groups: []vpc.SecurityGroupID{"sg-1", "sg-2"}},
			[]ipam.ENIView{filled(0, 14)},
			cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-5", SubnetCIDR: subnet.CIDR, Groups: []vpc.SecurityGroupID{"sg-1", "sg-2"}, Count: 2},
		},
	} {
		d := planned(c.s, c.enis...)
		if len(d.Actions) != 1 {
			t.Errorf("%s: %s", name, d)
			continue
		}
		got := d.Actions[0]
		if got.Kind != c.want.Kind || got.ENI != c.want.ENI || got.Device != c.want.Device || got.Attachment != c.want.Attachment ||
			got.Subnet != c.want.Subnet || got.SubnetCIDR != c.want.SubnetCIDR || got.Count != c.want.Count || !slices.Equal(got.Groups, c.want.Groups) || got.Why == "" {
			t.Errorf("%s: %+v, want %+v with a reason", name, got, c.want)
		}
	}
}

func TestOnlyInterfacesWithoutASlotAreDeleted(t *testing.T) {
	two := ipam.Limits{ENIs: 2, AddressesPerENI: 15}
	d := planned(ipam.Snapshot{Limits: two}, filled(0, 1, ipam.Free, ipam.Free), given(1, ipam.Attaching), given(2, ipam.Attaching))
	if kindsOf(d) != "DeleteENI Attach" || d.Actions[0].ENI != "eni-2" || d.Actions[1].ENI != "eni-1" {
		t.Errorf("one too many: %s", d)
	}
	kept := given(1, ipam.Attaching)
	kept.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}}
	one := ipam.Limits{ENIs: 1, AddressesPerENI: 15}
	if d := planned(ipam.Snapshot{Limits: one}, filled(0, 1, ipam.Free, ipam.Free), kept); kindsOf(d) != "" {
		t.Errorf("one that is kept, and has no slot: %s", d)
	}
}

func TestWhatIsInFlightTakesFromTheSubnet(t *testing.T) {
	s := ipam.Snapshot{
		View:    ipam.View{InFlight: []cloud.Action{{Kind: cloud.CreateENI, Subnet: "subnet-0", Count: 3}}},
		Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 5}}, Pending: demand(10),
	}
	d := planned(s, filled(0, 1))
	if kindsOf(d) != "AssignAddresses" || d.Actions[0].Count != 1 {
		t.Errorf("%s\nwant one address: three and the interface's own are in flight", d)
	}
}

func TestHowManyMorePodsANodeCanServe(t *testing.T) {
	enis := []ipam.ENIView{
		filled(0, 3, ipam.Quarantined, ipam.Free, ipam.Cooling, ipam.Cooling), given(1, ipam.SettingUp, ipam.Free, ipam.Free, ipam.Free),
	}
	for name, c := range map[string]struct {
		s    ipam.Snapshot
		want int
	}{
		"all that the type allows":        {ipam.Snapshot{Limits: ipam.Limits{ENIs: 4, AddressesPerENI: 15}}, 52},
		"the kubelet's limit":             {ipam.Snapshot{Limits: ipam.Limits{ENIs: 4, AddressesPerENI: 15, MaxPods: 20}}, 16},
		"a subnet with few":               {ipam.Snapshot{Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 3}}}, 9},
		"a subnet with one":               {ipam.Snapshot{Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 1}}}, 7},
		"a subnet that EC2 says is empty": {ipam.Snapshot{View: pausedBy("subnet/subnet-0", cloud.FailSubnetExhausted), Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 100}}}, 6},
		"a subnet without a count":        {ipam.Snapshot{Limits: ipam.Limits{ENIs: 4, AddressesPerENI: 15}, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: -1}}}, 52},
	} {
		if got := planned(c.s, enis...).Numbers.Attainable; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestWhyANodeCannotGrow(t *testing.T) {
	one, two := ipam.Limits{ENIs: 1, AddressesPerENI: 15}, ipam.Limits{ENIs: 2, AddressesPerENI: 15}
	subnet := func(free int) []ipam.Subnet { return []ipam.Subnet{{ID: "subnet-0", Free: free, SameRoutes: true}} }
	gone := filled(1, 1)
	gone.Missing = epoch.Add(-time.Minute)
	removed := given(1, ipam.Detaching, ipam.Releasing)
	for name, c := range map[string]struct {
		s    ipam.Snapshot
		enis []ipam.ENIView
		want ipam.Reason
		text string // a part of the message
	}{
		"EC2 refuses, and the subnet has addresses": {
			ipam.Snapshot{View: pausedBy("AssignAddresses/eni-0", cloud.FailUnauthorized), Limits: one, Subnets: subnet(50)},
			[]ipam.ENIView{filled(0, 1)},
			ipam.ReasonRefused, "(EC2 says no, tried 1 times, again at 12:01:00)",
		},
		"the subnet has none": {ipam.Snapshot{Limits: one, Subnets: subnet(0)}, []ipam.ENIView{filled(0, 1)}, ipam.ReasonSubnetExhausted, "(subnet subnet-0 has no free address)"},
		"a new interface needs two": {
			ipam.Snapshot{Limits: two, Subnets: subnet(1)}, []ipam.ENIView{filled(0, 14)}, ipam.ReasonSubnetExhausted, "(subnet subnet-0 has 1 free, a new interface needs 2)",
		},
		"no more interfaces, and the subnet has two": {
			ipam.Snapshot{View: pausedBy("interfaces", cloud.FailENILimit), Limits: two, Subnets: subnet(2)}, []ipam.ENIView{filled(0, 14)}, ipam.ReasonRefused, "(EC2 says no, ",
		},
		"a new interface is refused in the only subnet": {
			ipam.Snapshot{View: pausedBy("CreateENI/subnet-0", cloud.FailUnauthorized), Limits: two, Subnets: subnet(50)}, []ipam.ENIView{filled(0, 14)}, ipam.ReasonRefused, "(EC2 says no, ",
		},
		"EC2 says that the subnet has none": {
			ipam.Snapshot{View: pausedBy("subnet/subnet-0", cloud.FailSubnetExhausted), Limits: two, Subnets: subnet(50)}, []ipam.ENIView{filled(0, 1)}, ipam.ReasonSubnetExhausted, "(EC2 says no, tried 1 times, again at 12:01:00);",
		},
		"the other interface has slots and is missing": {
			ipam.Snapshot{View: pausedBy("interfaces", cloud.FailENILimit), Limits: ipam.Limits{ENIs: 3, AddressesPerENI: 15}, Subnets: subnet(1)}, []ipam.ENIView{filled(0, 14), gone}, ipam.ReasonSubnetExhausted, "",
		},
		"the other interface has slots and is removed": {
			ipam.Snapshot{Brake: cloud.FreezeRelease, View: pausedBy("interfaces", cloud.FailENILimit), Limits: ipam.Limits{ENIs: 3, AddressesPerENI: 15}, Subnets: subnet(1)}, []ipam.ENIView{filled(0, 14), removed}, ipam.ReasonSubnetExhausted, "",
		},
		"all are in use": {ipam.Snapshot{Limits: one, Subnets: subnet(50)}, []ipam.ENIView{filled(0, 13, ipam.Quarantined)}, ipam.ReasonNodeFull, "all 14 addresses"},
		"an old record of the subnets": {
			ipam.Snapshot{Limits: two, Subnets: subnet(50), Surveyed: epoch.Add(-time.Hour)}, []ipam.ENIView{filled(0, 14)}, ipam.ReasonGrowing, "the subnets are read first: a new interface is wanted",
		},
		"an old record of the only subnet": {
			ipam.Snapshot{Limits: one, Subnets: subnet(0), Surveyed: epoch.Add(-time.Hour)}, []ipam.ENIView{filled(0, 1)}, ipam.ReasonGrowing, "the subnets are read first: subnet subnet-0 had no free address",
		},
		"its set-up is refused": {
			ipam.Snapshot{View: pausedBy("SetUp/eni-2", cloud.FailOther)}, []ipam.ENIView{filled(0, 14), removed, given(2, ipam.SettingUp, ipam.Free, ipam.Free, ipam.Free)}, ipam.ReasonGrowing, "SetUp of eni-2 is paused (EC2 says no",
		},
		"its attachment is refused": {
			ipam.Snapshot{Brake: cloud.FreezeRelease, View: pausedBy("interfaces", cloud.FailENILimit)},
			[]ipam.ENIView{filled(0, 14), removed, given(2, ipam.Attaching, ipam.Free, ipam.Free, ipam.Free)},
			ipam.ReasonGrowing, "Attach of eni-2 is paused (EC2 says no",
		},
	} {
		c.s.Pending = demand(1)
		d := planned(c.s, c.enis...)
		if d.Condition.Reason != c.want || !strings.Contains(d.Condition.Message, c.text) || strings.Contains(d.Condition.Message, "()") {
			t.Errorf("%s: %s, want %s with %q", name, d.Condition, c.want, c.text)
		}
		for _, a := range d.Actions {
			if a.ENI == "eni-1" && a.Kind == cloud.AssignAddresses || a.Kind == cloud.CreateENI {
				t.Errorf("%s: %s", name, a)
			}
		}
	}
}

func TestAnObstacleIsNamedOnceAndOnlyWhereThePoolWouldGrow(t *testing.T) {
	cooling := filled(0, 1, ipam.Cooling)
	cooling.Addresses[1].Until = epoch.Add(9 * time.Second)
	for name, c := range map[string]struct {
		brake cloud.Brake
		view  ipam.View
		enis  []ipam.ENIView
		want  string // the message
	}{
		"without one": {cloud.BrakeOff, ipam.View{}, []ipam.ENIView{filled(0, 13, ipam.Cooling)}, "1 address cools down, until 12:00:09"},
		"a brake":     {cloud.FreezeAll, ipam.View{}, []ipam.ENIView{cooling}, `1 address cools down, until 12:00:09 (brake "freeze all")`},
		"twice the same": {
			cloud.BrakeOff, pausedBy("subnet/subnet-0", cloud.FailSubnetExhausted),
			[]ipam.ENIView{cooling, filled(1, 1)},
			"1 address cools down, until 12:00:09 (EC2 says no, tried 1 times, again at 12:01:00)",
		},
	} {
		for i := range c.enis[0].Addresses {
			c.enis[0].Addresses[i].Until = epoch.Add(9 * time.Second)
		}
		d := planned(ipam.Snapshot{View: c.view, Brake: c.brake, Limits: ipam.Limits{ENIs: len(c.enis), AddressesPerENI: 15}}, c.enis...)
		if got := d.Condition.Message; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestThePoolGrowsByTheCallsThatSuffice(t *testing.T) {
	subnets := []ipam.Subnet{{ID: "subnet-0", Free: 200, SameRoutes: true}}
	for name, c := range map[string]struct {
		s    ipam.Snapshot
		enis []ipam.ENIView
		want string
	}{
		"the interface with just as many slots": {ipam.Snapshot{Subnets: subnets, Pending: demand(1)}, []ipam.ENIView{filled(0, 4), filled(1, 11)}, "eni-1 3"},
		"two new interfaces":                    {ipam.Snapshot{Subnets: subnets, Pending: demand(18)}, []ipam.ENIView{filled(0, 14)}, " 14,  6"},
		"an old record, and slots":              {ipam.Snapshot{Subnets: subnets, Pending: demand(1), Surveyed: epoch.Add(-time.Hour)}, []ipam.ENIView{filled(0, 4), filled(1, 1)}, "eni-0 3"},
	} {
		d, got := planned(c.s, c.enis...), ""
		for _, a := range d.Actions {
			got += fmt.Sprintf(", %s %d", a.ENI, a.Count)
		}
		if got != ", "+c.want || d.Survey != "" {
			t.Errorf("%s: %q, survey %q; want %q", name, got, d.Survey, ", "+c.want)
		}
	}
}

func TestTheReasonOfGrowthHasItsNumbers(t *testing.T) {
	cooling := filled(0, 1, ipam.Cooling)
	if d := planned(ipam.Snapshot{Pending: demand(3)}, cooling); len(d.Actions) != 1 || !strings.HasSuffix(d.Actions[0].Why, "3 pods have none yet, 1 cool down, 2 are kept warm") {
		t.Errorf("%s", d)
	}
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom, c.WarmENIs = 0, 0, 1
	s := ipam.Snapshot{View: ipam.View{ENIs: []ipam.ENIView{filled(0, 1)}, PeakSince: epoch}, Limits: m5xlarge()}
	if d := ipam.Plan(s, c, epoch); len(d.Actions) == 0 || !strings.HasSuffix(d.Actions[0].Why, "1 interfaces are kept warm") || d.Numbers.Want != 15 {
		t.Errorf("%s", d)
	}
	for name, c := range map[string]struct {
		warm, least int
		want        int
	}{"a warm target": {2, 0, 3}, "a minimum": {0, 3, 3}} {
		of := ipam.DefaultConfig()
		of.WarmIPs, of.Headroom, of.WarmENIs, of.MinIPs = c.warm, 0, 1, c.least
		if got := ipam.Plan(s, of, epoch).Numbers.Want; got != c.want {
			t.Errorf("%s with one of whole interfaces: %d wanted, want %d", name, got, c.want)
		}
	}
	if got := ipam.DefaultConfig().Families; !slices.Equal(got, []vpc.Family{vpc.IPv4}) {
		t.Errorf("the default is of families %v", got)
	}
}

func TestAnInvalidConfigurationIsARefusal(t *testing.T) {
	if err := (ipam.Condition{Reason: ipam.ReasonInvalid, Message: "m"}).Err(); !errors.Is(err, ipam.ErrRefused) || !errors.Is(err, ipam.ErrNoAddress) {
		t.Errorf("%v", err)
	}
	for addresses, invalid := range map[int]bool{0: true, 1: false} {
		d := ipam.Plan(ipam.Snapshot{View: ipam.View{ENIs: []ipam.ENIView{filled(0, 0)}}, Limits: ipam.Limits{ENIs: 1, AddressesPerENI: addresses}}, ipam.DefaultConfig(), epoch)
		if (d.Condition.Reason == ipam.ReasonInvalid) != invalid {
			t.Errorf("%d addresses an interface: %s", addresses, d.Condition)
		}
	}
}

func TestAFailureBeforeTheLastObservationContradictsNothing(t *testing.T) {
	for ago, want := range map[time.Duration]bool{0: true, 2 * time.Second: false} {
		v := pausedBy("AssignAddresses/eni-0", cloud.FailAddressLimit)
		v.Observed = v.Backoffs[0].Since.Add(ago)
		if d := planned(ipam.Snapshot{View: v}, filled(0, 1, ipam.Free, ipam.Free)); (d.Observe != "") != want {
			t.Errorf("observed %s after it: %q, want a reason: %v", ago, d.Observe, want)
		}
	}
	e := filled(0, 1)
	e.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.0.16/28")}}
	if got := (ipam.View{ENIs: []ipam.ENIView{e}}).Differences(); len(got) != 0 {
		t.Errorf("differences %q of a prefix that EC2 shows", got)
	}
}

func TestWhatMetadataMayLagBehindIsNotCompared(t *testing.T) {
	lately, long := epoch.Add(-time.Minute+1), epoch.Add(-time.Minute)
	row := func(phase ipam.Phase, since time.Time, states ...ipam.State) ipam.ENIView {
		e := given(1, phase, states...)
		e.Since = since
		for i := range e.Addresses {
			e.Addresses[i].Since = long
			if e.Addresses[i].State == ipam.Assigned {
				e.Addresses[i].Holder = holder(i)
			}
			if e.Addresses[i].State == ipam.Cooling {
				e.Addresses[i].Until = epoch.Add(time.Minute)
			}
		}
		return e
	}
	fresh, missing := row(ipam.Ready, long, ipam.Free), row(ipam.Ready, long)
	fresh.Addresses[0].Since, missing.Missing = lately, long
	prefixed, other := row(ipam.Ready, long), row(ipam.Ready, long)
	prefixed.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}, {CIDR: netip.MustParsePrefix("10.0.1.32/28"), Missing: long}, {CIDR: netip.MustParsePrefix("2001:db8::/80")}}
	other.ID, other.Device = "eni-2", 2
	other.Addresses = []ipam.Address{{Addr: addressIn(2, 1), ENI: "eni-2", State: ipam.Free, Since: lately}}
	lists := func(addrs ...netip.Addr) []ipam.Listed {
		return []ipam.Listed{{ENI: "eni-1", Device: 1, Addresses: addrs}}
	}
	for name, c := range map[string]struct {
		rows   []ipam.ENIView
		listed []ipam.Listed
		want   int // doubts
	}{
		"one that is set up, not listed":           {[]ipam.ENIView{row(ipam.SettingUp, long)}, nil, 1},
		"the same, lately":                         {[]ipam.ENIView{row(ipam.SettingUp, lately)}, nil, 0},
		"one that is not attached, listed":         {[]ipam.ENIView{row(ipam.Attaching, long)}, []ipam.Listed{{ENI: "eni-1", Device: 1, Groups: []vpc.SecurityGroupID{"sg-7"}}}, 1},
		"the same, lately and not attached":        {[]ipam.ENIView{row(ipam.Attaching, lately)}, lists(), 0},
		"one that EC2 did not show, listed":        {[]ipam.ENIView{missing}, []ipam.Listed{{ENI: "eni-1", Device: 7, Groups: []vpc.SecurityGroupID{"sg-7"}}}, 1},
		"an address of a pod, not listed":          {[]ipam.ENIView{row(ipam.Ready, long, ipam.Assigned)}, lists(), 1},
		"a free address, not listed":               {[]ipam.ENIView{row(ipam.Ready, long, ipam.Free)}, lists(), 1},
		"a free address, not listed lately":        {[]ipam.ENIView{fresh}, lists(), 0},
		"others, not listed":                       {[]ipam.ENIView{row(ipam.Ready, long, ipam.Cooling, ipam.Releasing, ipam.Unconfirmed)}, lists(), 0},
		"an address of another interface, lately":  {[]ipam.ENIView{row(ipam.Ready, long), other}, append(lists(addressIn(2, 1)), ipam.Listed{ENI: "eni-2", Device: 2, Addresses: []netip.Addr{addressIn(2, 1)}}), 0},
		"prefixes: one missing, one of IPv6":       {[]ipam.ENIView{prefixed}, []ipam.Listed{{ENI: "eni-1", Device: 1, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.16/28")}}}, 0},
		"the missing one is listed, and the other": {[]ipam.ENIView{prefixed}, []ipam.Listed{{ENI: "eni-1", Device: 1, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.32/28")}}}, 2},
	} {
		if got := holding(t, c.rows...).Doubts(c.listed, epoch); len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
}
