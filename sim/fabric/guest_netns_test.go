//go:build netns

package fabric

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// guest is the host at the other end of a port's link. It configures its end as an
// instance's operating system does.
type guest struct {
	host
	device string // of the port it was configured for
}

func newGuest(t testing.TB, label string) *guest {
	t.Helper()
	g := &guest{host: host{expect{t}, testns.New(t, label)}}
	g.forward("0") // a new namespace has the machine's own setting
	return g
}

// configure sets the port's device up with the port's addresses and a default route by
// the gateway of its subnet.
func (g *guest) configure(p Port, subnet Subnet) {
	g.t.Helper()
	g.device = p.Device
	g.onDevice(func(l netlink.Link) {
		g.must(os.WriteFile("/proc/sys/net/ipv6/conf/"+p.Device+"/accept_dad", []byte("0"), 0))
		g.must(netlink.LinkSetUp(l))
		lo, err := netlink.LinkByName("lo")
		g.must(err)
		g.must(netlink.LinkSetUp(lo))
		for _, a := range p.Addresses {
			g.addAddress(l, a)
		}
		gateway := vpc.Gateway(subnet.Prefixes[0])
		g.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway.AsSlice(), Dst: ipNet(prefixes("0.0.0.0/0")[0])}))
		if len(p.Addresses) > 1 && p.Addresses[1].Is6() {
			g.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: linkLocal(1).AsSlice(), Dst: ipNet(prefixes("::/0")[0])}))
		}
	})
}

// onDevice runs fn in the guest, with its device.
func (g *guest) onDevice(fn func(netlink.Link)) {
	g.t.Helper()
	g.Do(g.t, func() {
		l, err := netlink.LinkByName(g.device)
		g.must(err)
		fn(l)
	})
}

// addAddress adds an address with its subnet on-link (IPv4, /20) or alone
// (IPv6), in the namespace of the calling thread. An IPv6 address works only
// after a kernel worker has added its local route.
func (g *guest) addAddress(l netlink.Link, a netip.Addr) {
	g.t.Helper()
	bits := 20
	if a.Is6() {
		bits = 128
	}
	err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, bits)), Flags: unix.IFA_F_NODAD})
	if !errors.Is(err, unix.EEXIST) {
		g.must(err)
	}
	if a.Is4() {
		return
	}
	g.eventually(a.String()+" is usable", func() bool {
		found, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: ipNet(full(a))}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		g.must(err)
		return len(found) > 0
	})
}

// assign adds an address in the guest, but not to the state.
func (g *guest) assign(a string) {
	g.t.Helper()
	g.onDevice(func(l netlink.Link) { g.addAddress(l, netip.MustParseAddr(a)) })
}

// setMAC changes the hardware address of the guest's end.
func (g *guest) setMAC(mac vpc.MAC) {
	g.t.Helper()
	g.onDevice(func(l netlink.Link) { g.must(netlink.LinkSetHardwareAddr(l, mac.HardwareAddr())) })
}

// pinGateway adds a permanent neighbour entry for the gateway, so that the next packet
// is sent without an ARP request before it.
func (g *guest) pinGateway(gateway string) {
	g.t.Helper()
	g.onDevice(func(l netlink.Link) {
		g.must(netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: netip.MustParseAddr(gateway).AsSlice(), HardwareAddr: routerMAC().HardwareAddr(),
		}))
	})
}

// onLink adds an on-link IPv6 route, as a router advertisement does.
func (g *guest) onLink(subnet string) {
	g.t.Helper()
	g.onDevice(func(l netlink.Link) {
		g.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(subnet)), Scope: netlink.SCOPE_LINK}))
	})
}

// routeBy makes an IPv6 router the default gateway.
func (g *guest) routeBy(router string) {
	g.t.Helper()
	g.onDevice(func(l netlink.Link) {
		g.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: netip.MustParseAddr(router).AsSlice(), Dst: ipNet(prefixes("::/0")[0])}))
	})
}

// forward turns forwarding on or off.
func (g *guest) forward(on string) {
	g.t.Helper()
	g.Do(g.t, func() {
		for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			g.must(os.WriteFile("/proc/sys/"+path, []byte(on), 0))
		}
	})
}

// neighbours are the entries of both families in the namespace of the calling thread.
func (g *guest) neighbours() []netlink.Neigh {
	entries, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	g.must(err)
	return entries
}

// neighbour is the state of the entry for an address, 0 if there is none.
func (g *guest) neighbour(a string) (state int) {
	g.Do(g.t, func() {
		for _, e := range g.neighbours() {
			if addrOf(e.IP) == netip.MustParseAddr(a) {
				state = e.State
			}
		}
	})
	return state
}

// forget empties the neighbour tables.
func (g *guest) forget() {
	g.t.Helper()
	g.Do(g.t, func() {
		for _, e := range g.neighbours() {
			_ = netlink.NeighDel(&e) // it may expire by itself
		}
	})
}
