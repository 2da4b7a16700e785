//go:build netns

package enforce

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packet6 is an IPv6 packet. next is the protocol of its payload, or of its first extension header.
func packet6(from, to netip.Addr, next byte, payload []byte) []byte {
	b := append([]byte{0x60, 0, 0, 0}, be16(len(payload))...)
	b = append(append(append(b, next, 64), from.AsSlice()...), to.AsSlice()...)
	return append(b, payload...)
}

// extension is an extension header of 8 bytes before a payload: hop-by-hop or destination options
// with padding, or a routing header without segments left.
func extension(next byte, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

// fragment6 is a fragment header before a part of a payload.
func fragment6(next byte, p part, payload []byte) []byte {
	offset := p.offset
	if p.more {
		offset |= 1
	}
	b := append([]byte{next, 0}, be16(offset)...)
	return append(binary.BigEndian.AppendUint32(b, uint32(p.id)), payload...)
}

// datagram6 is datagram with the checksum, without which IPv6 takes none.
func datagram6(from, to netip.Addr, port int, payload string) []byte {
	b := datagram(sourcePort, port, payload)
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, 0, byte(len(b)), 0, 0, 0, unix.IPPROTO_UDP)
	sum := 0
	for i, v := range append(pseudo, b...) {
		sum += int(v) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	copy(b[6:], be16(^sum&0xffff))
	return b
}

// damaged has some bits changed, and the end cut, now and then.
func damaged(r *rand.Rand, p []byte) []byte {
	if r.IntN(3) > 0 {
		for range 1 + r.IntN(3) {
			p[r.IntN(len(p))] ^= 1 << r.IntN(8)
		}
	}
	if r.IntN(4) == 0 {
		p = p[:r.IntN(len(p))]
	}
	return p
}

// fuzzed6 is fuzzed for IPv6.
func fuzzed6(r *rand.Rand, from, to netip.Addr) (kind int, p []byte) {
	udp := datagram6(from, to, portAlways, "fuzzed")
	switch r.IntN(7) {
	case 0:
		p = packet6(from, to, unix.IPPROTO_UDP, udp)
	case 1:
		p = packet6(from, to, unix.IPPROTO_DSTOPTS, extension(unix.IPPROTO_UDP, udp))
	case 2:
		headers := []byte{unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS, unix.IPPROTO_ROUTING, byte(r.Uint32())}
		next, payload := byte(unix.IPPROTO_UDP), udp
		for range 1 + r.IntN(10) {
			payload = extension(next, payload)
			next = headers[r.IntN(len(headers))]
		}
		p = packet6(from, to, next, payload)
	case 3:
		p = packet6(from, to, unix.IPPROTO_FRAGMENT, fragment6(unix.IPPROTO_UDP, part{id: r.IntN(8), offset: 8 * r.IntN(3), more: r.IntN(2) == 0}, udp))
	case 4:
		p = packet6(from, to, byte(r.Uint32()), udp)
	case 5:
		p = packet6(from, to, unix.IPPROTO_SCTP, sctpInit(sourcePort, portAlways, 0))
	case 6:
		syn := make([]byte, 20)
		copy(syn, append(be16(sourcePort), be16(portAlways)...))
		syn[12], syn[13] = 0x50, byte(r.Uint32())
		p = packet6(from, to, unix.IPPROTO_TCP, syn)
	}
	return unix.ETH_P_IPV6, damaged(r, p)
}
