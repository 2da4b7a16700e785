package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Do carries out one step of hostnet.Diff; a Report step does nothing. It is idempotent.
// A link is never deleted here: it is discarded, see Discarded. It returns ErrNoLink if a
// link that the step needs was deleted, or replaced by another, since the kernel was read.
func (h *Host) Do(ctx context.Context, op hostnet.Op) error {
	if op.Verb == hostnet.Report {
		return nil
	}
	err := h.do(ctx, op)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", ErrNoLink, err)
	}
	return err
}

func (h *Host) do(ctx context.Context, op hostnet.Op) error {
	if s, ok := op.Object.(hostnet.Sysctl); ok {
		return h.set(ctx, s)
	}
	if l, ok := op.Object.(hostnet.Link); ok && op.Verb == hostnet.Delete {
		return h.discard(ctx, l)
	}
	if l, ok := op.Object.(hostnet.Link); ok && h.clsact && l.Admin == hostnet.AdminUp {
		if err := prepare(ctx, h, l); err != nil {
			return err
		}
	}
	m, err := messageFor(op, h.sockets.index)
	if errors.Is(err, ErrNoLink) && op.Verb == hostnet.Delete {
		return nil // deleted with its link
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op.Verb, op.Object, err)
	}
	each, err := h.sockets.request(ctx, m)
	if err != nil {
		return err
	}
	switch op.Verb {
	case hostnet.Delete:
		return firstError(each, unix.ENOENT, unix.ENODEV, unix.ESRCH, unix.EADDRNOTAVAIL)
	case hostnet.Add:
		return firstError(each, unix.EEXIST)
	default:
		return firstError(each)
	}
}

// discard puts a pod's link without an endpoint into the trash group. If the name belongs
// to another link since the observation, that of the pod's next sandbox, it stays.
func (h *Host) discard(ctx context.Context, l hostnet.Link) error {
	found, err := h.sockets.find(l.Name)
	if err != nil || found == nil {
		return err
	}
	if have := linkOf(found); have.MAC != l.MAC || have.Alias != l.Alias {
		return nil
	}
	each, err := h.sockets.request(ctx, discardLink(found))
	if err != nil {
		return err
	}
	h.trash.add(found)
	return firstError(each, unix.ENODEV)
}

// ErrNoLink is returned when a link was deleted, or replaced by another, since the kernel was read.
var ErrNoLink = errors.New("link is gone")

// messageFor returns the request for one step. find returns a link's index by name and,
// unless it is zero, MAC.
func messageFor(op hostnet.Op, find func(name string, mac vpc.MAC) (int, error)) (message, error) {
	index := func(name string) (int, error) { return find(name, vpc.MAC{}) }
	create := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if op.Verb == hostnet.Change {
		create = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	del := op.Verb == hostnet.Delete
	switch o := op.Object.(type) {
	case hostnet.Link:
		i, err := find(o.Name, o.MAC)
		return changeLink(i, o), err
	case hostnet.Address:
		i, err := index(o.Link)
		return addressMessage(pick(del, unix.RTM_DELADDR, unix.RTM_NEWADDR), pick(del, 0, create), i, o), err
	case hostnet.Neighbour:
		i, err := index(o.Link)
		return neighbourMessage(pick(del, unix.RTM_DELNEIGH, unix.RTM_NEWNEIGH), pick(del, 0, unix.NLM_F_CREATE|unix.NLM_F_REPLACE), i, o), err
	case hostnet.Route:
		i, err := index(o.Link)
		return routeMessage(pick(del, unix.RTM_DELROUTE, unix.RTM_NEWROUTE), pick(del, 0, create), i, o), err
	case hostnet.Rule:
		return ruleMessage(pick(del, unix.RTM_DELRULE, unix.RTM_NEWRULE), pick(del, 0, create), o), nil
	default:
		return message{}, fmt.Errorf("%T cannot be set", o)
	}
}

func pick(del bool, yes, no uint16) uint16 {
	if del {
		return yes
	}
	return no
}

// changeLink sets the fields that a desired link specifies.
func changeLink(index int, l hostnet.Link) message {
	up := 0
	switch l.Admin {
	case hostnet.AdminUp:
		up = 1
	case hostnet.AdminDown:
		up = -1
	case hostnet.AdminAny:
	}
	var attrs []nl.NetlinkRequestData
	if l.MTU != 0 {
		attrs = append(attrs, mtu(l.MTU))
	}
	if l.Alias != "" {
		attrs = append(attrs, alias(l.Alias))
	}
	if l.Group != 0 {
		attrs = append(attrs, group(l.Group))
	}
	return setLink(index, up, "set "+l.String(), attrs...)
}

// writeSysctl writes a setting in the calling thread's namespace.
func writeSysctl(s hostnet.Sysctl) error {
	err := os.WriteFile(filepath.Join(sysctlRoot, filepath.Clean("/"+s.Name)), []byte(s.Value), 0)
	if s.Optional && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set %s (%s): %w", s, s.Why, err)
	}
	return nil
}

// set sets one setting of one link by netlink, which a container with a read-only /proc/sys
// can too, and others by their file.
func (h *Host) set(ctx context.Context, s hostnet.Sysctl) error {
	name, devconf, ok := s.Device()
	if !ok {
		return netns.Do(h.ns, func() error { return writeSysctl(s) })
	}
	value, err := strconv.ParseUint(s.Value, 10, 32)
	if err != nil {
		return fmt.Errorf("set %s: %w", s, err)
	}
	index, err := h.sockets.index(name, vpc.MAC{})
	if err != nil {
		return fmt.Errorf("set %s (%s): %w", s, s.Why, err)
	}
	each, err := h.sockets.request(ctx, setDevconf(index, devconf, uint32(value), "set "+s.String()))
	if err != nil {
		return err
	}
	return firstError(each)
}

// InitHost writes the settings of a node, in the namespace of the calling thread.
// The privileged init container runs it once, before the agent starts. It returns the
// steps that it made, and an error that names every setting it could not write.
func InitHost(settings []hostnet.Sysctl) (made []hostnet.Op, _ error) {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.Name
	}
	have, err := readSysctls(names)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, op := range hostnet.Diff(hostnet.State{Sysctls: settings}, hostnet.State{Sysctls: have}) {
		s := op.Object.(hostnet.Sysctl)
		if op.Verb == hostnet.Report {
			errs = append(errs, fmt.Errorf("%s: %s", s, op.Why))
			continue
		}
		if err := writeSysctl(s); err != nil {
			errs = append(errs, err)
			continue
		}
		made = append(made, op)
	}
	return made, errors.Join(errs...)
}

// FindENI returns the name of the link with an ENI's MAC, and waits for it until ctx
// ends: the device appears some time after EC2 reports the attachment.
func (h *Host) FindENI(ctx context.Context, mac vpc.MAC) (string, error) {
	events, err := subscribe(h.ns, nil, unix.RTNLGRP_LINK)
	if err != nil {
		return "", err
	}
	defer events.close()
	for {
		names, err := h.Names(ctx)
		if name := names[mac]; name != "" || err != nil {
			return name, err
		}
		if _, err := events.next(ctx); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return "", fmt.Errorf("no link has address %s: %w", mac, err)
		}
	}
}

// Names returns the current names of the node's links by hardware address. Links stacked
// on another share its address: the usual kinds are skipped, and of several links the oldest
// counts. A name can change: udev renames a device some time after it appeared.
func (h *Host) Names(ctx context.Context) (map[vpc.MAC]string, error) {
	list, err := h.sockets.links(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b netlink.Link) int { return cmp.Compare(b.Attrs().Index, a.Attrs().Index) })
	names := make(map[vpc.MAC]string, len(list))
	for _, l := range list { // the oldest last
		switch l.Type() {
		case "vlan", "macvlan", "macvtap", "ipvlan", "bridge", "bond", "team":
			continue
		}
		if a := l.Attrs(); len(a.HardwareAddr) == 6 {
			names[vpc.MAC(a.HardwareAddr)] = a.Name
		}
	}
	return names, nil
}
