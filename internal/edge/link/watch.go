package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Expected is what was left in the kernel, which an external change can affect.
type Expected interface {
	// Object returns the object that was left with a key of hostnet; nil if there is none,
	// or if an operation is in flight on it.
	Object(key string) hostnet.Object
	// Busy reports whether an operation is in flight on a link.
	Busy(link string) bool
	// Named returns the name that the link with a MAC was left with; empty if none.
	Named(mac vpc.MAC) string
}

// Watch calls dirty, with a reason, when an external change affects what was left in the
// kernel, and when the kernel lost events. It runs until ctx ends. dirty must not block;
// the caller then compares the kernel with the desired state.
func (h *Host) Watch(ctx context.Context, left Expected, dirty func(why string)) error {
	e, err := subscribe(h.ns, h.sockets.ports,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
	)
	if err != nil {
		return err
	}
	defer e.close()
	for {
		messages, err := e.next(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			dirty("more changes than the kernel could report")
			continue
		case err != nil:
			return fmt.Errorf("receive rtnetlink events: %w", err)
		}
		for _, m := range messages {
			if why := (watch{h.sockets, left}).damage(m); why != "" {
				dirty(why)
			}
		}
	}
}

// watch compares events with what was left.
type watch struct {
	sockets *sockets
	left    Expected
}

// damage describes how an event differs from the expected state; empty if it does not.
func (w watch) damage(m rtMessage) string {
	switch m.kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return w.linkDamage(m)
	case unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
		return w.routeDamage(m)
	case unix.RTM_DELRULE:
		if r, ok := m.rule(); ok && w.left.Object(r.Key()) != nil {
			return r.String() + " was deleted"
		}
	case unix.RTM_NEWRULE:
		return w.ruleDamage(m)
	case unix.RTM_DELADDR:
		return w.addressDamage(m)
	case unix.RTM_NEWADDR:
		return w.addressAdded(m)
	case unix.RTM_DELNEIGH, unix.RTM_NEWNEIGH:
		return w.neighbourDamage(m)
	}
	return ""
}

// ruleDamage describes a rule of another program for the address of a pod.
func (w watch) ruleDamage(m rtMessage) string {
	r, ok := m.rule()
	if !ok {
		return ""
	}
	if pod, ok := r.OfPod(); ok && w.left.Object(pod.Key()) != nil {
		return r.String() + " was made"
	}
	return ""
}

func (w watch) linkDamage(m rtMessage) string {
	// Most events are of our own operations on a link, which are ignored: they are not
	// parsed either.
	if w.left.Busy(m.linkName()) {
		return ""
	}
	l, err := netlink.LinkDeserialize(nil, m.body)
	if err != nil {
		return ""
	}
	have := linkOf(l.Attrs())
	if m.kind == unix.RTM_NEWLINK && w.renamed(have) {
		return have.Name + " is the new name of a link"
	}
	want, ok := w.left.Object(have.Key()).(hostnet.Link)
	if !ok || have.Dying() || m.kind == unix.RTM_NEWLINK && difference(want, have) == "" {
		return ""
	}
	// The event can be of an own operation that has ended since. Reading the link again
	// decides, and is cheaper than a full pass.
	now, err := w.sockets.find(have.Name)
	want, ok = w.left.Object(have.Key()).(hostnet.Link)
	switch {
	case !ok:
		return "" // an operation on it began meanwhile
	case err != nil:
		return have.Name + " has changed"
	case now == nil:
		return have.Name + " was deleted"
	}
	return difference(want, linkOf(now))
}

// renamed reports whether a link has the MAC of one that was left with another name.
func (w watch) renamed(have hostnet.Link) bool {
	if have.MAC == (vpc.MAC{}) {
		return false
	}
	name := w.left.Named(have.MAC)
	return name != "" && name != have.Name
}

// difference describes how a link differs from the expected one; empty if it does not.
func difference(want, have hostnet.Link) string {
	for _, op := range hostnet.Diff(hostnet.State{Links: []hostnet.Link{want}}, hostnet.State{Links: []hostnet.Link{have}}) {
		return have.Name + " " + op.Why
	}
	return ""
}

func (w watch) routeDamage(m rtMessage) string {
	r, ok := m.route()
	switch {
	case ok && r.To.Addr().IsMulticast(): // the kernel makes one for each link, and no endpoint has any
		return ""
	case ok && m.kind == unix.RTM_NEWROUTE && w.ofPod(r):
		return r.String() + " was added"
	case !ok || w.left.Object(r.Key()) == nil:
		return ""
	case m.kind == unix.RTM_DELROUTE:
		return r.String() + " was deleted"
	case m.flags&unix.NLM_F_REPLACE != 0 && !r.Ours():
		return r.String() + " replaced ours"
	}
	return ""
}

// ofPod reports whether a route of the local table is for the address of a pod. The kernel adds
// one with an address, and again when a link that has the address is set up.
func (w watch) ofPod(r hostnet.Route) bool {
	return r.Table == hostnet.TableLocal && w.left.Object(hostnet.Route{Table: hostnet.TableMain, To: r.To}.Key()) != nil
}

// nameOf returns the name of a link; empty if it was deleted, which has its own event.
func (w watch) nameOf(index int) string {
	l, err := w.sockets.at(index)
	if err != nil || l == nil {
		return ""
	}
	return l.Name
}

func (w watch) addressDamage(m rtMessage) string {
	ip, ok := netip.AddrFromSlice(m.attrs()[unix.IFA_ADDRESS])
	if !ok {
		return ""
	}
	key := hostnet.Address{Link: w.nameOf(m.index()), Prefix: netip.PrefixFrom(ip, ip.BitLen())}.Key()
	if w.left.Object(key) == nil {
		return ""
	}
	return key + " was deleted"
}

// addressAdded describes an IPv4 address that is not expected on the node. It may be one of
// pods, which then no pod can have.
func (w watch) addressAdded(m rtMessage) string {
	ip, ok := netip.AddrFromSlice(m.attrs()[unix.IFA_LOCAL])
	if !ok || !ip.Is4() {
		return ""
	}
	added := hostnet.Address{Link: w.nameOf(m.index()), Prefix: netip.PrefixFrom(ip, ip.BitLen())}
	if w.left.Object(added.Key()) != nil {
		return ""
	}
	return added.Key() + " was added"
}

func (w watch) neighbourDamage(m rtMessage) string {
	attrs := m.attrs()
	ip, ok := netip.AddrFromSlice(attrs[unix.NDA_DST])
	if !ok || ip.IsMulticast() { // the kernel has one for each group, and no endpoint has any
		return ""
	}
	key := hostnet.Neighbour{Link: w.nameOf(m.index()), Address: ip}.Key()
	want, ok := w.left.Object(key).(hostnet.Neighbour)
	switch {
	case !ok:
		return ""
	case m.kind == unix.RTM_DELNEIGH || m.neighbourState()&unix.NUD_PERMANENT == 0:
		return key + " is no longer permanent"
	case !bytes.Equal(attrs[unix.NDA_LLADDR], want.MAC[:]):
		return key + " has another address"
	}
	return ""
}
