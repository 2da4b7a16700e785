package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Assigned lists the addresses and prefixes that a call assigned.
type Assigned struct {
	Addresses []netip.Addr
	Prefixes  []netip.Prefix
}

// AssignIPv4 assigns secondary addresses or /28 prefixes to an interface.
func (c *Cloud) AssignIPv4(id vpc.ENIID, w Want) (got Assigned, err error) {
	err = c.modify(id, func(ch *change, i *Interface) error {
		if w.size() == 0 {
			return MissingParameter("secondaryPrivateIpAddressCount or privateIpAddress")
		}
		p := ch.pool(ch.Subnets[i.Subnet], ch.cloud.rng)
		got, err = ch.fill4(i, p, w, ch.slots(i))
		return err
	})
	return got, err
}

// AssignIPv6 assigns IPv6 addresses or /80 prefixes to an interface.
func (c *Cloud) AssignIPv6(id vpc.ENIID, w Want) (got Assigned, err error) {
	err = c.modify(id, func(ch *change, i *Interface) error {
		if w.size() == 0 {
			return MissingParameter("ipv6AddressCount or ipv6Addresses")
		}
		p := ch.pool(ch.Subnets[i.Subnet], ch.cloud.rng)
		got, err = ch.fill6(i, p, w, ch.slots(i))
		return err
	})
	return got, err
}

// slots returns how many addresses the interface may hold on its instance type, or
// unattached.
func (ch *change) slots(i *Interface) vpc.Limits {
	if i.Attachment != nil {
		if n := ch.Instances[i.Attachment.Instance]; n != nil {
			return n.Limits
		}
	}
	return vpc.Limits{IPv4: unattachedSlots, IPv6: unattachedSlots, Nitro: true}
}

// checkSlots refuses an interface that holds more than its instance type takes.
func checkSlots(i *Interface, l vpc.Limits) error {
	if len(i.IPv4)+len(i.IPv4Prefixes) > l.IPv4 || len(i.IPv6)+len(i.IPv6Prefixes) > l.IPv6 {
		return Errorf("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	if !l.Nitro && len(i.IPv4Prefixes)+len(i.IPv6Prefixes) > 0 {
		return Errorf("UnsupportedOperation", "Prefix delegation is supported only on instances built on the Nitro System.")
	}
	return nil
}

// fill4 assigns to i the addresses and prefixes of w from p, within the limits l.
func (ch *change) fill4(i *Interface, p *pool, w Want, l vpc.Limits) (Assigned, error) {
	var got Assigned
	if w.size()+len(i.IPv4)+len(i.IPv4Prefixes) > l.IPv4 {
		return got, Errorf("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	if w.Count > p.free {
		return got, insufficientAddresses()
	}
	for _, a := range w.Addresses {
		if err := ch.claim4(i, p, a, w.Reassign); err != nil {
			return got, err
		}
		if !slices.Contains(i.IPv4, a) {
			got.Addresses = append(got.Addresses, a)
		}
	}
	for range w.Count {
		a, err := p.next4()
		if err != nil {
			return got, err
		}
		got.Addresses = append(got.Addresses, a)
	}
	for _, b := range w.Prefixes {
		if err := claimPrefix(p, b, p.subnet.CIDR, vpc.DelegatedPrefix4); err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	if blockSize*w.PrefixCount > p.free {
		return got, insufficientForPrefix()
	}
	for range w.PrefixCount {
		b, err := p.next4Block()
		if err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	i.IPv4 = append(i.IPv4, got.Addresses...)
	i.IPv4Prefixes = append(i.IPv4Prefixes, got.Prefixes...)
	return got, checkSlots(i, l)
}

// claim4 assigns one named address to i: a free one or, with reassign, a secondary
// address of another interface. An address that i already holds stays.
func (ch *change) claim4(i *Interface, p *pool, a netip.Addr, reassign bool) error {
	if !p.subnet.CIDR.Contains(a) {
		return InvalidParameter("Address %s does not fall within the subnet's address range", a)
	}
	if p.claim(a) {
		return nil
	}
	at := slices.Index(i.IPv4, a)
	owner := ch.Owner(a)
	switch {
	case at > 0 && reassign:
		return nil
	case owner == nil || !reassign || at == 0:
		return addressAssigned(p, a)
	}
	k := slices.Index(owner.IPv4, a)
	if k <= 0 || owner.RequesterManaged {
		return addressAssigned(p, a)
	}
	owner = owner.clone()
	owner.IPv4 = slices.Delete(owner.IPv4, k, k+1)
	ch.Interfaces[owner.ID] = owner
	return nil
}

func addressAssigned(p *pool, a netip.Addr) *Error {
	if vpc.Reserved(p.subnet.CIDR, a) {
		return InvalidParameter("Address %s is in subnet's reserved address range", a)
	}
	return InvalidParameter("[%s] is already assigned to another interface, or is reserved, in this subnet.", a)
}

// claimPrefix assigns one named prefix.
func claimPrefix(p *pool, b, within netip.Prefix, bits int) error {
	if b.Bits() != bits || b != b.Masked() {
		return InvalidParameter("Value (%s) for parameter prefix is invalid. A delegated prefix has length %d.", b, bits)
	}
	if !within.IsValid() || !within.Contains(b.Addr()) {
		return InvalidParameter("Prefix %s does not fall within the subnet's address range", b)
	}
	if !p.claimBlock(b) {
		return InvalidParameter("Prefix %s is already in use, or holds addresses that are.", b)
	}
	return nil
}

// fill6 assigns to i the addresses and prefixes of w from p, within the limits l.
func (ch *change) fill6(i *Interface, p *pool, w Want, l vpc.Limits) (Assigned, error) {
	var got Assigned
	if w.size() == 0 {
		return got, nil
	}
	if !p.subnet.CIDR6.IsValid() {
		return got, InvalidParameter("The subnet '%s' has no IPv6 CIDR block.", p.subnet.ID)
	}
	if w.size()+len(i.IPv6)+len(i.IPv6Prefixes) > l.IPv6 {
		return got, Errorf("PrivateIpAddressLimitExceeded", "Number of IPv6 addresses will exceed limit.")
	}
	for _, a := range w.Addresses {
		if !p.subnet.CIDR6.Contains(a) {
			return got, InvalidParameter("Address %s does not fall within the subnet's address range", a)
		}
		if !p.claim(a) {
			return got, InvalidParameter("[%s] is already assigned to another interface, or is reserved, in this subnet.", a)
		}
		got.Addresses = append(got.Addresses, a)
	}
	for range w.Count {
		got.Addresses = append(got.Addresses, p.next6())
	}
	for _, b := range w.Prefixes {
		if err := claimPrefix(p, b, p.subnet.CIDR6, vpc.DelegatedPrefix6); err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	for range w.PrefixCount {
		b, err := p.next6Block()
		if err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	i.IPv6 = append(i.IPv6, got.Addresses...)
	i.IPv6Prefixes = append(i.IPv6Prefixes, got.Prefixes...)
	return got, checkSlots(i, l)
}

// UnassignIPv4 removes secondary addresses and prefixes from an interface. The
// primary address cannot be removed.
func (c *Cloud) UnassignIPv4(id vpc.ENIID, addresses []netip.Addr, prefixes []netip.Prefix) error {
	return c.modify(id, func(_ *change, i *Interface) error {
		for _, a := range addresses {
			k := slices.Index(i.IPv4, a)
			if k == 0 {
				return InvalidParameter("The primary IP address of an interface cannot be unassigned: %s", a)
			}
			if k < 0 {
				return InvalidParameter("Some of the addresses [%s] are not assigned to interface %s", a, id)
			}
			i.IPv4 = slices.Delete(i.IPv4, k, k+1)
		}
		for _, b := range prefixes {
			k := slices.Index(i.IPv4Prefixes, b)
			if k < 0 {
				return InvalidParameter("Some of the prefixes [%s] are not assigned to interface %s", b, id)
			}
			i.IPv4Prefixes = slices.Delete(i.IPv4Prefixes, k, k+1)
		}
		return nil
	})
}

// UnassignIPv6 removes IPv6 addresses and prefixes from an interface.
func (c *Cloud) UnassignIPv6(id vpc.ENIID, addresses []netip.Addr, prefixes []netip.Prefix) error {
	return c.modify(id, func(_ *change, i *Interface) error {
		for _, a := range addresses {
			k := slices.Index(i.IPv6, a)
			if k < 0 {
				return InvalidParameter("Some of the addresses [%s] are not assigned to interface %s", a, id)
			}
			i.IPv6 = slices.Delete(i.IPv6, k, k+1)
		}
		for _, b := range prefixes {
			k := slices.Index(i.IPv6Prefixes, b)
			if k < 0 {
				return InvalidParameter("Some of the prefixes [%s] are not assigned to interface %s", b, id)
			}
			i.IPv6Prefixes = slices.Delete(i.IPv6Prefixes, k, k+1)
		}
		return nil
	})
}
