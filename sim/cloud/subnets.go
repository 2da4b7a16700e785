package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// SubnetHandle changes one subnet.
type SubnetHandle struct {
	cloud *Cloud
	id    vpc.SubnetID
}

// Subnet returns the handle of a subnet, which need not exist.
func (c *Cloud) Subnet(id vpc.SubnetID) SubnetHandle { return SubnetHandle{c, id} }

// modify runs fn on a copy of the subnet.
func (h SubnetHandle) modify(fn func(*change, *Subnet) error) error {
	return h.cloud.apply(func(ch *change) error {
		old := ch.Subnets[h.id]
		if old == nil {
			return KindSubnet.NotFound(string(h.id))
		}
		n := *old
		n.Reservations = slices.Clone(old.Reservations)
		if err := fn(ch, &n); err != nil {
			return err
		}
		ch.Subnets[h.id] = &n
		return nil
	})
}

// Delete deletes a subnet without interfaces.
func (h SubnetHandle) Delete() error {
	return h.cloud.apply(func(ch *change) error {
		if ch.Subnets[h.id] == nil {
			return KindSubnet.NotFound(string(h.id))
		}
		for _, i := range ch.Interfaces {
			if i.Subnet == h.id {
				return Errorf("DependencyViolation", "The subnet '%s' has dependencies and cannot be deleted.", h.id)
			}
		}
		delete(ch.Subnets, h.id)
		return nil
	})
}

// SetPublic sets MapPublicIpOnLaunch.
func (h SubnetHandle) SetPublic(on bool) error {
	return h.modify(func(_ *change, n *Subnet) error {
		n.Public = on
		return nil
	})
}

// SetAssignIPv6 sets AssignIpv6AddressOnCreation.
func (h SubnetHandle) SetAssignIPv6(on bool) error {
	return h.modify(func(_ *change, n *Subnet) error {
		if on && !n.CIDR6.IsValid() {
			return InvalidParameter("Invalid value 'true' for assignIpv6AddressOnCreation. The subnet must have an IPv6 CIDR block associated with it.")
		}
		n.AssignIPv6 = on
		return nil
	})
}

// ReservationType says who assigns the addresses of a reservation.
type ReservationType string

// Reservation types. Source: VPC user guide, "Subnet CIDR reservations".
const (
	ReservePrefix   ReservationType = "prefix"   // EC2, as delegated prefixes
	ReserveExplicit ReservationType = "explicit" // the account, by naming them
)

// Reservation is a range of a subnet from which EC2 chooses no addresses.
type Reservation struct {
	ID          string // scr-…
	CIDR        netip.Prefix
	Type        ReservationType
	Description string
	Tags        Tags
}

// Reserve adds a reservation. Addresses of it that are in use stay assigned.
func (h SubnetHandle) Reserve(r Reservation) (Reservation, error) {
	err := h.modify(func(ch *change, n *Subnet) error {
		within := n.CIDR
		if r.CIDR.Addr().Is6() {
			within = n.CIDR6
		}
		if !within.IsValid() || within.Bits() > r.CIDR.Bits() || !within.Contains(r.CIDR.Addr()) {
			return InvalidParameter("Reservation CIDR %s is not within the subnet's CIDR block", r.CIDR)
		}
		for _, o := range n.Reservations {
			if o.CIDR.Overlaps(r.CIDR) {
				return overlappingReservation(r.CIDR)
			}
		}
		given := r.Tags
		r.ID, r.Tags = ch.newID("scr-"), Tags{}
		n.Reservations = append(n.Reservations, r)
		return mergeTags(r.Tags, given)
	})
	return r, err
}

// overlappingReservation is EC2's error. Source:
// github.com/hashicorp/terraform-provider-aws/issues/45304.
func overlappingReservation(p netip.Prefix) error {
	return InvalidParameter("Reservation CIDR %s has overlap with existing reserved CIDR block", p)
}

// Unreserve deletes a reservation and returns it.
func (h SubnetHandle) Unreserve(id string) (gone Reservation, err error) {
	err = h.modify(func(_ *change, n *Subnet) error {
		k := slices.IndexFunc(n.Reservations, func(r Reservation) bool { return r.ID == id })
		if k < 0 {
			return KindReservation.NotFound(id)
		}
		gone = n.Reservations[k]
		n.Reservations = slices.Delete(n.Reservations, k, k+1)
		return nil
	})
	return gone, err
}

// ReservedIn returns the subnet of a reservation, or nil.
func (s *State) ReservedIn(id string) *Subnet {
	for _, n := range s.Subnets {
		if slices.ContainsFunc(n.Reservations, func(r Reservation) bool { return r.ID == id }) {
			return n
		}
	}
	return nil
}

// reserved reports whether a range overlaps a reservation of a subnet.
func (n *Subnet) reserved(p netip.Prefix) bool {
	return slices.ContainsFunc(n.Reservations, func(r Reservation) bool { return r.CIDR.Overlaps(p) })
}

// prefixReserved reports whether a range is within a reservation for delegated prefixes.
func (n *Subnet) prefixReserved(p netip.Prefix) bool {
	return slices.ContainsFunc(n.Reservations, func(r Reservation) bool {
		return r.Type == ReservePrefix && r.CIDR.Bits() <= p.Bits() && r.CIDR.Contains(p.Addr())
	})
}
