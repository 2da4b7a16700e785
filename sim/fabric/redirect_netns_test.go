//go:build netns

package fabric

import (
	"net/netip"
	"os"
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
	w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.plug("eni-m", "10.0.32.12", "fd10:0:0:2::12")
	w.serveUDP(w.guests["eni-b"].Name, "10.0.16.11:7000")
	w.serveUDP(w.guests["eni-b"].Name, "[fd10:0:0:1::11]:7000")
	w.serveUDP(w.guests["eni-a"].Name, "10.0.0.10:7000")
	w.at("eni-m").SourceDestCheck = false
	w.state.Subnets[0].Routes = []Route{
		{Destination: prefixes("10.0.16.0/20")[0], Target: Target{Port: "eni-m"}},
		{Destination: prefixes("fd10:0:0:1::/64")[0], Target: Target{Port: "eni-m"}},
	}
	w.apply()
	return w
}

// forward turns forwarding in a guest on or off.
func (w *world) forward(id vpc.ENIID, on string) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			w.must(os.WriteFile("/proc/sys/"+path, []byte(on), 0))
		}
	})
}

func TestARouteInsideTheVPCLeadsThroughItsTarget(t *testing.T) {
	w := redirected(t)
	a, other := w.guests["eni-a"], w.plug("eni-o", "10.0.32.20")
	w.silent(a, "", "10.0.16.11:7000") // the target does not forward yet
	w.silent(a, "", "[fd10:0:0:1::11]:7000")
	w.reaches(other, "", "10.0.16.11:7000") // another subnet's table has no such route
	w.forward("eni-m", "1")
	for to, from := range map[string]string{"10.0.16.11:7000": "10.0.0.10", "[fd10:0:0:1::11]:7000": "fd10::10"} {
		if got := netip.MustParseAddrPort(w.reaches(a, from, to)).Addr().String(); got != from {
			t.Errorf("%s saw %s, want %s", to, got, from)
		}
	}
}

func TestARouteInsideTheVPCNeedsItsTargetsCheckOff(t *testing.T) {
	w := redirected(t)
	w.forward("eni-m", "1")
	w.reaches(w.guests["eni-a"], "", "10.0.16.11:7000")
	w.at("eni-m").SourceDestCheck = true
	w.apply()
	w.silent(w.guests["eni-a"], "", "10.0.16.11:7000")
	if w.drops("eni-m").Misrouted == 0 {
		t.Error("the drop was not counted at the target")
	}
}

func TestARouteInsideTheVPCWithoutItsTargetIsABlackhole(t *testing.T) {
	w := redirected(t)
	w.forward("eni-m", "1")
	w.reaches(w.guests["eni-a"], "", "10.0.16.11:7000")
	w.state.Subnets[0].Routes[0].Target = Target{Port: "eni-gone"}
	w.apply()
	w.silent(w.guests["eni-a"], "", "10.0.16.11:7000")
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the drop was not counted at the sender")
	}
	w.state.Subnets[0].Routes = nil
	w.apply()
	w.forward("eni-m", "0")
	w.reaches(w.guests["eni-a"], "", "10.0.16.11:7000") // direct again
}

func TestNoRouteRedirectsTrafficInsideItsOwnSubnet(t *testing.T) {
	w := redirected(t)
	w.plug("eni-n", "10.0.0.20")
	w.state.Subnets[0].Routes = append(w.state.Subnets[0].Routes, Route{Destination: prefixes("10.0.0.0/20")[0], Target: Target{Port: "eni-m"}})
	w.apply()
	w.reaches(w.guests["eni-n"], "", "10.0.0.10:7000")
}
