package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Assigned lists addresses and delegated prefixes of one family: those of an
// interface, or those that a call assigned.
type Assigned struct {
	Addresses []netip.Addr
	Prefixes  []netip.Prefix
	// Primary: the first IPv6 address is the primary one and cannot be removed. That of IPv4
	// always is.
	Primary bool
}

// slots returns how many address slots they take.
func (a Assigned) slots() int { return len(a.Addresses) + len(a.Prefixes) }

// holds reports whether address is one of the addresses or inside one of the prefixes.
func (a Assigned) holds(address netip.Addr) bool {
	return slices.Contains(a.Addresses, address) ||
		slices.ContainsFunc(a.Prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

func (a Assigned) clone() Assigned {
	return Assigned{slices.Clone(a.Addresses), slices.Clone(a.Prefixes), a.Primary}
}

func (a *Assigned) add(more Assigned) {
	a.Addresses = append(a.Addresses, more.Addresses...)
	a.Prefixes = append(a.Prefixes, more.Prefixes...)
}

// removeAddress removes an address of an interface. Clients such as Netflix's Titus
// match the text of its error.
func (a *Assigned) removeAddress(from vpc.ENIID, address netip.Addr) error {
	k := slices.Index(a.Addresses, address)
	if k < 0 {
		return InvalidParameter("Some of the specified addresses are not assigned to interface %s", from)
	}
	a.Addresses = slices.Delete(a.Addresses, k, k+1)
	return nil
}

// removePrefixes removes prefixes of an interface.
func (a *Assigned) removePrefixes(from vpc.ENIID, prefixes []netip.Prefix) error {
	for _, b := range prefixes {
		k := slices.Index(a.Prefixes, b)
		if k < 0 {
			return InvalidParameter("Some of the prefixes [%s] are not assigned to interface %s", b, from)
		}
		a.Prefixes = slices.Delete(a.Prefixes, k, k+1)
	}
	return nil
}

// AssignIPv4 assigns secondary addresses or /28 prefixes.
func (h InterfaceHandle) AssignIPv4(w Want) (got Assigned, err error) {
	err = h.modify(func(ch *change, i *Interface) error {
		if w.size() == 0 {
			return MissingParameter("secondaryPrivateIpAddressCount or privateIpAddress")
		}
		if !i.PrimaryIPv4().IsValid() {
			return Errorf("UnsupportedOperation", "The network interface '%s' does not support IPv4 addresses.", h.id)
		}
		got, err = ch.assignment(i).ipv4(w)
		return err
	})
	return got, err
}

// AssignIPv6 assigns IPv6 addresses or /80 prefixes.
func (h InterfaceHandle) AssignIPv6(w Want) (got Assigned, err error) {
	err = h.modify(func(ch *change, i *Interface) error {
		if w.size() == 0 {
			return MissingParameter("ipv6AddressCount or ipv6Addresses")
		}
		got, err = ch.assignment(i).ipv6(w)
		return err
	})
	return got, err
}

// UnassignIPv4 removes secondary addresses and prefixes. The primary address cannot be
// removed.
func (h InterfaceHandle) UnassignIPv4(addresses []netip.Addr, prefixes []netip.Prefix) error {
	return h.modify(func(_ *change, i *Interface) error {
		for _, a := range addresses {
			if a == i.PrimaryIPv4() {
				return InvalidParameter("The primary IP address of an interface cannot be unassigned: %s", a)
			}
			if err := i.IPv4.removeAddress(h.id, a); err != nil {
				return err
			}
			i.dropPublic(a)
		}
		return i.IPv4.removePrefixes(h.id, prefixes)
	})
}

// UnassignIPv6 removes IPv6 addresses and prefixes.
func (h InterfaceHandle) UnassignIPv6(addresses []netip.Addr, prefixes []netip.Prefix) error {
	return h.modify(func(_ *change, i *Interface) error {
		for _, a := range addresses {
			if i.IPv6.Primary && a == i.IPv6.Addresses[0] {
				return InvalidParameter("The primary IPv6 address of an interface cannot be unassigned: %s", a)
			}
			if err := i.IPv6.removeAddress(h.id, a); err != nil {
				return err
			}
		}
		return i.IPv6.removePrefixes(h.id, prefixes)
	})
}
