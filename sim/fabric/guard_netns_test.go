//go:build netns

package fabric

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// setMAC changes the hardware address of a guest's end.
func (w *world) setMAC(id vpc.ENIID, mac vpc.MAC) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		l, err := netlink.LinkByName(w.at(id).Device)
		w.must(err)
		w.must(netlink.LinkSetHardwareAddr(l, mac.HardwareAddr()))
	})
	w.carry(id)
}

// pinGateway adds a permanent neighbour entry for the gateway in the guest, so that the
// next packet is sent without an ARP request before it.
func (w *world) pinGateway(id vpc.ENIID, gateway string) {
	w.t.Helper()
	w.guests[id].Do(w.t, func() {
		l, err := netlink.LinkByName(w.at(id).Device)
		w.must(err)
		w.must(netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: netip.MustParseAddr(gateway).AsSlice(), HardwareAddr: routerMAC().HardwareAddr(),
		}))
	})
}

func TestASpoofedSourceAddressIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.serveUDP(b.Name, "10.0.16.11:7000")
	w.pinGateway("eni-a", "10.0.0.1")
	w.reaches(a, "10.0.0.10", "10.0.16.11:7000")
	if got := w.drops("eni-a"); got != (Drops{}) {
		t.Fatalf("drops before any spoofed packet: %+v", got)
	}
	w.assign("eni-a", "10.0.0.66")
	w.silent(a, "10.0.0.66", "10.0.16.11:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the drop was not counted")
	}
}

func TestASpoofedMACIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.serveUDP(b.Name, "10.0.16.11:7000")
	own := w.at("eni-a").MAC
	w.pinGateway("eni-a", "10.0.0.1")
	w.setMAC("eni-a", vpc.MAC{2, 0xbb, 0, 0, 0, 1})
	w.pinGateway("eni-a", "10.0.0.1")
	w.silent(a, "", "10.0.16.11:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the drop was not counted")
	}
	w.setMAC("eni-a", own)
	w.pinGateway("eni-a", "10.0.0.1")
	w.reaches(a, "", "10.0.16.11:7000")
}

func TestASpoofedARPRequestGetsNoReply(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10")
	w.plug("eni-b", "10.0.0.11")
	w.assign("eni-a", "10.0.0.66")
	if err := ping(a, "10.0.0.66", "10.0.0.11", silence); err == nil {
		t.Fatal("a ping from a spoofed address got a reply")
	}
	if got := w.neighbourState(a, "10.0.0.11"); got&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0 {
		t.Errorf("neighbour state %#x: the request got a reply", got)
	}
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the ARP request was not counted")
	}
	w.must(ping(a, "10.0.0.10", "10.0.0.11", replyTimeout))
}

func TestWithoutTheSourceCheckAPortSendsForOthersWithItsOwnMAC(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.serveUDP(b.Name, "10.0.16.11:7000")
	w.at("eni-a").SourceDestCheck = false
	w.state.Subnets[1].Routes = []Route{{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Port: "eni-a"}}}
	w.apply()
	w.assign("eni-a", "192.168.9.1")
	if got := netip.MustParseAddrPort(w.reaches(a, "192.168.9.1", "10.0.16.11:7000")).Addr(); got != addrs("192.168.9.1")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	w.setMAC("eni-a", vpc.MAC{2, 0xbb, 0, 0, 0, 1})
	w.pinGateway("eni-a", "10.0.0.1")
	w.silent(a, "192.168.9.1", "10.0.16.11:7000")
}

func TestARouteToAPortNeedsItsCheckOff(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.assign("eni-b", "192.168.9.1")
	w.state.Subnets[0].Routes = []Route{{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Port: "eni-b"}}}
	w.apply()
	w.serveUDP(b.Name, "192.168.9.1:7000")
	w.silent(a, "", "192.168.9.1:7000")
	if w.drops("eni-b").Misrouted == 0 {
		t.Error("the drop was not counted at the receiving port")
	}
	w.at("eni-b").SourceDestCheck = false
	w.apply()
	w.reaches(a, "", "192.168.9.1:7000")
}

func TestASubnetsRouteTableAppliesToThatSubnetOnly(t *testing.T) {
	w := newWorld(t)
	a, c := w.plug("eni-a", "10.0.0.10", "fd10::10"), w.plug("eni-c", "10.0.16.12")
	b := w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.at("eni-b").SourceDestCheck = false
	w.assign("eni-b", "192.168.9.1")
	w.assign("eni-b", "fd99::1")
	w.state.Subnets[0].Routes = []Route{
		{Destination: prefixes("192.168.0.0/16")[0], Target: Target{Port: "eni-b"}},
		{Destination: prefixes("fd99::/64")[0], Target: Target{Port: "eni-b"}},
	}
	w.apply()
	w.serveUDP(b.Name, "192.168.9.1:7000")
	w.serveUDP(b.Name, "[fd99::1]:7000")
	w.reaches(a, "", "192.168.9.1:7000")
	w.reaches(a, "", "[fd99::1]:7000")
	w.silent(c, "", "192.168.9.1:7000")
	if w.drops("eni-c").Unroutable == 0 {
		t.Error("the packet without a route was not counted")
	}

	// A more specific blackhole wins; a target that does not exist is a blackhole too.
	w.state.Subnets[0].Routes = append(w.state.Subnets[0].Routes,
		Route{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Blackhole: true}})
	w.apply()
	w.silent(a, "", "192.168.9.1:7000")
	w.state.Subnets[0].Routes = w.state.Subnets[0].Routes[:2]
	w.apply()
	w.reaches(a, "", "192.168.9.1:7000")
	w.state.Subnets[0].Routes[0].Target = Target{Port: "eni-gone"}
	w.apply()
	w.silent(a, "", "192.168.9.1:7000")
}

func TestOnlyPublicAddressesReachTheInternetAndItSeesThem(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.at("eni-a").Addresses = addrs("10.0.0.10", "fd10::10", "10.0.0.20")
	w.at("eni-a").Public = addrs("10.0.0.10")
	w.apply()
	w.assign("eni-a", "10.0.0.20")
	if got := netip.MustParseAddrPort(w.reaches(a, "10.0.0.10", "203.0.113.10:7000")).Addr(); got != addrs("10.0.0.10")[0] {
		t.Errorf("the outside host saw %s", got)
	}
	if got := netip.MustParseAddrPort(w.reaches(a, "fd10::10", "[2001:db8::10]:7000")).Addr(); got != addrs("fd10::10")[0] {
		t.Errorf("the outside host saw %s", got)
	}
	w.silent(a, "10.0.0.20", "203.0.113.10:7000")
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the packet without a public address was not counted")
	}

	// From outside only the public address is reachable, if the groups allow it.
	outside := &testnsName{w.fabric.InternetName()}
	w.serveUDP(a.Name, "10.0.0.10:7000")
	w.serveUDP(a.Name, "10.0.0.20:7000")
	w.must(outside.ask("10.0.0.10:7000"))
	if err := outside.ask("10.0.0.20:7000"); err == nil {
		t.Error("an address without a public one was reached from outside")
	}

	// A subnet without the route cannot reach the internet.
	b := w.plug("eni-b", "10.0.16.11")
	w.at("eni-b").Public = addrs("10.0.16.11")
	w.apply()
	w.silent(b, "", "203.0.113.10:7000")
}

// internet is a world with an outside host that subnet a has a route to.
func internet(t *testing.T) *world {
	w := newWorld(t)
	w.state.Internet = &Internet{Hosts: addrs("203.0.113.10", "2001:db8::10")}
	w.state.Subnets[0].Routes = []Route{
		{Destination: prefixes("0.0.0.0/0")[0], Target: Target{Internet: true}},
		{Destination: prefixes("::/0")[0], Target: Target{Internet: true}},
	}
	w.apply()
	w.eventually("the gateway's link carries", func() bool {
		l, err := w.fabric.link.LinkByName(gatewayDevice)
		w.must(err)
		return l.Attrs().OperState == netlink.OperUp
	})
	w.serveUDP(w.fabric.InternetName(), "203.0.113.10:7000")
	w.serveUDP(w.fabric.InternetName(), "[2001:db8::10]:7000")
	return w
}

func TestJumboFramesPassInsideTheVPCAndAreRejectedAtTheGateway(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.at("eni-a").Public = addrs("10.0.0.10")
	w.apply()
	for _, try := range []struct{ inside, outside string }{
		{"10.0.16.11:7000", "203.0.113.10:7000"},
		{"[fd10:0:0:1::11]:7000", "[2001:db8::10]:7000"},
	} {
		w.serveUDP(w.guests["eni-b"].Name, try.inside)
		if _, err := ask(a, "", try.inside, 8900, replyTimeout); err != nil {
			t.Errorf("8,900 bytes with DF to %s: %v", try.inside, err)
		}
		if _, err := ask(a, "", try.outside, 1400, replyTimeout); err != nil {
			t.Errorf("1,400 bytes with DF to %s: %v", try.outside, err)
		}
		if _, err := ask(a, "", try.outside, 8900, replyTimeout); !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("8,900 bytes with DF to %s: %v, want EMSGSIZE from fragmentation-needed", try.outside, err)
		}
	}
}

func TestOnlyThePortsOfServicesAreReachableInTheFabric(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.state.Services = []Service{
		{Address: vpc.MetadataV4, TCP: []uint16{80}},
		{Address: vpc.MetadataV6, TCP: []uint16{80}},
		{Address: addrs("10.0.0.2")[0], UDP: []uint16{53}},
	}
	w.at("eni-a").Groups = nil // groups do not apply to services
	w.apply()
	w.serveTCP(w.fabric.Name(), "169.254.169.254:80")
	w.serveTCP(w.fabric.Name(), "169.254.169.254:81")
	w.serveTCP(w.fabric.Name(), "[fd00:ec2::254]:80")
	w.serveUDP(w.fabric.Name(), "10.0.0.2:53")
	for _, to := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
		c, err := connect(a, to, replyTimeout)
		w.must(err)
		w.must(echo(c, "hello", replyTimeout))
		w.must(c.Close())
	}
	w.reaches(a, "", "10.0.0.2:53")
	if c, err := connect(a, "169.254.169.254:81", silence); err == nil {
		c.Close()
		t.Error("a port that is no service was reached")
	}
	if w.drops("eni-a").Service == 0 {
		t.Error("the drop was not counted")
	}
}
