//go:build netns

package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/test/testns"
)

// fullWorld is a world that uses every field of State.
func fullWorld(t *testing.T) *world {
	w := internet(t)
	w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	a := w.at("eni-a")
	a.Public, a.Prefixes = []Public{{addrs("10.0.0.10")[0], addrs("198.18.0.1")[0]}}, prefixes("10.0.1.16/28", "fd10::1:0:0:0/80")
	w.at("eni-b").SourceDestCheck = false
	w.state.Subnets[1].Routes = []Route{
		{Destination: prefixes("192.168.0.0/16")[0], Target: Target{Port: "eni-b"}},
		{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Blackhole: true}},
		{Destination: prefixes("fd99::/64")[0], Target: Target{Port: "eni-b"}},
		{Destination: prefixes("fd99:1::/64")[0], Target: Target{Blackhole: true}},
		{Destination: prefixes("10.0.5.0/24")[0], Target: Target{Port: "eni-b"}}, // inside the VPC
		{Destination: prefixes("fd10:0:0:5::/64")[0], Target: Target{Blackhole: true}},
	}
	w.state.Services = []Service{{Address: vpc.MetadataV4, TCP: []uint16{80}}, {Address: vpc.MetadataV6, TCP: []uint16{80}}}
	w.state.Groups = append(w.state.Groups, Group{ID: servers, Ingress: []Rule{
		{Protocol: 6, From: 1, To: 9, Group: open}, {Protocol: 1, From: 8, To: -1, Peer: prefixes("10.0.0.0/8")[0]},
	}})
	w.at("eni-b").Groups = []vpc.SecurityGroupID{open, servers}
	w.apply()
	return w
}

func TestApplyingTwiceChangesNothing(t *testing.T) {
	w := fullWorld(t)
	before := w.fabric.changes
	if before == 0 {
		t.Fatal("changes are not counted at all")
	}
	w.apply()
	if n := w.fabric.changes - before; n != 0 {
		t.Errorf("the second apply made %d changes", n)
	}
	w.at("eni-a").Addresses = append(w.at("eni-a").Addresses, addrs("10.0.0.33")...)
	w.apply()
	if n := w.fabric.changes - before; n == 0 || n > 12 {
		t.Errorf("one more address made %d changes, want a handful", n)
	}
}

func TestRemovingAllPortsFromTheStateLeavesNoObjects(t *testing.T) {
	w := newWorld(t)
	w.apply()
	empty := w.dump()
	base := w.state
	w.state = base
	filled := fullWorld(t)
	filled.state = State{CIDRs: base.CIDRs, Subnets: base.Subnets, Groups: base.Groups}
	if filled.dump() == empty {
		t.Fatal("the dump does not show the objects of the state: the test proves nothing")
	}
	filled.apply()
	if got := filled.dump(); got != empty {
		t.Errorf("left over:\n%s\nwant:\n%s", got, empty)
	}
}

// dump lists all our objects in the fabric's namespace, as text.
func (w *world) dump() string {
	w.t.Helper()
	l, err := newLayer3(w.fabric.link)
	w.must(err)
	routes, err := l.presentRoutes()
	w.must(err)
	rules, err := w.fabric.link.RuleList(netlink.FAMILY_ALL)
	w.must(err)
	addresses, err := w.fabric.link.AddrList(nil, netlink.FAMILY_ALL)
	w.must(err)
	held := map[string]bool{}
	for _, a := range addresses {
		held[a.IPNet.String()] = true
	}
	out := fmt.Sprintf("links %v\naddresses %v\nroutes %v\nrules %d\n", l.index, held, routes, len(rules))
	names := map[string]int{}
	for _, family := range []nftables.Family{nftables.Inet, nftables.ARP} {
		t, err := w.fabric.nft.conn.Read(nftables.TableName{Family: family, Name: tableName})
		w.must(err)
		for _, c := range t.Chains {
			names[fmt.Sprintf("chain %s %s", family, c.Name)] = len(c.Rules)
		}
		for _, s := range t.Sets {
			names[fmt.Sprintf("set %s %s", family, s.Name)] = len(s.Elements)
		}
	}
	return out + fmt.Sprint(names)
}

func TestApplyRepairsWhatOtherProgramsChanged(t *testing.T) {
	w := fullWorld(t)
	a, b := w.guests["eni-a"], w.guests["eni-b"]
	b.serveUDP("10.0.16.11:7000")
	link := func(name string) netlink.Link {
		l, err := w.fabric.link.LinkByName(name)
		w.must(err)
		return l
	}
	for _, damage := range []struct {
		name string
		do   func() error
	}{
		{"a port's route is deleted", func() error {
			return w.fabric.link.RouteDel(&netlink.Route{Dst: ipNet(full32("10.0.16.11")), Table: unix.RT_TABLE_MAIN})
		}},
		{"a port's route leads elsewhere", func() error {
			return w.fabric.link.RouteReplace(&netlink.Route{Dst: ipNet(full32("10.0.16.11")), LinkIndex: link("eni-a").Attrs().Index, Protocol: routeProtocol})
		}},
		{"the neighbour is deleted", func() error {
			return w.fabric.link.NeighDel(&netlink.Neigh{LinkIndex: link("eni-b").Attrs().Index, IP: nextHops(vpc.IPv4).peer.AsSlice()})
		}},
		{"the gateway's address is deleted", func() error {
			return w.fabric.link.AddrDel(link("lo"), &netlink.Addr{IPNet: ipNet(full32("10.0.0.1"))})
		}},
		{"the link is down", func() error { return w.fabric.link.LinkSetDown(link("eni-b")) }},
		{"the fabric does not forward", func() error {
			return writeSysctls(w.fabric.Name(), []sysctl{{"net/ipv4/ip_forward", "0"}})
		}},
		{"the ruleset drops everything", func() error {
			nft(w, "flush chain inet "+tableName+" between-ports\nadd rule inet "+tableName+" between-ports drop")
			return nil
		}},
	} {
		t.Run(damage.name, func(*testing.T) {
			w.must(damage.do())
			a.forget()
			if err := pingOnce(a, "10.0.0.1", "10.0.16.11"); err == nil {
				t.Fatal("the change has no effect: the test proves nothing")
			}
			w.apply()
			w.carry("eni-b")
			a.forget()
			w.must(a.ping("", "10.0.0.1", replyTimeout))
			a.reaches("10.0.0.10", "10.0.16.11:7000")
		})
	}
}

// pingOnce returns an error unless every address replies.
func pingOnce(from *guest, to ...string) error {
	var errs []error
	for _, a := range to {
		errs = append(errs, from.ping("", a, silence))
	}
	return errors.Join(errs...)
}

func full32(a string) netip.Prefix { return full(netip.MustParseAddr(a)) }

func TestALinkDeletedFromTheGuestComesBack(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	b.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		w.must(netlink.LinkDel(l))
	})
	if err := a.ping("", "10.0.0.11", silence); err == nil {
		t.Fatal("a guest without its link replied")
	}
	w.apply()
	w.configure("eni-b")
	a.forget()
	w.must(a.ping("", "10.0.0.11", replyTimeout))
}

func TestAGuestMayRenameItsLink(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	b.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		w.must(netlink.LinkSetName(l, "ens5"))
	})
	before := w.fabric.changes
	w.apply()
	if n := w.fabric.changes - before; n != 0 {
		t.Errorf("%d changes after a rename", n)
	}
	w.must(a.ping("", "10.0.0.11", replyTimeout))
}

func TestARecreatedGuestNamespaceIsWiredAgain(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.0.11")
	b.Open(t) // the descriptor keeps the old namespace alive
	w.must(netns.Delete(b.Name))
	if err := w.fabric.Apply(t.Context(), w.state); !errors.Is(PortErrors(err)["eni-b"], ErrGuestMissing) || len(PortErrors(err)) != 1 {
		t.Fatalf("without the guest's namespace: %v, want ErrGuestMissing for eni-b alone", err)
	}
	if _, err := w.fabric.link.LinkByName("eni-b"); err == nil {
		t.Error("the link into the old namespace still exists")
	}
	w.must(netns.Make(b.Name))
	w.apply()
	w.configureNew("eni-b")
	w.must(a.ping("", "10.0.0.11", replyTimeout))

	// Again, without an apply between: only the namespace differs.
	b.Open(t)
	w.must(netns.Delete(b.Name))
	w.must(netns.Make(b.Name))
	w.apply()
	w.configureNew("eni-b")
	w.must(a.ping("", "10.0.0.11", replyTimeout))
}

// configureNew configures a guest with a new link, and empties eni-a's neighbour table,
// which has the old one.
func (w *world) configureNew(id vpc.ENIID) {
	w.t.Helper()
	w.configure(id)
	w.guests["eni-a"].forget()
}

func TestAMovedPortHasNoLinkAtItsPreviousGuestAndIndex(t *testing.T) {
	w := newWorld(t)
	peer := w.plug("eni-p", "10.0.0.5")
	first := w.plug("eni-a", "10.0.0.10")
	second := newGuest(t, "second")
	for _, move := range []struct {
		name, device string
		to, from     *guest
	}{
		{"another index of the same guest", "eth3", first, first},
		{"another guest", "eth3", second, first},
	} {
		old := w.at("eni-a").Device
		w.at("eni-a").Guest, w.at("eni-a").Device = move.to.Name, move.device
		w.guests["eni-a"] = move.to
		w.apply()
		w.configure("eni-a")
		w.must(peer.ping("", "10.0.0.10", replyTimeout))
		move.from.Do(t, func() {
			if _, err := netlink.LinkByName(old); err == nil {
				t.Errorf("%s: the previous link %s still exists", move.name, old)
			}
		})
	}
}

func TestAPortThatCannotBeWiredDoesNotStopTheOthers(t *testing.T) {
	w := newWorld(t)
	a, b := newGuest(t, "a"), newGuest(t, "b")
	w.guests["eni-a"], w.guests["eni-b"] = a, b
	tagged := w.port("eni-v", "nowhere", "10.0.0.30")
	tagged.Key = PortKey{ENI: "eni-x", VLAN: 7} // a trunk without a guest
	w.state.Ports = append(w.state.Ports, tagged, w.port("eni-x", "tl-t-no-such-guest", "10.0.0.31"))
	w.state.Ports = append(w.state.Ports, w.port("eni-a", a.Name, "10.0.0.10"))
	w.state.Ports = append(w.state.Ports, w.port("eni-b", b.Name, "10.0.0.11"))
	err := w.fabric.Apply(t.Context(), w.state)
	errs := PortErrors(err)
	if len(errs) != 2 || !errors.Is(errs["eni-v"], ErrNoTrunk) || !errors.Is(errs["eni-x"], ErrGuestMissing) {
		t.Fatalf("errors of ports: %v", err)
	}
	for _, id := range []vpc.ENIID{"eni-a", "eni-b"} {
		w.configure(id)
	}
	w.must(a.ping("", "10.0.0.11", replyTimeout))
}

func TestADownLinkHasNoCarrierAndComesBack(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10", "fd10::10"), w.plug("eni-b", "10.0.16.11", "fd10:0:0:1::11")
	w.must(pingOnce(a, "10.0.16.11", "fd10:0:0:1::11"))
	w.at("eni-b").Down = true
	w.apply()
	b.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		if l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
			t.Error("the guest's link still has a carrier")
		}
	})
	for _, to := range []string{"10.0.16.11", "fd10:0:0:1::11"} {
		if err := a.ping("", to, silence); err == nil {
			t.Errorf("%s replied over a link that is down", to)
		}
	}
	before := w.fabric.changes
	w.apply()
	if n := w.fabric.changes - before; n != 0 {
		t.Errorf("%d changes on a second apply", n)
	}
	w.at("eni-b").Down = false
	w.apply()
	w.carry("eni-b")
	w.must(a.ping("", "10.0.16.11", replyTimeout))
	w.must(a.ping("", "fd10:0:0:1::11", replyTimeout))
}

func TestForeignObjectsInTheNamespaceAreNotChanged(t *testing.T) {
	w := fullWorld(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "foreign"
	pair := netlink.NewVeth(attrs)
	pair.PeerName = "foreign2"
	w.must(w.fabric.link.LinkAdd(pair))
	w.must(w.fabric.link.AddrAdd(pair, &netlink.Addr{IPNet: ipNet(full32("172.31.0.1"))}))
	w.must(w.fabric.link.LinkSetUp(pair))
	w.must(w.fabric.link.RouteAdd(&netlink.Route{LinkIndex: pair.Index, Dst: ipNet(prefixes("172.30.0.0/16")[0]), Scope: netlink.SCOPE_LINK}))
	nft(w, "add table ip foreign")
	w.state.Ports = w.state.Ports[:1]
	w.state.Internet = nil
	w.apply()
	if _, err := w.fabric.link.LinkByName("foreign"); err != nil {
		t.Errorf("the foreign link: %v", err)
	}
	if found, err := w.fabric.link.AddrList(pair, unix.AF_INET); err != nil || len(found) != 1 {
		t.Errorf("its address: %v, %v", found, err)
	}
	if found, err := w.fabric.link.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: pair.Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE); err != nil || len(found) != 1 {
		t.Errorf("its route: %v, %v", found, err)
	}
	if tables := nft(w, "list tables"); strings.Count(tables, "table ") != 3 {
		t.Errorf("tables: %s; want ours and the foreign one", tables)
	}
	if _, err := w.fabric.link.LinkByName("eni-b"); err == nil {
		t.Error("control: the removed port still has its link")
	}
}

func TestADeviceNameInUseInTheGuestIsReported(t *testing.T) {
	w := newWorld(t)
	guest := testns.New(t, "a")
	guest.Do(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		pair := netlink.NewVeth(attrs)
		pair.PeerName = "x"
		w.must(netlink.LinkAdd(pair))
	})
	w.state.Ports = append(w.state.Ports, w.port("eni-a", guest.Name, "10.0.0.10"))
	err := PortErrors(w.fabric.Apply(t.Context(), w.state))["eni-a"]
	if !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v, want an error with the name", err)
	}
}

func TestDestroyDeletesAllLinksAlsoInTheGuests(t *testing.T) {
	w := fullWorld(t)
	w.must(w.fabric.Destroy())
	w.guests["eni-a"].Do(t, func() {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("the guest's link is left over")
		}
	})
	if err := w.fabric.Apply(t.Context(), w.state); !errors.Is(err, ErrClosed) {
		t.Errorf("apply after destroy: %v, want ErrClosed", err)
	}
	if _, err := w.fabric.Counters(); !errors.Is(err, ErrClosed) {
		t.Errorf("counters after destroy: %v, want ErrClosed", err)
	}
}

// big is a state of many ports with ten addresses each, in few guests.
func big(w *world, ports int) {
	const guests = 10
	names := make([]string, guests)
	for n := range names {
		names[n] = testns.New(w.t, fmt.Sprintf("g%d", n)).Name
	}
	for n := range ports {
		a := netip.AddrFrom4([4]byte{10, 0, byte(n / 20), byte(n%20*12 + 4)})
		p := Port{
			ID: vpc.ENIID(fmt.Sprintf("eni-%017x", n)), Subnet: subnetA, MAC: vpc.MAC{2, 0xcc, 0, 0, byte(n >> 8), byte(n)},
			Groups: []vpc.SecurityGroupID{open}, SourceDestCheck: true,
			Guest: names[n%guests], Device: fmt.Sprintf("eth%d", n/guests),
		}
		for range 10 {
			p.Addresses = append(p.Addresses, a)
			a = a.Next()
		}
		w.state.Ports = append(w.state.Ports, p)
	}
}

func TestTwoHundredPortsWithTwoThousandAddressesAreWired(t *testing.T) {
	w := newWorld(t)
	big(w, 200)
	w.apply()
	l, err := newLayer3(w.fabric.link)
	w.must(err)
	routes, err := l.presentRoutes()
	w.must(err)
	if n := len(routes); n != 2000+len(w.state.CIDRs) {
		t.Errorf("%d routes, want 2000 and the VPC's", n)
	}
	before := w.fabric.changes
	w.apply()
	if n := w.fabric.changes - before; n != 0 {
		t.Errorf("%d changes on a second apply", n)
	}
}

func BenchmarkApplyWithTwoHundredPorts(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(w *world, n int)
	}{
		{"unchanged", func(*world, int) {}},
		{"one-address-more-or-less", func(w *world, n int) {
			p := &w.state.Ports[0]
			p.Addresses = p.Addresses[:10]
			if n%2 == 0 {
				p.Addresses = append(p.Addresses, addrs("10.0.15.200")...)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b)
			big(w, 200)
			w.apply()
			n := 0
			for b.Loop() {
				n++
				c.change(w, n)
				w.apply()
			}
		})
	}
}

func BenchmarkFirstApplyWithTwoHundredPorts(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b)
		big(w, 200)
		b.StartTimer()
		w.apply()
		b.StopTimer()
		w.must(w.fabric.Destroy())
		b.StartTimer()
	}
}
