package ipam_test

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// holding is a ledger with these interfaces and their addresses.
func holding(t *testing.T, enis ...ipam.ENIView) *ipam.Ledger {
	t.Helper()
	l := ipam.New(ipam.Settings{CoolDown: 30 * time.Second, IdleAfter: time.Minute})
	var records []ipam.Record
	for _, e := range enis {
		records = append(records, ipam.Record{Op: ipam.PutENI, ENI: &e.ENI})
		for _, a := range e.Addresses {
			records = append(records, ipam.Record{Op: ipam.PutAddress, Address: &a})
		}
	}
	if err := l.Replay(records); err != nil {
		t.Fatal(err)
	}
	return l
}

// used is an interface with an address of a pod, besides those in some states.
func used(device int, phase ipam.Phase, states ...ipam.State) ipam.ENIView {
	e := given(device, phase, append([]ipam.State{ipam.Assigned}, states...)...)
	e.Addresses[0].Holder = holder(device)
	return e
}

func addressIn(device, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(device), byte(n)})
}

// rowOf is an address as the ledger has it.
func rowOf(l *ipam.Ledger, addr netip.Addr, now time.Time) ipam.Address {
	for _, e := range l.View(now).ENIs {
		for _, a := range e.Addresses {
			if a.Addr == addr {
				return a
			}
		}
	}
	return ipam.Address{}
}

func TestATransactionThatSucceedsIsKept(t *testing.T) {
	l := holding(t, given(0, ipam.Ready, ipam.Free))
	late := netip.MustParseAddr("10.0.0.99")
	err := l.Atomic(func() error {
		_, _, err := l.Assign(holder(1), epoch)
		l.Claim(map[netip.Addr]ipam.Claim{late: {Holder: holder(2)}}, true, epoch)
		return err
	})
	if lease, ok := l.Lookup(holder(1).Endpoint); err != nil || !ok || lease.Addr != addressIn(0, 1) {
		t.Errorf("%v; the pod has %+v, %v", err, lease, ok)
	}
	seen := ipam.Observed{ENI: given(0, ipam.Ready).ENI, Attached: true, Addresses: []netip.Addr{addressIn(0, 1), late}}
	if l.Observe([]ipam.Observed{seen}, epoch); rowOf(l, late, epoch).Holder != holder(2) {
		t.Errorf("the claim of the transaction is lost: %+v", rowOf(l, late, epoch))
	}
}

func TestAnActionBeginsInThePhasesThatAllowIt(t *testing.T) {
	phases := []ipam.Phase{ipam.Attaching, ipam.SettingUp, ipam.Ready, ipam.Detaching, ipam.Deleting}
	for kind, allowed := range map[cloud.Kind][]ipam.Phase{
		cloud.Attach:            {ipam.Attaching},
		cloud.SetUp:             {ipam.SettingUp},
		cloud.AssignAddresses:   {ipam.Attaching, ipam.SettingUp, ipam.Ready},
		cloud.UnassignAddresses: phases,
		cloud.Detach:            {ipam.Ready, ipam.Detaching},
		cloud.DeleteENI:         {ipam.Attaching, ipam.Deleting},
	} {
		for _, phase := range phases {
			l := holding(t, given(1, phase, ipam.Free, ipam.Unconfirmed))
			a := cloud.Action{ID: "act", Kind: kind, ENI: "eni-1", Device: 1, Count: 1}
			if kind == cloud.UnassignAddresses {
				a.Addresses = []netip.Addr{addressIn(1, 1)}
			}
			_, err := l.Begin(a, epoch)
			if want := slices.Contains(allowed, phase); (err == nil) != want || err != nil && !errors.Is(err, ipam.ErrStale) {
				t.Errorf("%s of an interface that is %s: %v, want it begun: %v", kind, phase, err, want)
			}
			if err != nil {
				continue
			}
			v := l.View(epoch)
			begun := v.InFlight[0]
			if begun.Subnet != "subnet-0" || kind == cloud.Detach && begun.Attachment != v.ENIs[0].Attachment {
				t.Errorf("%s of an interface that is %s: %+v", kind, phase, begun)
			}
			if from := map[bool]string{true: "ready"}[kind == cloud.Detach && phase == ipam.Ready]; begun.From != from {
				t.Errorf("%s of an interface that is %s is from %q, want %q", kind, phase, begun.From, from)
			}
			fences := map[cloud.Kind]int{cloud.UnassignAddresses: 1, cloud.Detach: 2, cloud.DeleteENI: 2}[kind]
			if phase == ipam.Detaching && kind == cloud.Detach || phase == ipam.Deleting && kind == cloud.DeleteENI {
				fences = 0 // it was fenced before
			}
			if n := v.ENIs[0].Count(ipam.Releasing); n != fences {
				t.Errorf("%s of an interface that is %s fences %d addresses, want %d", kind, phase, n, fences)
			}
			if released := !v.Released.IsZero(); released != (kind == cloud.UnassignAddresses || kind == cloud.Detach) {
				t.Errorf("%s counts as a release: %v", kind, released)
			}
		}
	}
}

func TestWhatIsNeverRemovedIsNotFenced(t *testing.T) {
	unmanaged, primary := given(1, ipam.Ready, ipam.Free), given(1, ipam.Ready, ipam.Free)
	unmanaged.Unmanaged, primary.Primary = true, true
	for name, e := range map[string]ipam.ENIView{"an unmanaged interface": unmanaged, "the primary interface": primary} {
		if _, err := holding(t, e).Begin(cloud.Action{ID: "act", Kind: cloud.Detach, ENI: "eni-1"}, epoch); !errors.Is(err, ipam.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", name, err)
		}
	}
}

func TestOnlyFreeAndFencedAddressesAreReleased(t *testing.T) {
	for state, want := range map[ipam.State]bool{
		ipam.Free: true, ipam.Releasing: true, ipam.Assigned: false, ipam.Cooling: false, ipam.Unconfirmed: false,
	} {
		e := given(1, ipam.Ready, state)
		if state == ipam.Assigned {
			e.Addresses[0].Holder = holder(1)
		}
		if state == ipam.Cooling {
			e.Addresses[0].Until = epoch.Add(time.Second)
		}
		l := holding(t, e, given(2, ipam.Ready, ipam.Free))
		_, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{addressIn(1, 1)}}, epoch)
		if (err == nil) != want || err != nil && !errors.Is(err, ipam.ErrStale) {
			t.Errorf("an address that is %s: %v, want it released: %v", state, err, want)
		}
	}
	for name, addr := range map[string]netip.Addr{"of another interface": addressIn(2, 1), "that is not in the ledger": addressIn(1, 9)} {
		l := holding(t, given(1, ipam.Ready, ipam.Free), given(2, ipam.Ready, ipam.Free))
		if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{addr}}, epoch); !errors.Is(err, ipam.ErrStale) {
			t.Errorf("an address %s: %v, want ErrStale", name, err)
		}
	}
	l := holding(t, given(1, ipam.Ready, ipam.Releasing))
	l.Claim(map[netip.Addr]ipam.Claim{addressIn(1, 1): {Holder: holder(1)}}, true, epoch)
	if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{addressIn(1, 1)}}, epoch); !errors.Is(err, ipam.ErrStale) {
		t.Errorf("a fenced address that a pod claims: %v, want ErrStale", err)
	}
}

func TestOnlyMissingAddressesOfPodsAreRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ipam.ENIView)
		addr   netip.Addr
		want   bool
	}{
		"missing":                  {func(*ipam.ENIView) {}, addressIn(1, 1), true},
		"shown":                    {func(e *ipam.ENIView) { e.Addresses[0].Missing = time.Time{} }, addressIn(1, 1), false},
		"not of a pod any more":    {func(e *ipam.ENIView) { e.Addresses[0].State, e.Addresses[0].Holder = ipam.Unconfirmed, ipam.Holder{} }, addressIn(1, 1), false},
		"of another interface":     {func(*ipam.ENIView) {}, addressIn(2, 1), false},
		"not in the ledger at all": {func(*ipam.ENIView) {}, addressIn(1, 9), false},
	} {
		e, other := used(1, ipam.Ready), used(2, ipam.Ready)
		e.Addresses[0].Missing, other.Addresses[0].Missing = epoch.Add(-time.Minute), epoch.Add(-time.Minute)
		c.change(&e)
		_, err := holding(t, e, other).Begin(cloud.Action{ID: "act", Kind: cloud.RestoreAddresses, ENI: "eni-1", Addresses: []netip.Addr{c.addr}}, epoch)
		if (err == nil) != c.want || err != nil && !errors.Is(err, ipam.ErrStale) {
			t.Errorf("%s: %v, want it begun: %v", name, err, c.want)
		}
	}
}

// No call in between has ended the cool-down.
func TestAnActionBeginsAfterTheEndOfACoolDown(t *testing.T) {
	e := given(1, ipam.Ready, ipam.Cooling)
	e.Addresses[0].Until = epoch
	if _, err := holding(t, e).Begin(cloud.Action{ID: "act", Kind: cloud.Detach, ENI: "eni-1"}, epoch); err != nil {
		t.Error(err)
	}
}

// settled begins and settles an action.
func settled(t *testing.T, l *ipam.Ledger, a cloud.Action, out cloud.Outcome) []ipam.Record {
	t.Helper()
	a.ID = "act"
	if _, err := l.Begin(a, epoch); err != nil {
		t.Fatal(err)
	}
	records, err := l.Settle(a.ID, out, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestANewInterfaceHasWhatEC2Replied(t *testing.T) {
	out := cloud.Outcome{
		ENI: "eni-5", MAC: vpc.MAC{2, 0, 0, 0, 0, 5}, PrimaryIP: addressIn(5, 5), Groups: []vpc.SecurityGroupID{"sg-2"}, Addresses: []netip.Addr{addressIn(5, 6)},
	}
	action := cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-5", SubnetCIDR: netip.MustParsePrefix("10.0.5.0/24"), Groups: []vpc.SecurityGroupID{"sg-1"}, Count: 1}
	want := ipam.ENI{
		ID: "eni-5", Type: vpc.TypeInterface, Phase: ipam.Attaching, Device: -1, MAC: out.MAC, PrimaryIP: out.PrimaryIP,
		Subnet: "subnet-5", SubnetCIDR: action.SubnetCIDR, Groups: out.Groups, Created: epoch, Since: epoch,
	}
	l := holding(t, given(0, ipam.Ready))
	settled(t, l, action, out)
	if got := l.View(epoch).ENIs; len(got) != 2 || !reflect.DeepEqual(got[0].ENI, want) && !reflect.DeepEqual(got[1].ENI, want) {
		t.Errorf("%+v\nwant one of them as %+v", got, want)
	}
	out.Groups = nil
	l = holding(t)
	settled(t, l, action, out)
	if got := l.View(epoch).ENIs[0]; !slices.Equal(got.Groups, action.Groups) || len(got.Addresses) != 1 || got.Addresses[0].State != ipam.Free {
		t.Errorf("without groups in the reply: %+v", got)
	}
}

func TestAnInterfaceThatAnObservationRecordedFirstKeepsItsPhase(t *testing.T) {
	l := holding(t, given(1, ipam.Ready, ipam.Free))
	settled(t, l, cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-0"}, cloud.Outcome{ENI: "eni-1", Addresses: []netip.Addr{addressIn(1, 1)}})
	if got := l.View(epoch).ENIs[0]; got.Phase != ipam.Ready || got.Device != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAnAddressThatComesBackKeepsTheTimeOfItsLastUse(t *testing.T) {
	l := holding(t, given(0, ipam.Ready, ipam.Free))
	at := epoch.Add(-30 * time.Second)
	if err := l.Replay([]ipam.Record{{Op: ipam.PutGone, Gone: &ipam.Gone{Addr: addressIn(0, 7), At: at}}}); err != nil {
		t.Fatal(err)
	}
	settled(t, l, cloud.Action{Kind: cloud.AssignAddresses, ENI: "eni-0", Count: 1}, cloud.Outcome{Addresses: []netip.Addr{addressIn(0, 7)}})
	if got := rowOf(l, addressIn(0, 7), epoch); !got.Used.Equal(at) || got.State != ipam.Free {
		t.Errorf("%+v, want it used until %s", got, at)
	}
}

// The pod's link was deleted while EC2 assigned its address again.
func TestARestoreOfAnAddressThatNoPodHasChangesNothing(t *testing.T) {
	e := used(1, ipam.Ready)
	e.Addresses[0].Missing = epoch.Add(-time.Minute)
	l := holding(t, e)
	if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.RestoreAddresses, ENI: "eni-1", Addresses: []netip.Addr{addressIn(1, 1)}}, epoch); err != nil {
		t.Fatal(err)
	}
	l.Release(holder(1).Endpoint, epoch)
	before := rowOf(l, addressIn(1, 1), epoch)
	if _, err := l.Settle("act", cloud.Outcome{}, epoch.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := rowOf(l, addressIn(1, 1), epoch.Add(time.Second)); got != before || got.State != ipam.Unconfirmed {
		t.Errorf("%+v, want %+v", got, before)
	}
}

func TestARefusedDetachReturnsToThePhaseThatItCameFrom(t *testing.T) {
	for phase, want := range map[ipam.Phase]ipam.Phase{ipam.Ready: ipam.Ready, ipam.Detaching: ipam.Detaching} {
		l := holding(t, given(1, phase, ipam.Free))
		if _, err := l.Begin(cloud.Action{ID: "act", Kind: cloud.Detach, ENI: "eni-1"}, epoch); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Fail("act", cloud.Failure{Reason: cloud.FailUnauthorized, Definite: true}, epoch); err != nil {
			t.Fatal(err)
		}
		if got := l.View(epoch).ENIs[0]; got.Phase != want || got.Count(ipam.Free) != 1 {
			t.Errorf("from %s: %s with %d free", phase, got.Phase, got.Count(ipam.Free))
		}
	}
}

// backedOff is a ledger with one interface and these back-offs.
func backedOff(t *testing.T, phase ipam.Phase, why cloud.FailReason, keys ...string) *ipam.Ledger {
	t.Helper()
	l := holding(t, given(1, phase, ipam.Free))
	for _, key := range keys {
		b := ipam.Backoff{Key: key, Since: epoch.Add(-time.Second), Until: epoch.Add(time.Minute), Tries: 1, Reason: why}
		if err := l.Replay([]ipam.Record{{Op: ipam.PutBackoff, Backoff: &b}}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func keysOf(l *ipam.Ledger) string {
	var keys []string
	for _, b := range l.View(epoch).Backoffs {
		keys = append(keys, b.Key)
	}
	return strings.Join(keys, " ")
}

func TestASuccessEndsTheBackoffsThatItRulesOut(t *testing.T) {
	keys := []string{
		"AssignAddresses/eni-1", "Attach/eni-1", "CreateENI/subnet-0", "CreateENI/subnet-9", "DeleteENI/eni-1", "Detach/eni-1",
		"SetUp/eni-1", "UnassignAddresses/eni-1", "interfaces", "subnet/subnet-0", "subnet/subnet-9",
	}
	for kind, c := range map[cloud.Kind]struct {
		phase ipam.Phase
		ended string
	}{
		cloud.CreateENI:         {ipam.Ready, "CreateENI/subnet-0 interfaces subnet/subnet-0"},
		cloud.AssignAddresses:   {ipam.Ready, "AssignAddresses/eni-1 subnet/subnet-0"},
		cloud.DeleteENI:         {ipam.Deleting, "DeleteENI/eni-1 interfaces"},
		cloud.Attach:            {ipam.Attaching, "Attach/eni-1"},
		cloud.SetUp:             {ipam.SettingUp, "SetUp/eni-1"},
		cloud.UnassignAddresses: {ipam.Ready, "UnassignAddresses/eni-1"},
		cloud.Detach:            {ipam.Ready, "Detach/eni-1"},
	} {
		a := cloud.Action{Kind: kind, ENI: "eni-1", Subnet: "subnet-0"}
		if kind == cloud.CreateENI {
			a.ENI = ""
		}
		if kind == cloud.UnassignAddresses {
			a.Addresses = []netip.Addr{addressIn(1, 1)}
		}
		l := backedOff(t, c.phase, cloud.FailOther, keys...)
		settled(t, l, a, cloud.Outcome{ENI: "eni-1"})
		want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(strings.Fields(c.ended), k) })
		if got := keysOf(l); got != strings.Join(want, " ") {
			t.Errorf("%s leaves %q, want %q", kind, got, want)
		}
		for _, r := range settled(t, backedOff(t, c.phase, cloud.FailOther), a, cloud.Outcome{ENI: "eni-1"}) {
			if r.Op == ipam.DropBackoff {
				t.Errorf("%s drops %q, which there is not", kind, r.Scope)
			}
		}
		l = backedOff(t, c.phase, cloud.FailCredentials, "Detach/eni-9")
		if settled(t, l, a, cloud.Outcome{ENI: "eni-1"}); (keysOf(l) == "") != (kind != cloud.SetUp) {
			t.Errorf("%s leaves %q of refused credentials", kind, keysOf(l))
		}
	}
}

func TestTheScopeOfAFailureIsWhatItIsAbout(t *testing.T) {
	reasons := append(causes(), cloud.FailAddressLimit, cloud.FailThrottled, cloud.FailNotFound, cloud.FailFrozen, cloud.FailInUse)
	want := map[cloud.FailReason]string{cloud.FailSubnetExhausted: "subnet/subnet-0", cloud.FailENILimit: "interfaces"}
	for _, why := range append(reasons, cloud.FailSubnetExhausted, cloud.FailENILimit) {
		for _, a := range []cloud.Action{
			{Kind: cloud.CreateENI, Subnet: "subnet-0"},
			{Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 1},
			{Kind: cloud.RestoreAddresses, ENI: "eni-1", Addresses: []netip.Addr{addressIn(1, 1)}},
		} {
			e := used(1, ipam.Ready)
			e.Addresses[0].Missing = epoch
			l := holding(t, e)
			a.ID = "act"
			if _, err := l.Begin(a, epoch); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Fail("act", cloud.Failure{Reason: why, Definite: true}, epoch); err != nil {
				t.Fatal(err)
			}
			key := want[why]
			if key == "" {
				key = map[cloud.Kind]string{
					cloud.CreateENI: "CreateENI/subnet-0", cloud.AssignAddresses: "AssignAddresses/eni-1", cloud.RestoreAddresses: "RestoreAddresses/10.0.1.1",
				}[a.Kind]
			}
			if got := keysOf(l); got != key {
				t.Errorf("%s of %s: %q, want %q", why, a.Kind, got, key)
			}
		}
	}
}

func TestWhichAddressesCanBeAdopted(t *testing.T) {
	theirs := ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "uid-theirs"})
	row := func(state ipam.State, of ipam.Holder) *ipam.Ledger {
		e := given(1, ipam.Ready, state, ipam.Free)
		e.Addresses[0].Holder = of
		return holding(t, e)
	}
	for name, c := range map[string]struct {
		ledger  *ipam.Ledger
		records int
		err     error
	}{
		"a free one":                   {row(ipam.Free, ipam.Holder{}), 1, nil},
		"one that is not confirmed":    {row(ipam.Unconfirmed, ipam.Holder{}), 1, nil},
		"one of a pod of another CNI":  {row(ipam.Assigned, theirs), 1, nil},
		"its own":                      {row(ipam.Assigned, holder(1)), 0, nil},
		"one of another endpoint":      {row(ipam.Assigned, holder(2)), 0, ipam.ErrHeld},
		"one that is being released":   {row(ipam.Releasing, ipam.Holder{}), 0, ipam.ErrHeld},
		"one that is not in the table": {holding(t, given(1, ipam.Ready)), 0, ipam.ErrUnknown},
	} {
		lease, records, err := c.ledger.Adopt(holder(1), addressIn(1, 1), epoch)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || len(records) != c.records || err == nil && lease.Addr != addressIn(1, 1) {
			t.Errorf("%s: %+v, %d records, %v; want %d, %v", name, lease, len(records), err, c.records, c.err)
		}
	}
	l := row(ipam.Assigned, holder(1))
	if _, _, err := l.Adopt(holder(1), addressIn(1, 2), epoch); !errors.Is(err, ipam.ErrHeld) {
		t.Errorf("a second one: %v, want ErrHeld", err)
	}
}
