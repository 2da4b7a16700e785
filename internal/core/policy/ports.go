package policy

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// portBits is the length of a port.
const portBits = 16

// interval is the ports first to last of a protocol.
type interval struct {
	protocol    Protocol
	first, last uint16
}

func compareIntervals(a, b interval) int {
	if a.protocol != b.protocol {
		return int(a.protocol) - int(b.protocol)
	}
	return int(a.first) - int(b.first)
}

// ports divides the ports into classes: those that the same users name. Sets with the same
// division share one, and its entries in the tables.
type ports struct {
	id      PortsID
	key     string
	parts   []part // disjoint, in order
	classes int    // with class 0
	sets    int
	written bool
}

type part struct {
	interval
	class PortClass
}

// words is the length of a bitmap of all classes.
func (p *ports) words() int { return (p.classes + pageBits - 1) / pageBits }

// mask is the bitmap of the classes of a user.
func (p *ports) mask(intervals []interval) []uint64 {
	mask := make([]uint64, p.words())
	for _, i := range intervals {
		for at := p.search(i); at < len(p.parts) && p.parts[at].protocol == i.protocol && p.parts[at].first <= i.last; at++ {
			class := p.parts[at].class
			mask[class/pageBits] |= 1 << (class % pageBits)
		}
	}
	return mask
}

// search is the first part that begins at the interval's first port or after it. Parts never
// cross the border of an interval that they were divided by.
func (p *ports) search(i interval) int {
	at, _ := slices.BinarySearchFunc(p.parts, i, func(p part, i interval) int { return compareIntervals(p.interval, i) })
	return at
}

// all is the bitmap of all classes.
func (p *ports) all() []uint64 {
	mask := make([]uint64, p.words())
	for class := range p.classes {
		mask[class/pageBits] |= 1 << (class % pageBits)
	}
	return mask
}

// dividePorts divides ports by users, each with its intervals.
func dividePorts(users [][]interval) *ports {
	type border struct {
		protocol Protocol
		at       uint32 // a port, or the one after the last
		user     int32
		opens    bool
	}
	var borders []border
	for user, intervals := range users {
		for _, i := range intervals {
			borders = append(borders, border{i.protocol, uint32(i.first), int32(user), true}, border{i.protocol, uint32(i.last) + 1, int32(user), false})
		}
	}
	slices.SortFunc(borders, func(a, b border) int {
		if a.protocol != b.protocol {
			return int(a.protocol) - int(b.protocol)
		}
		return int(a.at) - int(b.at)
	})
	p := &ports{classes: 1}
	open := map[int32]int{} // user: its intervals that contain the position
	classes := map[string]PortClass{}
	for n, b := range borders {
		if b.opens {
			open[b.user]++
		} else if open[b.user]--; open[b.user] == 0 {
			delete(open, b.user)
		}
		if n+1 == len(borders) || len(open) == 0 {
			continue
		}
		if next := borders[n+1]; next.protocol == b.protocol && next.at > b.at {
			p.add(interval{b.protocol, uint16(b.at), uint16(next.at - 1)}, usersKey(open), classes)
		}
	}
	p.key = p.text()
	return p
}

func (p *ports) add(i interval, users string, classes map[string]PortClass) {
	class, known := classes[users]
	if !known {
		class = PortClass(p.classes)
		classes[users] = class
		p.classes++
	}
	p.parts = append(p.parts, part{i, class})
}

func usersKey(open map[int32]int) string {
	users := make([]int32, 0, len(open))
	for user := range open {
		users = append(users, user)
	}
	slices.Sort(users)
	key := make([]byte, 0, 4*len(users))
	for _, user := range users {
		key = binary.LittleEndian.AppendUint32(key, uint32(user))
	}
	return string(key)
}

// text is the same for equal divisions.
func (p *ports) text() string {
	var key []byte
	for _, part := range p.parts {
		key = append(key, byte(part.protocol))
		key = binary.LittleEndian.AppendUint16(key, part.first)
		key = binary.LittleEndian.AppendUint16(key, part.last)
		key = binary.LittleEndian.AppendUint32(key, uint32(part.class))
	}
	return string(key)
}

// entries are the keys of the tables that a part is written as: one port, or ranges.
func (p *ports) entries(part part) (single *PortKey, ranges []PortRange) {
	if part.first == part.last {
		return &PortKey{p.id, part.protocol, part.first}, nil
	}
	for first, last := uint32(part.first), uint32(part.last); first <= last; {
		free := portBits // bits that the range leaves free: as its start and its end permit
		if first != 0 {
			free = bits.TrailingZeros32(first)
		}
		for first+1<<free-1 > last {
			free--
		}
		ranges = append(ranges, PortRange{p.id, part.protocol, uint16(first), uint8(portBits - free)})
		first += 1 << free
	}
	return nil, ranges
}

// ranges reports whether a part is written as ranges.
func (p *ports) ranges() bool {
	return slices.ContainsFunc(p.parts, func(part part) bool { return part.first != part.last })
}

func (p *ports) puts(list []Operation) []Operation {
	for _, part := range p.parts {
		single, ranges := p.entries(part)
		if single != nil {
			list = append(list, Put[PortKey, PortClass]{*single, part.class})
		}
		for _, r := range ranges {
			list = append(list, Put[PortRange, PortClass]{r, part.class})
		}
	}
	return list
}

func (p *ports) deletes(list []Operation) []Operation {
	for _, part := range p.parts {
		single, ranges := p.entries(part)
		if single != nil {
			list = append(list, Delete[PortKey]{*single})
		}
		for _, r := range ranges {
			list = append(list, Delete[PortRange]{r})
		}
	}
	return list
}
