package cloud

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// pool holds the used and free addresses of one subnet. It is built from the
// interfaces at each use, so it cannot disagree with them.
type pool struct {
	subnet *Subnet
	used   []bool // by IPv4 offset from the subnet's base, reserved ones included
	free   int
	used6  map[netip.Addr]bool
	taken6 map[netip.Prefix]bool // /80 prefixes delegated
	rng    *rand.Rand
}

func (s *State) pool(n *Subnet, rng *rand.Rand) *pool {
	p := &pool{subnet: n, rng: rng, used6: map[netip.Addr]bool{}, taken6: map[netip.Prefix]bool{}}
	if n.CIDR.IsValid() {
		size := 1 << (32 - n.CIDR.Bits())
		p.used, p.free = make([]bool, size), size
		for _, offset := range []int{0, 1, 2, 3, size - 1} { // vpc.Reserved
			p.take(offset)
		}
	}
	for _, i := range s.Interfaces {
		if i.Subnet != n.ID {
			continue
		}
		for _, a := range i.IPv4.Addresses {
			p.take(p.offset(a))
		}
		for _, b := range i.IPv4.Prefixes {
			p.takeBlock(p.offset(b.Addr()))
		}
		for _, a := range i.IPv6.Addresses {
			p.used6[a] = true
		}
		for _, b := range i.IPv6.Prefixes {
			p.taken6[b] = true
		}
	}
	return p
}

// FreeIPv4 counts the unassigned IPv4 addresses of a subnet as
// availableIpAddressCount does: a delegated /28 takes sixteen.
func (s *State) FreeIPv4(n *Subnet) int { return s.pool(n, nil).free }

const blockSize = 1 << (32 - vpc.DelegatedPrefix4)

func (p *pool) offset(a netip.Addr) int {
	return int(toUint(a) - toUint(p.subnet.CIDR.Addr()))
}

func (p *pool) at(offset int) netip.Addr {
	return fromUint(toUint(p.subnet.CIDR.Addr()) + uint32(offset))
}

func (p *pool) take(offset int) {
	if !p.used[offset] {
		p.used[offset] = true
		p.free--
	}
}

func (p *pool) takeBlock(offset int) {
	for i := range blockSize {
		p.take(offset + i)
	}
}

// isFree reports whether a is neither assigned nor reserved by EC2.
func (p *pool) isFree(a netip.Addr) bool {
	if a.Is4() {
		return !p.used[p.offset(a)]
	}
	block, _ := a.Prefix(vpc.DelegatedPrefix6)
	return !vpc.Reserved(p.subnet.CIDR6, a) && !p.used6[a] && !p.taken6[block]
}

// claim assigns a if it is free.
func (p *pool) claim(a netip.Addr) bool {
	if !p.isFree(a) {
		return false
	}
	if a.Is4() {
		p.take(p.offset(a))
	} else {
		p.used6[a] = true
	}
	return true
}

// primary assigns the requested address, or any free one if none is requested.
func (p *pool) primary(requested netip.Addr) (netip.Addr, error) {
	if !requested.IsValid() {
		return p.next4()
	}
	if !p.subnet.CIDR.Contains(requested) {
		return netip.Addr{}, outsideSubnet(requested)
	}
	if !p.claim(requested) {
		return netip.Addr{}, addressInUse(p, requested)
	}
	return requested, nil
}

func addressInUse(p *pool, a netip.Addr) *Error {
	if vpc.Reserved(p.subnet.CIDR, a) {
		return InvalidParameter("Address %s is in subnet's reserved address range", a)
	}
	return Errorf("InvalidIPAddress.InUse", "The specified address is already in use.")
}

// next4 assigns any free address.
func (p *pool) next4() (netip.Addr, error) {
	if p.free == 0 {
		return netip.Addr{}, insufficientAddresses()
	}
	start := p.rng.IntN(len(p.used))
	for i := range p.used {
		offset := (start + i) % len(p.used)
		if p.used[offset] || p.subnet.reserved(netip.PrefixFrom(p.at(offset), 32)) {
			continue
		}
		p.take(offset)
		return p.at(offset), nil
	}
	return netip.Addr{}, insufficientAddresses()
}

// next4Block assigns any free, aligned /28: one that is reserved for prefixes, else one
// that is not reserved. Whether EC2 uses the rest of a subnet that has reservations for
// prefixes is not documented.
func (p *pool) next4Block() (netip.Prefix, error) {
	if p.free < blockSize {
		return netip.Prefix{}, insufficientForPrefix()
	}
	blocks := len(p.used) / blockSize
	start := p.rng.IntN(blocks)
	for _, allowed := range p.preferences() {
		for i := range blocks {
			offset := (start + i) % blocks * blockSize
			block := netip.PrefixFrom(p.at(offset), vpc.DelegatedPrefix4)
			if allowed(block) && p.blockFree(offset) {
				p.takeBlock(offset)
				return block, nil
			}
		}
	}
	return netip.Prefix{}, insufficientBlocks()
}

// preferences are the conditions on a prefix that EC2 chooses, the better one first.
func (p *pool) preferences() []func(netip.Prefix) bool {
	unreserved := func(b netip.Prefix) bool { return !p.subnet.reserved(b) }
	if len(p.subnet.Reservations) == 0 {
		return []func(netip.Prefix) bool{unreserved}
	}
	return []func(netip.Prefix) bool{p.subnet.prefixReserved, unreserved}
}

func (p *pool) blockFree(offset int) bool {
	for i := range blockSize {
		if p.used[offset+i] {
			return false
		}
	}
	return true
}

// claimBlock assigns an aligned prefix of the subnet if all of it is free.
func (p *pool) claimBlock(b netip.Prefix) bool {
	if b.Addr().Is4() {
		if !p.blockFree(p.offset(b.Addr())) {
			return false
		}
		p.takeBlock(p.offset(b.Addr()))
		return true
	}
	if p.taken6[b] || p.reserved6(b) {
		return false
	}
	for a := range p.used6 {
		if b.Contains(a) {
			return false
		}
	}
	p.taken6[b] = true
	return true
}

// reserved6 reports whether a prefix contains one of the five reserved addresses, as
// the first and the last /80 of a subnet do.
func (p *pool) reserved6(b netip.Prefix) bool {
	return b.Contains(p.subnet.CIDR6.Addr()) || b.Contains(vpc.Last(p.subnet.CIDR6))
}

// next6 assigns any free IPv6 address. A /64 does not run out.
func (p *pool) next6() netip.Addr {
	for {
		b := p.subnet.CIDR6.Addr().As16()
		binary.BigEndian.PutUint64(b[8:], p.rng.Uint64())
		if a := netip.AddrFrom16(b); !p.subnet.reserved(netip.PrefixFrom(a, 128)) && p.claim(a) {
			return a
		}
	}
}

// next6Block assigns any free /80, of which a /64 has 65,536.
func (p *pool) next6Block() (netip.Prefix, error) {
	start := p.rng.IntN(1 << 16)
	for _, allowed := range p.preferences() {
		for i := range 1 << 16 {
			b := p.subnet.CIDR6.Addr().As16()
			binary.BigEndian.PutUint16(b[8:], uint16(start+i))
			block := netip.PrefixFrom(netip.AddrFrom16(b), vpc.DelegatedPrefix6)
			if allowed(block) && p.claimBlock(block) {
				return block, nil
			}
		}
	}
	return netip.Prefix{}, insufficientBlocks()
}

func toUint(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func fromUint(v uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}
