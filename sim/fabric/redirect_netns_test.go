//go:build netns

package fabric

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

const subnetC vpc.SubnetID = "subnet-c" // 10.0.32.0/20, fd10:0:0:2::/64

// redirected is a world with a route that sends traffic from subnet a to subnet b
// through a port in subnet c.
func redirected(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.state.Subnets = append(w.state.Subnets, Subnet{ID: subnetC, Prefixes: prefixes("10.0.32.0/20", "fd10:0:0:2::/64")})
	a, b := w.plug("eni-a", "10.0.0.10", "fd10::10"), w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.plug("eni-m", "10.0.32.12", "fd10:0:0:2::12")
	b.serveUDP("10.0.16.11:7000")
	b.serveUDP("[fd10:0:0:1::11]:7000")
	a.serveUDP("10.0.0.10:7000")
	w.at("eni-m").SourceDestCheck = false
	w.state.Subnets[0].Routes = []Route{
		{Destination: prefixes("10.0.16.0/20")[0], Target: Target{Port: "eni-m"}},
		{Destination: prefixes("fd10:0:0:1::/64")[0], Target: Target{Port: "eni-m"}},
	}
	w.apply()
	return w
}

func TestARouteInsideTheVPCLeadsThroughItsTarget(t *testing.T) {
	w := redirected(t)
	a, other := w.guests["eni-a"], w.plug("eni-o", "10.0.32.20")
	a.silent("", "10.0.16.11:7000") // the target does not forward yet
	a.silent("", "[fd10:0:0:1::11]:7000")
	other.reaches("", "10.0.16.11:7000") // another subnet's table has no such route
	w.guests["eni-m"].forward("1")
	for to, from := range map[string]string{"10.0.16.11:7000": "10.0.0.10", "[fd10:0:0:1::11]:7000": "fd10::10"} {
		if got := netip.MustParseAddrPort(a.reaches(from, to)).Addr().String(); got != from {
			t.Errorf("%s saw %s, want %s", to, got, from)
		}
	}
}

func TestARouteInsideTheVPCNeedsItsTargetsCheckOff(t *testing.T) {
	w := redirected(t)
	w.guests["eni-m"].forward("1")
	w.guests["eni-a"].reaches("", "10.0.16.11:7000")
	w.at("eni-m").SourceDestCheck = true
	w.apply()
	w.guests["eni-a"].silent("", "10.0.16.11:7000")
	if w.drops("eni-m").Misrouted == 0 {
		t.Error("the drop was not counted at the target")
	}
}

func TestARouteInsideTheVPCWithoutItsTargetIsABlackhole(t *testing.T) {
	w := redirected(t)
	w.guests["eni-m"].forward("1")
	w.guests["eni-a"].reaches("", "10.0.16.11:7000")
	w.state.Subnets[0].Routes[0].Target = Target{Port: "eni-gone"}
	w.apply()
	w.guests["eni-a"].silent("", "10.0.16.11:7000")
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the drop was not counted at the sender")
	}
	w.state.Subnets[0].Routes = nil
	w.apply()
	w.guests["eni-m"].forward("0")
	w.guests["eni-a"].reaches("", "10.0.16.11:7000") // direct again
}

func TestNoRouteRedirectsTrafficInsideItsOwnSubnet(t *testing.T) {
	w := redirected(t)
	n := w.plug("eni-n", "10.0.0.20")
	w.state.Subnets[0].Routes = append(w.state.Subnets[0].Routes, Route{Destination: prefixes("10.0.0.0/20")[0], Target: Target{Port: "eni-m"}})
	w.apply()
	n.reaches("", "10.0.0.10:7000")
}
