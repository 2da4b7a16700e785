// Package vlan makes the node's devices of branch interfaces: what enters one leaves by the trunk
// with the branch's VLAN, and the trunk's frames of that VLAN arrive at it.
//
// Where the kernel has 802.1Q devices it makes one of them, else a veth pair, of which programs at
// clsact tag and untag the frames (tag.go). Callers see one device of the same name either way.
// Apply is idempotent and repairs what differs; it changes only links with the mark of
// hostnet.BranchAlias, and its own filter on the trunk. Addresses, routes and rules are
// edge/link's. control/network calls it.
package vlan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Branch is a desired device.
type Branch struct {
	VLAN  int
	MAC   vpc.MAC
	MTU   int    // bytes, without the tag
	Alias string // hostnet.BranchAlias
}

// Kind is how a device is made.
type Kind string

// Kinds of devices.
const (
	Kernel   Kind = "802.1Q"   // a device of the kernel's module 8021q
	Programs Kind = "programs" // a veth pair with programs
)

// What callers branch on.
var (
	// ErrNoTrunk: branches are desired, and the trunk has no link on the node.
	ErrNoTrunk = errors.New("the trunk has no link on the node")
	// ErrTaken: a link that is not ours has the name of a device.
	ErrTaken = errors.New("a link of that name is not ours")
)

// Host is the node. Its methods may be called from any goroutine.
type Host struct {
	links *netlink.Handle
	turn  chan struct{} // capacity 1: serialises calls
	kind  Kind          // of new devices; empty: not probed yet
}

// Open returns the node of the namespace that ns names; nil is that of the calling thread.
func Open(ns *os.File) (h *Host, err error) {
	h = &Host{turn: make(chan struct{}, 1)}
	open := func() (err error) { h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }
	if ns == nil {
		err = open()
	} else {
		err = netns.Do(ns, open)
	}
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return h, nil
}

// Close releases the socket. No other method may be running.
func (h *Host) Close() { h.links.Close() }

// Apply makes the devices equal to want, and returns what it changed. trunk is the name of the
// trunk's link; empty if it has none. A device that fails does not keep the others from theirs.
func (h *Host) Apply(ctx context.Context, trunk string, want []Branch) (changed []string, err error) {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := pass{Host: h, trunkName: trunk}
	if err := p.read(); err != nil {
		return nil, err
	}
	if len(want) > 0 && p.trunk == nil {
		return nil, fmt.Errorf("%q: %w", trunk, ErrNoTrunk)
	}
	keep := map[string]bool{}
	var errs []error
	for _, b := range want {
		keep[hostnet.BranchDevice(b.VLAN)], keep[hostnet.TaggedEnd(b.VLAN)] = true, true
		if err := p.connect(b); err != nil {
			errs = append(errs, fmt.Errorf("device of VLAN %d: %w", b.VLAN, err))
		}
	}
	errs = append(errs, p.tag(want), p.prune(keep))
	return p.changed, errors.Join(errs...)
}

// pass is one run of Apply.
type pass struct {
	*Host
	trunkName string
	trunk     netlink.Link
	have      map[string]netlink.Link
	changed   []string
}

func (p *pass) read() error {
	links, err := p.links.LinkList()
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 5; try++ {
		links, err = p.links.LinkList()
	}
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	p.have, p.trunk = map[string]netlink.Link{}, nil
	for _, l := range links {
		p.have[l.Attrs().Name] = l
	}
	if p.trunkName != "" {
		p.trunk = p.have[p.trunkName]
	}
	return nil
}

func (p *pass) note(format string, args ...any) {
	p.changed = append(p.changed, fmt.Sprintf(format, args...))
}

func ours(l netlink.Link) bool { return l != nil && hostnet.Link{Alias: l.Attrs().Alias}.OfBranch() }

// connect makes one device, down.
func (p *pass) connect(b Branch) error {
	name, end := hostnet.BranchDevice(b.VLAN), hostnet.TaggedEnd(b.VLAN)
	if p.isRight(b) {
		return nil
	}
	for _, old := range []string{name, end} {
		switch l := p.have[old]; {
		case l == nil:
		case !ours(l) && !unmarked(l, b):
			return fmt.Errorf("%s: %w", old, ErrTaken)
		default:
			p.note("deleted %s, which differs from the branch", old)
			if err := gone(p.links.LinkDel(l)); err != nil {
				return fmt.Errorf("delete %s: %w", old, err)
			}
		}
	}
	if err := p.make(b); err != nil {
		return err
	}
	p.note("made %s", name)
	return p.read()
}

// unmarked reports whether a crash left a link without its mark: it has the branch's address.
func unmarked(l netlink.Link, b Branch) bool {
	return l.Attrs().Alias == "" && slices.Equal(l.Attrs().HardwareAddr, b.MAC.HardwareAddr())
}

// isRight reports whether the device exists as it is desired.
func (p *pass) isRight(b Branch) bool {
	l := p.have[hostnet.BranchDevice(b.VLAN)]
	if l == nil {
		return false
	}
	a := l.Attrs()
	if !slices.Equal(a.HardwareAddr, b.MAC.HardwareAddr()) || a.MTU != b.MTU || a.Alias != b.Alias {
		return false
	}
	switch l := l.(type) {
	case *netlink.Vlan:
		return l.VlanId == b.VLAN && a.ParentIndex == p.trunk.Attrs().Index
	case *netlink.Veth:
		end := p.have[hostnet.TaggedEnd(b.VLAN)]
		return end != nil && a.ParentIndex == end.Attrs().Index && end.Attrs().ParentIndex == a.Index && end.Attrs().Alias == b.Alias
	}
	return false
}

// make makes a device of the kind that the kernel has. The mark comes last: a device without it is
// made again.
func (p *pass) make(b Branch) error {
	kind, err := p.probe()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = hostnet.BranchDevice(b.VLAN), b.MTU, b.MAC.HardwareAddr()
	names := []string{attrs.Name}
	var device netlink.Link
	if kind == Kernel {
		attrs.ParentIndex = p.trunk.Attrs().Index
		device = &netlink.Vlan{LinkAttrs: attrs, VlanId: b.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	} else {
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerMTU = hostnet.TaggedEnd(b.VLAN), uint32(b.MTU)
		device, names = pair, []string{pair.PeerName, attrs.Name}
	}
	if err := p.links.LinkAdd(device); err != nil {
		return fmt.Errorf("make %s: %w", attrs.Name, err)
	}
	for _, name := range names {
		l, err := p.links.LinkByName(name)
		if err == nil { // addresses are ours to give: the kernel would check its own for duplicates first
			err = p.links.LinkSetIP6AddrGenMode(l, addrGenNone)
			if errors.Is(err, unix.EAFNOSUPPORT) {
				err = nil // a kernel, or a node, without IPv6
			}
		}
		if err == nil {
			err = p.links.LinkSetAlias(l, b.Alias)
		}
		if err != nil {
			return fmt.Errorf("mark %s: %w", name, err)
		}
	}
	return nil
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// probe finds out whether the kernel has 802.1Q devices, by making one in a namespace of its own.
func (p *pass) probe() (Kind, error) {
	if p.kind != "" {
		return p.kind, nil
	}
	ns, err := netns.New()
	if err != nil {
		return "", err
	}
	defer ns.Close()
	err = netns.Do(ns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "trunk"
		pair := netlink.NewVeth(attrs) // lo takes no tags
		pair.PeerName = "peer"
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("make a veth pair: %w", err)
		}
		trunk, err := netlink.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		attrs = netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = "probe", trunk.Attrs().Index
		return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 1, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	})
	switch {
	case err == nil:
		p.kind = Kernel
	case errors.Is(err, unix.EOPNOTSUPP):
		p.kind = Programs
	default:
		return "", fmt.Errorf("make an 802.1Q device for trial: %w", err)
	}
	return p.kind, nil
}

// prune deletes the devices of ours that are not desired. A veth pair ends with one of its ends.
func (p *pass) prune(keep map[string]bool) error {
	var errs []error
	for name, l := range p.have {
		if keep[name] || !ours(l) {
			continue
		}
		p.note("deleted %s", name)
		if err := gone(p.links.LinkDel(l)); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func gone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
