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
		"with the same metric": route(hostnet.TableMain, everything, "wlan0", 100),
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
