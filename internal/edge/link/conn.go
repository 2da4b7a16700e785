package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

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
	socket *nl.NetlinkSocket
	seq    uint32
}

// dial opens a socket in the namespace of the calling thread.
func dial() (*conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	// Acknowledgements without a copy of the request, extended ones if supported.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = s.SetExtAck(true)
	// The kernel acknowledges before send returns; the timeout bounds a defect.
	_ = s.SetReceiveTimeout(&unix.Timeval{Sec: 10})
	return &conn{socket: s}, nil
}

func (c *conn) close() { c.socket.Close() }

// send sends messages in one datagram.
func (c *conn) send(datagram []byte) error {
	if err := unix.Sendto(c.socket.GetFd(), datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to rtnetlink: %w", err)
	}
	return nil
}

// receive returns the messages of the next datagram.
func (c *conn) receive() ([]syscall.NetlinkMessage, error) {
	for {
		messages, _, err := c.socket.Receive()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive from rtnetlink: %w", err)
		}
		return messages, nil
	}
}

// exchange sends messages in one datagram and collects the acknowledgement of each. The
// kernel executes them in order and continues after one that fails.
func (c *conn) exchange(messages []message) ([]error, error) {
	first := c.seq + 1
	var out []byte
	for _, m := range messages {
		c.seq++
		out = append(out, m.serialize(c.seq)...)
	}
	if err := c.send(out); err != nil {
		return nil, err
	}
	each := make([]error, len(messages))
	for answered := 0; answered < len(messages); {
		answers, err := c.receive()
		if err != nil {
			return nil, err
		}
		for _, answer := range answers {
			// Those of an earlier, interrupted exchange are skipped.
			i := int(answer.Header.Seq - first)
			if answer.Header.Type == unix.NLMSG_ERROR && i >= 0 && i < len(messages) {
				each[i] = acknowledgement(answer, messages[i].what)
				answered++
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
			l, err := netlink.LinkDeserialize(nil, answer.Data)
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
