// Package podcidr chooses addresses for pods from the range that Kubernetes gave their
// node (node.spec.podCIDRs), and explains why there is none.
//
// It decides on its arguments alone. Which endpoint has which address is in the table of
// endpoints; what is kept beside it is a Cooling for each address that was released.
// control/podcidr calls it.
package podcidr

import (
	"net/netip"
	"time"
)

// Cooling keeps released addresses from being assigned again: peers, conntrack entries
// and caches may still take them for the earlier pod.
type Cooling struct {
	// Prefix is a single address, or Everything.
	Prefix netip.Prefix `json:"prefix"`
	Until  time.Time    `json:"until"`
}

// Over reports whether the cool-down has ended.
func (c Cooling) Over(now time.Time) bool { return !now.Before(c.Until) }

// Cool starts the cool-down of a released address. It drops what JSON does not carry of
// now, so that a row read back is equal.
func Cool(addr netip.Addr, now time.Time, d time.Duration) Cooling {
	return Cooling{Prefix: Single(addr), Until: now.Round(0).UTC().Add(d)}
}

// CoolAll starts a cool-down of every address: which ones pods had a moment ago is not
// known.
func CoolAll(now time.Time, d time.Duration) Cooling {
	return Cooling{Prefix: Everything(), Until: now.Round(0).UTC().Add(d)}
}

// Clamp limits a cool-down to d from now: a clock that was set back must not prolong it.
func (c Cooling) Clamp(now time.Time, d time.Duration) Cooling {
	if latest := now.Round(0).UTC().Add(d); c.Until.After(latest) {
		c.Until = latest
	}
	return c
}

// Single is the prefix of one address.
func Single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// Everything is the prefix of a Cooling of all addresses.
func Everything() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 0) }

// Range returns the range that pods get addresses from: the first IPv4 one of the node's
// pod CIDRs. IPv6 for pods is not supported in this version.
func Range(podCIDRs []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range podCIDRs {
		if p.IsValid() && p.Addr().Is4() {
			return p.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// Reserved addresses of a range: the network's own and the next one, which other CNI
// plugins and tools take for the node's gateway, at its start, and the broadcast address
// at its end.
const (
	reservedFirst = 2
	reservedLast  = 1
)

// Size is how many addresses of an IPv4 range can be assigned.
func Size(r netip.Prefix) int {
	if !r.IsValid() || !r.Addr().Is4() {
		return 0
	}
	return max(0, 1<<(32-r.Bits())-reservedFirst-reservedLast)
}

// Next returns the first address of an IPv4 range after last that can be assigned and is
// not taken. After the end of the range it begins again at the start, so that each
// address is reused as late as possible. It returns false when every address is taken.
func Next(r netip.Prefix, last netip.Addr, taken func(netip.Addr) bool) (netip.Addr, bool) {
	size := uint32(Size(r))
	first := number(r.Masked().Addr()) + reservedFirst
	start := uint32(0) // offset of the first candidate
	if last.Is4() && r.Contains(last) && number(last) >= first {
		start = min(number(last)-first+1, size) // after the broadcast address: at the start
	}
	for i := range size {
		if addr := address(first + (start+i)%size); !taken(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

func number(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
