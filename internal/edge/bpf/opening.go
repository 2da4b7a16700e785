package bpf

import (
	"encoding/binary"
	"net/netip"
)

// OpeningPacket is the packet that opens a connection, with an Ethernet header and without a payload,
// as Judge takes it. Of ICMP it is an echo request; other protocols have eight bytes of zeros.
// Both addresses are of one family. Checksums are 0: the programs do not compare them.
func OpeningPacket(from, to netip.AddrPort, protocol uint8) []byte {
	transport := make([]byte, 8)
	switch protocol {
	case 1:
		transport[0] = 8 // echo request
	case 58:
		transport[0] = 128
	case 6:
		transport = make([]byte, 20)
		transport[12], transport[13] = 5<<4, 2 // its length in words of 32 bits; SYN
	case 17:
		binary.BigEndian.PutUint16(transport[4:], 8) // its length
	case 132:
		transport = make([]byte, 16)
		transport[12], transport[15] = 1, 4 // an INIT chunk of four bytes
	}
	if protocol == 6 || protocol == 17 || protocol == 132 {
		binary.BigEndian.PutUint16(transport, from.Port())
		binary.BigEndian.PutUint16(transport[2:], to.Port())
	}
	packet := make([]byte, 12, 14+40+len(transport))
	if to.Addr().Is4() {
		packet = append(packet, 8, 0, 0x45, 0)
		packet = binary.BigEndian.AppendUint16(packet, uint16(20+len(transport)))
		packet = append(packet, 0, 1, 0, 0, 64, protocol, 0, 0)
	} else {
		packet = append(packet, 0x86, 0xdd, 0x60, 0, 0, 0)
		packet = binary.BigEndian.AppendUint16(packet, uint16(len(transport)))
		packet = append(packet, protocol, 64)
	}
	packet = append(packet, from.Addr().AsSlice()...)
	packet = append(packet, to.Addr().AsSlice()...)
	return append(packet, transport...)
}
