package bpf

import (
	"net/netip"
	"strconv"
)

// The structures of bpf/maps.h, of the same names, sizes and offsets; a test compares them with
// the object. Numbers are in host byte order, except where a function converts them.

// Address is an address as 16 bytes; IPv4 ones are mapped.
type Address [16]byte

// AddressOf converts an address; its zone is ignored.
func AddressOf(a netip.Addr) Address { return a.As16() }

// Addr converts it back; a mapped address becomes IPv4.
func (a Address) Addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// Direction of a connection at an endpoint: of the packet that opens it.
type Direction uint8

// The directions.
const (
	Ingress Direction = 0 // to the pod
	Egress  Direction = 1 // from the pod
)

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Reason says why a packet was denied.
type Reason uint8

// The reasons, as in enum reason.
const (
	ByPolicy Reason = iota
	Malformed
	NotReady
	Fragment
	Unrelated
	ICMPType
	reasons // how many there are
)

func (r Reason) String() string {
	switch r {
	case ByPolicy:
		return "policy"
	case Malformed:
		return "malformed packet"
	case NotReady:
		return "endpoint not ready"
	case Fragment:
		return "fragment"
	case Unrelated:
		return "ICMP error or reply of no connection"
	case ICMPType:
		return "ICMP type that is never forwarded"
	default:
		return "reason " + strconv.Itoa(int(r))
	}
}

// Numbers of sets with a meaning of their own; compiled sets begin at SetFirst.
const (
	SetNone    uint32 = 0
	SetOpen    uint32 = 1
	SetPending uint32 = 2
	SetFirst   uint32 = 16
)

// Set is the compiled policies of an endpoint.
type Set struct {
	Scope, Ports uint32
	Isolated     uint8 // bit 1 << Direction
	Ranges       uint8 // 1: PortRanges has entries of these Ports
	Prefixes     uint8 // 1: Prefixes has entries of this Scope
	_            uint8
}

// ClassKey is a peer's address in a scope.
type ClassKey struct {
	Scope   uint32
	Address Address
}

// PrefixKey is a prefix in a scope. PrefixKeyOf makes it.
type PrefixKey struct {
	Bits    uint32
	Scope   [4]byte
	Address Address
}

// PrefixKeyOf makes the key of a prefix.
func PrefixKeyOf(scope uint32, p netip.Prefix) PrefixKey {
	bits := 32 + uint32(p.Bits())
	if p.Addr().Is4() {
		bits += 96
	}
	return PrefixKey{bits, bigEndian32(scope), AddressOf(p.Masked().Addr())}
}

// PortKey is a port of a protocol.
type PortKey struct {
	Ports    uint32
	Protocol uint8
	_        uint8
	Port     uint16
}

// PortRangeKey is a power of two of ports of a protocol. PortRangeKeyOf makes it.
type PortRangeKey struct {
	Bits     uint32
	Ports    [4]byte
	Protocol uint8
	_        uint8
	Port     [2]byte
}

// PortRangeKeyOf makes the key of the ports that have their first bits in common with port: all
// ports of the protocol if bits is 0, one if it is 16.
func PortRangeKeyOf(ports uint32, protocol uint8, port uint16, bits int) PortRangeKey {
	port &= ^uint16(0) << (16 - bits)
	return PortRangeKey{48 + uint32(bits), bigEndian32(ports), protocol, 0, [2]byte{byte(port >> 8), byte(port)}}
}

func bigEndian32(n uint32) [4]byte {
	return [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// RowKey is a page of 64 port classes of a set for a class.
type RowKey struct {
	Set, Class uint32
	Page       uint16
	Direction  Direction
	_          uint8
}

// ConnectionKey is a connection of one pod.
type ConnectionKey struct {
	Pod, Peer Address
	PodPort   uint16 // of ICMP the identifier, in both
	PeerPort  uint16
	Protocol  uint8
	_         [3]uint8
}

// ConnectionState is how far a connection is.
type ConnectionState uint8

// The states, as in enum connection_state.
const (
	Opening     ConnectionState = 1
	Established ConnectionState = 2
	Closing     ConnectionState = 3
)

// Connection is an entry of the programs' connection table.
type Connection struct {
	Set, Epoch uint32 // by which it was judged last
	Endpoint   uint16 // that had the pod's address
	Opened     Direction
	Revoked    uint8 // 1, of TCP and SCTP: a change of policy has ended it
	State      ConnectionState
	Flags      uint8 // FIN seen from 1 << Direction
	_          uint16
	Seen       uint32 // TicksOf CLOCK_MONOTONIC
}

// CountKey is what decided connections.
type CountKey struct {
	Set, Class, PortClass uint32
	Direction             Direction
	Verdict               uint8
	_                     uint16
}
