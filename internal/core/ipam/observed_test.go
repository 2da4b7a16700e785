package ipam_test

import (
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

// seenAs is what EC2 shows of an interface: these addresses, attached or not.
func seenAs(e ipam.ENIView, attached bool, addrs ...netip.Addr) ipam.Observed {
	o := ipam.Observed{ENI: e.ENI, Attached: attached, Addresses: addrs}
	if !attached {
		o.ENI.Device, o.ENI.Attachment = -1, ""
	}
	return o
}

// driftOf joins the messages of differences.
func driftOf(list []ipam.Drift) string {
	var out []string
	for _, d := range list {
		out = append(out, d.Message)
	}
	return strings.Join(out, "; ")
}

func TestAnInterfaceTakesThePhaseThatEC2ShowsOnceADescribeCannotBeStale(t *testing.T) {
	prefix := []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}}
	for name, c := range map[string]struct {
		phase    ipam.Phase
		since    time.Duration // before now
		primary  bool
		prefixes []ipam.Prefix
		attached bool
		want     ipam.Phase
		device   int
		drift    string
	}{
		"attached meanwhile":             {ipam.Attaching, 0, false, nil, true, ipam.SettingUp, 2, ""},
		"not attached yet":               {ipam.Attaching, time.Hour, false, nil, false, ipam.Attaching, -1, ""},
		"ready and attached":             {ipam.Ready, time.Hour, false, nil, true, ipam.Ready, 2, ""},
		"no longer attached":             {ipam.Ready, time.Minute, false, nil, false, ipam.Attaching, -1, "no longer attached"},
		"perhaps not attached yet":       {ipam.Ready, time.Minute - 1, false, nil, false, ipam.Ready, 2, ""},
		"no longer attached in set-up":   {ipam.SettingUp, time.Minute, false, nil, false, ipam.Attaching, -1, "no longer attached"},
		"the primary one":                {ipam.Ready, time.Hour, true, nil, false, ipam.Ready, 2, ""},
		"detached":                       {ipam.Detaching, time.Minute, false, nil, false, ipam.Deleting, 2, ""},
		"perhaps detached":               {ipam.Detaching, time.Minute - 1, false, nil, false, ipam.Detaching, 2, ""},
		"still attached":                 {ipam.Detaching, time.Hour, false, nil, true, ipam.Detaching, 2, ""},
		"to be deleted":                  {ipam.Deleting, time.Hour, false, nil, false, ipam.Deleting, 2, ""},
		"kept, and still attached":       {ipam.Detaching, time.Hour, false, prefix, true, ipam.SettingUp, 2, "was to be removed"},
		"kept, and detached":             {ipam.Deleting, time.Hour, false, prefix, false, ipam.Attaching, -1, "was to be removed"},
		"kept, and just detached":        {ipam.Detaching, time.Minute - 1, false, prefix, false, ipam.Attaching, -1, "was to be removed"},
		"kept, and shown attached":       {ipam.Deleting, time.Hour, false, prefix, true, ipam.Deleting, 2, ""},
		"kept, and perhaps not attached": {ipam.Ready, time.Minute - 1, false, prefix, false, ipam.Ready, 2, ""},
		"kept, and in use":               {ipam.Ready, time.Hour, false, prefix, true, ipam.Ready, 2, ""},
	} {
		e := given(2, c.phase)
		e.Since, e.Primary, e.Prefixes = epoch.Add(-c.since), c.primary, c.prefixes
		seen := given(2, ipam.Ready)
		seen.Prefixes = c.prefixes
		l := holding(t, e)
		_, drift := l.Observe([]ipam.Observed{seenAs(seen, c.attached)}, epoch)
		got := l.View(epoch).ENIs[0]
		if got.Phase != c.want || got.Device != c.device || (got.Attachment == "") != (c.device < 0) {
			t.Errorf("%s: %s, device %d, attachment %q; want %s, %d", name, got.Phase, got.Device, got.Attachment, c.want, c.device)
		}
		if moved := c.want != c.phase; got.Since.Equal(epoch) != (moved || c.since == 0) {
			t.Errorf("%s: since %s", name, got.Since)
		}
		if text := driftOf(drift); (text == "") != (c.drift == "") || !strings.Contains(text, c.drift) {
			t.Errorf("%s: %q, want %q", name, text, c.drift)
		}
	}
}

// The agent did not run between the two.
func TestAnInterfaceThatWasAttachedAgainIsSetUpByItsNewAttachment(t *testing.T) {
	for _, c := range []struct {
		phase ipam.Phase
		since time.Duration
		want  ipam.Phase
		moved bool
	}{
		{ipam.Ready, time.Minute, ipam.SettingUp, true},
		{ipam.SettingUp, time.Minute, ipam.SettingUp, true},
		{ipam.Ready, time.Minute - 1, ipam.Ready, false}, // may be a stale describe
		{ipam.Detaching, time.Hour, ipam.Detaching, false},
	} {
		e := given(2, c.phase)
		e.Since = epoch.Add(-c.since)
		seen := given(2, ipam.Ready)
		seen.Attachment, seen.Device = "eni-attach-again", 3
		l := holding(t, e)
		_, drift := l.Observe([]ipam.Observed{seenAs(seen, true)}, epoch)
		got := l.View(epoch).ENIs[0]
		if got.Phase != c.want || (got.Attachment == seen.Attachment) != c.moved || (got.Device == 3) != c.moved || strings.Contains(driftOf(drift), "attached again") != c.moved {
			t.Errorf("%s for %s: %s, %s, device %d, %q", c.phase, c.since, got.Phase, got.Attachment, got.Device, driftOf(drift))
		}
	}
}

func TestFencedAddressesOfAKeptInterfaceAreConfirmedAgain(t *testing.T) {
	e := given(1, ipam.Detaching, ipam.Releasing, ipam.Releasing)
	e.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}}
	l := holding(t, e)
	l.Observe([]ipam.Observed{seenAs(e, true, addressIn(1, 1))}, epoch)
	if shown, hidden := rowOf(l, addressIn(1, 1), epoch), rowOf(l, addressIn(1, 2), epoch); shown.State != ipam.Unconfirmed || !shown.Since.Equal(epoch) || hidden.State != ipam.Releasing {
		t.Errorf("shown %+v, not shown %+v", shown, hidden)
	}
}

func TestAnUnknownInterfaceIsRecordedByWhatItIs(t *testing.T) {
	created := time.Date(2026, 3, 1, 13, 0, 0, 5, time.FixedZone("", 3600))
	for name, c := range map[string]struct {
		change   func(*ipam.Observed)
		attached bool
		phase    ipam.Phase // empty: not recorded
		drift    string
	}{
		"attached":                      {func(*ipam.Observed) {}, true, ipam.SettingUp, "was not in the ledger"},
		"the primary one":               {func(o *ipam.Observed) { o.ENI.Primary = true }, true, ipam.Ready, "was not in the ledger"},
		"not attached, and ours":        {func(*ipam.Observed) {}, false, ipam.Attaching, "was not in the ledger"},
		"not attached, and not ours":    {func(o *ipam.Observed) { o.NotOurs = "another made it" }, false, "", "another made it"},
		"attached, and not managed":     {func(o *ipam.Observed) { o.ENI.Unmanaged = true }, true, ipam.SettingUp, ""},
		"not attached, and not managed": {func(o *ipam.Observed) { o.ENI.Unmanaged = true }, false, "", ""},
	} {
		for _, first := range []bool{false, true} {
			l := holding(t)
			if !first {
				l = holding(t, given(0, ipam.Ready))
			}
			seen := seenAs(given(1, ipam.Ready), c.attached)
			seen.ENI.Created, seen.ENI.Missing, seen.ENI.Since = created, epoch, time.Time{}
			if !c.attached {
				seen.ENI.Device, seen.ENI.Attachment = 4, "attach-4" // of another instance
			}
			c.change(&seen)
			others := []ipam.Observed{seen}
			if !first {
				others = append(others, seenAs(given(0, ipam.Ready), true))
			}
			_, drift := l.Observe(others, epoch)
			i := slices.IndexFunc(l.View(epoch).ENIs, func(e ipam.ENIView) bool { return e.ID == "eni-1" })
			want := c.drift
			if first && strings.Contains(want, "ledger") {
				want = "" // nothing was
			}
			if text := driftOf(drift); (i >= 0) != (c.phase != "") || (text == "") != (want == "") || !strings.Contains(text, want) {
				t.Errorf("%s, the first %v: at %d, %q; want %q, %q", name, first, i, text, c.phase, want)
				continue
			}
			if i < 0 {
				continue
			}
			got := l.View(epoch).ENIs[i]
			if got.Phase != c.phase || !got.Since.Equal(epoch) || !got.Missing.IsZero() || got.Created != created.Round(0).UTC() || c.phase == ipam.Attaching && (got.Device != -1 || got.Attachment != "") {
				t.Errorf("%s: %+v", name, got.ENI)
			}
		}
	}
	untagged := seenAs(given(1, ipam.Ready), true)
	untagged.ENI.Created = time.Time{}
	l := holding(t)
	if l.Observe([]ipam.Observed{untagged}, epoch); !l.View(epoch).ENIs[0].Created.Equal(epoch) {
		t.Errorf("without a time of its creation: %s", l.View(epoch).ENIs[0].Created)
	}
}

func TestAnAddressIsNotMovedByADescribe(t *testing.T) {
	for name, known := range map[string]bool{"to a known interface": true, "to an unknown interface": false} {
		rows := []ipam.ENIView{used(1, ipam.Ready)}
		if known {
			rows = append(rows, given(2, ipam.Ready))
		}
		l := holding(t, rows...)
		_, drift := l.Observe([]ipam.Observed{seenAs(used(1, ipam.Ready), true, addressIn(1, 1)), seenAs(given(2, ipam.Ready), true, addressIn(1, 1), addressIn(2, 7))}, epoch)
		if got := rowOf(l, addressIn(1, 1), epoch); got.ENI != "eni-1" || !strings.Contains(driftOf(drift), "EC2 shows 10.0.1.1 on eni-2, the ledger has it on eni-1") {
			t.Errorf("%s: %+v, %q", name, got, driftOf(drift))
		}
		if got := rowOf(l, addressIn(2, 7), epoch); got.State != ipam.Unconfirmed {
			t.Errorf("%s: another address is %+v", name, got)
		}
	}
}

func TestAnAddressThatAppearsOnTwoInterfacesKeepsNoOtherFromTheLedger(t *testing.T) {
	l := holding(t, given(1, ipam.Ready), given(2, ipam.Ready))
	l.Observe([]ipam.Observed{seenAs(given(1, ipam.Ready), true, addressIn(1, 1), addressIn(1, 2)), seenAs(given(2, ipam.Ready), true, addressIn(1, 2), addressIn(2, 1))}, epoch)
	for addr, want := range map[netip.Addr]ipam.State{addressIn(1, 1): ipam.Unconfirmed, addressIn(1, 2): "", addressIn(2, 1): ipam.Unconfirmed} {
		if got := rowOf(l, addr, epoch).State; got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
}

func TestAnAddressThatIsShownAgainKeepsTheTimeOfItsLastUse(t *testing.T) {
	at := epoch.Add(-time.Minute)
	l := holding(t, given(1, ipam.Ready))
	if err := l.Replay([]ipam.Record{{Op: ipam.PutGone, Gone: &ipam.Gone{Addr: addressIn(1, 1), At: at}}}); err != nil {
		t.Fatal(err)
	}
	l.Observe([]ipam.Observed{seenAs(given(1, ipam.Ready), true, addressIn(1, 1))}, epoch)
	if got := rowOf(l, addressIn(1, 1), epoch); got.State != ipam.Unconfirmed || !got.Used.Equal(at) {
		t.Errorf("%+v", got)
	}
}

func TestAnAddressOfAPodIsMissingOnceADescribeCannotBeStale(t *testing.T) {
	for ago, want := range map[time.Duration]bool{time.Minute - 1: false, time.Minute: true} {
		e := used(1, ipam.Ready)
		e.Addresses[0].Since = epoch.Add(-ago)
		l := holding(t, e)
		_, drift := l.Observe([]ipam.Observed{seenAs(e, true)}, epoch)
		if got := rowOf(l, addressIn(1, 1), epoch); got.Missing.IsZero() == want || (len(drift) == 1) != want || got.State != ipam.Assigned {
			t.Errorf("assigned %s ago: %+v, %q", ago, got, driftOf(drift))
		}
	}
}

func TestAPrefixIsDroppedOnceItWasMissingForAMinute(t *testing.T) {
	gone, stays := netip.MustParsePrefix("10.0.1.16/28"), netip.MustParsePrefix("10.0.1.32/28")
	for name, c := range map[string]struct {
		missing time.Duration // since then; negative: it was shown
		claimed bool
		want    string
	}{
		"for the first time":             {-1, false, "10.0.1.16/28 true, 10.0.1.32/28 false"},
		"not yet for a minute":           {time.Minute - 1, false, "10.0.1.16/28 true, 10.0.1.32/28 false"},
		"for a minute":                   {time.Minute, false, "10.0.1.32/28 false"},
		"for a minute, and a pod has it": {time.Minute, true, "10.0.1.16/28 true, 10.0.1.32/28 false"},
	} {
		e := given(1, ipam.Ready)
		e.Prefixes = []ipam.Prefix{{CIDR: gone}, {CIDR: stays}}
		if c.missing >= 0 {
			e.Prefixes[0].Missing = epoch.Add(-c.missing)
		}
		l := holding(t, e)
		if c.claimed {
			l.Claim(claimOf(netip.MustParseAddr("10.0.1.20"), time.Time{}), true, epoch)
		}
		seen := seenAs(e, true)
		seen.ENI.Prefixes = []ipam.Prefix{{CIDR: stays}}
		l.Observe([]ipam.Observed{seen}, epoch)
		var got []string
		for _, p := range l.View(epoch).ENIs[0].Prefixes {
			got = append(got, fmt.Sprint(p.CIDR, " ", !p.Missing.IsZero()))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

func TestAnInterfaceThatVanishedIsReportedUntilNoPodUsesIt(t *testing.T) {
	for name, c := range map[string]struct {
		phase   ipam.Phase
		since   time.Duration
		missing time.Duration // negative: it was shown
		pod     bool
		busy    bool
		left    bool
		drift   string
	}{
		"for the first time":         {ipam.Ready, time.Minute, -1, false, false, true, "EC2 does not show interface eni-1"},
		"lately recorded":            {ipam.Ready, time.Minute - 1, -1, false, false, true, ""},
		"not yet for a minute":       {ipam.Ready, time.Hour, time.Minute - 1, false, false, true, ""},
		"for a minute":               {ipam.Ready, time.Hour, time.Minute, false, false, false, "it was dropped from the ledger"},
		"for a minute, with a pod":   {ipam.Ready, time.Hour, time.Minute, true, false, true, "delete these pods"},
		"with an action in flight":   {ipam.Ready, time.Hour, -1, false, true, true, ""},
		"when it was to be deleted":  {ipam.Deleting, time.Hour, -1, false, false, true, ""},
		"in flight, and for minutes": {ipam.Ready, time.Hour, time.Hour, false, true, true, ""},
	} {
		e := given(1, c.phase, ipam.Free)
		if c.pod {
			e = used(1, c.phase)
		}
		e.Since = epoch.Add(-c.since)
		if c.missing >= 0 {
			e.Missing = epoch.Add(-c.missing)
		}
		l := holding(t, e)
		if c.busy {
			if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 1}, epoch); err != nil {
				t.Fatal(err)
			}
		}
		_, drift := l.Observe(nil, epoch)
		if text := driftOf(drift); (len(l.View(epoch).ENIs) == 1) != c.left || (text == "") != (c.drift == "") || !strings.Contains(text, c.drift) {
			t.Errorf("%s: %d interfaces, %q; want it left %v, %q", name, len(l.View(epoch).ENIs), text, c.left, c.drift)
		}
	}
}

// Its outcome says what the action did; a describe may show any part of it.
func TestAnInterfaceWithAnActionInFlightIsNotObserved(t *testing.T) {
	e := given(1, ipam.Ready, ipam.Free)
	l := holding(t, e)
	if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 1}, epoch); err != nil {
		t.Fatal(err)
	}
	seen := seenAs(e, true, addressIn(1, 7))
	seen.ENI.Type = vpc.TypeEFA
	if records, drift := l.Observe([]ipam.Observed{seen}, epoch); len(records) != 0 || len(drift) != 0 {
		t.Errorf("%d records, %q", len(records), driftOf(drift))
	}
}

func TestTheNextAttemptIsAtTheEndOfTheFirstPause(t *testing.T) {
	view := ipam.View{}
	for key, until := range map[string]time.Duration{"AssignAddresses/eni-0": time.Minute, "AssignAddresses/eni-1": 30 * time.Second, "AssignAddresses/eni-2": 45 * time.Second} {
		view.Backoffs = append(view.Backoffs, ipam.Backoff{Key: key, Until: epoch.Add(until), Tries: 1, Reason: cloud.FailUnauthorized, Message: "no"})
	}
	s := ipam.Snapshot{View: view, Limits: ipam.Limits{ENIs: 3, AddressesPerENI: 15}, Subnets: []ipam.Subnet{{ID: "subnet-0", Free: 50}}}
	if d := planned(s, filled(0, 1), filled(1, 1), filled(2, 1)); d.Condition.Reason != ipam.ReasonRefused || !d.Condition.RetryAt.Equal(epoch.Add(30*time.Second)) {
		t.Errorf("%s at %s", d.Condition, d.Condition.RetryAt)
	}
}

func TestReleasedObjectsHaveKeysOfTheirOwn(t *testing.T) {
	for want, gone := range map[string]ipam.Gone{"gone/10.0.1.1": {Addr: addressIn(1, 1)}, "gone/eni-1": {ENI: "eni-1"}} {
		for _, op := range []ipam.Op{ipam.PutGone, ipam.DropGone} {
			if got := (ipam.Record{Op: op, Gone: &gone}).Key(); got != want {
				t.Errorf("%s: %q, want %q", op, got, want)
			}
		}
	}
	if err := holding(t, given(1, ipam.Ready)).Replay([]ipam.Record{{Op: ipam.PutAddress, Address: &ipam.Address{ENI: "eni-1"}}}); err == nil {
		t.Error("a row without an address is replayed")
	}
}

func TestOnlyClaimsThatCannotBeGrantedAreListed(t *testing.T) {
	e := used(1, ipam.Ready, ipam.Releasing)
	e.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}, {CIDR: netip.MustParsePrefix("10.0.1.32/28")}}
	l := holding(t, e)
	l.Claim(map[netip.Addr]ipam.Claim{
		addressIn(1, 1): {Holder: holder(1)}, addressIn(1, 2): {Holder: holder(2)}, addressIn(1, 40): {Holder: holder(3)}, addressIn(9, 9): {Holder: holder(4)},
	}, true, epoch)
	var got []netip.Addr
	for _, c := range l.View(epoch).ENIs[0].Claimed {
		got = append(got, c.Addr)
	}
	if want := []netip.Addr{addressIn(1, 2), addressIn(1, 40)}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAPrefixOfIPv4TakesASlotOfAnAddress(t *testing.T) {
	one := ipam.Limits{ENIs: 1, AddressesPerENI: 15}
	for cidr, want := range map[string]int{"10.0.0.16/28": 1, "2001:db8::/80": 2} {
		e := filled(0, 12)
		e.Prefixes = []ipam.Prefix{{CIDR: netip.MustParsePrefix(cidr)}}
		d := planned(ipam.Snapshot{Limits: one, Pending: demand(9)}, e)
		if len(d.Actions) != 1 || d.Actions[0].Count != want || d.Numbers.Capacity != 12+want {
			t.Errorf("%s: %s\nwant %d addresses", cidr, d, want)
		}
	}
}

func TestAddressesOfAnUnmanagedInterfaceAreNotCounted(t *testing.T) {
	e := given(1, ipam.Ready, ipam.Assigned, ipam.Quarantined, ipam.Releasing, ipam.Unconfirmed)
	e.Unmanaged = true
	if n := planned(ipam.Snapshot{}, filled(0, 1, ipam.Free, ipam.Free), e).Numbers; n.Assigned != 1 || n.Quarantined+n.Releasing+n.Unconfirmed != 0 || n.ENIs != 2 {
		t.Errorf("%+v", n)
	}
}
