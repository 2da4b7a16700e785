package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// SetID is the number of compiled policies. A number is never used for other content.
type SetID uint32

// Sets that are not compiled, and the first number of one that is: SET_* of bpf/maps.h.
const (
	SetNone    SetID = 0  // no endpoint: drop
	SetOpen    SetID = 1  // isolated in no direction
	SetPending SetID = 2  // the policies are not known yet: drop
	SetFirst   SetID = 16 // the first number of a compiled set
)

// Scope numbers a division of addresses into classes.
type Scope uint32

// NodeScope is the scope that sets share, unless Limits give one of its own to a set.
const NodeScope Scope = 0

// Class numbers addresses that satisfy the same matchers. 0 satisfies none.
type Class uint32

// PortsID numbers a division of ports into port classes.
type PortsID uint32

// PortClass numbers ports that the same rules name. 0 are the ports that no rule names, and
// protocols without ports.
type PortClass uint32

// pageBits is the number of port classes of a row.
const pageBits = 64

// Set is struct set of bpf/maps.h.
type Set struct {
	Scope    Scope
	Ports    PortsID
	Isolated [2]bool // by Direction: rows decide; otherwise all is allowed
	Ranges   bool    // PortRanges has entries of Ports
	Prefixes bool    // the set depends on entries of Prefixes
}

// ClassKey is the address of one peer; IPv4 addresses are not mapped.
type ClassKey struct {
	Scope   Scope
	Address netip.Addr
}

// PrefixKey is a range of peers. In the kernel, where IPv4 addresses are mapped ones, ::/0
// contains them.
type PrefixKey struct {
	Scope  Scope
	Prefix netip.Prefix
}

// PortKey is one port.
type PortKey struct {
	Ports    PortsID
	Protocol Protocol
	Port     uint16
}

// PortRange is the ports that have the first Bits bits of Port; 0 bits are all of the protocol.
type PortRange struct {
	Ports    PortsID
	Protocol Protocol
	Port     uint16
	Bits     uint8
}

// RowKey names the verdicts of 64 port classes, 1 to allow: bit n of page p is port class
// 64p+n. A class without a row has that of class 0.
type RowKey struct {
	Set       SetID
	Direction Direction
	Class     Class
	Page      uint16
}

// Tables is the content of the kernel's maps, by the names of bpf/maps.h.
type Tables struct {
	Endpoints  map[endpoint.ID]SetID
	Sets       map[SetID]Set
	Classes    map[ClassKey]Class
	Prefixes   map[PrefixKey]Class
	Ports      map[PortKey]PortClass
	PortRanges map[PortRange]PortClass
	Rows       map[RowKey]uint64
}

// NewTables returns empty tables.
func NewTables() *Tables {
	return &Tables{
		Endpoints: map[endpoint.ID]SetID{}, Sets: map[SetID]Set{}, Classes: map[ClassKey]Class{}, Prefixes: map[PrefixKey]Class{},
		Ports: map[PortKey]PortClass{}, PortRanges: map[PortRange]PortClass{}, Rows: map[RowKey]uint64{},
	}
}

// Judge is the kernel's verdict about a peer of an endpoint, with the class of the peer and of
// the port that it used. Port is ignored for protocols without ports.
func (t *Tables) Judge(id endpoint.ID, d Direction, peer netip.Addr, protocol Protocol, port uint16) (allowed bool, class Class, ports PortClass) {
	number := t.Endpoints[id]
	set, exists := t.Sets[number]
	if !exists || !set.Isolated[d] {
		return exists || number == SetOpen, 0, 0
	}
	class = t.class(set, peer.Unmap())
	if protocol.HasPorts() {
		ports = t.portClass(set, protocol, port)
	}
	key := RowKey{Set: number, Direction: d, Class: class, Page: uint16(ports / pageBits)}
	row, exists := t.Rows[key]
	if !exists {
		key.Class = 0
		row = t.Rows[key]
	}
	return row>>(ports%pageBits)&1 == 1, class, ports
}

func (t *Tables) class(set Set, peer netip.Addr) Class {
	if class, exact := t.Classes[ClassKey{set.Scope, peer}]; exact || !set.Prefixes {
		return class
	}
	if class, exists := t.longest(set.Scope, peer); exists {
		return class
	}
	if peer.Is4() { // which is a mapped address in the kernel
		class, _ := t.longest(set.Scope, netip.AddrFrom16(peer.As16()))
		return class
	}
	return 0
}

func (t *Tables) longest(scope Scope, peer netip.Addr) (Class, bool) {
	for bits := peer.BitLen(); bits >= 0; bits-- {
		if class, exists := t.Prefixes[PrefixKey{scope, netip.PrefixFrom(peer, bits).Masked()}]; exists {
			return class, true
		}
	}
	return 0, false
}

func (t *Tables) portClass(set Set, protocol Protocol, port uint16) PortClass {
	if class, exact := t.Ports[PortKey{set.Ports, protocol, port}]; exact || !set.Ranges {
		return class
	}
	for bits := portBits; bits >= 0; bits-- {
		first := uint16(uint32(port) >> (portBits - bits) << (portBits - bits))
		if class, exists := t.PortRanges[PortRange{set.Ports, protocol, first, uint8(bits)}]; exists {
			return class
		}
	}
	return 0
}

// Len is the number of entries of all tables.
func (t *Tables) Len() int {
	return len(t.Endpoints) + len(t.Sets) + len(t.Classes) + len(t.Prefixes) + len(t.Ports) + len(t.PortRanges) + len(t.Rows)
}

// String lists the tables, one entry a line.
func (t *Tables) String() string {
	var b strings.Builder
	list(&b, t.Endpoints, func(id endpoint.ID, s SetID) string { return fmt.Sprintf("endpoint %5d: %s", id, s) })
	list(&b, t.Sets, func(id SetID, s Set) string { return fmt.Sprintf("%s: %s", id, s) })
	list(&b, t.Classes, func(k ClassKey, c Class) string { return fmt.Sprintf("scope %d, %s: class %d", k.Scope, k.Address, c) })
	list(&b, t.Prefixes, func(k PrefixKey, c Class) string { return fmt.Sprintf("scope %d, %s: class %d", k.Scope, k.Prefix, c) })
	list(&b, t.Ports, func(k PortKey, c PortClass) string {
		return fmt.Sprintf("ports %d, %s %5d: port class %d", k.Ports, k.Protocol, k.Port, c)
	})
	list(&b, t.PortRanges, func(k PortRange, c PortClass) string {
		return fmt.Sprintf("ports %d, %s %5d/%d: port class %d", k.Ports, k.Protocol, k.Port, k.Bits, c)
	})
	list(&b, t.Rows, func(k RowKey, row uint64) string {
		return fmt.Sprintf("%s, %s, class %d, page %d: %064b", k.Set, k.Direction, k.Class, k.Page, row)
	})
	return b.String()
}

func list[K comparable, V any](b *strings.Builder, table map[K]V, text func(K, V) string) {
	lines := make([]string, 0, len(table))
	for key, value := range maps.All(table) {
		lines = append(lines, text(key, value)+"\n")
	}
	slices.Sort(lines)
	for _, line := range lines {
		b.WriteString(line)
	}
}

func (s SetID) String() string {
	switch s {
	case SetNone:
		return "no set"
	case SetOpen:
		return "open"
	case SetPending:
		return "pending"
	default:
		return fmt.Sprintf("set %d", uint32(s))
	}
}

func (s Set) String() string {
	text := fmt.Sprintf("scope %d, ports %d", s.Scope, s.Ports)
	for d, isolated := range s.Isolated {
		if isolated {
			text += ", isolates " + Direction(d).String()
		}
	}
	if s.Ranges {
		text += ", port ranges"
	}
	if s.Prefixes {
		text += ", prefixes"
	}
	return text
}
