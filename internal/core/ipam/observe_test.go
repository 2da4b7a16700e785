package ipam_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// A describe may show an address that was moved on both interfaces.
func TestAnAddressThatIsShownOnTwoInterfacesIsNotGivenOut(t *testing.T) {
	moved := netip.MustParseAddr("10.0.0.50")
	seen := func(withMoved ...int) (all []ipam.Observed) {
		for n := range 2 {
			o := ipam.Observed{Attached: true, ENI: ipam.ENI{
				ID: vpc.ENIID([]string{"eni-0", "eni-1"}[n]), Type: vpc.TypeInterface, Primary: n == 0, Device: n,
				SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"),
			}}
			for _, m := range withMoved {
				if m == n {
					o.Addresses = append(o.Addresses, moved)
				}
			}
			all = append(all, o)
		}
		return all
	}
	on := func(l *ipam.Ledger, now time.Time) (id vpc.ENIID) {
		for _, e := range l.View(now).ENIs {
			if len(e.Addresses) > 0 {
				id += e.ID
			}
		}
		return id
	}
	for name, earlier := range map[string][]ipam.Observed{"new interfaces": nil, "known interfaces": seen()} {
		t.Run(name, func(t *testing.T) {
			l := ipam.New(ipam.DefaultConfig().Settings())
			if earlier != nil {
				l.Observe(earlier, epoch)
			}
			now := epoch.Add(time.Minute)
			if _, drift := l.Observe(seen(0, 1), now); len(drift) == 0 || on(l, now) != "" {
				t.Errorf("%s is shown twice: it is on %q, reported: %v", moved, on(l, now), drift)
			}
			if l.Observe(seen(1), now); on(l, now) != "eni-1" {
				t.Errorf("only eni-1 shows %s: it is on %q", moved, on(l, now))
			}
		})
	}
}

func TestAnInterfaceOfAnotherMakerIsReportedAndNeitherAdoptedNorDeleted(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.settle()
	stray := ipam.Observed{
		ENI:     ipam.ENI{ID: "eni-planted", Type: vpc.TypeInterface, Device: -1, PrimaryIP: netip.MustParseAddr("10.0.0.77")},
		NotOurs: `it was made for cluster "other"`,
	}
	seen := []ipam.Observed{{ENI: w.ec2.enis["eni-00"].row(), Attached: true, Addresses: addrs(w.ec2.enis["eni-00"].addrs)}, stray}
	for range 3 {
		w.now = w.now.Add(10 * time.Minute)
		records, drift := w.ledger.Observe(seen, w.now)
		if slices.ContainsFunc(records, func(r ipam.Record) bool { return r.Op == ipam.PutENI }) {
			t.Fatalf("recorded: %v", records)
		}
		if len(drift) != 1 || drift[0].ENI != "eni-planted" || !strings.Contains(drift[0].Message, `cluster "other"`) || !strings.Contains(drift[0].Message, "neither used nor deleted") {
			t.Fatalf("reported: %v", drift)
		}
	}
	stray.NotOurs = ""
	w.ledger.Observe(append(seen[:1:1], stray), w.now)
	if n := len(w.ledger.View(w.now).ENIs); n != 2 {
		t.Errorf("%d interfaces, want the same one adopted once it is ours", n)
	}
	// What is attached to the instance takes a slot of it, by any creator.
	other := stray
	other.ENI.ID, other.ENI.Device, other.ENI.Unmanaged, other.Attached, other.NotOurs = "eni-attached", 3, true, true, "it has no tag"
	w.ledger.Observe(append(seen[:1:1], stray, other), w.now)
	if n := len(w.ledger.View(w.now).ENIs); n != 3 {
		t.Errorf("%d interfaces, want that of another program on the instance among them", n)
	}
}

func TestAnInterfaceIsOursByItsTagsAndItsCreator(t *testing.T) {
	me := cloud.Node{Instance: "i-1", Cluster: "prod"}
	ours := func(change ...string) map[string]string {
		tags := map[string]string{vpc.TagManagedBy: vpc.ManagedBy, vpc.TagClusterName: "prod", vpc.TagInstanceID: "i-1"}
		for n := 0; n < len(change); n += 2 {
			tags[change[n]] = change[n+1]
		}
		return tags
	}
	for _, c := range []struct {
		name      string
		tags      map[string]string
		requester string
		want      string // part of the reason
	}{
		{"made by this instance", ours(), "AROA1:i-1", ""},
		{"made by another role's session", ours(), "AROA1:1700000000", "AROA1:1700000000 made it"},
		{"made by a user", ours(), "AIDA1", "AIDA1 made it"},
		{"made by a role that a user named", ours(), "AROA1:xi-1", "AROA1:xi-1 made it"},
		{"creator not shown", ours(), "", ""},
		{"tagged with our id by another instance", ours(), "AROA1:i-2", "AROA1:i-2 made it"},
		{"made by AWS's daemon", map[string]string{vpc.TagInstanceID: "i-1"}, "AROA1:i-1", "no tag trunkline.dev/managed-by"},
		{"of another cluster", ours(vpc.TagClusterName, "test"), "AROA1:i-1", `cluster "test"`},
		{"of no cluster", ours(vpc.TagClusterName, ""), "AROA1:i-1", `cluster ""`},
	} {
		got := ipam.Provenance(c.tags, c.requester, me)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// twoENIs is a node with 20 pods on its primary interface and a second one.
func twoENIs(t *testing.T) (w *world, second vpc.ENIID) {
	t.Helper()
	w = testWorld(t, m5xlarge(), nil)
	w.fill(20)
	second = w.ledger.View(w.now).ENIs[1].ID
	if e := viewOf(w, second); e.Phase != ipam.Ready || e.Count(ipam.Free) == 0 {
		t.Fatalf("the second interface is %s with %d free addresses, want it ready with some", e.Phase, e.Count(ipam.Free))
	}
	return w, second
}

// describeWithout is what EC2 describes, except that it does not show one interface.
func (w *world) describeWithout(id vpc.ENIID) []ipam.Observed {
	return slices.DeleteFunc(w.ec2.describe(), func(o ipam.Observed) bool { return o.ENI.ID == id })
}

// describeDetached is what EC2 describes, except that one interface is not attached.
func (w *world) describeDetached(id vpc.ENIID) []ipam.Observed {
	seen := w.ec2.describe()
	for i := range seen {
		if seen[i].ENI.ID == id {
			seen[i].Attached, seen[i].ENI.Device, seen[i].ENI.Attachment = false, -1, ""
		}
	}
	return seen
}

func TestNoPodGetsAnAddressOfAnInterfaceThatEC2DoesNotShow(t *testing.T) {
	w, second := twoENIs(t)
	w.now = w.now.Add(2 * time.Minute)
	w.ledger.Observe(w.describeWithout(second), w.now)
	if lease, _, err := w.ledger.Assign(holder(100), w.now); err == nil && lease.ENI == second {
		t.Errorf("%s of %s was assigned, which EC2 did not show", lease.Addr, lease.ENI)
	}
	w.ledger.Observe(w.ec2.describe(), w.now.Add(time.Second))
	if lease, _, err := w.ledger.Assign(holder(101), w.now.Add(time.Second)); err != nil || lease.ENI != second {
		t.Errorf("shown again: %+v, %v; want an address of %s", lease, err, second)
	}
}

// A describe may still show an interface as it was before it was attached or detached.
func TestOneStaleDescribeChangesNoInterfaceThatIsFresh(t *testing.T) {
	const stale = time.Minute
	for _, phase := range []ipam.Phase{ipam.Ready, ipam.SettingUp, ipam.Detaching} {
		for _, age := range []time.Duration{stale - time.Second, stale} {
			w, second := twoENIs(t)
			e := viewOf(w, second).ENI
			e.Phase, e.Since = phase, w.now
			if err := w.ledger.Replay([]ipam.Record{{Op: ipam.PutENI, ENI: &e}}); err != nil {
				t.Fatal(err)
			}
			_, drift := w.ledger.Observe(w.describeDetached(second), w.now.Add(age))
			want := phase
			if age >= stale {
				want = map[ipam.Phase]ipam.Phase{ipam.Ready: ipam.Attaching, ipam.SettingUp: ipam.Attaching, ipam.Detaching: ipam.Deleting}[phase]
			}
			if got := viewOf(w, second).Phase; got != want {
				t.Errorf("%s for %s and not attached in one describe: %s, want %s; reported: %v", phase, age, got, want, drift)
			}
		}
	}
}

func TestAnUnknownAddressIsNotFreeBeforeASecondObservation(t *testing.T) {
	w := ready(t)
	unknown := netip.MustParseAddr("10.0.30.1")
	shown := []ipam.Observed{{ENI: w.ec2.enis["eni-00"].row(), Attached: true, Addresses: append(addrs(w.ec2.enis["eni-00"].addrs), unknown)}}
	for _, c := range []struct {
		later time.Duration
		want  ipam.State
	}{
		{0, ipam.Unconfirmed},
		{time.Second, ipam.Unconfirmed}, // may be the answer of the same cache of EC2
		{4 * time.Second, ipam.Free},
	} {
		w.now = w.now.Add(c.later)
		w.ledger.Observe(shown, w.now)
		if got := stateOf(w, unknown).State; got != c.want {
			t.Errorf("another %s later: %s, want %s", c.later, got, c.want)
		}
	}
}

func TestASubnetIsUsedByItsTags(t *testing.T) {
	const role, mine, other = vpc.TagSubnetRole, vpc.TagSubnetOfPfx + "prod", vpc.TagSubnetOfPfx + "test"
	for _, c := range []struct {
		name string
		tags map[string]string
		home bool
		want bool
	}{
		{"the node's own, without tags", nil, true, true},
		{"another one, without tags", nil, false, false},
		{"another one that opts in", map[string]string{role: "1"}, false, true},
		{"the node's own that is excluded", map[string]string{role: "0"}, true, false},
		{"of this cluster", map[string]string{role: "1", mine: "shared"}, false, true},
		{"of another cluster", map[string]string{role: "1", other: "shared"}, false, false},
		{"the node's own, of another cluster", map[string]string{other: "owned"}, true, false},
		{"of two clusters", map[string]string{role: "1", other: "shared", mine: "shared"}, false, true},
	} {
		if got := ipam.SubnetAllowed(c.tags, c.home, "prod"); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
