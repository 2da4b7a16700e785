package policy

import (
	"cmp"
	"encoding/binary"
	"fmt"
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

// dividePorts divides ports by users, each with its intervals. The work grows with the number of
// users with different intervals, times that of the parts that one names.
func dividePorts(users [][]interval) *ports {
	users = distinct(users)
	p := &ports{parts: cut(users), classes: 1}
	// Users split classes one by one: what a user names of a class becomes another.
	last := PortClass(0)
	split, by := []PortClass{0}, []int{0} // of each class: what the user by makes of it; -by made it
	for n, intervals := range users {
		user := n + 1
		for _, i := range intervals {
			for at := p.search(i); at < len(p.parts) && p.parts[at].protocol == i.protocol && p.parts[at].first <= i.last; at++ {
				class := &p.parts[at].class
				switch by[*class] {
				case -user: // it names the part twice
					continue
				case user:
				default:
					last++
					by[*class], split[*class] = user, last
					by, split = append(by, -user), append(split, 0)
				}
				*class = split[*class]
			}
		}
	}
	numbers := map[PortClass]PortClass{} // in the order of the parts
	for at := range p.parts {
		class := &p.parts[at].class
		if numbers[*class] == 0 {
			numbers[*class] = PortClass(p.classes)
			p.classes++
		}
		*class = numbers[*class]
	}
	p.key = p.text()
	return p
}

// distinct leaves out users with the intervals of an earlier one.
func distinct(users [][]interval) (list [][]interval) {
	known := map[string]bool{}
	for _, intervals := range users {
		key := fmt.Sprint(intervals)
		if !known[key] {
			known[key] = true
			list = append(list, intervals)
		}
	}
	return list
}

// cut are the parts into which the borders of intervals divide the ports that one has.
func cut(users [][]interval) (parts []part) {
	type border struct {
		protocol Protocol
		at       uint32 // a port, or the one after the last
		opens    int    // intervals, minus those that end
	}
	var borders []border
	for _, intervals := range users {
		for _, i := range intervals {
			borders = append(borders, border{i.protocol, uint32(i.first), 1}, border{i.protocol, uint32(i.last) + 1, -1})
		}
	}
	slices.SortFunc(borders, func(a, b border) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.at, b.at))
	})
	open := 0
	for n, b := range borders {
		open += b.opens
		if n+1 == len(borders) || open == 0 {
			continue
		}
		if next := borders[n+1]; next.protocol == b.protocol && next.at > b.at {
			parts = append(parts, part{interval: interval{b.protocol, uint16(b.at), uint16(next.at - 1)}})
		}
	}
	return parts
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
