package testns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Frame is an Ethernet frame to the broadcast address. With a TagType, it has a tag, as
// a network card would send it.
type Frame struct {
	From [6]byte
	// TagType is the protocol of the tag, such as unix.ETH_P_8021Q; zero: none.
	TagType, VLAN uint16
	Type          uint16 // such as unix.ETH_P_ARP
	Payload       []byte
}

func (f Frame) bytes() []byte {
	out := append(bytes.Repeat([]byte{0xff}, 6), f.From[:]...)
	if f.TagType != 0 {
		out = binary.BigEndian.AppendUint16(out, f.TagType)
		out = binary.BigEndian.AppendUint16(out, f.VLAN)
	}
	return append(binary.BigEndian.AppendUint16(out, f.Type), f.Payload...)
}

// arpRequest is an ARP request for an IPv4 address.
func arpRequest(mac [6]byte, from, target netip.Addr) []byte {
	out := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac[:]...)
	out = append(append(out, from.AsSlice()...), make([]byte, 6)...)
	return append(out, target.AsSlice()...)
}

// ARPReply is the answer to AskARP.
type ARPReply struct {
	VLAN uint16 // of its tag; 0: none
	MAC  [6]byte
}

// AskARP sends an ARP request with the tag and the sender of a frame on a link in the
// namespace of the calling thread, and returns the reply; false if none arrives in time.
func AskARP(link int, f Frame, from, target netip.Addr, wait time.Duration) (reply ARPReply, answered bool, err error) {
	f.Type, f.Payload = unix.ETH_P_ARP, arpRequest(f.From, from, target)
	answered, err = Exchange(link, f, wait, func(got []byte, vlan uint16) bool {
		const operation, sender = 14 + 6, 14 + 8
		ours := len(got) >= 42 && bytes.Equal(got[:6], f.From[:]) && bytes.Equal(got[12:14], []byte{8, 6}) &&
			got[operation+1] == 2 && netip.AddrFrom4([4]byte(got[sender+6:])) == target
		if ours {
			reply = ARPReply{vlan, [6]byte(got[sender:])}
		}
		return ours
	})
	return reply, answered, err
}

// Exchange sends a frame on a link in the namespace of the calling thread and waits for a
// received one that match accepts; false if none arrives in time. The kernel takes the tag out
// of a received frame: match gets its VLAN, 0 without one.
func Exchange(link int, f Frame, wait time.Duration, match func(frame []byte, vlan uint16) bool) (bool, error) {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return false, fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	at := &unix.SockaddrLinklayer{Protocol: all, Ifindex: link, Halen: 6}
	timeout := unix.NsecToTimeval(wait.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(fd, at), unix.Sendto(fd, f.bytes(), 0, at),
	); err != nil {
		return false, fmt.Errorf("send frame: %w", err)
	}
	buffer, control := make([]byte, 2048), make([]byte, 128)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		n, controls, _, from, err := unix.Recvmsg(fd, buffer, control, 0)
		switch {
		case errors.Is(err, unix.EINTR): // a signal of the Go runtime
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("receive frame: %w", err)
		}
		if source, ok := from.(*unix.SockaddrLinklayer); !ok || source.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if match(buffer[:n], tagIn(control[:controls])) {
			return true, nil
		}
	}
	return false, nil
}

// tagIn is the VLAN in the auxiliary data of a packet socket, 0 without one.
func tagIn(control []byte) uint16 {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		const tagOffset = 16 // of tp_vlan_tci in struct tpacket_auxdata
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < tagOffset+2 {
			continue
		}
		if binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return binary.NativeEndian.Uint16(m.Data[tagOffset:]) & 0x0fff
		}
	}
	return 0
}
