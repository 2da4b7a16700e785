package podeni

import (
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// check refuses entries that no branches can have.
func check(entries []Entry) error {
	if len(entries) == 0 {
		return ErrNoEntry
	}
	if len(entries) > maxEntries {
		return fmt.Errorf("%d branches, and a trunk has at most %d: %w", len(entries), maxEntries, ErrValue)
	}
	first := map[string]int{}
	for i, e := range entries {
		if err := e.check(); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		for _, value := range e.unique() {
			if j, ok := first[value]; ok {
				return fmt.Errorf("entries %d and %d: %s: %w", j, i, value, ErrTwice)
			}
			first[value] = i
		}
	}
	return nil
}

// unique are the values of an entry that no other branch of the node has.
func (e Entry) unique() []string {
	list := []string{string(e.ENI), "MAC " + e.MAC.String(), fmt.Sprintf("VLAN %d", e.VLAN)}
	for _, a := range []netip.Addr{e.IPv4, e.IPv6} {
		if a.IsValid() {
			list = append(list, a.String())
		}
	}
	if e.Association != "" {
		list = append(list, "association "+e.Association)
	}
	return list
}

func (e Entry) check() error {
	switch {
	case e.ENI == "":
		return fmt.Errorf("eniId is empty: %w", ErrIncomplete)
	case !eniID.MatchString(string(e.ENI)):
		return fmt.Errorf("eniId %q: %w", e.ENI, ErrValue)
	case e.MAC == vpc.MAC{} || e.MAC[0]&1 != 0:
		return fmt.Errorf("ifAddress %s: no interface has it: %w", e.MAC, ErrValue)
	case e.VLAN < 1 || e.VLAN > MaxVLAN:
		return fmt.Errorf("vlanId %d: must be from 1 to %d: %w", e.VLAN, MaxVLAN, ErrValue)
	case !e.IPv4.IsValid() && !e.IPv6.IsValid():
		return fmt.Errorf("privateIp and ipv6Addr are empty: %w", ErrIncomplete)
	case e.Association != "" && !association.MatchString(e.Association):
		return fmt.Errorf("associationID %q: %w", e.Association, ErrValue)
	}
	if err := family("privateIp", "subnetCidr", e.IPv4, e.Subnet4, netip.Addr.Is4); err != nil {
		return err
	}
	return family("ipv6Addr", "subnetV6Cidr", e.IPv6, e.Subnet6, netip.Addr.Is6)
}

// family checks the address and the subnet of one address family.
func family(address, cidr string, a netip.Addr, subnet netip.Prefix, is func(netip.Addr) bool) error {
	if subnet.IsValid() && (!is(subnet.Addr()) || subnet.Addr().Is4In6() || subnet != subnet.Masked()) {
		return fmt.Errorf("%s %s: %w", cidr, subnet, ErrValue)
	}
	switch {
	case !a.IsValid():
		return nil
	case !is(a) || a.Is4In6() || a.Zone() != "":
		return fmt.Errorf("%s %s: %w", address, a, ErrValue)
	case !subnet.IsValid():
		return fmt.Errorf("%s is empty, and %s is %s: %w", cidr, address, a, ErrIncomplete)
	case !subnet.Contains(a):
		return fmt.Errorf("%s %s is outside %s: %w", address, a, subnet, ErrValue)
	case vpc.Reserved(subnet, a):
		return fmt.Errorf("%s %s is reserved by EC2 in %s: %w", address, a, subnet, ErrValue)
	}
	return nil
}
