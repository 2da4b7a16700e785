package link

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/internal/kernel/portfilter"
)

// events is a socket with subscriptions to changes.
type events struct{ socket *nl.NetlinkSocket }

// eventBuffer is the size of the kernel's buffer for a slow reader, in bytes; on overflow
// the reader gets ENOBUFS, and a full pass follows.
const eventBuffer = 1 << 20

// subscribe opens a socket for the changes in a namespace, of the given groups. It drops
// those with the port of one of our own sockets.
func subscribe(ns *os.File, own []uint32, groups ...uint) (*events, error) {
	e := &events{}
	err := netns.Do(ns, func() (err error) {
		if e.socket, err = nl.Subscribe(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		_ = e.socket.SetReceiveBufferSize(eventBuffer, true)
		if err := portfilter.Attach(e.socket.GetFd(), own...); err != nil {
			return err
		}
		for _, g := range groups { // not in Subscribe, which knows the first 32 only
			if err := unix.SetsockoptInt(e.socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		if e.socket != nil {
			e.close()
		}
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	return e, nil
}

func (e *events) close() { e.socket.Close() }

// next waits for messages. When ctx ends it closes the socket.
func (e *events) next(ctx context.Context) (list []rtMessage, err error) {
	stop := context.AfterFunc(ctx, e.close)
	defer stop()
	messages, _, err := e.socket.Receive()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, m := range messages {
		list = append(list, rtMessage{kind: m.Header.Type, flags: m.Header.Flags, body: m.Data})
	}
	return list, err
}

// rtMessage is one message of rtnetlink.
type rtMessage struct {
	kind  uint16
	flags uint16
	body  []byte
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
