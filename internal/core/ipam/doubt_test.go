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

// listed is what instance metadata lists if it shows what EC2 has.
func (w *world) listed() (all []ipam.Listed) {
	for _, o := range w.ec2.describe() {
		if o.Attached {
			own := viewOf(w, o.ENI.ID).PrimaryIP // the simulation's replies have none
			i := ipam.Listed{ENI: o.ENI.ID, Device: o.ENI.Device, Groups: o.ENI.Groups, Addresses: append([]netip.Addr{own}, o.Addresses...)}
			for _, p := range o.ENI.Prefixes {
				i.Prefixes = append(i.Prefixes, p.CIDR)
			}
			all = append(all, i)
		}
	}
	return all
}

// withTwoInterfaces is a node with a record older than metadata can be.
func withTwoInterfaces(t *testing.T) *world {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 20 {
		w.bind(n)
	}
	w.settle()
	for n := range 20 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	w.now = w.now.Add(2 * time.Minute)
	w.observe()
	return w
}

func TestMetadataThatShowsWhatEC2HasIsNoDoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	listed := w.listed()
	if got := w.ledger.Doubts(listed, w.now); len(listed) != 2 || len(got) > 0 {
		t.Errorf("%d interfaces, doubts %q", len(listed), got)
	}
}

func TestADifferenceThatMetadataShowsIsADoubt(t *testing.T) {
	extra := netip.MustParseAddr("10.9.9.9")
	for name, c := range map[string]struct {
		change func(w *world, listed []ipam.Listed) []ipam.Listed
		want   string // part of the one doubt
	}{
		"an interface is gone": {func(_ *world, l []ipam.Listed) []ipam.Listed { return l[:1] }, "does not list interface eni-"},
		"an interface more": {func(_ *world, l []ipam.Listed) []ipam.Listed {
			return append(l, ipam.Listed{ENI: "eni-other", Device: 3})
		}, "lists interface eni-other, which is not in the ledger"},
		"an address is gone": {func(_ *world, l []ipam.Listed) []ipam.Listed {
			l[1].Addresses = l[1].Addresses[:len(l[1].Addresses)-1]
			return l
		}, "does not list 10."},
		"an address more": {func(_ *world, l []ipam.Listed) []ipam.Listed {
			l[0].Addresses = append(l[0].Addresses, extra)
			return l
		}, "lists 10.9.9.9 on eni-"},
		"another device index": {func(_ *world, l []ipam.Listed) []ipam.Listed { l[1].Device = 7; return l }, "as device 7"},
		"other groups": {func(_ *world, l []ipam.Listed) []ipam.Listed {
			l[0].Groups = []vpc.SecurityGroupID{"sg-9"}
			return l
		}, "lists the groups [sg-9]"},
		"a prefix more": {func(_ *world, l []ipam.Listed) []ipam.Listed {
			l[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")}
			return l
		}, "lists prefix 10.0.0.16/28"},
	} {
		t.Run(name, func(t *testing.T) {
			w := withTwoInterfaces(t)
			got := w.ledger.Doubts(c.change(w, w.listed()), w.now)
			if len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("doubts %q, want one with %q", got, c.want)
			}
		})
	}
}

func TestAnAddressThatMovedToAnotherInterfaceIsADoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	l := w.listed()
	last := len(l[1].Addresses) - 1
	moved := l[1].Addresses[last]
	l[0].Addresses, l[1].Addresses = append(l[0].Addresses, moved), l[1].Addresses[:last]
	got := w.ledger.Doubts(l, w.now)
	if len(got) != 2 || !strings.Contains(got[1], fmt.Sprintf("lists %s on %s, the ledger has it on %s", moved, l[0].ENI, l[1].ENI)) {
		t.Errorf("doubts %q", got)
	}
}

func TestGroupsInAnotherOrderAreNoDoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	seen := w.ec2.describe()
	for i := range seen {
		seen[i].ENI.Groups = []vpc.SecurityGroupID{"sg-1", "sg-2"}
	}
	w.ledger.Observe(seen, w.now)
	l := w.listed()
	for i := range l {
		l[i].Groups = []vpc.SecurityGroupID{"sg-2", "sg-1"}
	}
	if got := w.ledger.Doubts(l, w.now); len(got) > 0 {
		t.Errorf("doubts %q", got)
	}
}

// Metadata lags behind what the ledger did itself.
func TestMetadataThatLagsBehindTheLedgerIsNoDoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	before := w.listed()
	for n := 20; n < 34; n++ {
		w.bind(n)
	}
	w.settle() // assigns, and creates an interface
	if got := w.ledger.Doubts(before, w.now); len(w.ledger.View(w.now).ENIs) != 3 || len(got) > 0 {
		t.Errorf("%d interfaces; doubts %q right after they grew", len(w.ledger.View(w.now).ENIs), got)
	}
	w.now = w.now.Add(2 * time.Minute)
	if got := w.ledger.Doubts(before, w.now); len(got) == 0 {
		t.Error("no doubt although metadata does not show it after two minutes")
	}
}

// Metadata may list for a while what was released.
func TestWhatWasReleasedAMomentAgoIsNoDoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	before := w.listed()
	for n := range 20 {
		w.del(n)
	}
	for len(w.ec2.enis) > 1 {
		w.now = w.now.Add(5 * time.Second)
		w.settle()
		if got := w.ledger.Doubts(before, w.now); len(got) > 0 {
			t.Fatalf("doubts %q", got)
		}
	}
	w.now = w.now.Add(30 * time.Second)
	if got := w.ledger.Doubts(before, w.now); len(got) > 0 {
		t.Errorf("doubts %q half a minute after the interface was deleted", got)
	}
	w.now = w.now.Add(time.Minute)
	if got := w.ledger.Doubts(before, w.now); len(got) != 1 || !strings.Contains(got[0], "which is not in the ledger") {
		t.Errorf("doubts %q after a minute and a half", got)
	}
}

func TestADifferenceThatIsRecordedIsADoubtOnceMetadataShowsItsEnd(t *testing.T) {
	w := withTwoInterfaces(t)
	whole := w.listed()
	lost := whole[1].Addresses[1]
	seen := w.ec2.describe()
	for i := range seen {
		seen[i].Addresses = slices.DeleteFunc(slices.Clone(seen[i].Addresses), func(a netip.Addr) bool { return a == lost })
	}
	w.ledger.Observe(seen, w.now)
	without := w.listed()
	without[1].Addresses = slices.DeleteFunc(without[1].Addresses, func(a netip.Addr) bool { return a == lost })
	if got := w.ledger.Doubts(without, w.now); len(got) > 0 {
		t.Errorf("doubts %q of what EC2 has confirmed", got)
	}
	if got := w.ledger.Doubts(whole, w.now); len(got) != 1 || !strings.Contains(got[0], "where EC2 did not show it") {
		t.Errorf("doubts %q, want one: the address is back", got)
	}
}

// EC2 shows that an interface is gone, and for a while metadata shows it as before.
func TestAnInterfaceThatEC2DidNotShowIsADoubtWhileMetadataListsIt(t *testing.T) {
	for name, c := range map[string]struct {
		seen func(o *ipam.Observed) // what EC2 shows of the second interface; nil: nothing
		want string
	}{
		"deleted": {nil, "which EC2 did not show"},
		"detached": {func(o *ipam.Observed) {
			o.Attached, o.ENI.Device, o.ENI.Attachment = false, -1, ""
		}, "which the ledger has as not attached"},
	} {
		t.Run(name, func(t *testing.T) {
			w := withTwoInterfaces(t)
			whole := w.listed()
			second := whole[1].ENI
			var seen []ipam.Observed
			for _, o := range w.ec2.describe() {
				if o.ENI.ID == second {
					if c.seen == nil {
						continue
					}
					c.seen(&o)
				}
				seen = append(seen, o)
			}
			w.ledger.Observe(seen, w.now)
			w.now = w.now.Add(2 * time.Minute)
			if got := w.ledger.Doubts(whole, w.now); len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("doubts %q, want one with %q", got, c.want)
			}
			if got := w.ledger.Doubts(whole[:1], w.now); len(got) > 0 {
				t.Errorf("doubts %q of what EC2 has shown", got)
			}
		})
	}
}

func TestAnAddressThatWasReleasedAMomentAgoIsNoDoubt(t *testing.T) {
	w := withTwoInterfaces(t)
	before := w.listed()
	for n := range 13 { // of the primary interface; the second keeps its pods
		w.del(n)
	}
	for began := w.now; w.ec2.calls[cloud.UnassignAddresses] == 0 && w.now.Sub(began) < 10*time.Minute; {
		w.now = w.now.Add(5 * time.Second)
		w.settle()
	}
	if got := w.ledger.Doubts(before, w.now); w.ec2.calls[cloud.UnassignAddresses] == 0 || len(got) > 0 {
		t.Errorf("calls %v; doubts %q right after the release", w.ec2.calls, got)
	}
	w.now = w.now.Add(2 * time.Minute)
	if got := w.ledger.Doubts(before, w.now); len(got) == 0 {
		t.Error("no doubt although metadata lists the addresses after two minutes")
	}
}

func TestAPrefixThatIsGoneIsADoubtUntilItIsRecorded(t *testing.T) {
	w := withTwoInterfaces(t)
	prefix := ipam.PrefixesOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")})
	without := w.listed()
	seen := w.ec2.describe()
	seen[0].ENI.Prefixes = prefix
	w.ledger.Observe(seen, w.now)
	if got := w.ledger.Doubts(without, w.now); len(got) != 1 || !strings.Contains(got[0], "does not list prefix 10.0.0.16/28") {
		t.Errorf("doubts %q, want one: metadata does not list the prefix", got)
	}
	seen[0].ENI.Prefixes = nil
	w.ledger.Observe(seen, w.now)
	if got := w.ledger.Doubts(without, w.now); len(got) > 0 {
		t.Errorf("doubts %q of what EC2 has shown", got)
	}
}

func TestAnInterfaceWithAnActionInFlightIsNotCompared(t *testing.T) {
	w := withTwoInterfaces(t)
	l := w.listed()
	for i := range l {
		l[i].Addresses = l[i].Addresses[:1]
		action := cloud.Action{ID: cloud.ActionID(fmt.Sprint("a", i)), Kind: cloud.AssignAddresses, ENI: l[i].ENI, Count: 1}
		if _, err := w.ledger.Begin(action, w.now); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.ledger.Doubts(l, w.now); len(got) > 0 {
		t.Errorf("doubts %q", got)
	}
}

func TestIdleInterfacesAreDetachedTogetherAndDeletedOnceTheyAre(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	for n := range 40 {
		w.bind(n)
	}
	w.settle()
	for n := range 40 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	for n := range 40 {
		w.del(n)
	}
	for w.ec2.calls[cloud.Detach] == 0 {
		w.now = w.now.Add(time.Second)
		w.settle()
	}
	if got := w.ec2.calls; got[cloud.Detach] != 3 || got[cloud.DeleteENI] != 0 {
		t.Errorf("calls %v, want three detachments", got)
	}
	w.pass(10*time.Second, time.Second)
	if got := w.ec2.calls[cloud.DeleteENI]; got != 0 {
		t.Errorf("%d deletions ten seconds after the detachment", got)
	}
	w.pass(12*time.Second, time.Second)
	if got := w.ec2.calls[cloud.DeleteENI]; got != 3 {
		t.Errorf("%d deletions, want three", got)
	}
}

func TestInterfacesThatAreDetachedTogetherLeaveTheWarmTarget(t *testing.T) {
	const warm = 20
	w := testWorld(t, m5xlarge(), func(c *ipam.Config) { c.WarmIPs = warm })
	for n := range 30 {
		w.bind(n)
	}
	w.settle()
	for n := range 30 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	if got := w.ec2.calls[cloud.CreateENI]; got != 3 {
		t.Fatalf("%d interfaces created, want three", got)
	}
	for n := range 30 {
		w.del(n)
	}
	w.pass(20*time.Minute, 5*time.Second)
	if got := w.ec2.calls; got[cloud.Detach] != 2 || got[cloud.CreateENI] != 3 {
		t.Errorf("calls %v, want two detachments and no other interface in place of them", got)
	}
	if got := w.decided.Numbers.Have; got < warm {
		t.Errorf("%d addresses, want %d or more", got, warm)
	}
}

func TestAnOldRecordOfTheSubnetsIsReadBeforeANewInterface(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.settle()
	for n := range 20 {
		w.bind(n)
	}
	s := w.snapshot()
	s.Surveyed = w.now.Add(-6 * time.Minute)
	d := ipam.Plan(s, w.config, w.now)
	if d.Survey == "" || slices.ContainsFunc(d.Actions, func(a cloud.Action) bool { return a.Kind == cloud.CreateENI }) {
		t.Errorf("plan:\n%s", d)
	}
	if want := w.now.Add(5 * time.Second); d.Next.IsZero() || d.Next.After(want) {
		t.Errorf("plans again at %s, want %s: a read may not end", d.Next, want)
	}
	waited := s
	waited.SurveyAsked = w.now.Add(-5 * time.Second)
	if d = ipam.Plan(waited, w.config, w.now); !slices.ContainsFunc(d.Actions, func(a cloud.Action) bool { return a.Kind == cloud.CreateENI }) {
		t.Errorf("plan after a wait:\n%s", d)
	}
	s.Surveyed = w.now.Add(-4 * time.Minute)
	d = ipam.Plan(s, w.config, w.now)
	if d.Survey != "" || !slices.ContainsFunc(d.Actions, func(a cloud.Action) bool { return a.Kind == cloud.CreateENI }) {
		t.Errorf("plan with a fresh record:\n%s", d)
	}
}

func TestAnOldRecordOfAFullSubnetIsReadAgain(t *testing.T) {
	w := testWorld(t, t3medium(), nil)
	s := w.snapshot()
	s.Subnets[0].Free, s.Surveyed = 0, w.now.Add(-6*time.Minute)
	d := ipam.Plan(s, w.config, w.now)
	if d.Survey == "" || d.Condition.Reason != ipam.ReasonGrowing {
		t.Errorf("plan:\n%s", d)
	}
	s.Surveyed = w.now.Add(-time.Minute)
	if d = ipam.Plan(s, w.config, w.now); d.Survey != "" || d.Condition.Reason != ipam.ReasonSubnetExhausted {
		t.Errorf("plan with a fresh record:\n%s", d)
	}
}
