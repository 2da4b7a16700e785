package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// AllocationID identifies an elastic address: eipalloc-…
type AllocationID string

// AssociationID identifies its association with a private address: eipassoc-…
type AssociationID string

// Address is an elastic address. The interface that it is associated with has it in
// Interface.Public.
type Address struct {
	ID     AllocationID
	Public netip.Addr
	Tags   Tags
}

// AssociatedWith returns the interface that an elastic address is associated with, and
// how; false if it is not.
func (s *State) AssociatedWith(id AllocationID) (*Interface, PublicAddress, bool) {
	return s.associated(func(p PublicAddress) bool { return p.Allocation == id })
}

// AssociationOf returns the interface and the public address of an association; false if
// it does not exist.
func (s *State) AssociationOf(id AssociationID) (*Interface, PublicAddress, bool) {
	return s.associated(func(p PublicAddress) bool { return p.Association == id })
}

func (s *State) associated(match func(PublicAddress) bool) (*Interface, PublicAddress, bool) {
	for _, i := range s.Interfaces {
		if k := slices.IndexFunc(i.Public, match); k >= 0 {
			return i, i.Public[k], true
		}
	}
	return nil, PublicAddress{}, false
}

// ElasticHandle changes the account's elastic addresses.
type ElasticHandle struct{ cloud *Cloud }

// Elastic returns the handle of the elastic addresses.
func (c *Cloud) Elastic() ElasticHandle { return ElasticHandle{c} }

// Allocate takes an address from EC2's pool.
func (h ElasticHandle) Allocate(tags Tags) (*Address, error) {
	var allocated *Address
	err := h.cloud.apply(func(ch *change) error {
		var err error
		allocated, err = allocate(ch, tags)
		return err
	})
	return allocated, err
}

func allocate(ch *change, tags Tags) (*Address, error) {
	if len(ch.Addresses) >= ch.Quotas.Addresses {
		return nil, Errorf("AddressLimitExceeded", "The maximum number of addresses has been reached.")
	}
	made := &Address{ID: AllocationID(ch.newID("eipalloc-")), Public: freePublic(ch.State), Tags: Tags{}}
	ch.Addresses[made.ID] = made
	return made, mergeTags(made.Tags, tags)
}

// Release returns an address, which must not be associated, to EC2's pool.
func (h ElasticHandle) Release(id AllocationID) error {
	return h.cloud.apply(func(ch *change) error {
		a := ch.Addresses[id]
		if a == nil {
			return KindAddress.NotFound(string(id))
		}
		if _, _, used := ch.AssociatedWith(id); used {
			return Errorf("InvalidIPAddress.InUse", "Address %s is in use.", a.Public)
		}
		delete(ch.Addresses, id)
		return nil
	})
}

// Association describes an association to make.
type Association struct {
	Address   AllocationID
	Interface vpc.ENIID
	Private   netip.Addr // zero: the primary one
	// Keep refuses to move an address that is associated, and to replace the one of the
	// private address.
	Keep bool
}

// Associate makes an elastic address the public one of a private address, in place of any
// other. Associating again is a success. Sources: API_AssociateAddress.html; EC2 user
// guide, "Elastic IP addresses".
func (h ElasticHandle) Associate(w Association) (AssociationID, error) {
	var made AssociationID
	err := h.cloud.apply(func(ch *change) (err error) {
		if i := ch.Interfaces[w.Interface]; i != nil && i.Requester.Managed {
			return notPermitted()
		}
		made, err = associateAddress(ch, w)
		return err
	})
	return made, err
}

// check refuses an association that EC2 does not make. The text for a private address of
// another interface is ours.
func (w *Association) check(s *State) error {
	i := s.Interfaces[w.Interface]
	switch {
	case s.Addresses[w.Address] == nil:
		return KindAddress.NotFound(string(w.Address))
	case i == nil:
		return KindInterface.NotFound(string(w.Interface))
	case s.Gateway == "":
		return Errorf("Gateway.NotAttached", "Network %s is not attached to any internet gateway", s.VPC.ID)
	case !slices.Contains(i.IPv4.Addresses, w.Private):
		return InvalidParameter("The private IP address %s is not assigned to interface %s", w.Private, i.ID)
	}
	return nil
}

func associateAddress(ch *change, w Association) (AssociationID, error) {
	if i := ch.Interfaces[w.Interface]; i != nil && !w.Private.IsValid() {
		w.Private = i.PrimaryIPv4()
	}
	if err := w.check(ch.State); err != nil {
		return "", err
	}
	a, i := ch.Addresses[w.Address], ch.Interfaces[w.Interface]
	if was, public, ok := ch.AssociatedWith(a.ID); ok {
		if was.ID == i.ID && public.Private == w.Private {
			return public.Association, nil
		}
		if w.Keep {
			return "", alreadyAssociated(string(a.ID), public.Association)
		}
		endAssociation(ch, was, public)
		i = ch.Interfaces[w.Interface] // possibly the one just changed
	}
	public := PublicAddress{
		Private: w.Private, Public: a.Public, Owner: ch.Account, Allocation: a.ID, Association: AssociationID(ch.newID("eipassoc-")),
	}
	if before, ok := i.PublicOf(w.Private); ok {
		if w.Keep && before.Association != "" {
			return "", alreadyAssociated(string(i.ID), before.Association)
		}
		public.replaced = before.replaced || before.Owner == AmazonPool
	}
	i = i.clone()
	i.Public = append(slices.DeleteFunc(i.Public, func(p PublicAddress) bool { return p.Private == w.Private }), public)
	ch.Interfaces[i.ID] = i
	return public.Association, nil
}

// alreadyAssociated is EC2's error. Source: Cloud Foundry's BOSH documentation, "CPI
// errors" of AWS, which quotes it.
func alreadyAssociated(resource string, id AssociationID) error {
	return Errorf("Resource.AlreadyAssociated", "resource %s is already associated with associate-id %s", resource, id)
}

// Disassociate ends an association.
func (h ElasticHandle) Disassociate(id AssociationID) error {
	return h.cloud.apply(func(ch *change) error {
		i, public, ok := ch.AssociationOf(id)
		switch {
		case !ok:
			return NoAssociation(string(id))
		case i.Requester.Managed:
			return notPermitted()
		}
		endAssociation(ch, i, public)
		return nil
	})
}

// endAssociation takes an elastic address from an interface. An instance's only interface
// gets a new address from EC2's pool if the elastic one had replaced such an address.
// Source: EC2 user guide, "Elastic IP addresses", basics.
func endAssociation(ch *change, i *Interface, public PublicAddress) {
	i = i.clone()
	i.Public = slices.DeleteFunc(i.Public, func(p PublicAddress) bool { return p.Association == public.Association })
	ch.Interfaces[i.ID] = i
	if public.replaced && i.Attachment != nil && i.Attachment.Primary() && len(ch.InterfacesOf(i.Attachment.Instance)) == 1 {
		ch.makePublic(i)
	}
}

// dropPublic ends the public address of a private one that leaves the interface.
func (i *Interface) dropPublic(private netip.Addr) (public PublicAddress, ok bool) {
	public, ok = i.PublicOf(private)
	i.Public = slices.DeleteFunc(i.Public, func(p PublicAddress) bool { return p.Private == private })
	return public, ok
}
