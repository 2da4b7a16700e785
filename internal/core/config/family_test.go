package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestAnIPv6ClusterIsRefused(t *testing.T) {
	addr := netip.MustParseAddr
	for name, c := range map[string]struct {
		service netip.Addr
		node    []netip.Addr
		refused string
	}{
		"an IPv4 cluster":                         {addr("172.20.0.1"), []netip.Addr{addr("10.0.0.4")}, ""},
		"an IPv4 cluster on a dual-stack machine": {addr("10.100.0.1"), []netip.Addr{addr("10.0.0.4"), addr("2600:1f13::4")}, ""},
		"EKS with ipFamily ipv6":                  {addr("fd30:1c53:5f8a::1"), []netip.Addr{addr("2600:1f13::4")}, "fd30:1c53:5f8a::1"},
		"before the Node is known":                {addr("fd30:1c53:5f8a::1"), nil, "fd30:1c53:5f8a::1"},
		"outside a pod, with an IPv6 Node":        {netip.Addr{}, []netip.Addr{addr("2600:1f13::4")}, "2600:1f13::4"},
		"outside a pod, with an IPv4 Node":        {netip.Addr{}, []netip.Addr{addr("10.0.0.4")}, ""},
		"nothing is known":                        {netip.Addr{}, nil, ""},
		"an IPv4 address written as IPv6":         {addr("::ffff:172.20.0.1"), nil, ""},
	} {
		if got := RefuseFamily(c.service, c.node); (got != "") != (c.refused != "") || !strings.Contains(got, c.refused) {
			t.Errorf("%s: %q, want one that names %q", name, got, c.refused)
		}
	}
}
