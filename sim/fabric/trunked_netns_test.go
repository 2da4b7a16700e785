//go:build netns

package fabric

import (
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// trunked is a guest with a trunk: pods in namespaces of their own use its branches, as on a
// node. The guest tags and untags their frames.
type trunked struct {
	*guest
	w     *world
	id    vpc.ENIID
	links map[uint16]int // of the pods, by VLAN
}

func (w *world) trunk(id vpc.ENIID, addresses ...string) *trunked {
	w.t.Helper()
	return &trunked{guest: w.plug(id, addresses...), w: w, id: id, links: map[uint16]int{}}
}

// branch adds a branch with its pod, applies, and configures both ends.
func (n *trunked) branch(id vpc.ENIID, vlan uint16, addresses ...string) *guest {
	n.t.Helper()
	p := n.w.port(id, "", addresses...)
	p.Key, p.Device = PortKey{ENI: n.id, VLAN: vlan}, ""
	n.w.state.Ports = append(n.w.state.Ports, p)
	n.w.apply()
	pod := n.pod(p, vlan)
	n.w.carryBranch(id)
	return pod
}

// carryBranch waits until both ends of a branch's link are operationally up.
func (w *world) carryBranch(id vpc.ENIID) {
	w.t.Helper()
	for _, name := range []string{deviceName(id), taggedEnd(deviceName(id))} {
		w.eventually(name+" carries", func() bool {
			l, err := w.fabric.link.LinkByName(name)
			w.must(err)
			return l.Attrs().OperState == netlink.OperUp
		})
	}
}

// pod connects a namespace to the guest: what it sends leaves the trunk with the VLAN.
func (n *trunked) pod(p Port, vlan uint16) *guest {
	n.t.Helper()
	pod := newGuest(n.t, string(p.ID))
	n.w.guests[p.ID] = pod
	ns, err := os.Open(pod.Path)
	n.must(err)
	defer ns.Close()
	n.Do(n.t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = string(p.ID), vpc.MTU
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU, pair.PeerNamespace = "eth0", p.MAC.HardwareAddr(), vpc.MTU, netlink.NsFd(int(ns.Fd()))
		n.must(netlink.LinkAdd(pair))
		end, err := netlink.LinkByName(string(p.ID))
		n.must(err)
		trunk, err := netlink.LinkByName(n.device)
		n.must(err)
		n.links[vlan] = end.Attrs().Index
		n.classify(end, tagger(vlan, trunk.Attrs().Index))
		n.classify(trunk, untagger(n.links))
		n.must(netlink.LinkSetUp(end))
	})
	p.Device = "eth0"
	pod.configure(p, n.w.subnetOf(&p))
	n.carries(string(p.ID))
	return pod
}

// carries waits until a link of the guest is operationally up.
func (n *trunked) carries(name string) {
	n.t.Helper()
	n.Do(n.t, func() {
		n.eventually(name+" carries", func() bool {
			l, err := netlink.LinkByName(name)
			n.must(err)
			return l.Attrs().OperState == netlink.OperUp
		})
	})
}

// classify attaches a program in the namespace of the calling thread.
func (n *trunked) classify(l netlink.Link, c classifier) {
	n.t.Helper()
	index := l.Attrs().Index
	_ = netlink.QdiscAdd(clsact(index)) // it may exist
	program, err := c.load()
	n.must(err)
	defer program.Close()
	n.must(netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: c.name, DirectAction: true,
	}))
}

// askARP sends a tagged ARP request of a branch on the trunk.
func (n *trunked) askARP(p Port, tag, vlan uint16, target string, wait time.Duration) (reply testns.ARPReply, answered bool) {
	n.t.Helper()
	n.onDevice(func(l netlink.Link) {
		var err error
		reply, answered, err = testns.AskARP(l.Attrs().Index, testns.Frame{From: p.MAC, TagType: tag, VLAN: vlan}, p.Addresses[0], netip.MustParseAddr(target), wait)
		n.must(err)
	})
	return reply, answered
}
