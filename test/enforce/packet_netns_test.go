//go:build netns

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

// datagram is a UDP header without checksum, which is valid, and a payload.
func datagram(from, to int, payload string) []byte {
	b := append(append(be16(from), be16(to)...), be16(8+len(payload))...)
	return append(append(b, 0, 0), payload...)
}

// part is where the payload of a packet is in a datagram that was fragmented.
type part struct {
	id     int
	offset int // in bytes, of 8
	more   bool
}

// packet is an IPv4 packet with its checksum.
func packet(from, to netip.Addr, protocol byte, options []byte, p part, payload []byte) []byte {
	size := 20 + len(options)
	fragment := p.offset / 8
	if p.more {
		fragment |= 0x2000
	}
	b := []byte{0x40 | byte(size/4), 0}
	b = append(append(append(b, be16(size+len(payload))...), be16(p.id)...), be16(fragment)...)
	b = append(append(append(b, 64, protocol, 0, 0), from.AsSlice()...), to.AsSlice()...)
	b = append(b, options...)
	sum := 0
	for i := 0; i < size; i += 2 {
		sum += int(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	copy(b[10:], be16(^sum&0xffff))
	return append(b, payload...)
}

// udpPacket is a whole UDP packet.
func udpPacket(from, to netip.Addr, port int, options []byte) []byte {
	return packet(from, to, unix.IPPROTO_UDP, options, part{id: 1}, datagram(4000, port, "fuzzed"))
}

// wire is the interface eth0 of a namespace, for whole frames.
type wire struct {
	fd    int
	index int
	own   net.HardwareAddr
}

// openWire opens it. Frames that it sends go to the other end of the link.
func openWire(t testing.TB, ns *testns.NS) (w wire) {
	t.Helper()
	ns.Do(t, func() {
		eth0, err := netlink.LinkByName("eth0")
		must(t, err)
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // network byte order
		w.index, w.own = eth0.Attrs().Index, eth0.Attrs().HardwareAddr
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		must(t, err)
		must(t, unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.index}))
		must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	})
	return w
}

// send sends a packet to a link-layer address. A frame that the kernel refuses is not sent.
func (w wire) send(to []byte, kind int, packet []byte) {
	frame := append(append(append([]byte(nil), to...), w.own...), be16(kind)...)
	_, _ = unix.Write(w.fd, append(frame, packet...))
}

// ofLink reports whether a frame is one that the ends of a link exchange without a connection: ARP,
// IPv6 to a multicast group, which is never forwarded, and neighbour discovery.
func ofLink(frame []byte) bool {
	if len(frame) < 14 {
		return true
	}
	p := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return true
	case unix.ETH_P_IPV6:
		return len(p) > 40 && (p[24] == 0xff || p[6] == unix.IPPROTO_ICMPV6 && p[7] == 255 && p[40] >= 133 && p[40] <= 137)
	}
	return false
}

// countPackets counts the frames that arrive and are not of the link itself, until the test ends.
func (w wire) countPackets(t testing.TB) *atomic.Int64 {
	n, end, done := new(atomic.Int64), make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(end); <-done; unix.Close(w.fd) })
	go func() {
		defer close(done)
		b := make([]byte, 2000)
		for {
			select {
			case <-end:
				return
			default:
			}
			size, from, err := unix.Recvfrom(w.fd, b, 0)
			at, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || at.Pkttype == unix.PACKET_OUTGOING || ofLink(b[:size]) {
				continue
			}
			n.Add(1)
		}
	}()
	return n
}
