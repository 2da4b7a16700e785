package bpf

import (
	"encoding/binary"
	"net/netip"
)

// The model is what the programs must do, written for the reader and not for the verifier: the
// parser, the verdict and the connections.

type kind int

const (
	mayOpen kind = iota // UDP and protocols without ports
	opens
	continues
	replies
	failure // an ICMP error
)

// modelPacket is a parsed packet.
type modelPacket struct {
	from, to, peer     Address // peer: of the destination, the source or the destination of the cause
	fromPort, toPort   uint16
	protocol           uint8
	kind               kind
	finishes, aborts   bool
	reply              bool
	protocolOfICMP     uint8
	fragment, rejected bool
}

// modelNetwork parses a network header; whole is false for the cause of an ICMP error, of which the
// end may be missing.
func modelNetwork(b []byte, whole bool) (p modelPacket, payload []byte, ok bool) {
	if len(b) == 0 {
		return p, nil, false
	}
	switch b[0] >> 4 {
	case 4:
		if len(b) < 20 {
			return p, nil, false
		}
		size, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
		if size < 20 || total < size || whole && total > len(b) {
			return p, nil, false
		}
		b = b[:min(total, len(b))]
		if len(b) < size {
			return p, nil, false
		}
		p.from, p.to = AddressOf(netip.AddrFrom4([4]byte(b[12:]))), AddressOf(netip.AddrFrom4([4]byte(b[16:])))
		p.protocol, p.protocolOfICMP = b[9], protoICMP
		fragment := binary.BigEndian.Uint16(b[6:])
		p.fragment, p.rejected = fragment&0x3fff != 0, fragment&0x1fff != 0
		return p, b[size:], true
	case 6:
		if len(b) < 40 {
			return p, nil, false
		}
		total := 40 + int(binary.BigEndian.Uint16(b[4:]))
		if whole && total > len(b) {
			return p, nil, false
		}
		b = b[:min(total, len(b))]
		p.from, p.to = Address(b[8:24]), Address(b[24:40])
		for _, a := range []Address{p.from, p.to} {
			if netip.AddrFrom16(a).Is4In6() {
				return p, nil, false
			}
		}
		p.protocolOfICMP = protoICMPv6
		return p.extensions(b[6], b[40:])
	}
	return p, nil, false
}

func (p modelPacket) extensions(next uint8, b []byte) (modelPacket, []byte, bool) {
	for n := 0; ; n++ {
		size := 0
		switch next {
		case 0, 43, 60:
			if len(b) >= 8 {
				size = (int(b[1]) + 1) * 8
			}
			if next == 0 && n > 0 || next == 43 && len(b) >= 8 && (b[2] == 0 || b[3] != 0) {
				return p, nil, false
			}
		case 44:
			size = 8
		case 51:
			if len(b) >= 8 {
				size = (int(b[1]) + 2) * 4
			}
			if size < 12 {
				return p, nil, false
			}
		default:
			p.protocol = next
			return p, b, true
		}
		if n == 8 || size == 0 || size > len(b) {
			return p, nil, false
		}
		if next == 44 {
			at := binary.BigEndian.Uint16(b[2:])
			p.fragment = p.fragment || at&^6 != 0
			if at&^7 != 0 {
				p.rejected, p.protocol = true, b[0]
				return p, b[size:], true
			}
		}
		next, b = b[0], b[size:]
	}
}

// modelParse parses a packet and returns the reason to deny it, ByPolicy if there is none.
func modelParse(b []byte) (modelPacket, Reason) {
	p, l4, ok := modelNetwork(b, true)
	p.peer = p.from
	switch {
	case !ok:
		return p, Malformed
	case p.fragment:
		return p, Fragment
	case p.protocol == protoTCP:
		if len(l4) < 20 || int(l4[12]>>4)*4 < 20 || int(l4[12]>>4)*4 > len(l4) {
			return p, Malformed
		}
		flags := l4[13]
		if flags&(syn|rst|ack) == 0 || flags&syn != 0 && flags&(fin|rst) != 0 {
			return p, Malformed
		}
		p.kind = continues
		if flags&(syn|ack) == syn {
			p.kind = opens
		}
		p.finishes, p.aborts = flags&fin != 0, flags&rst != 0
	case p.protocol == protoUDP:
		if len(l4) < 8 || binary.BigEndian.Uint16(l4[4:]) < 8 || int(binary.BigEndian.Uint16(l4[4:])) > len(l4) {
			return p, Malformed
		}
	case p.protocol == protoSCTP:
		if len(l4) < 16 {
			return p, Malformed
		}
		p.kind = continues
		if l4[12] == 1 {
			p.kind = opens
		}
		p.aborts = l4[12] == 6 || l4[12] == 14
	case p.protocol == p.protocolOfICMP:
		return p.icmp(l4)
	default:
		return p, ByPolicy
	}
	p.fromPort, p.toPort = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
	return p, ByPolicy
}

func (p modelPacket) icmp(l4 []byte) (modelPacket, Reason) {
	if len(l4) < 8 {
		return p, Malformed
	}
	k, ok := modelICMP(p.protocolOfICMP, l4[0])
	if !ok {
		return p, ICMPType
	}
	p.kind = k
	id := binary.BigEndian.Uint16(l4[4:])
	switch k {
	case failure:
		return p.failure(l4[8:])
	case mayOpen:
		p.fromPort, p.toPort = 0, 0xffff
	default:
		p.fromPort, p.toPort = id, id
	}
	return p, ByPolicy
}

// failure completes an ICMP error by the packet that caused it.
func (p modelPacket) failure(cause []byte) (modelPacket, Reason) {
	inner, l4, ok := modelNetwork(cause, false)
	if !ok || inner.protocolOfICMP != p.protocolOfICMP || inner.rejected || inner.from != p.to || len(l4) < 8 {
		return p, Unrelated
	}
	p.peer, p.protocol = inner.to, inner.protocol
	switch inner.protocol {
	case protoTCP, protoUDP, protoSCTP:
		p.toPort, p.fromPort = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
	case inner.protocolOfICMP:
		if k, _ := modelICMP(inner.protocolOfICMP, l4[0]); k != opens && k != replies {
			return p, Unrelated
		}
		p.fromPort = binary.BigEndian.Uint16(l4[4:])
		p.toPort = p.fromPort
	}
	return p, ByPolicy
}

// modelICMP classifies a type; not ok: it is never forwarded.
func modelICMP(protocol, typ uint8) (k kind, ok bool) {
	if protocol == protoICMP {
		switch typ {
		case 8, 13, 42:
			return opens, true
		case 0, 14, 43:
			return replies, true
		case 3, 11, 12:
			return failure, true
		case 4, 5, 9, 10:
			return 0, false
		}
		return mayOpen, true
	}
	switch {
	case typ == 128 || typ == 160:
		return opens, true
	case typ == 129 || typ == 161:
		return replies, true
	case typ >= 1 && typ <= 4:
		return failure, true
	case typ >= 130 && typ <= 137, typ >= 141 && typ <= 143, typ >= 148 && typ <= 153:
		return 0, false
	}
	return mayOpen, true
}

// model is the maps and the connections.
type model struct {
	addresses map[Address]uint32
	inForce   map[uint32]uint32
	sets      map[uint32]Set
	classes   map[ClassKey]uint32
	prefixes  map[PrefixKey]uint32
	ports     map[PortKey]uint32
	ranges    map[PortRangeKey]uint32
	rows      map[RowKey]uint64
	epoch     uint32
	now       uint32 // ticks

	connections map[ConnectionKey]Connection
}

func newModel() *model {
	return &model{
		addresses: map[Address]uint32{}, inForce: map[uint32]uint32{}, sets: map[uint32]Set{},
		classes: map[ClassKey]uint32{}, prefixes: map[PrefixKey]uint32{}, ports: map[PortKey]uint32{}, ranges: map[PortRangeKey]uint32{},
		rows: map[RowKey]uint64{}, connections: map[ConnectionKey]Connection{},
	}
}

// verdict is the documentation of maps.h.
func (m *model) verdict(number uint32, d Direction, peer Address, protocol uint8, port uint16) bool {
	set, ok := m.sets[number]
	if !ok {
		return false
	}
	if set.Isolated&(1<<d) == 0 {
		return true
	}
	class, portClass := m.class(set, peer), m.portClass(set, protocol, port)
	row, ok := m.rows[RowKey{Set: number, Class: class, Page: uint16(portClass / 64), Direction: d}]
	if !ok {
		row = m.rows[RowKey{Set: number, Page: uint16(portClass / 64), Direction: d}]
	}
	return row&(1<<(portClass%64)) != 0
}

func (m *model) class(set Set, peer Address) (class uint32) {
	if class, ok := m.classes[ClassKey{set.Scope, peer}]; ok {
		return class
	}
	longest := -1
	for key, value := range m.prefixes {
		bits := int(key.Bits) - 32
		prefix := netip.PrefixFrom(netip.AddrFrom16(key.Address), bits)
		if set.Prefixes == 1 && key.Scope == bigEndian32(set.Scope) && bits > longest && prefix.Contains(netip.AddrFrom16(peer)) {
			longest, class = bits, value
		}
	}
	return class
}

func (m *model) portClass(set Set, protocol uint8, port uint16) (class uint32) {
	if protocol != protoTCP && protocol != protoUDP && protocol != protoSCTP {
		return 0
	}
	if class, ok := m.ports[PortKey{Ports: set.Ports, Protocol: protocol, Port: port}]; ok {
		return class
	}
	longest := -1
	for key, value := range m.ranges {
		bits := int(key.Bits) - 48
		first := int(key.Port[0])<<8 | int(key.Port[1])
		inside := int(port) >= first && int(port) < first+1<<(16-bits)
		if set.Ranges == 1 && key.Ports == bigEndian32(set.Ports) && key.Protocol == protocol && bits > longest && inside {
			longest, class = bits, value
		}
	}
	return class
}

// forward decides about a packet without its link layer.
func (m *model) forward(b []byte, reply, pending bool) (bool, Reason) {
	p, why := modelParse(b)
	if why != ByPolicy {
		return false, why
	}
	p.reply = reply
	from, to := m.addresses[p.from], m.addresses[p.to]
	if from == 0 && (to == 0 || pending) {
		return false, NotReady
	}
	if from == to && pending {
		return true, ByPolicy
	}
	if from == to {
		return false, NotReady
	}
	var stores []func()
	if from != 0 {
		ok, why, store := m.side(p, from, Egress)
		if !ok {
			store()
			return false, why
		}
		stores = append(stores, store)
	}
	if to != 0 {
		ok, why, store := m.side(p, to, Ingress)
		if !ok {
			store()
			return false, why
		}
		stores = append(stores, store)
	}
	for _, store := range stores {
		store()
	}
	return true, ByPolicy
}

// side decides at one endpoint; store keeps what it found of the connection.
func (m *model) side(p modelPacket, id uint32, d Direction) (ok bool, why Reason, store func()) {
	nothing := func() {}
	set := m.inForce[id]
	if set == SetOpen {
		return true, ByPolicy, nothing
	}
	if set < SetFirst {
		return false, NotReady, nothing
	}
	key := ConnectionKey{Pod: p.from, Protocol: p.protocol}
	if d == Ingress {
		key.Pod, key.Peer, key.PodPort, key.PeerPort = p.to, p.peer, p.toPort, p.fromPort
	} else {
		key.Peer, key.PodPort, key.PeerPort = p.to, p.fromPort, p.toPort
		if p.kind == failure && p.peer != p.from {
			return false, Unrelated, nothing
		}
	}
	judge := func(opened Direction) bool {
		port := key.PodPort
		if opened == Egress {
			port = key.PeerPort
		}
		return m.verdict(set, opened, key.Peer, key.Protocol, port)
	}
	c, found := m.connections[key]
	if found && (c.Endpoint != uint16(id) || m.now-c.Seen >= validFor(key.Protocol, c)) {
		found = false
	}
	keep := func() { m.connections[key] = c }
	again := p.kind == opens && (c.Opened != d || c.State == Closing || c.Revoked == 1) // a port that is used again
	if found && !again {
		return m.continued(p, d, set, key, &c, judge)
	}
	create := func(opened Direction) {
		c = Connection{Set: set, Epoch: m.epoch, Endpoint: uint16(id), Seen: m.now, Opened: opened, State: Opening}
		if opened != d {
			c.State = Established
		}
	}
	_, exists := m.sets[set]
	isolated := !exists || m.sets[set].Isolated&(1<<d) != 0
	switch {
	case p.kind == failure || p.kind == replies && !p.reply:
		if isolated {
			return false, Unrelated, nothing
		}
		return true, ByPolicy, nothing
	case p.reply && p.kind != opens && judge(1-d):
		create(1 - d)
		return true, ByPolicy, keep
	case p.reply && p.kind == replies:
		return false, Unrelated, nothing
	case p.reply && p.kind == continues:
		return false, ByPolicy, nothing
	case p.reply && p.kind == mayOpen && (p.protocol != protoUDP || p.fromPort != p.toPort):
		return false, ByPolicy, nothing
	case judge(d):
		create(d)
		return true, ByPolicy, keep
	}
	return false, ByPolicy, nothing
}

// continued decides by an entry.
func (m *model) continued(p modelPacket, d Direction, set uint32, key ConnectionKey, c *Connection, judge func(Direction) bool) (bool, Reason, func()) {
	keep := func() { m.connections[key] = *c }
	if c.Set != set || c.Epoch != m.epoch || c.Revoked == 1 {
		c.Set, c.Epoch = set, m.epoch
		switch allowed := judge(c.Opened); {
		case !allowed && key.Protocol != protoTCP && key.Protocol != protoSCTP:
			return false, ByPolicy, func() { delete(m.connections, key) }
		case !allowed:
			c.Revoked = 1
		default:
			c.Revoked = 0
		}
	}
	if c.Revoked == 1 {
		c.Seen = m.now
		return false, ByPolicy, keep
	}
	if p.kind == failure {
		return true, ByPolicy, keep
	}
	c.Seen = m.now
	if p.finishes {
		c.Flags |= 1 << d
	}
	if p.aborts || c.Flags == 3 {
		c.State = Closing
	} else if c.State == Opening && c.Opened != d {
		c.State = Established
	}
	return true, ByPolicy, keep
}
