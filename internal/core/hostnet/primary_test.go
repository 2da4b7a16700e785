package hostnet_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

func TestThePrimaryLinkIsThatOfTheDefaultRouteWithTheLowestMetric(t *testing.T) {
	everything := netip.MustParsePrefix("0.0.0.0/0")
	route := func(table uint32, to netip.Prefix, link string, metric uint32) hostnet.Route {
		return hostnet.Route{Table: table, To: to, Via: netip.MustParseAddr("192.0.2.1"), Link: link, Metric: metric}
	}
	have := hostnet.State{
		Links: []hostnet.Link{{Name: "wlan0"}, {Name: "eth0"}, {Name: "eth1"}},
		Addresses: []hostnet.Address{
			{Link: "eth1", Prefix: netip.MustParsePrefix("198.51.100.7/24")},
			{Link: "eth0", Prefix: netip.MustParsePrefix("fd00::7/64")},
			{Link: "eth0", Prefix: netip.MustParsePrefix("192.0.2.7/24")},
			{Link: "eth0", Prefix: netip.MustParsePrefix("192.0.2.8/24")},
		},
		Routes: []hostnet.Route{
			route(hostnet.TableMain, netip.MustParsePrefix("10.0.0.0/8"), "eth1", 0), route(2, everything, "eth1", 0),
			route(hostnet.TableMain, netip.MustParsePrefix("::/0"), "eth1", 0),
			route(hostnet.TableMain, everything, "wlan0", 600), route(hostnet.TableMain, everything, "eth0", 100), route(hostnet.TableMain, everything, "wlan0", 500),
		},
	}
	for want, preferred := range map[string][]netip.Addr{
		"192.0.2.7": nil, "192.0.2.8": {netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("192.0.2.8")},
	} {
		if link, addr, err := hostnet.Primary(have, preferred); err != nil || link.Name != "eth0" || addr.String() != want {
			t.Errorf("%s %s %v, want eth0 %s", link.Name, addr, err, want)
		}
	}
	for what, also := range map[string]hostnet.Route{
		"without a link":       route(hostnet.TableMain, everything, "", 1),
		"with the same metric": route(hostnet.TableMain, everything, "eth1", 100), // a younger link
	} {
		more := have
		more.Routes = append(slices.Clone(have.Routes), also)
		if link, _, err := hostnet.Primary(more, nil); err != nil || link.Name != "eth0" {
			t.Errorf("with a later default route %s: %s, %v, want eth0", what, link.Name, err)
		}
	}
	without := have
	without.Links = have.Links[:1]
	if link, _, err := hostnet.Primary(without, nil); !errors.Is(err, hostnet.ErrNoDefaultRoute) {
		t.Errorf("%s, %v for the route of a link that is gone", link.Name, err)
	}
	without = have
	without.Routes = have.Routes[:3]
	if link, _, err := hostnet.Primary(without, nil); !errors.Is(err, hostnet.ErrNoDefaultRoute) {
		t.Errorf("%s, %v without a default route", link.Name, err)
	}
	without = have
	without.Addresses = have.Addresses[:2]
	if _, addr, err := hostnet.Primary(without, nil); !errors.Is(err, hostnet.ErrNoDefaultRoute) {
		t.Errorf("%s, %v on a link without an IPv4 address", addr, err)
	}
}

// systemd-networkd configures an interface that was attached later by DHCP, like the first one.
func TestOfEqualDefaultRoutesThatOfTheOldestLinkCounts(t *testing.T) {
	address := func(link, prefix string) hostnet.Address {
		return hostnet.Address{Link: link, Prefix: netip.MustParsePrefix(prefix)}
	}
	route := func(link string) hostnet.Route {
		return hostnet.Route{Table: hostnet.TableMain, To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.0.0.1"), Link: link, Metric: 512}
	}
	for name, routes := range map[string][]hostnet.Route{
		"listed first": {route("ens5"), route("ens6")}, "listed last": {route("ens6"), route("ens5")},
	} {
		link, addr, err := hostnet.Primary(hostnet.State{
			Links:     []hostnet.Link{{Name: "lo"}, {Name: "ens5"}, {Name: "ens6"}},
			Addresses: []hostnet.Address{address("ens6", "10.0.0.9/24"), address("ens5", "10.0.0.4/24")}, Routes: routes,
		}, nil)
		if err != nil || link.Name != "ens5" || addr.String() != "10.0.0.4" {
			t.Errorf("%s: %s %s %v, want ens5 10.0.0.4", name, link.Name, addr, err)
		}
	}
}
