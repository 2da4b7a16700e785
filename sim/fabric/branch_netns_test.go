//go:build netns

package fabric

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// inGroup sets a port's groups.
func (w *world) inGroup(id vpc.ENIID, groups ...vpc.SecurityGroupID) {
	w.t.Helper()
	w.at(id).Groups = groups
}

func (w *world) addGroup(id vpc.SecurityGroupID, ingress, egress []Rule) {
	w.state.Groups = append(w.state.Groups, Group{ID: id, Ingress: ingress, Egress: egress})
}

func everywhere() []Rule {
	return []Rule{
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("0.0.0.0/0")},
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("::/0")},
	}
}

// Pods on branches reach the gateway, other instances in and outside their subnet, the trunk's
// own guest and each other, in both families, with large packets too.
func TestBranchesAreReachedThroughTheirTrunk(t *testing.T) {
	w := newWorld(t)
	n := w.trunk("eni-t", "10.0.0.10", "fd10::10")
	near, far := w.plug("eni-n", "10.0.0.11", "fd10::11"), w.plug("eni-f", "10.0.16.12", "fd10:0:0:1::12")
	one := n.branch("eni-1", 1, "10.0.0.21", "fd10::21")
	two := n.branch("eni-2", 4094, "10.0.0.22", "fd10::22")
	for _, g := range []*guest{near, one, two, n.guest} {
		g.onLink("fd10::/64")
	}
	for _, to := range []string{"10.0.0.1", "10.0.0.10", "10.0.0.11", "10.0.0.22", "10.0.16.12", "fd10::1", "fd10::10", "fd10::11", "fd10::22", "fd10:0:0:1::12"} {
		if err := one.ping("", to, replyTimeout); err != nil {
			t.Errorf("branch to %s: %v", to, err)
		}
	}
	for _, g := range []*guest{near, far, two, n.guest} {
		for _, to := range []string{"10.0.0.21", "fd10::21"} {
			if err := g.ping("", to, replyTimeout); err != nil {
				t.Errorf("%s to %s: %v", g.Name, to, err)
			}
		}
	}
	far.serveUDP("10.0.16.12:7000")
	if got := netip.MustParseAddrPort(one.reaches("", "10.0.16.12:7000")).Addr(); got != addrs("10.0.0.21")[0] {
		t.Errorf("the receiver saw %s", got)
	}
	if _, err := one.ask("", "10.0.16.12:7000", vpc.MTU-28, replyTimeout); err != nil {
		t.Errorf("a packet of the MTU: %v", err)
	}
	far.serveTCP("[fd10:0:0:1::12]:7000")
	c, err := two.connect("[fd10:0:0:1::12]:7000", replyTimeout)
	w.must(err)
	defer c.Close()
	w.must(echo(c, "over the trunk", replyTimeout))
	if err := one.ping("", "10.0.0.99", silence); err == nil {
		t.Error("an unallocated address replied")
	}
}

// Two branches of one trunk are in different groups, of which the group of a third instance
// admits one; then the groups are modified, without a new link.
func TestEachBranchIsUnderItsOwnGroupsAndTheyAreModifiedLive(t *testing.T) {
	for _, family := range []struct{ name, trunk, one, two, db, to string }{
		{"IPv4", "10.0.0.10", "10.0.0.21", "10.0.0.22", "10.0.16.12", "10.0.16.12:7000"},
		{"IPv6", "fd10::10", "fd10::21", "fd10::22", "fd10:0:0:1::12", "[fd10:0:0:1::12]:7000"},
	} {
		t.Run(family.name, func(t *testing.T) {
			w := newWorld(t)
			w.addGroup("sg-web", everywhere(), everywhere())
			w.addGroup("sg-job", everywhere(), everywhere())
			w.addGroup("sg-quiet", nil, nil)
			w.addGroup("sg-db", []Rule{{Protocol: 17, From: 7000, To: 7000, Group: "sg-web"}}, everywhere())
			only4 := func(id vpc.ENIID, address string) []string { // every instance has an IPv4 address
				if family.name == "IPv4" {
					return []string{address}
				}
				return []string{map[vpc.ENIID]string{"eni-t": "10.0.0.10", "eni-1": "10.0.0.21", "eni-2": "10.0.0.22", "eni-d": "10.0.16.12"}[id], address}
			}
			n, db := w.trunk("eni-t", only4("eni-t", family.trunk)...), w.plug("eni-d", only4("eni-d", family.db)...)
			one, two := n.branch("eni-1", 1, only4("eni-1", family.one)...), n.branch("eni-2", 2, only4("eni-2", family.two)...)
			db.serveUDP(family.to)
			w.inGroup("eni-1", "sg-web")
			w.inGroup("eni-2", "sg-job")
			w.inGroup("eni-d", "sg-db")
			w.apply()
			one.reaches("", family.to)
			two.silent("", family.to)
			n.silent("", family.to) // the trunk's groups are its own
			if w.drops("eni-d").Ingress == 0 {
				t.Error("the drop was not counted at the receiving port")
			}

			w.inGroup("eni-1", "sg-job")
			w.inGroup("eni-2", "sg-job", "sg-web")
			index := w.index("eni-1")
			w.apply()
			one.silent("", family.to)
			two.reaches("", family.to)
			if w.index("eni-1") != index {
				t.Error("the branch's link was made again")
			}

			// Egress of the sender, and ingress of the branch.
			w.inGroup("eni-2", "sg-quiet", "sg-quiet")
			w.inGroup("eni-d", open)
			w.apply()
			two.silent("", family.to)
			if w.drops("eni-2").Egress == 0 {
				t.Error("the drop was not counted at the branch")
			}
			if err := db.ping("", family.two, silence); err == nil {
				t.Error("a branch with groups that allow nothing replied")
			}
			w.must(db.ping("", family.one, replyTimeout))
		})
	}
}

// index is that of a port's link in the fabric.
func (w *world) index(id vpc.ENIID) int {
	w.t.Helper()
	l, err := w.fabric.link.LinkByName(deviceName(id))
	w.must(err)
	return l.Attrs().Index
}

func TestAFrameOfAnUnknownVLANIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.0.5")
	n.branch("eni-1", 1, "10.0.0.21")
	stray := w.port("eni-s", "", "10.0.0.31") // which the state does not have
	pod := n.pod(stray, 9)
	if err := pod.ping("", "10.0.0.5", silence); err == nil {
		t.Error("a frame of an unknown VLAN got a reply")
	}
	if w.drops("eni-t").UnknownVLAN == 0 {
		t.Error("the drop was not counted")
	}
	stray.Key = PortKey{ENI: "eni-t", VLAN: 9}
	w.state.Ports = append(w.state.Ports, stray)
	w.apply()
	w.must(pod.ping("", "10.0.0.5", replyTimeout))
	w.must(peer.ping("", "10.0.0.31", replyTimeout))
}

// A pod that uses the VLAN, the address or the MAC of another branch, or those of the trunk,
// reaches nothing.
func TestABranchSendsFromItsOwnVLANMACAndAddressOnly(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10", "fd10::10"), w.plug("eni-p", "10.0.16.5", "fd10:0:0:1::5")
	one := n.branch("eni-1", 1, "10.0.0.21", "fd10::21")
	n.branch("eni-2", 2, "10.0.0.22", "fd10::22")
	peer.serveUDP("10.0.16.5:7000")
	peer.serveUDP("[fd10:0:0:1::5]:7000")
	one.pinGateway("10.0.0.1")
	one.pinGateway("fe80::1")
	spoofed := func(what string, send func()) {
		t.Helper()
		one.reaches("10.0.0.21", "10.0.16.5:7000") // the control
		one.reaches("fd10::21", "[fd10:0:0:1::5]:7000")
		before := w.drops("eni-1").Spoofed
		send()
		if w.drops("eni-1").Spoofed == before {
			t.Errorf("%s: not counted as spoofed", what)
		}
	}
	for _, foreign := range []string{"10.0.0.22", "10.0.0.10", "10.0.0.66"} {
		one.assign(foreign)
		spoofed(foreign, func() { one.silent(foreign, "10.0.16.5:7000") })
	}
	for _, foreign := range []string{"fd10::22", "fd10::10", "fd10::66"} {
		one.assign(foreign)
		spoofed(foreign, func() { one.silent(foreign, "[fd10:0:0:1::5]:7000") })
	}
	for _, mac := range []vpc.MAC{w.at("eni-2").MAC, w.at("eni-t").MAC, {2, 0xbb, 0, 0, 0, 1}} {
		own := w.at("eni-1").MAC
		spoofed(mac.String(), func() {
			one.setMAC(mac)
			one.pinGateway("10.0.0.1")
			one.silent("10.0.0.21", "10.0.16.5:7000")
			one.setMAC(own)
			one.pinGateway("10.0.0.1")
			one.pinGateway("fe80::1")
		})
	}
	// The guest sends the branch's packet untagged, from the trunk's own link.
	n.assign("10.0.0.21")
	n.silent("10.0.0.21", "10.0.16.5:7000")
	if w.drops("eni-t").Spoofed == 0 {
		t.Error("the address of a branch from the trunk itself: not counted")
	}
}

// A raw frame with an 802.1Q tag in it, as a network card would send it: ARP is answered with
// the same tag, and for addresses of the VPC only.
func TestARPIsAnsweredInsideTheVLAN(t *testing.T) {
	w := newWorld(t)
	n := w.trunk("eni-t", "10.0.0.10")
	w.plug("eni-p", "10.0.0.5")
	branch := w.port("eni-1", "", "10.0.0.21")
	branch.Key = PortKey{ENI: "eni-t", VLAN: 7}
	w.state.Ports = append(w.state.Ports, branch)
	w.apply()
	for _, try := range []struct {
		name     string
		vlan     uint16
		protocol uint16
		target   string
		answered bool
	}{
		{"the gateway", 7, unix.ETH_P_8021Q, "10.0.0.1", true},
		{"another port", 7, unix.ETH_P_8021Q, "10.0.0.5", true},
		{"the trunk's own address", 7, unix.ETH_P_8021Q, "10.0.0.10", true},
		{"an unallocated address", 7, unix.ETH_P_8021Q, "10.0.0.99", false},
		{"another VLAN", 8, unix.ETH_P_8021Q, "10.0.0.1", false},
		{"a service tag", 7, unix.ETH_P_8021AD, "10.0.0.1", false},
	} {
		t.Run(try.name, func(t *testing.T) {
			wait := replyTimeout
			if !try.answered {
				wait = silence
			}
			reply, answered := n.askARP(branch, try.protocol, try.vlan, try.target, wait)
			if want := (testns.ARPReply{VLAN: 7, MAC: routerMAC()}); answered != try.answered || answered && reply != want {
				t.Errorf("answered %v with %+v, want %v with %+v", answered, reply, try.answered, want)
			}
		})
	}
}

func TestBranchesFindTheirSubnetByNeighbourDiscovery(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10", "fd10::10"), w.plug("eni-p", "10.0.0.5", "fd10::5")
	one := n.branch("eni-1", 1, "10.0.0.21", "fd10::21")
	one.onLink("fd10::/64")
	peer.onLink("fd10::/64")
	w.must(one.ping("fd10::21", "fd10::5", replyTimeout))
	w.must(one.ping("fd10::21", "fd10::10", replyTimeout)) // its own trunk's address
	if err := one.ping("fd10::21", "fd10::99", silence); err == nil {
		t.Error("an unallocated address replied")
	}
	w.eventually("the pod gives up asking for it", func() bool { return one.neighbour("fd10::99") == netlink.NUD_FAILED })
	one.assign("fd10::5a") // spoofed
	one.forget()
	if err := one.ping("fd10::5a", "fd10::5", silence); err == nil {
		t.Error("the spoofed solicitation got a reply")
	}
}

// A trunk and its branch that know no address of the VPC but that of its router, as a node that
// takes no router advertisements.
//
// Red: without vpcRouter6 among the local addresses of the plan no solicitation gets a reply.
func TestTrunksAndBranchesFindTheVPCsRouterByNeighbourDiscovery(t *testing.T) {
	w := newWorld(t)
	n := w.trunk("eni-t", "10.0.0.10", "fd10::10")
	w.plug("eni-p", "10.0.0.5", "fd10::5")
	w.plug("eni-f", "10.0.16.12", "fd10:0:0:1::12")
	one := n.branch("eni-1", 1, "10.0.0.21", "fd10::21")
	const router = "fe80:ec2::1"
	for _, g := range []*guest{n.guest, one} {
		g.routeBy(router)
		for _, to := range []string{"fd10::5", "fd10:0:0:1::12"} {
			if err := g.ping("", to, replyTimeout); err != nil {
				t.Errorf("%s to %s: %v", g.Name, to, err)
			}
		}
		if g.neighbour(router)&(netlink.NUD_REACHABLE|netlink.NUD_DELAY|netlink.NUD_STALE|netlink.NUD_PROBE) == 0 {
			t.Errorf("%s: neighbour state of the router: %#x", g.Name, g.neighbour(router))
		}
	}
}

// The connections of a branch end with it, and those of its neighbours stay.
func TestADeletedBranchsConnectionsEnd(t *testing.T) {
	for _, family := range []struct{ name, one, two string }{
		{"IPv4", "10.0.0.21:7000", "10.0.0.22:7000"},
		{"IPv6", "[fd10::21]:7000", "[fd10::22]:7000"},
	} {
		t.Run(family.name, func(t *testing.T) {
			w := newWorld(t)
			n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.16.5", "fd10:0:0:1::5")
			n.branch("eni-1", 1, "10.0.0.21", "fd10::21").serveTCP(family.one)
			n.branch("eni-2", 2, "10.0.0.22", "fd10::22").serveTCP(family.two)
			open := func(to string) net.Conn {
				c, err := peer.connect(to, replyTimeout)
				w.must(err)
				t.Cleanup(func() { c.Close() })
				w.must(echo(c, "before", replyTimeout))
				return c
			}
			one, two := open(family.one), open(family.two)
			kept := *w.at("eni-1")
			w.remove("eni-1")
			if err := echo(one, "after", silence); err == nil {
				t.Error("the connection goes on after the branch was deleted")
			}
			w.must(echo(two, "after", replyTimeout))
			for _, name := range []string{"eni-1", taggedEnd("eni-1")} {
				if _, err := w.fabric.link.LinkByName(name); err == nil {
					t.Errorf("link %s is left over", name)
				}
			}

			// The same address on a new branch does not revive them.
			kept.ID, kept.Key.VLAN = "eni-3", 1
			w.state.Ports = append(w.state.Ports, kept)
			w.apply()
			fresh, err := peer.connect(family.one, replyTimeout)
			w.must(err)
			defer fresh.Close()
			w.must(echo(fresh, "new", replyTimeout))
			stale := w.drops("eni-p").Stale
			if err := echo(one, "again", silence); err == nil {
				t.Error("the connection to the deleted branch was revived")
			}
			// A packet of it that the fabric passed would be reset by the pod, which is no proof.
			w.eventually("a packet of the ended connection is dropped as stale", func() bool { return w.drops("eni-p").Stale > stale })
		})
	}
}

// remove removes a port from the state and applies; forget does not apply.
func (w *world) remove(id vpc.ENIID) {
	w.t.Helper()
	w.forget(id)
	w.apply()
}

func (w *world) forget(id vpc.ENIID) {
	w.state.Ports = slices.DeleteFunc(w.state.Ports, func(p Port) bool { return p.ID == id })
}

// A second Apply changes nothing, and one after another program's changes repairs them.
func TestTrunksAreRepairedAndAnEqualStateChangesNothing(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.0.5")
	one, two := n.branch("eni-1", 1, "10.0.0.21"), n.branch("eni-2", 2, "10.0.0.22")
	same := func() {
		t.Helper()
		before := w.fabric.changes
		w.apply()
		if made := w.fabric.changes - before; made != 0 {
			t.Errorf("%d changes of an equal state", made)
		}
	}
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := w.fabric.link.LinkByName(name)
		w.must(err)
		return l
	}
	works := func() {
		t.Helper()
		w.carryBranch("eni-1")
		w.carryBranch("eni-2")
		for _, g := range []*guest{one, two} {
			w.must(g.ping("", "10.0.0.5", replyTimeout))
		}
		for _, to := range []string{"10.0.0.21", "10.0.0.22"} {
			w.must(peer.ping("", to, replyTimeout))
		}
	}
	same()
	for what, change := range map[string]func() error{
		"a deleted link":            func() error { return w.fabric.link.LinkDel(link("eni-1")) },
		"a tagged end that is down": func() error { return w.fabric.link.LinkSetDown(link("tag-2")) },
		"a trunk without programs":  func() error { return w.fabric.link.QdiscDel(clsact(link("eni-t").Attrs().Index)) },
		"an end without programs":   func() error { return w.fabric.link.QdiscDel(clsact(link("tag-1").Attrs().Index)) },
	} {
		t.Run(what, func(t *testing.T) {
			w.must(change())
			w.apply()
			works()
			same()
		})
	}

	// A trunk without branches has no program, and the branches' links are gone.
	w.remove("eni-1")
	w.must(peer.ping("", "10.0.0.22", replyTimeout))
	w.remove("eni-2")
	left, err := w.fabric.trunks.attached(link("eni-t").Attrs().Index)
	w.must(err)
	if len(left) != 0 {
		t.Errorf("programs left on the trunk: %v", left)
	}
	w.must(n.ping("", "10.0.0.5", replyTimeout))
	same()
}

// A fabric that an earlier process left: its branches work on, with their connections, and what
// went meanwhile is removed.
func TestAReopenedFabricKeepsItsBranchesAndRemovesOthers(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.0.5")
	other := w.trunk("eni-u", "10.0.0.11")
	n.branch("eni-1", 1, "10.0.0.21").serveTCP("10.0.0.21:7000")
	other.branch("eni-2", 1, "10.0.0.22").serveTCP("10.0.0.22:7000")
	open := func(to string) net.Conn {
		c, err := peer.connect(to, replyTimeout)
		w.must(err)
		t.Cleanup(func() { c.Close() })
		w.must(echo(c, "before", replyTimeout))
		return c
	}
	kept, gone := open("10.0.0.21:7000"), open("10.0.0.22:7000")
	index := w.index("eni-1")
	w.must(w.fabric.Close())
	next, err := Open(w.fabric.Name(), Options{Internet: w.fabric.InternetName()})
	w.must(err)
	t.Cleanup(func() { _ = next.Close() })
	w.fabric = next
	w.forget("eni-2")
	w.apply()
	w.must(echo(kept, "after", replyTimeout))
	if w.index("eni-1") != index {
		t.Error("the branch's link was made again")
	}
	if err := echo(gone, "after", silence); err == nil {
		t.Error("the connection of a branch that went meanwhile goes on")
	}
	left, err := next.trunks.attached(w.index("eni-u"))
	w.must(err)
	if len(left) != 0 {
		t.Errorf("programs left on a trunk without branches: %v", left)
	}
}

func TestABranchIsDownWithItsTrunk(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.0.5")
	n.branch("eni-1", 1, "10.0.0.21")
	w.must(peer.ping("", "10.0.0.21", replyTimeout))
	w.at("eni-t").Down = true
	w.apply()
	if err := peer.ping("", "10.0.0.21", silence); err == nil {
		t.Error("a branch of a trunk that is down replied")
	}
	if w.drops("eni-p").Unroutable == 0 {
		t.Error("the packet to the branch was not counted as unroutable")
	}
	w.at("eni-t").Down = false
	w.apply()
	w.carry("eni-t")
	w.carryBranch("eni-1")
	n.carries(n.device)
	w.must(peer.ping("", "10.0.0.21", replyTimeout))
	w.at("eni-1").Down = true // the branch alone
	w.apply()
	if err := peer.ping("", "10.0.0.21", silence); err == nil {
		t.Error("a branch that is down replied")
	}
	w.must(peer.ping("", "10.0.0.10", replyTimeout))
}
