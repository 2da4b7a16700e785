package ipam_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// delegated is a node that AWS's CNI left with a second interface that has only prefixes,
// in prefix mode, and pods on addresses of the first one.
func delegated(t *testing.T, pods int) (*world, *realENI) {
	t.Helper()
	w := testWorld(t, m5xlarge(), nil)
	second := w.ec2.makeENI(w.ec2.subnets[0], 0, w.now)
	second.attached, second.device = true, 1
	second.prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.16.0/28"), netip.MustParsePrefix("10.0.16.16/28")}
	w.observe()
	claimed := map[netip.Addr]ipam.Claim{}
	for n := range pods {
		addr := netip.AddrFrom4([4]byte{10, 0, 16, byte(n)})
		pod := endpoint.Pod{Namespace: "default", Name: fmt.Sprintf("theirs-%d", n), UID: fmt.Sprintf("uid-%d", n)}
		claimed[addr] = ipam.Claim{Holder: ipam.ForeignHolder(pod)}
	}
	w.journal(w.ledger.Claim(claimed, true, w.now))
	w.settle()
	return w, second
}

func viewOf(w *world, id vpc.ENIID) ipam.ENIView {
	for _, e := range w.ledger.View(w.now).ENIs {
		if e.ID == id {
			return e
		}
	}
	return ipam.ENIView{}
}

// Its pods would lose their network: the ledger has no address on the interface.
func TestAnInterfaceThatHasOnlyPrefixesIsNotDetached(t *testing.T) {
	w, second := delegated(t, 3)
	w.pass(2*time.Hour, time.Minute)
	if w.ec2.calls[cloud.Detach]+w.ec2.calls[cloud.DeleteENI] > 0 || !second.attached {
		t.Fatalf("calls %v, the interface is attached: %v\n%s", w.ec2.calls, second.attached, w.snapshot())
	}
	e := viewOf(w, second.id)
	if why := e.Kept(); why != "kept for its 2 prefixes, with 3 pods of another CNI" || e.Foreign() != 3 {
		t.Errorf("%q, %d pods", why, e.Foreign())
	}
	if !strings.Contains(w.snapshot().String(), "kept for its 2 prefixes") {
		t.Errorf("the snapshot does not say so:\n%s", w.snapshot())
	}
	if n := w.decided.Numbers; n.Capacity != 4*14-2 {
		t.Errorf("numbers %+v, want that prefixes take two slots", n)
	}
}

func TestAnInterfaceIsRemovedOnceItsPrefixesAreGone(t *testing.T) {
	w, second := delegated(t, 1)
	second.prefixes = nil
	if drift := w.observe(); len(drift) != 2 {
		t.Errorf("reported %v, want each prefix", drift)
	}
	w.pass(time.Hour, time.Minute)
	if !second.attached || len(viewOf(w, second.id).Prefixes) != 2 {
		t.Fatalf("dropped after one observation: %+v", viewOf(w, second.id))
	}
	w.observe()
	if left := viewOf(w, second.id).Prefixes; len(left) != 1 || !left[0].CIDR.Contains(netip.MustParseAddr("10.0.16.0")) {
		t.Fatalf("prefixes %v after two observations, want that of the pod", left)
	}
	w.journal(w.ledger.Claim(nil, true, w.now))
	w.observe()
	w.pass(time.Hour, time.Minute)
	if w.ec2.enis[second.id] != nil {
		t.Errorf("it has neither a prefix nor a pod and is not removed:\n%s\n%s", w.snapshot(), w.decided)
	}
}

func TestAddressesBesideAForeignPodAreNotReleased(t *testing.T) {
	w := testWorld(t, m5xlarge(), func(c *ipam.Config) { c.WarmIPs, c.Headroom = 1, 0 })
	w.settle()
	second := w.ec2.makeENI(w.ec2.subnets[0], 14, w.now)
	second.attached, second.device = true, 1
	w.observe()
	w.now = w.now.Add(time.Minute)
	w.observe() // confirms them
	w.settle()
	theirs := addrs(second.addrs)[3]
	w.journal(w.ledger.Claim(claimOf(theirs, time.Time{}), true, w.now))
	w.pass(2*time.Hour, time.Minute)
	if len(second.addrs) != 14 || !second.attached {
		t.Errorf("%d addresses are left on the interface of a foreign pod", len(second.addrs))
	}
	w.journal(w.ledger.Claim(nil, true, w.now))
	w.pass(2*time.Hour, time.Minute)
	if len(second.addrs) > 1 {
		t.Errorf("the pod is gone and the idle addresses beside it are not:\n%s\n%s", w.snapshot(), w.decided)
	}
}

// Another program delegated a prefix while the outcome of the detachment was unknown.
func TestARemovalEndsWhenTheInterfaceTurnsOutToBeKept(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	second := w.ec2.makeENI(w.ec2.subnets[0], 5, w.now)
	second.attached, second.device = true, 1
	w.observe()
	w.now = w.now.Add(time.Minute)
	w.observe()
	w.settle()
	w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
		if a.Kind == cloud.Detach {
			return &cloud.Failure{Reason: cloud.FailOther, Message: "no reply"}
		}
		return nil
	}
	for range 20 {
		w.now = w.now.Add(time.Minute)
		w.begin()
		w.finishAll()
		if viewOf(w, second.id).Phase == ipam.Detaching {
			break
		}
	}
	second.prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.16.0/28")}
	w.ec2.refuse = nil
	w.observe()
	if got := viewOf(w, second.id); got.Phase != ipam.SettingUp {
		t.Fatalf("it is %s", got.Phase)
	}
	w.now = w.now.Add(time.Minute)
	w.settle()
	w.observe()
	if got := viewOf(w, second.id); got.Phase != ipam.Ready || got.Count(ipam.Free) != 5 || !second.attached {
		t.Errorf("it is %s with %v", got.Phase, got.Addresses)
	}
}

func TestARecordOfAnEarlierVersionHasNoPrefixes(t *testing.T) {
	var r ipam.Record
	old := `{"op":"eni","eni":{"id":"eni-1","type":"interface","device":1,"mac":"02:00:00:00:00:01","subnet":"s","subnetCIDR":"10.0.0.0/24","primaryIP":"10.0.0.5","phase":"ready","created":"2026-03-01T12:00:00Z","since":"2026-03-01T12:00:00Z"}}`
	if err := json.Unmarshal([]byte(old), &r); err != nil {
		t.Fatal(err)
	}
	l := ipam.New(ipam.DefaultConfig().Settings())
	if err := l.Replay([]ipam.Record{r}); err != nil {
		t.Fatal(err)
	}
	shown := *r.ENI
	shown.Prefixes = ipam.PrefixesOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")})
	records, _ := l.Observe([]ipam.Observed{{ENI: shown, Attached: true}}, epoch)
	if got := l.View(epoch).ENIs[0]; got.Card != 0 || len(got.Prefixes) != 1 || len(records) != 1 {
		t.Errorf("%+v, records %v", got, records)
	}
	raw, err := json.Marshal(records[0])
	if err != nil {
		t.Fatal(err)
	}
	var again ipam.Record
	if err := json.Unmarshal(raw, &again); err != nil || len(again.ENI.Prefixes) != 1 || again.ENI.Prefixes[0] != records[0].ENI.Prefixes[0] {
		t.Errorf("%v: %s is read as %+v", err, raw, again.ENI)
	}
}

// TestNoPlanTakesWhatPodsOfAnotherCNIUse draws nodes with any prefixes, claims and foreign
// holders on interfaces in any phase: no plan releases what they use, and the ledger begins
// no such action either.
func TestNoPlanTakesWhatPodsOfAnotherCNIUse(t *testing.T) {
	removals := 0
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		l, now := ipam.New(c.Settings()), epoch.Add(24*time.Hour)
		if err := l.Replay(drawRows(t)); err != nil {
			t.Fatal(err)
		}
		claimed := drawClaims(t, l.View(epoch))
		l.Claim(claimed, rapid.Bool().Draw(t, "whole"), epoch)
		for range rapid.IntRange(0, 2).Draw(t, "observations") {
			l.Observe(drawObservation(t, l.View(epoch)), epoch.Add(time.Hour))
		}
		s := ipam.Snapshot{
			View: l.View(now), Limits: drawLimits(t), Node: cloud.Node{Instance: "i-1"},
			Subnets: []ipam.Subnet{{ID: "subnet-0", CIDR: netip.MustParsePrefix("10.0.0.0/19"), Free: 100}},
		}
		s.Peak, s.PeakSince = 0, epoch // idle for a day
		for _, a := range ipam.Plan(s, c, now).Actions {
			if a.Kind.Frees() {
				removals++
			}
			spares(t, s.View, claimed, a)
		}
		for _, e := range s.ENIs {
			for _, a := range []cloud.Action{
				{Kind: cloud.Detach, ENI: e.ID},
				{Kind: cloud.DeleteENI, ENI: e.ID},
				{Kind: cloud.UnassignAddresses, ENI: e.ID, Addresses: all(e)},
			} {
				a.ID = "a"
				if _, err := l.Begin(a, now); err == nil {
					spares(t, s.View, claimed, a)
					if _, err := l.Fail("a", cloud.Failure{Reason: cloud.FailOther, Definite: true}, now); err != nil {
						t.Fatal(err)
					}
				} else if !errors.Is(err, ipam.ErrStale) {
					t.Fatal(err)
				}
			}
		}
	})
	if removals == 0 {
		t.Error("no plan released anything: the property holds for little")
	}
}

// spares fails if an action releases an interface that is kept, or an address in use.
func spares(t *rapid.T, v ipam.View, claimed map[netip.Addr]ipam.Claim, a cloud.Action) {
	i := slices.IndexFunc(v.ENIs, func(e ipam.ENIView) bool { return e.ID == a.ENI })
	if !a.Kind.Frees() || i < 0 {
		return
	}
	e := v.ENIs[i]
	if a.Kind != cloud.UnassignAddresses {
		if len(e.Prefixes) > 0 {
			t.Fatalf("%s, which has %v", a, e.Prefixes)
		}
		for _, addr := range all(e) {
			if c, found := claimed[addr]; found && c.Made.IsZero() {
				t.Fatalf("%s, and %s of it is in use", a, addr)
			}
		}
	}
	for _, addr := range a.Addresses {
		if c, found := claimed[addr]; found && c.Made.IsZero() {
			t.Fatalf("%s is in use", a)
		}
	}
	for _, row := range e.Addresses {
		if row.State == ipam.Assigned && (a.Kind != cloud.UnassignAddresses || slices.Contains(a.Addresses, row.Addr)) {
			t.Fatalf("%s: %s is assigned", a, row.Addr)
		}
		if row.State == ipam.Free && e.Kept() != "" && slices.Contains(a.Addresses, row.Addr) {
			t.Fatalf("%s, %s", a, e.Kept())
		}
	}
}

func all(e ipam.ENIView) (addrs []netip.Addr) {
	for _, a := range e.Addresses {
		addrs = append(addrs, a.Addr)
	}
	return addrs
}

// prefixOf is the n-th prefix of the i-th interface, and addressOf its n-th address.
func prefixOf(i, n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(16 + i), byte(16 * n)}), vpc.DelegatedPrefix4)
}

func addressOf(i, n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i), byte(10 + n)}) }

func drawRows(t *rapid.T) (rows []ipam.Record) {
	phases := []ipam.Phase{ipam.Ready, ipam.Ready, ipam.Attaching, ipam.SettingUp, ipam.Detaching, ipam.Deleting}
	states := []ipam.State{ipam.Free, ipam.Free, ipam.Releasing, ipam.Unconfirmed, ipam.Assigned}
	for i := range rapid.IntRange(1, 5).Draw(t, "interfaces") {
		e := ipam.ENI{
			ID: vpc.ENIID(fmt.Sprintf("eni-%d", i)), Type: vpc.TypeInterface, Primary: i == 0, Device: i, Subnet: "subnet-0",
			Phase: ipam.Ready, Created: epoch, Since: epoch, Attachment: "attach",
		}
		if !e.Primary {
			e.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
		}
		for n := range rapid.IntRange(0, 2).Draw(t, "prefixes") {
			e.Prefixes = append(e.Prefixes, ipam.Prefix{CIDR: prefixOf(i, n)})
		}
		rows = append(rows, ipam.Record{Op: ipam.PutENI, ENI: &e})
		for n := range rapid.IntRange(0, 6).Draw(t, "addresses") {
			a := ipam.Address{Addr: addressOf(i, n), ENI: e.ID, State: rapid.SampledFrom(states).Draw(t, "state"), Since: epoch}
			if a.State == ipam.Assigned {
				a.Holder = ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: fmt.Sprint("theirs-", i, n)})
			}
			rows = append(rows, ipam.Record{Op: ipam.PutAddress, Address: &a})
		}
	}
	return rows
}

// drawClaims draws claims of addresses of the ledger, of addresses in prefixes, and of
// addresses that are neither.
func drawClaims(t *rapid.T, v ipam.View) map[netip.Addr]ipam.Claim {
	out := map[netip.Addr]ipam.Claim{}
	made := rapid.SampledFrom([]time.Time{{}, {}, epoch.Add(-time.Hour)})
	for range rapid.IntRange(0, 4).Draw(t, "claims") {
		i := rapid.IntRange(0, len(v.ENIs)).Draw(t, "interface")
		addr := addressOf(i, rapid.IntRange(0, 6).Draw(t, "address"))
		if rapid.Bool().Draw(t, "delegated") {
			addr = prefixOf(i, rapid.IntRange(0, 2).Draw(t, "prefix")).Addr().Next()
		}
		out[addr] = ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Name: "theirs", UID: "u"}), Made: made.Draw(t, "made")}
	}
	return out
}

// drawObservation is what EC2 shows of the interfaces: not always attached, with other
// prefixes or without any.
func drawObservation(t *rapid.T, v ipam.View) (seen []ipam.Observed) {
	for i, e := range v.ENIs {
		shown := e.ENI
		shown.Prefixes = nil
		for n := range rapid.IntRange(0, 2).Draw(t, "shown") {
			shown.Prefixes = append(shown.Prefixes, ipam.Prefix{CIDR: prefixOf(i, n)})
		}
		seen = append(seen, ipam.Observed{
			ENI: shown, Attached: e.Primary || rapid.Bool().Draw(t, "attached"), Addresses: all(e),
		})
	}
	return seen
}

// Interfaces of other network cards have a limit and device indexes of their own.
func TestInterfacesOfOtherCardsTakeNoSlotOfTheDefaultCard(t *testing.T) {
	w := testWorld(t, ipam.Limits{ENIs: 2, AddressesPerENI: 50, MaxPods: 100}, nil)
	for card := 1; card < 32; card++ {
		e := w.ec2.makeENI(w.ec2.subnets[0], 0, w.now)
		e.attached, e.card, e.device = true, card, card%2 // 0 is an index of each card
	}
	w.observe()
	for n := range 98 {
		w.bind(n)
	}
	w.settle()
	for n := range 98 {
		if _, err := w.add(n); err != nil {
			t.Fatalf("pod %d: %v\n%s", n, err, w.decided)
		}
	}
	if n := w.decided.Numbers; n.ENIs != 2 || n.MaxENIs != 2 || n.Capacity != 98 {
		t.Errorf("%d of %d interfaces, capacity %d", n.ENIs, n.MaxENIs, n.Capacity)
	}
	for _, e := range w.ledger.View(w.now).ENIs {
		if e.Card > 0 && (!e.Unmanaged || !strings.Contains(e.WhyUnmanaged, "not on network card 0") || e.Primary) {
			t.Errorf("%s of card %d: primary %v, %q", e.ID, e.Card, e.Primary, e.WhyUnmanaged)
		}
	}
}

func TestWhichInterfacesAreManaged(t *testing.T) {
	ours := map[string]string{vpc.TagInstanceID: "i-1"}
	of := func(cluster string) map[string]string {
		return map[string]string{vpc.TagInstanceID: "i-1", vpc.TagClusterName: cluster}
	}
	for name, c := range map[string]struct {
		e    ipam.ENI
		tags map[string]string
		why  string // a part of it; empty: managed
	}{
		"the primary one without tags":   {ipam.ENI{Type: vpc.TypeInterface, Primary: true}, nil, ""},
		"a primary EFA":                  {ipam.ENI{Type: vpc.TypeEFA, Primary: true}, nil, ""},
		"one with our tag":               {ipam.ENI{Type: vpc.TypeInterface, Device: 1}, ours, ""},
		"no_manage without a value":      {ipam.ENI{Type: vpc.TypeInterface, Primary: true}, map[string]string{vpc.TagNoManage: ""}, ""},
		"no_manage":                      {ipam.ENI{Type: vpc.TypeInterface, Primary: true}, map[string]string{vpc.TagNoManage: "true"}, vpc.TagNoManage},
		"one without a tag":              {ipam.ENI{Type: vpc.TypeInterface, Device: 1}, nil, "another program"},
		"a second EFA":                   {ipam.ENI{Type: vpc.TypeEFA, Device: 1}, ours, `"efa"`},
		"an EFA-only one":                {ipam.ENI{Type: vpc.TypeEFAOnly, Device: 1}, ours, `"efa-only"`},
		"a trunk":                        {ipam.ENI{Type: vpc.TypeTrunk, Device: 1}, ours, `"trunk"`},
		"a type that is not known yet":   {ipam.ENI{Type: "quantum", Device: 1}, ours, `"quantum"`},
		"one of our cluster":             {ipam.ENI{Type: vpc.TypeInterface, Device: 1}, of("prod"), ""},
		"one of a cluster renamed since": {ipam.ENI{Type: vpc.TypeInterface, Device: 1}, of("other"), ""},
		"the primary one of another":     {ipam.ENI{Type: vpc.TypeInterface, Primary: true}, of("other"), ""},
		"one of another card with tags":  {ipam.ENI{Type: vpc.TypeInterface, Card: 3, Device: 1}, ours, "not on network card 0"},
	} {
		why := ipam.WhyUnmanaged(c.e, c.tags, "i-1")
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
	}
}

// The node itself has an address of an interface: no pod of another CNI does.
func TestAnInterfaceIsKeptForTheReasonThatItHas(t *testing.T) {
	node := ipam.Address{State: ipam.Assigned, Holder: ipam.NodeHolder("ens6")}
	pod := ipam.Address{State: ipam.Assigned, Holder: ipam.ForeignHolder(endpoint.Pod{})}
	for want, held := range map[string][]ipam.Address{
		"":                               {{State: ipam.Free}},
		"kept for 1 pod of another CNI":  {pod, node},
		"kept for 2 pods of another CNI": {pod, pod},
		"kept for its addresses that the node itself has: 1": {node},
	} {
		if got := (ipam.ENIView{Addresses: held}).Kept(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
