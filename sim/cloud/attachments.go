package cloud

import (
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Attach starts to attach the interface to an instance at a device index. The
// attachment is "attaching" until FinishAttach.
func (h InterfaceHandle) Attach(to vpc.InstanceID, index, card int) (*Attachment, error) {
	var made *Attachment
	err := h.modify(func(ch *change, i *Interface) error {
		n := ch.Instances[to]
		if n == nil {
			return KindInstance.NotFound(string(to))
		}
		if err := ch.canAttach(i, n, index, card); err != nil {
			return err
		}
		if err := ch.checkEFA(i, n, card, false); err != nil {
			return err
		}
		i.Attachment = &Attachment{
			ID: vpc.AttachmentID(ch.newID("eni-attach-")), Instance: to,
			DeviceIndex: index, NetworkCard: card, Status: Attaching, Since: ch.now,
		}
		if h.cloud.instant {
			i.Attachment.Status = Attached
		}
		made = i.Attachment
		return nil
	})
	return made, err
}

// canAttach refuses what EC2 does not attach.
func (ch *change) canAttach(i *Interface, n *Instance, index, card int) error {
	attached := ch.InterfacesOf(n.ID)
	switch {
	case i.Status() != "available":
		return inUse(i.ID)
	case i.Type == vpc.TypeBranch:
		return InvalidParameter("Interface type branch cannot be attached to an instance: '%s'", i.ID)
	case i.Type == vpc.TypeTrunk && n.Limits.Branches == 0:
		return Errorf("UnsupportedOperation", "Instance type %s does not support trunk interfaces.", n.Type)
	case n.State != Running && n.State != Stopped:
		return Errorf("IncorrectState", "The instance '%s' is not in a valid state for this operation: %s", n.ID, n.State)
	case ch.Subnets[i.Subnet].Zone != n.Zone:
		return InvalidParameter("You may not attach a network interface to an instance if they are not in the same availability zone")
	case card < 0 || card >= max(1, n.Limits.Cards):
		return InvalidParameter("Network card index %d is not valid for instance type %s", card, n.Type)
	case index < 0 || index > 15:
		return InvalidParameter("Value (%d) for parameter deviceIndex is invalid.", index)
	}
	if err := fitsCard(attached, n, index, card); err != nil {
		return err
	}
	if count := i.IPv4.slots(); count > n.Limits.IPv4 {
		return tooManyToAttach(i, n, count)
	}
	return checkSlots(i, n.Limits)
}

// fitsCard refuses a device index that is in use on a network card, and more interfaces than
// the card takes.
func fitsCard(attached []*Interface, n *Instance, index, card int) error {
	onCard := slices.DeleteFunc(attached, func(o *Interface) bool { return o.Attachment.NetworkCard != card })
	for _, o := range onCard {
		if o.Attachment.DeviceIndex == index {
			return InvalidParameter("Instance '%s' already has an interface attached at device index '%d'.", n.ID, index)
		}
	}
	if len(onCard) >= n.Limits.ENIs {
		return Errorf("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", len(onCard)+1, n.Type)
	}
	return nil
}

// tooManyToAttach is EC2's error for an interface that holds more addresses than the
// instance type takes on one. It names the interface by its id's digits. Source:
// github.com/cilium/cilium/issues/9730.
func tooManyToAttach(i *Interface, n *Instance, count int) *Error {
	digits := strings.TrimPrefix(string(i.ID), "eni-")
	return Errorf("InvalidInterface.IpAddressLimitExceeded", "Address count %d on interface-%s exceeds the limit for %s", count, digits, n.Type)
}

// checkEFA refuses an EFA that the instance cannot have on a network card: one of a running
// instance, which must be stopped first, more than the type has, or a second one of the
// card. EC2's words are known for a type without EFAs only, its codes for none of them.
// Sources: EC2 user guide, "Create and attach an Elastic Fabric Adapter";
// github.com/devopsacademyau/academy/pull/277; issues 44355 and 24043 of
// github.com/hashicorp/terraform-provider-aws.
func (ch *change) checkEFA(i *Interface, n *Instance, card int, launching bool) error {
	if !isEFA(i.Type) {
		return nil
	}
	if n.Limits.EFAs == 0 {
		return Errorf("UnsupportedOperation", "%s instances do not support Elastic Fabric Adapters.", n.Type)
	}
	if !launching && n.State != Stopped {
		return Errorf("IncorrectState", "The instance '%s' must be stopped before an Elastic Fabric Adapter can be attached to it.", n.ID)
	}
	have := 0
	for _, o := range ch.InterfacesOf(n.ID) {
		if !isEFA(o.Type) {
			continue
		}
		if have++; o.Attachment.NetworkCard == card {
			return Errorf("AttachmentLimitExceeded", "Network card %d of instance '%s' has an Elastic Fabric Adapter, %s.", card, n.ID, o.ID)
		}
	}
	if have >= n.Limits.EFAs {
		return Errorf("AttachmentLimitExceeded", "Elastic Fabric Adapter count %d exceeds the limit for %s", have+1, n.Type)
	}
	return nil
}

func isEFA(t vpc.InterfaceType) bool { return t == vpc.TypeEFA || t == vpc.TypeEFAOnly }

// FinishAttach marks an attachment as attached: its link is in the guest. It does
// nothing if the attachment is no longer "attaching".
func (c *Cloud) FinishAttach(id vpc.AttachmentID) error {
	return c.apply(func(ch *change) error {
		for eni, i := range ch.Interfaces {
			if i.Attachment != nil && i.Attachment.ID == id && i.Attachment.Status == Attaching {
				i = i.clone()
				i.Attachment.Status = Attached
				ch.Interfaces[eni] = i
			}
		}
		return nil
	})
}

// Detach starts to detach an interface; it is "detaching" until FinishDetach, which may
// follow once Attachment.Until has passed. One that is detaching already is refused with the
// code that EC2 documents for a resource in another state; EC2's words are not known. Source:
// EC2 API reference, "Error codes for the Amazon EC2 API", IncorrectState.
func (c *Cloud) Detach(id vpc.AttachmentID) error {
	return c.apply(func(ch *change) error {
		i := ch.AttachmentOwner(id)
		if i == nil {
			return KindAttachment.NotFound(string(id))
		}
		if i.Attachment.Host != "" {
			return Errorf("OperationNotPermitted", "You are not allowed to manage 'ela-attach' attachments.")
		}
		if i.Attachment.Primary() {
			return Errorf("OperationNotPermitted",
				"The network interface at device index 0 and networkCard index 0 cannot be detached.")
		}
		if i.Attachment.Status == Detaching {
			return Errorf("IncorrectState", "The attachment '%s' is detaching.", id)
		}
		ch.endTrunk(i.ID)
		i = i.clone()
		i.Attachment.Status, i.Attachment.Until = Detaching, ch.now.Add(c.detach)
		if c.instant {
			i.Attachment = nil
		}
		ch.Interfaces[i.ID] = i
		return nil
	})
}

// FinishDetach makes a detaching interface available: its link is removed. It does
// nothing if the attachment no longer exists, or its time has not come.
func (c *Cloud) FinishDetach(id vpc.AttachmentID) error {
	return c.apply(func(ch *change) error {
		i := ch.AttachmentOwner(id)
		if i == nil || i.Attachment.Status != Detaching || ch.now.Before(i.Attachment.Until) {
			return nil
		}
		i = i.clone()
		i.Attachment = nil
		ch.Interfaces[i.ID] = i
		return nil
	})
}

// AttachmentOwner returns the interface with an attachment id, or nil.
func (s *State) AttachmentOwner(id vpc.AttachmentID) *Interface {
	for _, i := range s.Interfaces {
		if i.Attachment != nil && i.Attachment.ID == id {
			return i
		}
	}
	return nil
}
