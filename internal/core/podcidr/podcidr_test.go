package podcidr_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestTheNextAddressFollowsTheLastOneAndSkipsReservedAndTakenOnes(t *testing.T) {
	for _, c := range []struct{ why, in, last, taken, want string }{
		{"network and gateway are left out", "10.244.1.0/24", "", "", "10.244.1.2"},
		{"the next one", "10.244.1.0/24", "10.244.1.7", "", "10.244.1.8"},
		{"taken ones are skipped", "10.244.1.0/24", "10.244.1.7", "10.244.1.8 10.244.1.9", "10.244.1.10"},
		{"the broadcast address is left out", "10.244.1.0/24", "10.244.1.254", "", "10.244.1.2"},
		{"a last one outside the range is ignored", "10.244.1.0/24", "10.244.9.7", "", "10.244.1.2"},
		{"a last one that is reserved is ignored", "10.244.1.0/24", "10.244.1.1", "", "10.244.1.2"},
		{"a last one that is the broadcast address begins again", "10.244.1.0/24", "10.244.1.255", "", "10.244.1.2"},
		{"a last one of another family is ignored", "10.244.1.0/24", "fd00::7", "", "10.244.1.2"},
		{"one address is left", "10.244.1.0/29", "10.244.1.2", "10.244.1.3 10.244.1.4 10.244.1.5 10.244.1.6", "10.244.1.2"},
		{"every address is taken", "10.244.1.4/30", "", "10.244.1.6", ""},
		{"host bits are ignored", "10.244.1.77/24", "", "", "10.244.1.2"},
		{"a range of two addresses has none for pods", "10.244.1.0/31", "", "", ""},
		{"a single address", "10.244.1.0/32", "", "", ""},
		{"an IPv6 range", "fd00::/120", "fd00::7", "", ""},
		{"the last range", "255.255.255.0/24", "255.255.255.254", "", "255.255.255.2"},
	} {
		var last netip.Addr
		if c.last != "" {
			last = netip.MustParseAddr(c.last)
		}
		got, ok := podcidr.Next(netip.MustParsePrefix(c.in), last, func(a netip.Addr) bool {
			return strings.Contains(" "+c.taken+" ", " "+a.String()+" ")
		})
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s: %s after %q: %s, want %q", c.why, c.in, c.last, got, c.want)
		}
	}
}

// TestNextFindsTheFirstFreeAddressThatASlowSearchFinds compares Next with a list of all
// addresses, turned so that it begins after the last one.
func TestNextFindsTheFirstFreeAddressThatASlowSearchFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 3, byte(rapid.IntRange(0, 255).Draw(t, "at"))}), rapid.IntRange(22, 32).Draw(t, "bits")).Masked()
		var whole []netip.Addr
		for a := r.Addr(); r.Contains(a); a = a.Next() {
			whole = append(whole, a)
		}
		var usable []netip.Addr
		if len(whole) > 3 {
			usable = whole[2 : len(whole)-1]
		}
		if podcidr.Size(r) != len(usable) {
			t.Fatalf("%s has %d addresses for pods, want %d", r, podcidr.Size(r), len(usable))
		}
		used := map[netip.Addr]bool{}
		for _, a := range usable {
			used[a] = rapid.IntRange(0, 9).Draw(t, "used") < 7
		}
		last := rapid.SampledFrom(append(whole, netip.Addr{}, netip.MustParseAddr("192.0.2.1"))).Draw(t, "last")
		var want netip.Addr
		for pass := range 2 { // first those after the last one, then all
			for _, a := range usable {
				if !want.IsValid() && !used[a] && (pass == 1 || a.Compare(last) > 0 || !r.Contains(last)) {
					want = a
				}
			}
		}
		got, ok := podcidr.Next(r, last, func(a netip.Addr) bool { return used[a] })
		if got != want || ok != want.IsValid() {
			t.Fatalf("next of %s after %s is %s (%v), want %s", r, last, got, ok, want)
		}
	})
}

func TestThePoolExplainsWhyThereIsNoAddress(t *testing.T) {
	full := podcidr.Of("n1", true, prefixes("10.244.1.0/29"))
	full.Assigned = full.Total
	cooling := podcidr.Of("n1", true, prefixes("10.244.1.0/29"))
	cooling.Assigned, cooling.Cooling, cooling.NextFree = 3, 2, epoch
	free := podcidr.Of("n1", true, prefixes("fd00::/64", "10.244.1.0/29"))
	free.Free, free.Quarantined, free.Foreign = free.Total-2, 1, 1
	for _, c := range []struct {
		pool   podcidr.Pool
		is     error
		reason podcidr.Reason
		want   []string
	}{
		{podcidr.Of("n1", false, nil), podcidr.ErrNoRange, podcidr.ReasonNodeUnknown, []string{"has not returned Node n1"}},
		{podcidr.Of("n1", true, nil), podcidr.ErrNoRange, podcidr.ReasonNoPodCIDR, []string{"Node n1 has no spec.podCIDR", "--allocate-node-cidrs"}},
		{podcidr.Of("n1", true, prefixes("fd00::/64")), podcidr.ErrNoRange, podcidr.ReasonNoIPv4, []string{"fd00::/64", "IPv6"}},
		{cooling, ipam.ErrAllCooling, podcidr.ReasonCooling, []string{"10.244.1.0/29", "3 assigned", "2 cooling down", "free at 12:00:00"}},
		{full, ipam.ErrNodeFull, podcidr.ReasonFull, []string{"0 of 5 addresses are free", "--node-cidr-mask-size"}},
		{free, nil, podcidr.ReasonServing, []string{"3 of 5", "1 of pods that are being removed", "1 of pods of another CNI"}},
	} {
		err := c.pool.Err()
		if !errors.Is(err, c.is) || c.is != nil && !errors.Is(err, ipam.ErrNoAddress) || c.pool.CanAssign() != (c.is == nil) {
			t.Errorf("%s: %v, want %v", c.reason, err, c.is)
		}
		if c.pool.Reason() != c.reason {
			t.Errorf("reason %s, want %s", c.pool.Reason(), c.reason)
		}
		for _, want := range c.want {
			if !strings.Contains(c.pool.Why(), want) {
				t.Errorf("%q does not say %q", c.pool.Why(), want)
			}
		}
	}
}

func TestACoolDownIsNeverLongerThanTheSetting(t *testing.T) {
	c := podcidr.Cool(netip.MustParseAddr("10.244.1.7"), epoch, 30*time.Second)
	if c.Over(epoch.Add(29*time.Second)) || !c.Over(epoch.Add(30*time.Second)) {
		t.Errorf("%v is not over after 30s", c)
	}
	back := epoch.Add(-time.Hour) // the clock was set back
	if got := c.Clamp(back, 30*time.Second); !got.Over(back.Add(30 * time.Second)) {
		t.Errorf("%v lasts longer than 30s after the clock was set back to %v", got, back)
	}
	if got := c.Clamp(epoch.Add(time.Second), 30*time.Second); got != c {
		t.Errorf("%v changed to %v", c, got)
	}
}

func TestTheRangeIsTheFirstIPv4PrefixOfTheNode(t *testing.T) {
	for _, c := range []struct {
		in   []netip.Prefix
		want string
	}{
		{prefixes("10.244.1.9/24"), "10.244.1.0/24"},
		{prefixes("fd00::/64", "10.244.1.0/24", "10.245.0.0/24"), "10.244.1.0/24"},
		{append([]netip.Prefix{{}}, prefixes("10.244.1.0/24")...), "10.244.1.0/24"},
		{prefixes("fd00::/64"), ""},
		{nil, ""},
	} {
		got, ok := podcidr.Range(c.in)
		if ok != (c.want != "") || ok && got.String() != c.want || !ok && got.IsValid() {
			t.Errorf("%v: %s, %v; want %q", c.in, got, ok, c.want)
		}
	}
}

func TestARangeOfAnotherFamilyHasNoAddresses(t *testing.T) {
	for in, want := range map[netip.Prefix]int{
		{}: 0, netip.MustParsePrefix("fd00::/120"): 0, netip.MustParsePrefix("fd00::/8"): 0,
		netip.MustParsePrefix("10.0.0.0/24"): 253, netip.MustParsePrefix("10.0.0.0/30"): 1,
		netip.MustParsePrefix("10.0.0.0/31"): 0, netip.MustParsePrefix("10.0.0.0/32"): 0,
	} {
		if got := podcidr.Size(in); got != want {
			t.Errorf("%s: %d addresses, want %d", in, got, want)
		}
	}
}

func TestACoolDownIsOfOneAddressOrOfAll(t *testing.T) {
	addr := netip.MustParseAddr("10.244.1.7")
	one, all := podcidr.Cool(addr, epoch, time.Minute), podcidr.CoolAll(epoch, time.Hour)
	if one.Prefix.String() != "10.244.1.7/32" || !one.Until.Equal(epoch.Add(time.Minute)) {
		t.Errorf("of one address: %+v", one)
	}
	if all.Prefix.String() != "0.0.0.0/0" || !all.Until.Equal(epoch.Add(time.Hour)) {
		t.Errorf("of all: %+v", all)
	}
	for at, want := range map[time.Duration]bool{0: false, time.Minute - 1: false, time.Minute: true} {
		if got := one.Over(epoch.Add(at)); got != want {
			t.Errorf("after %v the cool-down is over: %v", at, got)
		}
	}
	// A clock that was set back by a day.
	if got := all.Clamp(epoch.Add(-24*time.Hour), time.Hour).Until; !got.Equal(epoch.Add(-23 * time.Hour)) {
		t.Errorf("clamped to %v", got)
	}
	if got := one.Clamp(epoch, time.Hour); got != one {
		t.Errorf("a cool-down within the limit became %+v", got)
	}
}

func TestAPoolCountsItsAddressesByTheirState(t *testing.T) {
	p := podcidr.Of("n1", true, prefixes("10.244.1.0/29"))
	p.Free, p.Assigned, p.Cooling = 1, 2, 2
	const counted = "pod CIDR 10.244.1.0/29: 1 of 5 addresses are free, 2 assigned, 2 cooling down"
	if got := p.String(); got != counted {
		t.Errorf("%q, want %q", got, counted)
	}
	p.Quarantined, p.Foreign = 3, 4
	if got, want := p.String(), counted+", 3 of pods that are being removed, 4 of pods of another CNI"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := podcidr.Of("n1", true, nil).String(); got != "no range for pods" {
		t.Errorf("without a range: %q", got)
	}
}
