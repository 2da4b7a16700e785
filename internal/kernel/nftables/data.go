package nftables

import (
	"encoding/binary"
	"net/netip"
)

// Type is the type of a field, or of one part of a key or value, by nft(8)'s number.
type Type uint8

// Types. The second group types fields only.
const (
	TypeVerdict Type = 1
	TypeIPv4    Type = 7
	TypeIPv6    Type = 8
	TypeEther   Type = 9
	TypeProto   Type = 12 // an IP protocol
	TypePort    Type = 13 // a port of a transport protocol
	TypeMark    Type = 19
	TypeIfname  Type = 41

	TypeNFProto     Type = 2
	TypeICMP        Type = 14
	TypeHardware    Type = 21
	TypeCtState     Type = 26
	TypeCtDirection Type = 27
	TypeICMPv6      Type = 29
	TypeICMPCode    Type = 32
	TypeICMPv6Code  Type = 33
	TypeDevgroup    Type = 35
	TypeFibAddr     Type = 38
	TypeBoolean     Type = 39
)

// Size is the length of a value of the type in bytes. It is 0 for verdicts and for
// types this package does not describe.
func (t Type) Size() int {
	switch t {
	case TypeProto, TypeNFProto, TypeICMP, TypeICMPv6, TypeICMPCode, TypeICMPv6Code, TypeCtDirection:
		return 1
	case TypePort, TypeHardware:
		return 2
	case TypeIPv4, TypeMark, TypeCtState, TypeDevgroup, TypeFibAddr, TypeBoolean:
		return 4
	case TypeEther:
		return 6
	case TypeIPv6, TypeIfname:
		return 16
	default:
		return 0
	}
}

// NativeEndian reports whether the kernel has values of the type in the machine's
// byte order. Others are in network order.
func (t Type) NativeEndian() bool {
	switch t {
	case TypeMark, TypeIfname, TypeHardware, TypeCtState, TypeDevgroup, TypeFibAddr, TypeBoolean:
		return true
	default:
		return false
	}
}

// Data is a value as the kernel compares it: the bytes of one value, or those of a
// concatenation, each part padded to a multiple of four bytes.
type Data string

// Ifname is the name of a network device.
func Ifname(name string) Data {
	var b [16]byte
	copy(b[:], name)
	return Data(b[:])
}

// Ether is a hardware address.
func Ether(mac [6]byte) Data { return Data(mac[:]) }

// Addr is an IPv4 or IPv6 address.
func Addr(a netip.Addr) Data { return Data(a.AsSlice()) }

// Proto is the number of an IP protocol, or another number of one byte.
func Proto(n uint8) Data { return Data([]byte{n}) }

// Port is a port of a transport protocol.
func Port(n uint16) Data { return Data(binary.BigEndian.AppendUint16(nil, n)) }

// Native is a number of four bytes in the machine's byte order: a mark, a device
// group.
func Native(n uint32) Data { return Data(binary.NativeEndian.AppendUint32(nil, n)) }

// IP protocols.
const (
	ICMP   uint8 = 1
	TCP    uint8 = 6
	UDP    uint8 = 17
	ICMPv6 uint8 = 58
	SCTP   uint8 = 132
)

// NFProtoIPv4 is the NFProto of IPv4 packets.
func NFProtoIPv4() Data { return Proto(2) }

// NFProtoIPv6 is the NFProto of IPv6 packets.
func NFProtoIPv6() Data { return Proto(10) }

// EtherHardware is the Iiftype of Ethernet devices (ARPHRD_ETHER).
func EtherHardware() Data { return Data(binary.NativeEndian.AppendUint16(nil, 1)) }

// Local is the FibSaddrType and FibDaddrType of an address of the machine (RTN_LOCAL).
func Local() Data { return Native(2) }

// CtOriginal is the CtDirection of packets from the side that opened the connection.
func CtOriginal() Data { return Proto(0) }

// CtReply is the CtDirection of packets from the other side.
func CtReply() Data { return Proto(1) }

// Bits of CtState.
const (
	CtInvalid     uint32 = 1
	CtEstablished uint32 = 2
	CtRelated     uint32 = 4
	CtNew         uint32 = 8
)

// Concat joins the parts of a concatenation.
func Concat(parts ...Data) Data {
	if len(parts) == 1 {
		return parts[0]
	}
	const longest = 64 // sixteen registers, the kernel's limit
	b := make([]byte, 0, longest)
	for _, p := range parts {
		b = append(b, p...)
		b = append(b, "\x00\x00\x00"[:padding(len(p))]...)
	}
	return Data(b)
}

// padding is what n bytes lack to whole registers.
func padding(n int) int { return -n & 3 }

// split takes a concatenation apart. It reports false if d is not of the types.
func (d Data) split(types ...Type) ([]Data, bool) {
	if len(types) == 1 {
		return []Data{d}, len(d) == types[0].Size()
	}
	parts := make([]Data, 0, len(types))
	for _, t := range types {
		n := t.Size()
		if n == 0 || len(d) < n+padding(n) {
			return nil, false
		}
		parts = append(parts, d[:n])
		d = d[n+padding(n):]
	}
	return parts, d == ""
}

// And keeps the bits of a mask of the same length.
func (d Data) And(mask Data) Data {
	b := []byte(d)
	for i := range b {
		b[i] &= mask[i]
	}
	return Data(b)
}

// prefixMask keeps the first bits of a value of size bytes.
func prefixMask(bits, size int) Data {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return Data(mask)
}

// maskLength reports how many bits a mask keeps, if they are its first.
func maskLength(mask Data) (bits int, ok bool) {
	for i := range len(mask) * 8 {
		if mask[i/8]&(0x80>>(i%8)) == 0 {
			continue
		}
		if i != bits {
			return 0, false
		}
		bits++
	}
	return bits, true
}

// prefixLength reports the length of the prefix that is exactly first to last.
func prefixLength(first, last Data) (int, bool) {
	if len(first) != len(last) {
		return 0, false
	}
	mask := make([]byte, len(first))
	for i := range mask {
		mask[i] = ^(first[i] ^ last[i])
	}
	bits, ok := maskLength(Data(mask))
	return bits, ok && first.And(Data(mask)) == first && last.And(Data(mask)) == first
}
