package bpf

import (
	"encoding/binary"
	"net/netip"
)

// Packets for tests, from the inside out: ether(ip(a, b, tcp(1, 80, syn))).

const (
	protoICMP, protoTCP, protoUDP, protoICMPv6, protoSCTP = 1, 6, 17, 58, 132

	fin, syn, rst, ack = 1, 2, 4, 16
)

// layer is a transport header with its protocol.
type layer struct {
	protocol uint8
	bytes    []byte
}

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func tcp(from, to int, flags byte) layer {
	return layer{protoTCP, join(be16(from), be16(to), make([]byte, 8), []byte{5 << 4, flags}, make([]byte, 6))}
}

func udp(from, to int, payload ...byte) layer {
	return layer{protoUDP, join(be16(from), be16(to), be16(8+len(payload)), be16(0), payload)}
}

func sctp(from, to int, chunk byte) layer {
	return layer{protoSCTP, join(be16(from), be16(to), make([]byte, 8), []byte{chunk, 0, 0, 4})}
}

func icmp(kind, code byte, id int, rest ...byte) layer {
	return layer{protoICMP, join([]byte{kind, code, 0, 0}, be16(id), be16(1), rest)}
}

func icmp6(kind, code byte, id int, rest ...byte) layer {
	l := icmp(kind, code, id, rest...)
	l.protocol = protoICMPv6
	return l
}

// other is a protocol without ports.
func other(protocol uint8) layer { return layer{protocol, make([]byte, 8)} }

// causes is an ICMP error about a packet.
func causes(kind, code byte, cause []byte) layer {
	if cause[0]>>4 == 6 {
		return icmp6(kind, code, 0, cause...)
	}
	return icmp(kind, code, 0, cause...)
}

// ip is a packet of the addresses' family, without its link layer.
func ip(from, to netip.Addr, l layer) []byte {
	if from.Is4() {
		return ip4(from, to, l, nil, 0)
	}
	return ip6(from, to, l.protocol, l.bytes)
}

func ip4(from, to netip.Addr, l layer, options []byte, fragment int) []byte {
	size := 20 + len(options)
	return join([]byte{0x40 | byte(size/4), 0}, be16(size+len(l.bytes)), be16(1), be16(fragment), []byte{64, l.protocol, 0, 0},
		from.AsSlice(), to.AsSlice(), options, l.bytes)
}

// ip6 is a packet with a payload that begins with the header next: an extension or a transport header.
func ip6(from, to netip.Addr, next uint8, payload []byte) []byte {
	return join([]byte{0x60, 0, 0, 0}, be16(len(payload)), []byte{next, 64}, from.AsSlice(), to.AsSlice(), payload)
}

// ether is the frame of a packet. Test runs do not accept one that is shorter than the network
// header of its type, so such a packet has a type for experiments; the programs do not read it.
func ether(packet []byte) []byte {
	kind := 0x88b5
	switch {
	case len(packet) >= 40 && packet[0]>>4 == 6:
		kind = 0x86dd
	case len(packet) >= 20 && packet[0]>>4 == 4:
		kind = 0x0800
	}
	return join(make([]byte, 12), be16(kind), packet)
}

func arp() []byte { return join(make([]byte, 12), be16(0x0806), make([]byte, 28)) }
