package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// NewInterface describes the interface that CreateInterface makes.
type NewInterface struct {
	Subnet      vpc.SubnetID
	Description string
	Groups      []vpc.SecurityGroupID // empty: the VPC's default group
	Type        vpc.InterfaceType     // empty: TypeInterface
	Primary     netip.Addr            // zero: any free address
	IPv4        Want
	IPv6        Want
	PrimaryIPv6 bool // make the first IPv6 address the primary one
	Tracking    *Tracking
	Tags        Tags
	Requester   string
}

// Want requests addresses of one family: a number of any, or named ones.
type Want struct {
	Count       int
	Addresses   []netip.Addr
	PrefixCount int
	Prefixes    []netip.Prefix
	// Reassign moves Addresses that another interface holds.
	Reassign bool
}

// size returns how many address slots w takes.
func (w Want) size() int {
	return w.Count + len(w.Addresses) + w.PrefixCount + len(w.Prefixes)
}

// CreateInterface makes an interface in a subnet and assigns its addresses.
func (c *Cloud) CreateInterface(w NewInterface) (*Interface, error) {
	var made *Interface
	err := c.apply(func(ch *change) (err error) {
		made, err = ch.createInterface(w)
		return err
	})
	return made, err
}

func (ch *change) createInterface(w NewInterface) (*Interface, error) {
	n := ch.Subnets[w.Subnet]
	if n == nil {
		return nil, KindSubnet.NotFound(string(w.Subnet))
	}
	if len(ch.Interfaces) >= ch.Quotas.Interfaces {
		return nil, Errorf("NetworkInterfaceLimitExceeded",
			"The maximum number of network interfaces has been reached.")
	}
	groups, err := ch.groupsOfNew(w)
	if err != nil {
		return nil, err
	}
	if w.Type == "" {
		w.Type = vpc.TypeInterface
	}
	i := &Interface{
		ID: vpc.ENIID(ch.newID("eni-")), Type: w.Type, Subnet: w.Subnet, MAC: ch.newMAC(),
		Description: w.Description, Groups: groups, SourceDestCheck: true,
		Tracking: w.Tracking, Requester: Requester{ID: w.Requester}, Tags: Tags{},
	}
	if err := mergeTags(i.Tags, w.Tags); err != nil {
		return nil, err
	}
	if err := ch.firstAddresses(i, n, w); err != nil {
		return nil, err
	}
	if w.PrimaryIPv6 {
		if err := ch.enablePrimaryIPv6(i); err != nil {
			return nil, err
		}
	}
	ch.Interfaces[i.ID] = i
	return i, nil
}

// groupsOfNew returns the groups of a new interface: those of w, or the VPC's default
// group.
func (ch *change) groupsOfNew(w NewInterface) ([]vpc.SecurityGroupID, error) {
	if len(w.Groups) == 0 {
		return []vpc.SecurityGroupID{ch.GroupNamed(defaultGroup).ID}, nil
	}
	for _, id := range w.Groups {
		if ch.Groups[id] == nil {
			return nil, NoGroupForInterface(string(id))
		}
	}
	return slices.Clone(w.Groups), ch.checkGroups(w.Groups)
}

// firstAddresses assigns the addresses of a new interface. An EFA-only interface has none,
// and in an IPv6-only subnet there are no IPv4 addresses. Source: EC2 user guide, "Elastic
// Fabric Adapter"; VPC user guide, "Subnet types".
func (ch *change) firstAddresses(i *Interface, n *Subnet, w NewInterface) error {
	wants4 := w.Primary.IsValid() || w.IPv4.size() > 0
	assign := ch.assignment(i)
	switch {
	case i.Type == vpc.TypeEFAOnly && (wants4 || w.IPv6.size() > 0):
		return Errorf("InvalidParameterCombination", "EFA-only network interfaces do not support IP addresses.")
	case i.Type == vpc.TypeEFAOnly:
		return nil
	case !n.CIDR.IsValid() && wants4:
		return Errorf("InvalidParameterCombination", "The subnet '%s' is an IPv6 only subnet: IPv4 addresses are not supported.", n.ID)
	case n.CIDR.IsValid():
		primary, err := assign.pool.primary(w.Primary)
		if err != nil {
			return err
		}
		i.IPv4.Addresses = []netip.Addr{primary}
		if _, err := assign.ipv4(w.IPv4); err != nil {
			return err
		}
	}
	if n.AssignIPv6 && w.IPv6.size() == 0 {
		w.IPv6.Count = 1
	}
	_, err := assign.ipv6(w.IPv6)
	return err
}

// InterfaceHandle changes one interface.
type InterfaceHandle struct {
	cloud *Cloud
	id    vpc.ENIID
}

// Interface returns the handle of an interface, which need not exist.
func (c *Cloud) Interface(id vpc.ENIID) InterfaceHandle { return InterfaceHandle{c, id} }

// Delete deletes an interface that is available.
func (h InterfaceHandle) Delete() error {
	return h.cloud.apply(func(ch *change) error {
		i := ch.Interfaces[h.id]
		switch {
		case i == nil:
			return KindInterface.NotFound(string(h.id))
		case i.Requester.Managed:
			return notPermitted()
		case i.Status() != "available":
			return inUse(h.id)
		}
		deleteInterface(ch, h.id)
		return nil
	})
}

// SetGroups replaces the security groups.
func (h InterfaceHandle) SetGroups(groups []vpc.SecurityGroupID) error {
	return h.modify(func(ch *change, i *Interface) error {
		if len(groups) == 0 {
			return MissingParameter("groupId")
		}
		i.Groups = slices.Clone(groups)
		return ch.checkGroups(groups)
	})
}

// SetDescription replaces the description.
func (h InterfaceHandle) SetDescription(text string) error {
	return h.modify(func(_ *change, i *Interface) error {
		i.Description = text
		return nil
	})
}

// SetSourceDestCheck turns the source/destination check on or off.
func (h InterfaceHandle) SetSourceDestCheck(on bool) error {
	return h.modify(func(_ *change, i *Interface) error {
		i.SourceDestCheck = on
		return nil
	})
}

// SetDeleteOnTermination sets whether the interface is deleted with its instance.
func (h InterfaceHandle) SetDeleteOnTermination(attachment vpc.AttachmentID, on bool) error {
	return h.modify(func(_ *change, i *Interface) error {
		if i.Attachment == nil || i.Attachment.ID != attachment {
			return KindAttachment.NotFound(string(attachment))
		}
		i.Attachment.DeleteOnTermination = on
		return nil
	})
}

// modify runs fn on a copy of the interface, if the account's users may modify it.
func (h InterfaceHandle) modify(fn func(*change, *Interface) error) error {
	return h.cloud.apply(func(ch *change) error {
		i := ch.Interfaces[h.id]
		if i == nil {
			return KindInterface.NotFound(string(h.id))
		}
		if i.Requester.Managed {
			return notPermitted()
		}
		i = i.clone()
		if err := fn(ch, i); err != nil {
			return err
		}
		ch.Interfaces[h.id] = i
		return nil
	})
}

func notPermitted() *Error {
	return Errorf("OperationNotPermitted", "You do not have permission to access the specified resource.")
}
