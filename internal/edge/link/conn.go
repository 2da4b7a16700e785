package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is a netlink request with acknowledgement.
type message struct {
	kind  uint16
	flags uint16
	body  []nl.NetlinkRequestData
	what  string // for errors: "create link eni…"
}

func (m message) serialize(seq uint32) []byte {
	req := nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Type: m.kind, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | m.flags, Seq: seq},
		Data:     m.body,
	}
	return req.Serialize()
}

// conn is an rtnetlink socket of the namespace it was dialled in. One exchange
// at a time.
type conn struct {
	fd  int
	seq uint32
	buf []byte
}

// A receive buffer holds the acknowledgements of a whole batch, about 100 bytes each, and
// the description of one link, about 2 KiB.
const (
	receiveBuffer = 64 << 10
	smallBuffer   = 8 << 10 // for the few messages to a pod's namespace
)

// dial opens a socket in the namespace of the calling thread, with a buffer of the given
// size in bytes.
func dial(buffer int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	// Acknowledgements without a copy of the request, extended ones if supported.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	// The kernel acknowledges before send returns; the timeout bounds a defect.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	return &conn{fd: fd, buf: make([]byte, buffer)}, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

// exchange sends messages in one datagram and collects the acknowledgement of each. The
// kernel executes them in order and continues after one that fails.
func (c *conn) exchange(messages []message) ([]error, error) {
	first := c.seq + 1
	var out []byte
	for _, m := range messages {
		c.seq++
		out = append(out, m.serialize(c.seq)...)
	}
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send to rtnetlink: %w", err)
	}
	each := make([]error, len(messages))
	for answered := 0; answered < len(messages); {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive from rtnetlink: %w", err)
		}
		answered += c.collect(c.buf[:n], first, messages, each)
	}
	return each, nil
}

// collect stores the acknowledgements in b and returns their number. Those of an earlier,
// interrupted exchange are skipped.
func (c *conn) collect(b []byte, first uint32, messages []message, each []error) int {
	count := 0
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return count
		}
		i := int(binary.NativeEndian.Uint32(b[8:]) - first)
		if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR && i >= 0 && i < len(messages) {
			each[i] = acknowledgement(b[:size], messages[i].what)
			count++
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return count
}

// acknowledgement converts an NLMSG_ERROR into an error, with the kernel's message if
// there is one.
func acknowledgement(b []byte, what string) error {
	code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:]))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	const fixed = unix.NLMSG_HDRLEN + 4 + unix.NLMSG_HDRLEN
	flags := binary.NativeEndian.Uint16(b[6:])
	if flags&unix.NLM_F_ACK_TLVS == 0 || flags&unix.NLM_F_CAPPED == 0 || len(b) < fixed {
		return fmt.Errorf("%s: %w", what, errno)
	}
	attrs, err := nl.ParseRouteAttr(b[fixed:])
	if err != nil {
		return fmt.Errorf("%s: %w", what, errno)
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.NLMSGERR_ATTR_MSG && len(a.Value) > 1 {
			return fmt.Errorf("%s: %w (%s)", what, errno, a.Value[:len(a.Value)-1])
		}
	}
	return fmt.Errorf("%s: %w", what, errno)
}

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: counters are half of the
// description of a link.
const skipStats = 1 << 3

// link returns the link with an index, or with a name if index is 0, in the socket's
// namespace; nil if there is none.
func (c *conn) link(index int, name string) (*netlink.LinkAttrs, error) {
	c.seq++
	which := nl.NewIfInfomsg(unix.AF_UNSPEC)
	which.Index = int32(index)
	req := nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Type: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Seq: c.seq},
		Data:     []nl.NetlinkRequestData{which, attr(unix.IFLA_EXT_MASK, u32(skipStats))},
	}
	what := func() string { return fmt.Sprintf("find link of index %d", index) }
	if index == 0 {
		what = func() string { return "find link " + name }
		req.Data = append(req.Data, text(unix.IFLA_IFNAME, name))
	}
	if err := unix.Sendto(c.fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send to rtnetlink: %w", err)
	}
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("receive from rtnetlink: %w", err)
		case n < unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg || binary.NativeEndian.Uint32(c.buf[8:]) != c.seq:
			continue
		case binary.NativeEndian.Uint16(c.buf[4:]) == unix.NLMSG_ERROR:
			if err := acknowledgement(c.buf[:n], what()); !errors.Is(err, unix.ENODEV) {
				return nil, err
			}
			return nil, nil
		}
		l, err := netlink.LinkDeserialize(nil, bytes.Clone(c.buf[unix.NLMSG_HDRLEN:n]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what(), err)
		}
		return l.Attrs(), nil
	}
}

// firstError returns the first of errs that is not one of those allowed.
func firstError(errs []error, allowed ...unix.Errno) error {
next:
	for _, err := range errs {
		if err == nil {
			continue
		}
		for _, a := range allowed {
			if errors.Is(err, a) {
				continue next
			}
		}
		return err
	}
	return nil
}
