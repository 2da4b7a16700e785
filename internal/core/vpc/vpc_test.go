package vpc_test

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestEC2ReservesTheFirstFourAddressesOfASubnetAndTheLast(t *testing.T) {
	for _, subnet := range []string{"10.0.16.0/20", "10.0.1.64/28", "2600:1f14:0:1::/64"} {
		p := netip.MustParsePrefix(subnet)
		first, last := p.Addr(), vpc.Last(p)
		reserved := []netip.Addr{first, first.Next(), first.Next().Next(), first.Next().Next().Next(), last}
		for _, a := range reserved {
			if !vpc.Reserved(p, a) {
				t.Errorf("%s of %s is not reserved", a, p)
			}
		}
		for _, a := range []netip.Addr{reserved[3].Next(), last.Prev(), last.Next(), first.Prev()} {
			if vpc.Reserved(p, a) {
				t.Errorf("%s of %s is reserved", a, p)
			}
		}
	}
}

func TestTheLastAddressOfAPrefixHasAllHostBitsSet(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.0.0.0/16":     "10.0.255.255",
		"10.0.0.77/28":    "10.0.0.79", // host bits are ignored
		"10.0.0.7/32":     "10.0.0.7",
		"10.0.0.0/31":     "10.0.0.1",
		"fd00:1:2::/80":   "fd00:1:2::ffff:ffff:ffff",
		"0.0.0.0/0":       "255.255.255.255",
		"2600:1f14::1/10": "263f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := vpc.Last(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("last of %s: %s, want %s", prefix, got, want)
		}
	}
}

func TestAnInstanceIsNamedByItsPrimaryAddress(t *testing.T) {
	a := netip.MustParseAddr("10.0.1.5")
	for region, want := range map[string]string{
		"us-east-1": "ip-10-0-1-5.ec2.internal",
		"us-west-2": "ip-10-0-1-5.us-west-2.compute.internal",
	} {
		if got := vpc.PrivateDNSName(a, region); got != want {
			t.Errorf("%s: %s, want %s", region, got, want)
		}
	}
}

func TestAHardwareAddressHasSixBytes(t *testing.T) {
	m := vpc.MAC{1, 2, 3, 4, 5, 6}
	if err := m.UnmarshalText([]byte("02:00:00:00:00:01")); err != nil || m != (vpc.MAC{2, 0, 0, 0, 0, 1}) {
		t.Errorf("read %s, %v", m, err)
	}
	for _, text := range []string{"", "02:00:00:00:00", "02:00:5e:10:00:00:00:01", "02:00:00:00:00:xx"} {
		if m, err := vpc.ParseMAC(text); err == nil {
			t.Errorf("%q is read as %s, want an error", text, m)
		}
		if err := new(vpc.MAC).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read without an error", text)
		}
	}
}

func TestTheFamilyOfAMappedAddressIsIPv4(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.1": "ipv4", "::ffff:10.0.0.1": "ipv4", "fd00::1": "ipv6"} {
		if got := vpc.FamilyOf(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}
