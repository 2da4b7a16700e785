package fabric

import (
	"encoding/binary"
	"iter"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// match is a part of a rule: expressions that load, compare and decide. Loads
// name the 32-bit register they begin at, so that several in a row make the key
// of a concatenated set.
type match []expr.Any

// word is the kernel's number of the n-th 32-bit register.
func word(n int) uint32 { return unix.NFT_REG32_00 + uint32(n) }

// Sizes in 32-bit words and bits.
const ifnameBytes = 16

func addrWords(f vpc.Family) int { return addrBits(f) / 32 }

func addrBits(f vpc.Family) int {
	if f == vpc.IPv4 {
		return 32
	}
	return 128
}

func addrType(f vpc.Family) nftables.SetDatatype {
	if f == vpc.IPv4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// Keys of set elements, as the kernel compares them.

func deviceKey(name string) string {
	var b [ifnameBytes]byte
	copy(b[:], name)
	return string(b[:])
}

func macKey(m vpc.MAC) string { return string(m[:]) + "\x00\x00" }

func addrKey(a netip.Addr) string { return string(a.AsSlice()) }

func markValue(table int) string {
	return string(binaryutil.NativeEndian.PutUint32(uint32(table)))
}

func serviceKey(a netip.Addr, protocol byte, port uint16) string {
	return addrKey(a) + string([]byte{protocol, 0, 0, 0}) + string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

// Loads.

func device(key expr.MetaKey) match {
	return match{&expr.Meta{Key: key, Register: word(0)}}
}

func payload(base expr.PayloadBase, offset, length uint32, at int) match {
	return match{&expr.Payload{DestRegister: word(at), Base: base, Offset: offset, Len: length}}
}

func sourceMAC(at int) match { return payload(expr.PayloadBaseLLHeader, 6, 6, at) }

func source(f vpc.Family, at int) match {
	if f == vpc.IPv4 {
		return payload(expr.PayloadBaseNetworkHeader, 12, 4, at)
	}
	return payload(expr.PayloadBaseNetworkHeader, 8, 16, at)
}

func destination(f vpc.Family, at int) match {
	if f == vpc.IPv4 {
		return payload(expr.PayloadBaseNetworkHeader, 16, 4, at)
	}
	return payload(expr.PayloadBaseNetworkHeader, 24, 16, at)
}

func protocol(at int) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: word(at)}}
}

func destinationPort(at int) match { return payload(expr.PayloadBaseTransportHeader, 2, 2, at) }

func arpSenderMAC(at int) match { return payload(expr.PayloadBaseNetworkHeader, 8, 6, at) }

func arpSender(at int) match { return payload(expr.PayloadBaseNetworkHeader, 14, 4, at) }

// masked keeps the first bits of the address loaded at a register.
func masked(f vpc.Family, bits, at int) match {
	whole := addrBits(f)
	if bits == whole {
		return nil
	}
	return match{&expr.Bitwise{
		SourceRegister: word(at), DestRegister: word(at), Len: uint32(whole / 8),
		Mask: net.CIDRMask(bits, whole), Xor: make([]byte, whole/8),
	}}
}

// Tests.

func equals(value []byte) match {
	return match{&expr.Cmp{Op: expr.CmpOpEq, Register: word(0), Data: value}}
}

func in(name string) match { return match{&expr.Lookup{SourceRegister: word(0), SetName: name}} }

func deviceIs(key expr.MetaKey, name string) match {
	return append(device(key), equals([]byte(deviceKey(name)))...)
}

func deviceIsNot(key expr.MetaKey, name string) match {
	return append(device(key), &expr.Cmp{Op: expr.CmpOpNeq, Register: word(0), Data: []byte(deviceKey(name))})
}

func family(f vpc.Family) match {
	number := byte(unix.NFPROTO_IPV4)
	if f == vpc.IPv6 {
		number = unix.NFPROTO_IPV6
	}
	return append(match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: word(0)}}, equals([]byte{number})...)
}

func sourceIn(p netip.Prefix) match { return within(p, vpc.FamilyOf(p.Addr()), source) }

func destinationIn(p netip.Prefix) match {
	return within(p.Masked(), vpc.FamilyOf(p.Addr()), destination)
}

func protocolIs(number int) match { return append(protocol(0), equals([]byte{byte(number)})...) }

func portBetween(from, to int) match {
	low, high := binary.BigEndian.AppendUint16(nil, uint16(from)), binary.BigEndian.AppendUint16(nil, uint16(to))
	return append(destinationPort(0),
		&expr.Cmp{Op: expr.CmpOpGte, Register: word(0), Data: low},
		&expr.Cmp{Op: expr.CmpOpLte, Register: word(0), Data: high})
}

func transportByte(offset uint32, value byte) match {
	return append(payload(expr.PayloadBaseTransportHeader, offset, 1, 0), equals([]byte{value})...)
}

func icmp(f vpc.Family, kind byte) match {
	number := protocolICMP
	if f == vpc.IPv6 {
		number = protocolICMPv6
	}
	return slices.Concat(family(f), protocolIs(number), transportByte(0, kind))
}

func echoRequest(f vpc.Family) byte {
	if f == vpc.IPv4 {
		return 8
	}
	return 128
}

// neighbourDiscovery yields the ICMPv6 types of RFC 4861, redirect excepted.
func neighbourDiscovery() iter.Seq[byte] {
	return slices.Values([]byte{133, 134, 135, 136})
}

func arpProbe() match { return append(arpSender(0), equals(make([]byte, 4))...) }

// state matches any of the connection-tracking state bits.
func state(bits uint32) match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: word(0)},
		&expr.Bitwise{
			SourceRegister: word(0), DestRegister: word(0), Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: word(0), Data: make([]byte, 4)},
	}
}

// unroutable matches a packet for which the routes of its mark know no way.
func unroutable() match {
	return append(match{&expr.Fib{
		Register: word(0), FlagDADDR: true, FlagMARK: true, ResultOIF: true, FlagPRESENT: true,
	}}, equals([]byte{0})...)
}

// Ends.

func verdict(kind expr.VerdictKind) match { return match{&expr.Verdict{Kind: kind}} }

func jumpTo(kind expr.VerdictKind, chain string) match {
	return match{&expr.Verdict{Kind: kind, Chain: chain}}
}

// by takes the verdict of the map's element for the loaded key.
func by(name string) match {
	return match{&expr.Lookup{SourceRegister: word(0), SetName: name, IsDestRegSet: true}}
}

// setMarkFrom sets the packet's mark to the map's value for the loaded key.
func setMarkFrom(name string) match {
	return match{
		&expr.Lookup{SourceRegister: word(0), DestRegister: word(0), SetName: name, IsDestRegSet: true},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0), SourceRegister: true},
	}
}
