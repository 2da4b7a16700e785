package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// linkSpec is a desired veth pair: one end in the fabric's namespace, the peer in
// another.
type linkSpec struct {
	name      string
	alias     string
	mtu       int
	namespace string // of the peer
	peer      string // name of the peer
	mac       vpc.MAC
	down      bool
}

func (l linkPlan) spec() linkSpec {
	return linkSpec{
		name: l.name, alias: l.alias(), mtu: vpc.MTU,
		namespace: l.port.Guest, peer: l.port.Device, mac: l.port.MAC, down: l.port.Down,
	}
}

func (f *Fabric) gatewaySpec() linkSpec {
	return linkSpec{
		name: gatewayDevice, alias: aliasPrefix + "internet gateway", mtu: vpc.InternetMTU,
		namespace: f.internet, peer: outsideDevice, mac: outsideMAC(),
	}
}

// ourLinks are the fabric's ends that carry our mark.
func ourLinks(h *netlink.Handle) (map[string]netlink.Link, error) {
	links, err := dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ours := map[string]netlink.Link{}
	for _, l := range links {
		if g := l.Attrs().Group; g == linkGroup || g == linkGroupTrash {
			ours[l.Attrs().Name] = l
		}
	}
	return ours, nil
}

// plug makes the links of a plan and returns those of ours that are not in it. Errors of
// single ports are *PortError.
func (f *Fabric) plug(p *plan) (stale []netlink.Link, err error) {
	have, err := ourLinks(f.link)
	if err != nil {
		return nil, err
	}
	var errs []error
	var made []string
	failed := map[string]bool{}
	for name, l := range p.links {
		if l.trunk != "" {
			continue
		}
		fresh, err := f.connect(l.spec(), have[name])
		if err != nil {
			errs = append(errs, &PortError{Port: l.port.ID, Err: err})
			failed[name] = true
		}
		if fresh {
			made = append(made, name)
		}
		if !errors.Is(err, ErrGuestMissing) { // else the peer is in the deleted guest's old namespace
			delete(have, name)
		}
	}
	branches, err := f.trunks.plug(p, have, failed)
	made, errs = append(made, branches...), append(errs, err)
	if p.state.Internet != nil {
		fresh, err := f.connectOutside(have[gatewayDevice])
		if fresh {
			made = append(made, gatewayDevice)
		}
		errs = append(errs, err)
		delete(have, gatewayDevice)
	}
	return deletable(have), errors.Join(append(errs, f.answerAtOnce(made))...)
}

// connect makes the link equal to c: it exists, its peer is in the right namespace, and
// it is up or down. It reports whether the link is new.
func (f *Fabric) connect(c linkSpec, have netlink.Link) (fresh bool, err error) {
	ns, err := os.Open(netns.Path(c.namespace))
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%w: %s", ErrGuestMissing, c.namespace)
	}
	if err != nil {
		return false, fmt.Errorf("open guest namespace: %w", err)
	}
	defer ns.Close()
	if have != nil && !f.leadsTo(c, have, int(ns.Fd())) {
		f.changes++
		if err := f.link.LinkDel(have); err != nil {
			return false, fmt.Errorf("delete misplaced link %s: %w", c.name, err)
		}
		have = nil
	}
	if have == nil {
		if have, err = f.makePair(c, int(ns.Fd())); err != nil {
			return false, err
		}
		if err := f.trunks.prepare(have); err != nil {
			return true, err
		}
		fresh = true
	}
	up := have.Attrs().RawFlags&unix.IFF_UP != 0
	switch {
	case c.down && up:
		f.changes++
		return fresh, f.link.LinkSetDown(have)
	case !c.down && !up:
		f.changes++
		return fresh, f.link.LinkSetUp(have)
	}
	return fresh, nil
}

// leadsTo reports whether an existing link has the properties of c and its peer is in
// the current namespace: a rebooted guest has a new namespace of the same name.
func (f *Fabric) leadsTo(c linkSpec, have netlink.Link, namespace int) bool {
	a := have.Attrs()
	id, err := f.link.GetNetNsIdByFd(namespace)
	return err == nil && id >= 0 && a.NetNsID == id && a.Alias == c.alias && a.MTU == c.mtu && a.Group == linkGroup
}

// makePair makes the veth pair in one message, each end in its own namespace, so that
// neither end appears in another namespace.
func (f *Fabric) makePair(c linkSpec, namespace int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = c.name, c.mtu, linkGroup
	attrs.HardwareAddr = routerMAC().HardwareAddr()
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = c.peer, c.mac.HardwareAddr(), uint32(c.mtu)
	pair.PeerNamespace = netlink.NsFd(namespace)
	f.changes++
	if err := f.link.LinkAdd(pair); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make link %s to %s in %s: one of the names is taken by a link that is not ours: %w", c.name, c.peer, c.namespace, err)
		}
		return nil, fmt.Errorf("make link %s to %s in %s: %w", c.name, c.peer, c.namespace, err)
	}
	made, err := f.link.LinkByName(c.name)
	if err != nil {
		return nil, fmt.Errorf("find new link %s: %w", c.name, err)
	}
	if err := f.link.LinkSetAlias(made, c.alias); err != nil { // the kernel ignores an alias at creation
		return nil, fmt.Errorf("set alias of link %s: %w", c.name, err)
	}
	return made, nil
}

// connectOutside makes the outside host's namespace and the link to it.
func (f *Fabric) connectOutside(have netlink.Link) (bool, error) {
	if err := netns.Make(f.internet); err != nil {
		return false, fmt.Errorf("make internet namespace %s: %w", f.internet, err)
	}
	if err := writeSysctls(f.internet, hostSysctls()); err != nil {
		return false, err
	}
	fresh, err := f.connect(f.gatewaySpec(), have)
	if err != nil {
		return fresh, fmt.Errorf("connect the internet gateway: %w", err)
	}
	return fresh, nil
}

// answerAtOnce disables the delay of proxied ARP replies, up to 0.8 s by default.
func (f *Fabric) answerAtOnce(devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	settings := make([]sysctl, len(devices))
	for n, device := range devices {
		settings[n] = sysctl{"net/ipv4/neigh/" + device + "/proxy_delay", "0"}
	}
	return writeSysctls(f.name, settings)
}

// unplug deletes links. It deletes several as a group, which is some sixty times faster
// than one by one.
func (f *Fabric) unplug(links []netlink.Link) error {
	f.changes += len(links)
	if len(links) == 1 {
		return ignoreGone(f.link.LinkDel(links[0]))
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, ignoreGone(f.link.LinkSetGroup(l, linkGroupTrash)))
	}
	if len(links) > 0 {
		errs = append(errs, ignoreGone(f.deleteGroup()))
	}
	return errors.Join(errs...)
}

// deleteGroup deletes all links of the trash group: RTM_DELLINK by IFLA_GROUP,
// which the library has no call for.
func (f *Fabric) deleteGroup() error {
	return netns.DoAt(netns.Path(f.name), func() error {
		request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(linkGroupTrash)))
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// unplugAll deletes every link of ours.
func (f *Fabric) unplugAll() error {
	ours, err := ourLinks(f.link)
	if err != nil {
		return err
	}
	return f.unplug(deletable(ours))
}
