package ipam_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// given is an interface with addresses in some states, a day old.
func given(device int, phase ipam.Phase, states ...ipam.State) ipam.ENIView {
	e := ipam.ENIView{ENI: ipam.ENI{
		ID: vpc.ENIID("eni-" + string(rune('0'+device))), Type: vpc.TypeInterface, Primary: device == 0, Device: device, Subnet: "subnet-0",
		Attachment: "attach-1", Phase: phase, Created: epoch.Add(-24 * time.Hour), Since: epoch.Add(-time.Hour),
	}}
	if phase == ipam.Attaching {
		e.Device, e.Attachment = -1, ""
	}
	for i, state := range states {
		e.Addresses = append(e.Addresses, ipam.Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(device), byte(i + 1)}), ENI: e.ID, State: state, Since: epoch.Add(-time.Hour)})
	}
	return e
}

// planned is the plan for interfaces of a node that needs two addresses beyond those of its
// pods.
func planned(s ipam.Snapshot, enis ...ipam.ENIView) ipam.Decision {
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom = 2, 0
	s.ENIs, s.PeakSince, s.Node = enis, epoch.Add(-24*time.Hour), cloud.Node{Instance: "i-1"}
	if s.Limits.ENIs == 0 {
		s.Limits = m5xlarge()
	}
	return ipam.Plan(s, c, epoch)
}

func kindsOf(d ipam.Decision) string {
	var out []string
	for _, a := range d.Actions {
		out = append(out, string(a.Kind))
	}
	return strings.Join(out, " ")
}

func TestABrakeStopsEveryStepOfItsKind(t *testing.T) {
	lost := given(0, ipam.Ready, ipam.Assigned, ipam.Free, ipam.Free)
	lost.Addresses[0].Missing, lost.Addresses[0].Holder = epoch.Add(-time.Minute), holder(1)
	for name, c := range map[string]struct {
		enis     []ipam.ENIView
		kind     cloud.Kind
		releases bool
	}{
		"to attach":            {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Attaching)}, cloud.Attach, false},
		"to fill":              {[]ipam.ENIView{given(0, ipam.Ready)}, cloud.AssignAddresses, false},
		"to restore":           {[]ipam.ENIView{lost}, cloud.RestoreAddresses, false},
		"to detach":            {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Detaching, ipam.Releasing)}, cloud.Detach, true},
		"to delete":            {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Deleting, ipam.Releasing)}, cloud.DeleteENI, true},
		"to release again":     {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free, ipam.Releasing)}, cloud.UnassignAddresses, true},
		"to release":           {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free, ipam.Free)}, cloud.UnassignAddresses, true},
		"to remove":            {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Ready, ipam.Free)}, cloud.Detach, true},
		"to set up, in no way": {[]ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.SettingUp)}, cloud.SetUp, false},
	} {
		for _, brake := range []cloud.Brake{cloud.BrakeOff, cloud.FreezeRelease, cloud.AllocateOnly, cloud.FreezeAll, cloud.Unobserved} {
			d := planned(ipam.Snapshot{Brake: brake, View: ipam.View{Observed: epoch}}, c.enis...)
			want := string(c.kind)
			if c.kind != cloud.SetUp && (c.releases && !brake.AllowsRelease() || !c.releases && !brake.AllowsAllocate()) {
				want = ""
			}
			if got := kindsOf(d); got != want {
				t.Errorf("%s under brake %q: %q, want %q\n%s", name, brake, got, want, d)
			}
		}
	}
}

// A failure pauses the action on that object, until its time, and the plan is due then.
func TestAPausedStepIsPlannedAtTheEndOfItsPause(t *testing.T) {
	until := epoch.Add(7 * time.Second)
	for key, enis := range map[string][]ipam.ENIView{
		"Attach/eni-1":            {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Attaching)},
		"interfaces":              {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Attaching)},
		"SetUp/eni-1":             {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.SettingUp)},
		"AssignAddresses/eni-0":   {given(0, ipam.Ready)},
		"subnet/subnet-0":         {given(0, ipam.Ready)},
		"Detach/eni-1":            {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Detaching, ipam.Releasing)},
		"DeleteENI/eni-1":         {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Deleting, ipam.Releasing)},
		"UnassignAddresses/eni-0": {given(0, ipam.Ready, ipam.Free, ipam.Free, ipam.Free)},
		"UnassignAddresses/eni-1": {given(0, ipam.Ready, ipam.Free, ipam.Free), given(1, ipam.Ready, ipam.Assigned, ipam.Releasing)},
	} {
		if d := planned(ipam.Snapshot{}, enis...); kindsOf(d) == "" {
			t.Fatalf("%s: nothing is planned without a pause\n%s", key, d)
		}
		s := ipam.Snapshot{View: ipam.View{Backoffs: []ipam.Backoff{{Key: key, Until: until, Tries: 1, Message: "later"}}}}
		if d := planned(s, enis...); kindsOf(d) != "" || !d.Next.Equal(until) {
			t.Errorf("%s: %q, plan again at %s; want nothing until %s", key, kindsOf(d), d.Next, until)
		}
		s.Backoffs[0].Until = epoch
		if d := planned(s, enis...); kindsOf(d) == "" {
			t.Errorf("%s: nothing is planned at the end of the pause", key)
		}
	}
}

func TestANodeWithoutAFreeAddressSaysWhy(t *testing.T) {
	full, empty := given(0, ipam.Ready), given(0, ipam.Ready, ipam.Assigned)
	for range 14 {
		full.Addresses = append(full.Addresses, ipam.Address{ENI: "eni-0", State: ipam.Assigned})
	}
	two := given(1, ipam.Ready)
	cooling := given(0, ipam.Ready, ipam.Cooling, ipam.Cooling)
	cooling.Addresses[0].Until, cooling.Addresses[1].Until = epoch.Add(9*time.Second), epoch.Add(5*time.Second)
	one := ipam.Limits{ENIs: 1, AddressesPerENI: 15}
	refused := ipam.View{Backoffs: []ipam.Backoff{{Key: "AssignAddresses/eni-0", Until: epoch.Add(time.Minute), Tries: 3, Message: "not authorized"}}}
	unattached := ipam.View{Backoffs: []ipam.Backoff{{Key: "Attach/eni-1", Until: epoch.Add(time.Minute), Tries: 2, Message: "RequestExpired"}, {Key: "AssignAddresses/eni-1", Until: epoch.Add(time.Minute), Tries: 2}}}
	unread := ipam.View{Backoffs: []ipam.Backoff{{Key: "subnet/subnet-0", Until: epoch.Add(time.Minute), Tries: 1, Reason: cloud.FailSubnetExhausted}}}
	for name, c := range map[string]struct {
		s      ipam.Snapshot
		enis   []ipam.ENIView
		reason ipam.Reason
		err    error
		words  string
		retry  time.Duration
	}{
		"one is free":             {ipam.Snapshot{}, []ipam.ENIView{given(0, ipam.Ready, ipam.Free)}, ipam.ReasonReady, nil, "1 address is free", 0},
		"two are free":            {ipam.Snapshot{}, []ipam.ENIView{given(0, ipam.Ready, ipam.Free, ipam.Free)}, ipam.ReasonReady, nil, "2 addresses are free", 0},
		"some are requested":      {ipam.Snapshot{}, []ipam.ENIView{empty}, ipam.ReasonGrowing, ipam.ErrPoolEmpty, "2 addresses are in flight: AssignAddresses 2 to eni-0", 0},
		"an interface is not set": {ipam.Snapshot{Brake: cloud.FreezeAll}, []ipam.ENIView{full, given(1, ipam.Attaching, ipam.Free)}, ipam.ReasonGrowing, ipam.ErrPoolEmpty, "1 address is in flight: an interface is not ready yet", 0},
		"an interface is refused": {ipam.Snapshot{View: unattached}, []ipam.ENIView{full, given(1, ipam.Attaching, ipam.Free)}, ipam.ReasonGrowing, ipam.ErrPoolEmpty, "1 address is in flight: Attach of eni-1 is paused (RequestExpired, tried 2 times, again at 12:01:00)", 0},
		"two cool down":           {ipam.Snapshot{Brake: cloud.FreezeAll}, []ipam.ENIView{cooling}, ipam.ReasonCooling, ipam.ErrAllCooling, "2 addresses cool down, the first until 12:00:05", 5 * time.Second},
		"all are in use":          {ipam.Snapshot{Limits: one}, []ipam.ENIView{full}, ipam.ReasonNodeFull, ipam.ErrNodeFull, "all 14 addresses that this instance type allows (1 interfaces x 14) are in use", 0},
		"all pods are there":      {ipam.Snapshot{Limits: ipam.Limits{ENIs: 2, AddressesPerENI: 15, MaxPods: 1}}, []ipam.ENIView{empty}, ipam.ReasonNodeFull, ipam.ErrNodeFull, "1 addresses are held, all in use, and no more are allowed (1 pods, 2 interfaces)", 0},
		"an operator froze EC2":   {ipam.Snapshot{Brake: cloud.FreezeAll}, []ipam.ENIView{empty}, ipam.ReasonFrozen, ipam.ErrFrozen, "an operator froze EC2 calls", 0},
		"EC2 refuses":             {ipam.Snapshot{View: refused, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 100}}, Limits: one}, []ipam.ENIView{empty}, ipam.ReasonRefused, ipam.ErrRefused, "EC2 refuses more addresses (not authorized, tried 3 times, again at 12:01:00)", time.Minute},
		"the subnet is full":      {ipam.Snapshot{Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 0}}}, []ipam.ENIView{empty, two}, ipam.ReasonSubnetExhausted, ipam.ErrSubnetExhausted, "no subnet has enough free addresses (subnet subnet-0 has no free address; ", 0},
		"EC2 says that it is":     {ipam.Snapshot{View: unread, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: -1}}}, []ipam.ENIView{empty}, ipam.ReasonSubnetExhausted, ipam.ErrSubnetExhausted, "subnet exhausted, tried 1 times, again at 12:01:00", time.Minute},
	} {
		d := planned(c.s, c.enis...)
		got := d.Condition
		if got.Reason != c.reason || got.CanAdd != (c.err == nil) || !strings.Contains(strings.ToLower(got.Message), strings.ToLower(c.words)) || !errors.Is(got.Err(), c.err) {
			t.Errorf("%s: %s, %v; want %s, %q\n%s", name, got, got.Err(), c.reason, c.words, d)
		}
		if c.retry != 0 && !got.RetryAt.Equal(epoch.Add(c.retry)) || c.retry == 0 && !got.RetryAt.IsZero() {
			t.Errorf("%s: retry at %s", name, got.RetryAt)
		}
	}
	if err := (ipam.Condition{Reason: ipam.ReasonReady}).Err(); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// EC2 decides about a subnet of which the free addresses are not known.
func TestASubnetWithoutACountLimitsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		subnets    []ipam.Subnet
		attainable int
	}{
		"none is known":          {nil, 56},
		"one without a count":    {[]ipam.Subnet{{ID: "subnet-0", Free: -1}}, 56},
		"another with none left": {[]ipam.Subnet{{ID: "subnet-0", Free: -1}, {ID: "subnet-1", Free: 0}}, 56},
		"ten are left":           {[]ipam.Subnet{{ID: "subnet-0", Free: 10}}, 12},
		"ten and five are left":  {[]ipam.Subnet{{ID: "subnet-0", Free: 10}, {ID: "subnet-1", Free: 5}}, 17},
		"none is left":           {[]ipam.Subnet{{ID: "subnet-0", Free: 0}}, 2},
	} {
		limits := m5xlarge()
		limits.MaxPods = 0
		d := planned(ipam.Snapshot{Subnets: c.subnets, Limits: limits}, given(0, ipam.Ready, ipam.Free, ipam.Free))
		if d.Numbers.Attainable != c.attainable {
			t.Errorf("%s: %d more pods, want %d", name, d.Numbers.Attainable, c.attainable)
		}
	}
}

// What the ledger cannot give to a pod counts for no pod.
func TestTheNumbersOfAPlan(t *testing.T) {
	missing, other, unmanaged := given(2, ipam.Ready, ipam.Free, ipam.Cooling, ipam.Assigned), given(5, ipam.Ready, ipam.Free), given(3, ipam.Ready, ipam.Free)
	missing.Missing, other.Card, unmanaged.Unmanaged = epoch, 1, true
	got := planned(ipam.Snapshot{
		Brake: cloud.FreezeAll, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 100}},
		View: ipam.View{InFlight: []cloud.Action{
			{ID: "a", Kind: cloud.CreateENI, Subnet: "subnet-0", Count: 3}, {ID: "b", Kind: cloud.AssignAddresses, ENI: "eni-0", Subnet: "subnet-0", Count: 2}, {ID: "c", Kind: cloud.SetUp, ENI: "eni-1"},
		}},
		Pending: []ipam.Pending{
			{UID: "waits", Bound: epoch.Add(-time.Hour), Waiting: true}, {UID: "bound", Bound: epoch.Add(-time.Minute)}, {UID: "late", Bound: epoch.Add(-5 * time.Minute)},
		},
		Limits: ipam.Limits{ENIs: 6, AddressesPerENI: 15, MaxPods: 58},
	}, given(0, ipam.Ready, ipam.Assigned, ipam.Quarantined, ipam.Cooling, ipam.Free, ipam.Releasing, ipam.Unconfirmed), given(1, ipam.SettingUp, ipam.Free, ipam.Free), missing, other, unmanaged)
	want := ipam.Numbers{
		ENIs: 5, MaxENIs: 6, Capacity: 70, Assigned: 2, Quarantined: 1, Cooling: 1, Free: 1, Incoming: 7, Releasing: 1, Unconfirmed: 1,
		Demand: 2, Unmet: 0, Want: 8, Have: 12, Attainable: 55,
	}
	if got.Numbers != want {
		t.Errorf("%+v, want %+v", got.Numbers, want)
	}
	if due := epoch.Add(4 * time.Minute); !got.Next.Equal(due) {
		t.Errorf("plan again at %s, want %s, when the bound pod no longer counts", got.Next, due)
	}
}

func TestASnapshotAndItsPlanArePrinted(t *testing.T) {
	primary, odd := given(0, ipam.Ready, ipam.Assigned, ipam.Assigned, ipam.Free, ipam.Cooling, ipam.Releasing, ipam.Unconfirmed, ipam.Quarantined), given(1, ipam.Ready)
	primary.Addresses[0].Holder, primary.Addresses[1].Holder = holder(1), holder(2)
	odd.Card, odd.Unmanaged, odd.Type, odd.Missing = 1, true, vpc.TypeEFAOnly, epoch
	odd.Prefixes = ipam.PrefixesOf([]netip.Prefix{netip.MustParsePrefix("10.0.9.0/28")})
	odd.Claimed = []ipam.Claimed{{Addr: netip.MustParseAddr("10.0.9.1"), Holder: ipam.ForeignHolder(endpoint.Pod{Name: "theirs"})}}
	s := ipam.Snapshot{
		View: ipam.View{
			ENIs: []ipam.ENIView{primary, odd}, Peak: 9, Idle: 225*time.Second + time.Millisecond,
			InFlight: []cloud.Action{{Kind: cloud.SetUp, ENI: "eni-1", Began: epoch}},
			Backoffs: []ipam.Backoff{{Key: "interfaces", Until: epoch.Add(time.Minute), Tries: 2, Message: "full"}, {Key: "subnet/subnet-0", Until: epoch, Tries: 1, Reason: cloud.FailSubnetExhausted}},
		},
		Limits:  m5xlarge(),
		Pending: []ipam.Pending{{UID: "a", Waiting: true}, {UID: "b"}},
		Subnets: []ipam.Subnet{{ID: "subnet-0", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Free: -1, SameRoutes: true}, {ID: "subnet-1", CIDR: netip.MustParsePrefix("10.0.1.0/24"), Free: 0}},
		Brake:   cloud.FreezeAll,
	}
	want := `limits: 4 interfaces x 14 addresses, 58 pods
eni-0 ready device 0 subnet-0 primary: 2 assigned, 1 quarantined, 1 cooling, 1 free, 1 releasing, 1 unconfirmed
eni-1 ready device 1 subnet-0 card 1 unmanaged efa-only missing at EC2: no addresses; kept for its prefix 10.0.9.0/28, with 1 pod of another CNI
in flight: SetUp eni-1, since 12:00:00
back-off: interfaces until 12:01:00 after 2 tries: full
back-off: subnet/subnet-0 until 12:00:00 after 1 tries: subnet exhausted
subnet: subnet-0 10.0.0.0/24, unknown free
subnet: subnet-1 10.0.1.0/24, 0 free, other routes than the node's
demand: 2 pods, 1 of them waiting; peak of use 9 in 3m45s
brake: ` + string(cloud.FreezeAll) + "\n"
	if got := s.String(); got != want {
		t.Errorf("%s", got)
	}
	d := ipam.Decision{Next: epoch, Observe: "EC2 differs", Survey: "the subnets are old", Condition: ipam.Condition{Reason: ipam.ReasonGrowing, Message: "wait"}, Numbers: ipam.Numbers{Demand: 2, Unmet: 1}}
	want = `have 0, want 0 of 0: 0 assigned, 0 quarantined, 0 cooling, 0 free, 0 incoming
demand 2 pods, 1 unmet
do: nothing
observe: EC2 differs
survey: the subnets are old
plan again: 12:00:00
next ADD: no (WaitingForEC2), wait
`
	if got := d.String(); got != want {
		t.Errorf("%s", got)
	}
}

// An interface that an action in flight created is recorded by its outcome.
func TestAnInterfaceThatIsBeingCreatedIsNotAdopted(t *testing.T) {
	w := ready(t)
	if _, err := w.ledger.Begin(cloud.Action{ID: "make", Kind: cloud.CreateENI, Subnet: "subnet-0", Count: 1}, w.now); err != nil {
		t.Fatal(err)
	}
	e := w.ec2.makeENI(w.ec2.subnets[0], 1, w.now)
	seen := w.ec2.describe()
	for i := range seen {
		if seen[i].ENI.ID == e.id {
			seen[i].Intent = "make"
		}
	}
	records, drift := w.ledger.Observe(seen, w.now)
	if len(records)+len(drift) != 0 || len(w.ledger.View(w.now).ENIs) != 1 {
		t.Errorf("%v, %v", records, drift)
	}
	if _, err := w.ledger.Settle("make", cloud.Outcome{ENI: e.id, Addresses: addrs(e.addrs)}, w.now); err != nil {
		t.Fatal(err)
	}
	if got := viewOf(w, e.id); got.Phase != ipam.Attaching || got.Device != -1 || len(got.Addresses) != 1 || got.Addresses[0].State != ipam.Free {
		t.Errorf("%+v", got)
	}
}

func TestAnUnattachedInterfaceThatIsNotManagedIsIgnored(t *testing.T) {
	w := ready(t)
	e := w.ec2.makeENI(w.ec2.subnets[0], 1, w.now)
	for _, change := range []func(*ipam.Observed){func(o *ipam.Observed) { o.ENI.Unmanaged = true }, func(o *ipam.Observed) { o.ENI.Unmanaged, o.NotOurs = true, "it has no tag" }} {
		seen := w.ec2.describe()
		i := slices.IndexFunc(seen, func(o ipam.Observed) bool { return o.ENI.ID == e.id })
		change(&seen[i])
		if records, drift := w.ledger.Observe(seen, w.now); len(records)+len(drift) != 0 {
			t.Errorf("%v, %v", records, drift)
		}
	}
}

// The pods of a prefix have no rows in the ledger.
func TestAnInterfaceThatVanishedWithAForeignPodIsKeptAndReported(t *testing.T) {
	w, second := delegated(t, 1)
	gone := w.ec2.describe()[:1]
	for range 2 {
		w.now = w.now.Add(2 * time.Minute)
		_, drift := w.ledger.Observe(gone, w.now)
		if len(drift) != 1 {
			t.Fatalf("reported %v", drift)
		}
		if viewOf(w, second.id).Missing.IsZero() {
			t.Fatal("not recorded as missing")
		}
		if drift[0].Message != "EC2 does not show interface "+string(second.id) &&
			!strings.Contains(drift[0].Message, "no longer exists at EC2; default/theirs-0 at 10.0.16.0 and other pods on it have no network: delete these pods") {
			t.Errorf("reported %q", drift[0].Message)
		}
	}
	w.ledger.Claim(nil, true, w.now)
	w.now = w.now.Add(2 * time.Minute)
	if w.ledger.Observe(gone, w.now); viewOf(w, second.id).ID != "" {
		t.Error("the interface is still in the ledger, and no pod uses it")
	}
}
