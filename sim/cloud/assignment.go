package cloud

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// assignment assigns addresses of one subnet to one interface, within the limits of
// its instance type.
type assignment struct {
	ch     *change
	pool   *pool
	to     *Interface // a copy that the change owns
	limits vpc.Limits
}

// assignment prepares one for an interface.
func (ch *change) assignment(to *Interface) assignment {
	return assignment{ch: ch, pool: ch.pool(ch.Subnets[to.Subnet], ch.cloud.rng), to: to, limits: ch.slots(to)}
}

// unattachedSlots is how many addresses an unattached interface may hold.
const unattachedSlots = 50

// slots returns how many addresses the interface may hold on its instance type, or
// unattached.
func (s *State) slots(i *Interface) vpc.Limits {
	if i.Attachment != nil {
		if n := s.Instances[i.Attachment.Instance]; n != nil {
			return n.Limits
		}
	}
	return vpc.Limits{IPv4: unattachedSlots, IPv6: unattachedSlots, Nitro: true}
}

// checkSlots refuses an interface that holds more than its instance type takes.
func checkSlots(i *Interface, l vpc.Limits) error {
	if i.IPv4.slots() > l.IPv4 || i.IPv6.slots() > l.IPv6 {
		return Errorf("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	if !l.Nitro && len(i.IPv4.Prefixes)+len(i.IPv6.Prefixes) > 0 {
		return Errorf("UnsupportedOperation", "Prefix delegation is supported only on instances built on the Nitro System.")
	}
	return nil
}

// ipv4 assigns the IPv4 addresses and prefixes of w, and returns those that are new.
func (a assignment) ipv4(w Want) (Assigned, error) {
	var got Assigned
	if w.size()+a.to.IPv4.slots() > a.limits.IPv4 {
		return got, Errorf("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	if w.Count > a.pool.free {
		return got, insufficientAddresses()
	}
	if err := a.checkMoves(w); err != nil {
		return got, err
	}
	for _, address := range w.Addresses {
		if err := a.claim4(address, w.Reassign); err != nil {
			return got, err
		}
		if !slices.Contains(a.to.IPv4.Addresses, address) {
			got.Addresses = append(got.Addresses, address)
		}
	}
	for range w.Count {
		address, err := a.pool.next4()
		if err != nil {
			return got, err
		}
		got.Addresses = append(got.Addresses, address)
	}
	for _, b := range w.Prefixes {
		if err := claimPrefix(a.pool, b, a.pool.subnet.CIDR, vpc.DelegatedPrefix4); err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	if blockSize*w.PrefixCount > a.pool.free {
		return got, insufficientForPrefix()
	}
	for range w.PrefixCount {
		b, err := a.pool.next4Block()
		if err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	a.to.IPv4.add(got)
	return got, checkSlots(a.to, a.limits)
}

// checkMoves refuses addresses that other interfaces hold unless w allows to reassign
// them. Clients parse the list of addresses. Source: the comments of Ansible's module
// ec2_eni show the response.
func (a assignment) checkMoves(w Want) error {
	if w.Reassign {
		return nil
	}
	var held []string
	for _, address := range w.Addresses {
		if owner := a.ch.Owner(address); owner != nil && owner.ID != a.to.ID {
			held = append(held, address.String())
		}
	}
	if len(held) == 0 {
		return nil
	}
	return InvalidParameter("[%s] assigned, but move is not allowed.", strings.Join(held, ", "))
}

// claim4 assigns one named address: a free one or, with reassign, a secondary address
// of another interface. An address that the interface already holds stays.
func (a assignment) claim4(address netip.Addr, reassign bool) error {
	if !a.pool.subnet.CIDR.Contains(address) {
		return outsideSubnet(address)
	}
	if a.pool.claim(address) {
		return nil
	}
	at := slices.Index(a.to.IPv4.Addresses, address)
	owner := a.ch.Owner(address)
	switch {
	case at > 0 && reassign:
		return nil
	case owner == nil || !reassign || at == 0:
		return addressAssigned(a.pool, address)
	}
	k := slices.Index(owner.IPv4.Addresses, address)
	if k <= 0 || owner.Requester.Managed {
		return addressAssigned(a.pool, address)
	}
	owner = owner.clone()
	owner.IPv4.Addresses = slices.Delete(owner.IPv4.Addresses, k, k+1)
	if public, ok := owner.dropPublic(address); ok { // it moves too: API_AssignPrivateIpAddresses.html
		a.to.Public = append(a.to.Public, public)
	}
	a.ch.Interfaces[owner.ID] = owner
	return nil
}

func outsideSubnet(address netip.Addr) *Error {
	return InvalidParameter("Address %s does not fall within the subnet's address range", address)
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

// ipv6 assigns the IPv6 addresses and prefixes of w, and returns them.
func (a assignment) ipv6(w Want) (Assigned, error) {
	var got Assigned
	if w.size() == 0 {
		return got, nil
	}
	if !a.pool.subnet.CIDR6.IsValid() {
		return got, InvalidParameter("The subnet '%s' has no IPv6 CIDR block.", a.pool.subnet.ID)
	}
	if w.size()+a.to.IPv6.slots() > a.limits.IPv6 {
		return got, Errorf("PrivateIpAddressLimitExceeded", "Number of IPv6 addresses will exceed limit.")
	}
	for _, address := range w.Addresses {
		if !a.pool.subnet.CIDR6.Contains(address) {
			return got, outsideSubnet(address)
		}
		if !a.pool.claim(address) {
			return got, InvalidParameter("[%s] is already assigned to another interface, or is reserved, in this subnet.", address)
		}
		got.Addresses = append(got.Addresses, address)
	}
	for range w.Count {
		got.Addresses = append(got.Addresses, a.pool.next6())
	}
	for _, b := range w.Prefixes {
		if err := claimPrefix(a.pool, b, a.pool.subnet.CIDR6, vpc.DelegatedPrefix6); err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	for range w.PrefixCount {
		b, err := a.pool.next6Block()
		if err != nil {
			return got, err
		}
		got.Prefixes = append(got.Prefixes, b)
	}
	a.to.IPv6.add(got)
	return got, checkSlots(a.to, a.limits)
}
