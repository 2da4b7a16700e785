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

func TestASpoofedSourceAddressIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	b.serveUDP("10.0.16.11:7000")
	a.pinGateway("10.0.0.1")
	a.reaches("10.0.0.10", "10.0.16.11:7000")
	if got := w.drops("eni-a"); got != (Drops{}) {
		t.Fatalf("drops before any spoofed packet: %+v", got)
	}
	a.assign("10.0.0.66")
	a.silent("10.0.0.66", "10.0.16.11:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the drop was not counted")
	}
}

func TestASpoofedMACIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	b.serveUDP("10.0.16.11:7000")
	own := w.at("eni-a").MAC
	a.pinGateway("10.0.0.1")
	a.setMAC(vpc.MAC{2, 0xbb, 0, 0, 0, 1})
	w.carry("eni-a")
	a.pinGateway("10.0.0.1")
	a.silent("", "10.0.16.11:7000")
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the drop was not counted")
	}
	a.setMAC(own)
	w.carry("eni-a")
	a.pinGateway("10.0.0.1")
	a.reaches("", "10.0.16.11:7000")
}

func TestASpoofedARPRequestGetsNoReply(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10")
	w.plug("eni-b", "10.0.0.11")
	a.assign("10.0.0.66")
	if err := a.ping("10.0.0.66", "10.0.0.11", silence); err == nil {
		t.Fatal("a ping from a spoofed address got a reply")
	}
	if got := a.neighbour("10.0.0.11"); got&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0 {
		t.Errorf("neighbour state %#x: the request got a reply", got)
	}
	if w.drops("eni-a").Spoofed == 0 {
		t.Error("the ARP request was not counted")
	}
	w.must(a.ping("10.0.0.10", "10.0.0.11", replyTimeout))
}

func TestWithoutTheSourceCheckAPortSendsForOthersWithItsOwnMAC(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	b.serveUDP("10.0.16.11:7000")
	w.at("eni-a").SourceDestCheck = false
	w.state.Subnets[1].Routes = []Route{{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Port: "eni-a"}}}
	w.apply()
	a.assign("192.168.9.1")
	if got := netip.MustParseAddrPort(a.reaches("192.168.9.1", "10.0.16.11:7000")).Addr(); got != addrs("192.168.9.1")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	a.setMAC(vpc.MAC{2, 0xbb, 0, 0, 0, 1})
	w.carry("eni-a")
	a.pinGateway("10.0.0.1")
	a.silent("192.168.9.1", "10.0.16.11:7000")
}

func TestARouteToAPortNeedsItsCheckOff(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	b.assign("192.168.9.1")
	w.state.Subnets[0].Routes = []Route{{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Port: "eni-b"}}}
	w.apply()
	b.serveUDP("192.168.9.1:7000")
	a.silent("", "192.168.9.1:7000")
	if w.drops("eni-b").Misrouted == 0 {
		t.Error("the drop was not counted at the receiving port")
	}
	w.at("eni-b").SourceDestCheck = false
	w.apply()
	a.reaches("", "192.168.9.1:7000")
}

func TestASubnetsRouteTableAppliesToThatSubnetOnly(t *testing.T) {
	w := newWorld(t)
	a, c := w.plug("eni-a", "10.0.0.10", "fd10::10"), w.plug("eni-c", "10.0.16.12")
	b := w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.at("eni-b").SourceDestCheck = false
	b.assign("192.168.9.1")
	b.assign("fd99::1")
	w.state.Subnets[0].Routes = []Route{
		{Destination: prefixes("192.168.0.0/16")[0], Target: Target{Port: "eni-b"}},
		{Destination: prefixes("fd99::/64")[0], Target: Target{Port: "eni-b"}},
	}
	w.apply()
	b.serveUDP("192.168.9.1:7000")
	b.serveUDP("[fd99::1]:7000")
	a.reaches("", "192.168.9.1:7000")
	a.reaches("", "[fd99::1]:7000")
	c.silent("", "192.168.9.1:7000")
	if w.drops("eni-c").Unroutable == 0 {
		t.Error("the packet without a route was not counted")
	}

	// A more specific blackhole wins; a target that does not exist is a blackhole too.
	w.state.Subnets[0].Routes = append(w.state.Subnets[0].Routes,
		Route{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Blackhole: true}})
	w.apply()
	a.silent("", "192.168.9.1:7000")
	w.state.Subnets[0].Routes = w.state.Subnets[0].Routes[:2]
	w.apply()
	a.reaches("", "192.168.9.1:7000")
	w.state.Subnets[0].Routes[0].Target = Target{Port: "eni-gone"}
	w.apply()
	a.silent("", "192.168.9.1:7000")
}

func TestOnlyPublicAddressesReachTheInternetAndItSeesThem(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.at("eni-a").Addresses = addrs("10.0.0.10", "fd10::10", "10.0.0.20")
	w.at("eni-a").Public = []Public{{Private: addrs("10.0.0.10")[0]}}
	w.apply()
	a.assign("10.0.0.20")
	if got := netip.MustParseAddrPort(a.reaches("10.0.0.10", "203.0.113.10:7000")).Addr(); got != addrs("10.0.0.10")[0] {
		t.Errorf("the outside host saw %s", got)
	}
	if got := netip.MustParseAddrPort(a.reaches("fd10::10", "[2001:db8::10]:7000")).Addr(); got != addrs("fd10::10")[0] {
		t.Errorf("the outside host saw %s", got)
	}
	a.silent("10.0.0.20", "203.0.113.10:7000")
	if w.drops("eni-a").Unroutable == 0 {
		t.Error("the packet without a public address was not counted")
	}

	// From outside only the public address is reachable, if the groups allow it.
	outside := w.host(w.fabric.InternetName())
	a.serveUDP("10.0.0.10:7000")
	a.serveUDP("10.0.0.20:7000")
	outside.reaches("", "10.0.0.10:7000")
	outside.silent("", "10.0.0.20:7000")

	// A subnet without the route cannot reach the internet.
	b := w.plug("eni-b", "10.0.16.11")
	w.at("eni-b").Public = []Public{{Private: addrs("10.0.16.11")[0]}}
	w.apply()
	b.silent("", "203.0.113.10:7000")
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
	outside := w.host(w.fabric.InternetName())
	outside.serveUDP("203.0.113.10:7000")
	outside.serveUDP("[2001:db8::10]:7000")
	return w
}

func TestJumboFramesPassInsideTheVPCAndAreRejectedAtTheGateway(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	b := w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.at("eni-a").Public = []Public{{Private: addrs("10.0.0.10")[0]}}
	w.apply()
	for _, try := range []struct{ inside, outside string }{
		{"10.0.16.11:7000", "203.0.113.10:7000"},
		{"[fd10:0:0:1::11]:7000", "[2001:db8::10]:7000"},
	} {
		b.serveUDP(try.inside)
		if _, err := a.ask("", try.inside, 8900, replyTimeout); err != nil {
			t.Errorf("8,900 bytes with DF to %s: %v", try.inside, err)
		}
		if _, err := a.ask("", try.outside, 1400, replyTimeout); err != nil {
			t.Errorf("1,400 bytes with DF to %s: %v", try.outside, err)
		}
		if _, err := a.ask("", try.outside, 8900, replyTimeout); !errors.Is(err, unix.EMSGSIZE) {
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
	platform := w.host(w.fabric.Name())
	platform.serveTCP("169.254.169.254:80")
	platform.serveTCP("169.254.169.254:81")
	platform.serveTCP("[fd00:ec2::254]:80")
	platform.serveUDP("10.0.0.2:53")
	for _, to := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
		c, err := a.connect(to, replyTimeout)
		w.must(err)
		w.must(echo(c, "hello", replyTimeout))
		w.must(c.Close())
	}
	a.reaches("", "10.0.0.2:53")
	// Refused at once: a client that waits for an answer would stall.
	for _, to := range []string{"169.254.169.254:81", "169.254.169.254:443", "[fd00:ec2::254]:443", "10.0.0.2:53"} {
		before := w.drops("eni-a").Service
		if c, err := a.connect(to, replyTimeout); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect to %s: %v (%v), want refused", to, err, c)
		}
		if w.drops("eni-a").Service == before {
			t.Errorf("the refusal at %s was not counted", to)
		}
	}
	if _, err := a.ask("", "10.0.0.2:54", 10, replyTimeout); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a datagram to a closed port: %v, want refused", err)
	}
}
