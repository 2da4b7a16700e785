package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is a netlink request that changes something.
type message struct {
	kind  uint16
	flags uint16
	body  []nl.NetlinkRequestData
	what  string // for errors: "create link eni…"
	// echoed, if set, receives what the message made, with NLM_F_ECHO in flags and from a kernel
	// that echoes it. The argument is valid during the call.
	echoed func(made []byte)
}

// serialize encodes the request. flags are in addition to the message's own.
func (m message) serialize(seq uint32, flags uint16) []byte {
	req := nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Type: m.kind, Flags: unix.NLM_F_REQUEST | m.flags | flags, Seq: seq},
		Data:     m.body,
	}
	return req.Serialize()
}

// conn is an rtnetlink socket of the namespace it was dialled in. One exchange
// at a time.
type conn struct {
	fd     int
	seq    uint32
	answer []byte // of the kernel, the last one
}

// The sizes of buffers in bytes. An acknowledgement takes 36, and the kernel's message in it, if
// it refuses; the description of a link takes about 1,500.
const (
	acknowledgementSize = 1 << 10
	answerSize          = 8 << 10
)

// dial opens a socket in the namespace of the calling thread, for answers of at most that size. The library's sockets wait in the
// runtime's poller, and each answer grows the goroutine's stack by 64 KiB; neither is needed
// here, because the kernel has answered when send returns.
func dial(size int) (c *conn, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open an rtnetlink socket: %w", err)
	}
	c = &conn{fd: fd, answer: make([]byte, size)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		c.close()
		return nil, fmt.Errorf("bind an rtnetlink socket: %w", err)
	}
	// Acknowledgements without a copy of the request, extended ones if supported.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

// send sends messages in one datagram.
func (c *conn) send(datagram []byte) error {
	if err := unix.Sendto(c.fd, datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to rtnetlink: %w", err)
	}
	return nil
}

// receive returns the messages of the next datagram; they are valid until the next call.
func (c *conn) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.answer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("receive from rtnetlink: %w", err)
		case n > len(c.answer):
			return nil, fmt.Errorf("receive from rtnetlink: an answer of %d bytes, more than %d", n, len(c.answer))
		}
		messages, err := syscall.ParseNetlinkMessage(c.answer[:n])
		if err != nil {
			return nil, fmt.Errorf("receive from rtnetlink: %w", err)
		}
		return messages, nil
	}
}

// exchange sends messages in one datagram and returns the error of each. The kernel executes
// them in order and continues after one that fails. It answers each that fails; of the others
// only the last one is acknowledged, because each answer costs an allocation on both sides.
func (c *conn) exchange(messages []message) ([]error, error) {
	first := c.seq + 1
	var out []byte
	for i, m := range messages {
		var flags uint16
		if i == len(messages)-1 {
			flags = unix.NLM_F_ACK
		}
		c.seq++
		out = append(out, m.serialize(c.seq, flags)...)
	}
	if err := c.send(out); err != nil {
		return nil, err
	}
	each := make([]error, len(messages))
	for complete := len(messages) == 0; !complete; {
		answers, err := c.receive()
		if err != nil {
			return nil, err
		}
		for _, answer := range answers {
			// Those of an earlier, interrupted exchange are skipped.
			i := int(answer.Header.Seq - first)
			switch {
			case i < 0 || i >= len(messages):
			case answer.Header.Type == unix.NLMSG_ERROR:
				each[i] = acknowledgement(answer, messages[i].what)
				complete = i == len(messages)-1
			case messages[i].echoed != nil:
				messages[i].echoed(answer.Data)
			}
		}
	}
	return each, nil
}

// acknowledgement converts an NLMSG_ERROR into an error, with the kernel's message if
// there is one.
func acknowledgement(answer syscall.NetlinkMessage, what string) error {
	if len(answer.Data) < 4 {
		return fmt.Errorf("%s: short acknowledgement of rtnetlink", what)
	}
	code := int32(binary.NativeEndian.Uint32(answer.Data))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	const fixed = 4 + unix.NLMSG_HDRLEN
	flags := answer.Header.Flags
	if flags&unix.NLM_F_ACK_TLVS == 0 || flags&unix.NLM_F_CAPPED == 0 || len(answer.Data) < fixed {
		return fmt.Errorf("%s: %w", what, errno)
	}
	attrs, err := nl.ParseRouteAttr(answer.Data[fixed:])
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
	if err := c.send(req.Serialize()); err != nil {
		return nil, err
	}
	for {
		answers, err := c.receive()
		if err != nil {
			return nil, err
		}
		for _, answer := range answers {
			switch {
			case answer.Header.Seq != c.seq:
				continue
			case answer.Header.Type == unix.NLMSG_ERROR:
				if err := acknowledgement(answer, what()); !errors.Is(err, unix.ENODEV) {
					return nil, err
				}
				return nil, nil
			}
			l, err := netlink.LinkDeserialize(nil, slices.Clone(answer.Data)) // it keeps parts of it
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what(), err)
			}
			return l.Attrs(), nil
		}
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
