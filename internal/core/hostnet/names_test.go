package hostnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestALinkIsCalledAsAWSCallsIt(t *testing.T) {
	// sha1("kube-system.coredns-5d78c9869d-abcde") by sha1sum(1).
	if got := LinkName(LinkPrefix, "kube-system", "coredns-5d78c9869d-abcde"); got != "eni4d5f75c480c" {
		t.Errorf("got %s", got)
	}
	if got := LinkName("vlan", "a", "b"); len(got) != 15 {
		t.Errorf("%s has %d characters, an interface name 15", got, len(got))
	}
}

func TestMACsFollowFromTheAttachment(t *testing.T) {
	h1, p1 := PodMACs("c1", "eth0")
	h2, p2 := PodMACs("c1", "eth0")
	h3, _ := PodMACs("c1", "eth1")
	if h1 != h2 || p1 != p2 || h1 == p1 || h1 == h3 {
		t.Errorf("%s %s, again %s %s, other interface %s", h1, p1, h2, p2, h3)
	}
	for _, m := range [][6]byte{h1, p1} {
		if m[0]&3 != 2 {
			t.Errorf("%x is not a local unicast address", m)
		}
	}
}

func TestAnAliasTellsTheAttachment(t *testing.T) {
	a := Attachment{ContainerID: strings.Repeat("f", 64), IfName: "eth0", Addresses: []netip.Addr{addr("10.0.1.7"), addr("2600:1f14:aaaa:bbbb:cccc:dddd:eeee:ffff")}}
	got, ok := ParseAlias(a.Alias())
	if !ok || got.ContainerID != a.ContainerID || got.IfName != a.IfName || !slices.Equal(got.Addresses, a.Addresses) {
		t.Errorf("%q reads as %+v, %v", a.Alias(), got, ok)
	}
	if len(a.Alias()) > 255 {
		t.Errorf("the alias has %d bytes", len(a.Alias()))
	}
	for _, bad := range []string{"", "trunkline:", "trunkline:eni/eni-1", "trunkline:pod/x", "trunkline:pod/x/eth0/ten", "trunkline:pod//eth0/10.0.0.1", "calico"} {
		if got, ok := ParseAlias(bad); ok {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
}

func FuzzParseAlias(f *testing.F) {
	f.Add("trunkline:pod/4f3a/eth0/10.0.1.7+2600::1")
	f.Add("trunkline:pod///")
	f.Fuzz(func(t *testing.T, s string) {
		a, ok := ParseAlias(s)
		if !ok {
			return
		}
		b, ok := ParseAlias(a.Alias())
		if !ok || b.ContainerID != a.ContainerID || b.IfName != a.IfName || !slices.Equal(a.Addresses, b.Addresses) {
			t.Errorf("%q reads as %+v, written and read again %+v", s, a, b)
		}
	})
}
