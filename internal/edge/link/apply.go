package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// applyRounds bounds how often Apply compares again: taking an address away can
// take others with it.
const applyRounds = 3

// Apply makes the kernel agree with what is wanted: it reads everything, asks
// want, and does the difference. It returns what was not as it should be, put
// right or not; err is for what could not be tried. Applying twice is applying
// once. Nothing that is not ours is touched. Calls take turns.
//
// want is asked after the kernel was read. A caller that records a pod before it
// wires it therefore never sees a pod that is being added pruned as unknown. What
// Wire, Up or Unwire is at meanwhile is left to them.
func (h *Host) Apply(ctx context.Context, want func() hostnet.State) ([]hostnet.Drift, error) {
	select {
	case h.applies <- struct{}{}:
		defer func() { <-h.applies }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := pass{h: h, want: want, seen: map[string]bool{}, broken: map[string]bool{}}
	for range applyRounds {
		acted, err := p.round(ctx)
		if err != nil {
			return p.drifts, err
		}
		if !acted {
			break
		}
	}
	return p.drifts, errors.Join(p.errs...)
}

// Expect notes what an earlier process left in the kernel, and this one therefore cannot
// know. That it is not there, or is otherwise, is somebody's doing. Call it before the
// first Apply.
func (h *Host) Expect(s hostnet.State) { h.account.expect(s) }

// pass is one Apply.
type pass struct {
	h       *Host
	want    func() hostnet.State
	follows bool            // the round before took away what others may have stood on
	seen    map[string]bool // differences listed in drifts
	broken  map[string]bool // those that could not be put right
	drifts  []hostnet.Drift
	errs    []error
}

// round compares once and does the difference; acted tells that there was one.
func (p *pass) round(ctx context.Context) (acted bool, err error) {
	since := p.h.account.look()
	have, err := p.h.Read(ctx)
	if err != nil {
		return false, fmt.Errorf("read the node's network: %w", err)
	}
	target := p.want()
	if err := p.h.addSysctls(target.Sysctls, &have); err != nil {
		return false, err
	}
	ops := hostnet.Diff(target, have)
	verdicts, failed := p.h.account.judge(since, target, have, ops)
	follows := p.follows
	p.follows = false
	for i, op := range ops {
		name := op.String()
		d := hostnet.Drift{Object: op.Object.String(), Was: op.Why, Own: verdicts[i] != drift || follows}
		if op.Verb != hostnet.Report && verdicts[i] != inWork && !p.broken[name] {
			err := p.h.do(ctx, op)
			switch {
			case err == nil:
				acted, d.Repaired = true, true
				p.follows = p.follows || uproots(op)
			case p.h.account.busy(op.Object, since):
				d.Own = true // work began meanwhile; its business
			case errors.Is(err, errNoLink), errors.Is(err, unix.ENODEV):
				failed(op)
				d.Own = true // it went after the look; the next one tells
			default:
				failed(op)
				p.broken[name] = true
				p.errs = append(p.errs, err)
			}
		}
		if !p.seen[name] {
			p.seen[name] = true
			p.drifts = append(p.drifts, d)
		}
	}
	return acted, nil
}

// uproots reports whether the kernel takes more away with what op does: routes go
// with the address or the link they need.
func uproots(op hostnet.Op) bool {
	switch op.Object.(type) {
	case hostnet.Link:
		return true
	case hostnet.Address:
		return op.Verb != hostnet.Add
	}
	return false
}

func (h *Host) addSysctls(want []hostnet.Sysctl, have *hostnet.State) error {
	if len(want) == 0 {
		return nil
	}
	names := make([]string, len(want))
	for i, s := range want {
		names[i] = s.Name
	}
	return inNS(h.ns, func() (err error) {
		have.Sysctls, err = readSysctls(names)
		return err
	})
}

// do carries out one step.
func (h *Host) do(ctx context.Context, op hostnet.Op) error {
	if s, ok := op.Object.(hostnet.Sysctl); ok {
		return inNS(h.ns, func() error { return writeSysctl(s) })
	}
	if l, ok := op.Object.(hostnet.Link); ok && op.Verb == hostnet.Delete {
		return h.putAway(ctx, l)
	}
	m, err := h.messageFor(op)
	if errors.Is(err, errNoLink) && op.Verb == hostnet.Delete {
		return nil // it went with its link
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op.Verb, op.Object, err)
	}
	each, err := h.request(ctx, m)
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

// putAway leaves a pod's link that nobody knows to the reaper. Since it was looked at,
// another may have come by its name: that of the pod's next sandbox, which stays.
func (h *Host) putAway(ctx context.Context, l hostnet.Link) error {
	found, err := h.find(l.Name)
	if err != nil || found == nil {
		return err
	}
	if have := linkOf(found); have.MAC != l.MAC || have.Alias != l.Alias {
		return nil
	}
	each, err := h.request(ctx, setLink(found.Index, -1, "take link "+l.Name+" down", group(hostnet.LinkGroupTrash)))
	if err != nil {
		return err
	}
	h.toReaper(found)
	return firstError(each, unix.ENODEV)
}

var errNoLink = errors.New("link is gone")

// index finds a link by its name and, if there is one, its address: another may have
// come by the name.
func (h *Host) index(name string, mac vpc.MAC) (int, error) {
	a, err := h.find(name)
	if err == nil && (a == nil || mac != (vpc.MAC{}) && linkOf(a).MAC != mac) {
		err = errNoLink
	}
	if err != nil {
		return 0, err
	}
	return a.Index, nil
}

// messageFor is the request that carries out a step.
func (h *Host) messageFor(op hostnet.Op) (message, error) {
	index := func(name string) (int, error) { return h.index(name, vpc.MAC{}) }
	create := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if op.Verb == hostnet.Change {
		create = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	del := op.Verb == hostnet.Delete
	switch o := op.Object.(type) {
	case hostnet.Link:
		i, err := h.index(o.Name, o.MAC)
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

// changeLink sets what a wanted link says and leaves the rest.
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

// writeSysctl writes a setting of the calling thread's namespace.
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

// InitHost writes the settings of a node, in the namespace of the calling thread.
// The privileged init container runs it once, before the agent starts. It returns
// what it changed, and an error that names every setting it could not write.
func InitHost(settings []hostnet.Sysctl) ([]hostnet.Drift, error) {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.Name
	}
	have, err := readSysctls(names)
	if err != nil {
		return nil, err
	}
	var changed []hostnet.Drift
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
		changed = append(changed, hostnet.Drift{Object: s.String(), Was: op.Why, Repaired: true})
	}
	return changed, errors.Join(errs...)
}

// FindENI returns the name of the link with an ENI's MAC, and waits for one until
// ctx ends: the device appears some time after EC2 says it is attached.
func (h *Host) FindENI(ctx context.Context, mac vpc.MAC) (string, error) {
	events, err := h.listen(unix.RTNLGRP_LINK)
	if err != nil {
		return "", err
	}
	defer events.close()
	for {
		name, err := h.linkWithMAC(ctx, mac)
		if name != "" || err != nil {
			return name, err
		}
		if _, err := events.next(ctx); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return "", fmt.Errorf("no link has address %s: %w", mac, err)
		}
	}
}

// linkWithMAC returns the link an ENI shows as.
func (h *Host) linkWithMAC(ctx context.Context, mac vpc.MAC) (string, error) {
	names, err := h.Names(ctx)
	return names[mac], err
}

// Names returns the names that the node's links have now, by hardware address. Links
// stacked on another share its address and are passed over. A name does not last:
// udev gives a device its own some time after it appeared.
func (h *Host) Names(ctx context.Context) (map[vpc.MAC]string, error) {
	list, err := h.links(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[vpc.MAC]string, len(list))
	for _, l := range list {
		switch l.Type() {
		case "vlan", "macvlan", "macvtap", "ipvlan", "bridge", "bond":
			continue
		}
		if a := l.Attrs(); len(a.HardwareAddr) == 6 {
			names[vpc.MAC(a.HardwareAddr)] = a.Name
		}
	}
	return names, nil
}
