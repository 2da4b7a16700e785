package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// events is a socket with subscriptions to changes.
type events struct {
	f   *os.File
	buf []byte
}

// eventBuffer is the size of the kernel's buffer for a slow reader, in bytes; on overflow
// the reader gets ENOBUFS, and a full pass follows.
const eventBuffer = 1 << 20

func (h *Host) subscribe(groups ...uint) (*events, error) {
	e := &events{buf: make([]byte, receiveBuffer)}
	err := inNS(h.ns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		e.f = os.NewFile(uintptr(fd), "rtnetlink")
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
		for _, g := range groups {
			if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		if e.f != nil {
			e.f.Close()
		}
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	return e, nil
}

func (e *events) close() { e.f.Close() }

// next waits for messages until ctx ends.
func (e *events) next(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = e.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := e.f.Read(e.buf)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return e.buf[:max(n, 0)], err
}

func (h *Host) links(ctx context.Context) ([]netlink.Link, error) {
	list, err := again(ctx, func() ([]netlink.Link, error) { return h.handle.LinkList() })
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return list, nil
}

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
	e, err := h.subscribe(
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
	)
	if err != nil {
		return err
	}
	defer e.close()
	for {
		b, err := e.next(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			dirty("more changes than the kernel could report")
			continue
		case err != nil:
			return fmt.Errorf("receive rtnetlink events: %w", err)
		}
		messages, err := parseMessages(b)
		if err != nil {
			dirty("an event that cannot be parsed")
			continue
		}
		for _, m := range messages {
			if why := (watch{h, left}).damage(m); why != "" {
				dirty(why)
			}
		}
	}
}

// watch compares events with what was left.
type watch struct {
	*Host
	left Expected
}

// damage describes how an event differs from the expected state; empty if it does not.
func (h watch) damage(m rtMessage) string {
	switch m.kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return h.linkDamage(m)
	case unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
		return h.routeDamage(m)
	case unix.RTM_DELRULE:
		if r, ok := m.rule(); ok && h.left.Object(r.Key()) != nil {
			return r.String() + " was deleted"
		}
	case unix.RTM_DELADDR:
		return h.addressDamage(m)
	case unix.RTM_DELNEIGH, unix.RTM_NEWNEIGH:
		return h.neighbourDamage(m)
	}
	return ""
}

func (h watch) linkDamage(m rtMessage) string {
	// Most events are of our own operations on a link, which are ignored: they are not
	// parsed either.
	if h.left.Busy(m.linkName()) {
		return ""
	}
	l, err := netlink.LinkDeserialize(nil, m.body)
	if err != nil {
		return ""
	}
	have := linkOf(l.Attrs())
	if m.kind == unix.RTM_NEWLINK && h.renamed(have) {
		return have.Name + " is the new name of a link"
	}
	want, ok := h.left.Object(have.Key()).(hostnet.Link)
	if !ok || have.Dying() || m.kind == unix.RTM_NEWLINK && difference(want, have) == "" {
		return ""
	}
	// The event can be of an own operation that has ended since. Reading the link again
	// decides, and is cheaper than a full pass.
	now, err := h.find(have.Name)
	want, ok = h.left.Object(have.Key()).(hostnet.Link)
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
func (h watch) renamed(have hostnet.Link) bool {
	if have.MAC == (vpc.MAC{}) {
		return false
	}
	name := h.left.Named(have.MAC)
	return name != "" && name != have.Name
}

// difference describes how a link differs from the expected one; empty if it does not.
func difference(want, have hostnet.Link) string {
	for _, op := range hostnet.Diff(hostnet.State{Links: []hostnet.Link{want}}, hostnet.State{Links: []hostnet.Link{have}}) {
		return have.Name + " " + op.Why
	}
	return ""
}

func (h watch) routeDamage(m rtMessage) string {
	r, ok := m.route()
	switch {
	case !ok || h.left.Object(r.Key()) == nil:
		return ""
	case m.kind == unix.RTM_DELROUTE:
		return r.String() + " was deleted"
	case m.flags&unix.NLM_F_REPLACE != 0 && !r.Ours():
		return r.String() + " replaced ours"
	}
	return ""
}

// nameOf returns the name of a link; empty if it was deleted, which has its own event.
func (h *Host) nameOf(index int) string {
	l, err := h.at(index)
	if err != nil || l == nil {
		return ""
	}
	return l.Name
}

func (h watch) addressDamage(m rtMessage) string {
	ip, ok := netip.AddrFromSlice(m.attrs()[unix.IFA_ADDRESS])
	if !ok {
		return ""
	}
	key := hostnet.Address{Link: h.nameOf(m.index()), Prefix: netip.PrefixFrom(ip, ip.BitLen())}.Key()
	if h.left.Object(key) == nil {
		return ""
	}
	return key + " was deleted"
}

func (h watch) neighbourDamage(m rtMessage) string {
	attrs := m.attrs()
	ip, ok := netip.AddrFromSlice(attrs[unix.NDA_DST])
	if !ok {
		return ""
	}
	key := hostnet.Neighbour{Link: h.nameOf(m.index()), Address: ip}.Key()
	want, ok := h.left.Object(key).(hostnet.Neighbour)
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

// rtMessage is one message of rtnetlink.
type rtMessage struct {
	kind  uint16
	flags uint16
	body  []byte
}

func parseMessages(b []byte) ([]rtMessage, error) {
	var list []rtMessage
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(nl.NativeEndian().Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return list, errors.New("short netlink message")
		}
		list = append(list, rtMessage{
			kind: nl.NativeEndian().Uint16(b[4:]), flags: nl.NativeEndian().Uint16(b[6:]), body: b[unix.NLMSG_HDRLEN:size],
		})
		b = b[min((size+3)&^3, len(b)):]
	}
	return list, nil
}

// headerSize is the size of the fixed header, which precedes the attributes.
func (m rtMessage) headerSize() int {
	switch m.kind {
	case unix.RTM_DELADDR, unix.RTM_NEWADDR:
		return unix.SizeofIfAddrmsg
	default: // rtmsg, fib_rule_hdr, ndmsg
		return unix.SizeofRtMsg
	}
}

func (m rtMessage) attrs() map[int][]byte {
	out := map[int][]byte{}
	if len(m.body) < m.headerSize() {
		return out
	}
	list, err := nl.ParseRouteAttr(m.body[m.headerSize():])
	if err != nil {
		return out
	}
	for _, a := range list {
		out[int(a.Attr.Type)] = a.Value
	}
	return out
}

func (m rtMessage) u32At(offset int) uint32 {
	if len(m.body) < offset+4 {
		return 0
	}
	return nl.NativeEndian().Uint32(m.body[offset:])
}

// index returns the link's index in an ifaddrmsg or ndmsg.
func (m rtMessage) index() int { return int(m.u32At(4)) }

func (m rtMessage) neighbourState() uint16 { return uint16(m.u32At(8)) }

// linkName returns the name in a link message.
func (m rtMessage) linkName() string {
	for b := m.body[min(len(m.body), unix.SizeofIfInfomsg):]; len(b) >= unix.SizeofRtAttr; {
		size, kind := int(nl.NativeEndian().Uint16(b)), nl.NativeEndian().Uint16(b[2:])
		if size < unix.SizeofRtAttr || size > len(b) {
			break
		}
		if kind == unix.IFLA_IFNAME {
			return unix.ByteSliceToString(b[unix.SizeofRtAttr:size])
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return ""
}

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return nl.NativeEndian().Uint32(b)
}

func (m rtMessage) prefix(value []byte, bits uint8) netip.Prefix {
	if ip, ok := netip.AddrFromSlice(value); ok {
		return netip.PrefixFrom(ip, int(bits))
	}
	if m.body[0] == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// route parses table, destination, metric and protocol.
func (m rtMessage) route() (hostnet.Route, bool) {
	if len(m.body) < unix.SizeofRtMsg {
		return hostnet.Route{}, false
	}
	a := m.attrs()
	r := hostnet.Route{
		Table: number(a[unix.RTA_TABLE]), To: m.prefix(a[unix.RTA_DST], m.body[1]),
		Metric: number(a[unix.RTA_PRIORITY]), Protocol: m.body[5],
	}
	if m.body[0] == unix.AF_INET6 && r.Metric == ipv6Metric {
		r.Metric = 0
	}
	return r, true
}

func (m rtMessage) rule() (hostnet.Rule, bool) {
	if len(m.body) < unix.SizeofRtMsg {
		return hostnet.Rule{}, false
	}
	a := m.attrs()
	r := hostnet.Rule{Family: vpc.IPv4, Priority: int(number(a[unix.FRA_PRIORITY])), Table: number(a[unix.FRA_TABLE])}
	if m.body[0] == unix.AF_INET6 {
		r.Family = vpc.IPv6
	}
	if v, ok := a[unix.FRA_SRC]; ok {
		r.From = m.prefix(v, m.body[2])
	}
	if v, ok := a[unix.FRA_DST]; ok {
		r.To = m.prefix(v, m.body[1])
	}
	if mask := number(a[unix.FRA_FWMASK]); mask != 0 {
		r.Mark, r.Mask = number(a[unix.FRA_FWMARK]), mask
	}
	if v := a[unix.FRA_PROTOCOL]; len(v) == 1 {
		r.Protocol = v[0]
	}
	return r, true
}
