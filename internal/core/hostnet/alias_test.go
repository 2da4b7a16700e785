package hostnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

func TestAnAliasHoldsTheAttachment(t *testing.T) {
	a := Alias{Key: endpoint.Key{ContainerID: strings.Repeat("f", 64), IfName: "eth0"}, Addresses: []netip.Addr{addr("10.0.1.7"), addr("2600:1f14:aaaa:bbbb:cccc:dddd:eeee:ffff")}}
	got, ok := ParseAlias(a.String())
	if !ok || got.Key != a.Key || !slices.Equal(got.Addresses, a.Addresses) {
		t.Errorf("%q reads as %+v, %v", a.String(), got, ok)
	}
	if len(a.String()) > 255 {
		t.Errorf("the alias has %d bytes", len(a.String()))
	}
	for _, bad := range []string{"", "trunkline:", "trunkline:eni/eni-1", "trunkline:pod/x", "trunkline:pod/x/eth0/ten", "trunkline:pod//eth0/10.0.0.1", "trunkline:pod/x//10.0.0.1", "calico", "x/eth0/10.0.0.1"} {
		if got, ok := ParseAlias(bad); ok {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
}

func TestAnAliasCanHoldAnAttachmentWithoutAddresses(t *testing.T) {
	a := Alias{Key: endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}}
	if got, ok := ParseAlias(a.String()); !ok || got.Key != a.Key || len(got.Addresses) != 0 {
		t.Errorf("%q reads as %+v, %v", a.String(), got, ok)
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
		b, ok := ParseAlias(a.String())
		if !ok || b.Key != a.Key || !slices.Equal(a.Addresses, b.Addresses) {
			t.Errorf("%q reads as %+v, written and read again %+v", s, a, b)
		}
	})
}
