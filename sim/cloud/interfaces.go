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

// unattachedSlots is how many addresses an unattached interface may hold.
const unattachedSlots = 50

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
	if len(w.Groups) == 0 {
		w.Groups = []vpc.SecurityGroupID{ch.GroupNamed(defaultGroup).ID}
	}
	if err := ch.checkGroups(w.Groups); err != nil {
		return nil, err
	}
	if w.Type == "" {
		w.Type = vpc.TypeInterface
	}
	i := &Interface{
		ID: vpc.ENIID(ch.newID("eni-")), Type: w.Type, Subnet: w.Subnet, MAC: ch.newMAC(),
		Description: w.Description, Groups: slices.Clone(w.Groups), SourceDestCheck: true,
		Tracking: w.Tracking, Requester: w.Requester, Tags: Tags{},
	}
	if err := mergeTags(i.Tags, w.Tags); err != nil {
		return nil, err
	}
	p := ch.pool(n, ch.cloud.rng)
	primary, err := ch.primary(p, w.Primary)
	if err != nil {
		return nil, err
	}
	i.IPv4 = []netip.Addr{primary}
	if n.AssignIPv6 && w.IPv6.size() == 0 {
		w.IPv6.Count = 1
	}
	slots := vpc.Limits{IPv4: unattachedSlots, IPv6: unattachedSlots, Nitro: true}
	if _, err := ch.fill4(i, p, w.IPv4, slots); err != nil {
		return nil, err
	}
	if _, err := ch.fill6(i, p, w.IPv6, slots); err != nil {
		return nil, err
	}
	ch.Interfaces[i.ID] = i
	return i, nil
}

// primary assigns the requested address, or any.
func (ch *change) primary(p *pool, asked netip.Addr) (netip.Addr, error) {
	if !asked.IsValid() {
		return p.next4()
	}
	if !p.subnet.CIDR.Contains(asked) {
		return netip.Addr{}, InvalidParameter("Address %s does not fall within the subnet's address range", asked)
	}
	if !p.claim(asked) {
		return netip.Addr{}, addressInUse(p, asked)
	}
	return asked, nil
}

func addressInUse(p *pool, a netip.Addr) *Error {
	if vpc.Reserved(p.subnet.CIDR, a) {
		return InvalidParameter("Address %s is in subnet's reserved address range", a)
	}
	return Errorf("InvalidIPAddress.InUse", "The specified address is already in use.")
}

// DeleteInterface deletes an unattached interface.
func (c *Cloud) DeleteInterface(id vpc.ENIID) error {
	return c.apply(func(ch *change) error {
		i := ch.Interfaces[id]
		switch {
		case i == nil:
			return KindInterface.NotFound(string(id))
		case i.RequesterManaged:
			return Errorf("OperationNotPermitted", "You do not have permission to access the specified resource.")
		case i.Attachment != nil:
			return InvalidParameter("Network interface '%s' is currently in use.", id)
		}
		delete(ch.Interfaces, id)
		return nil
	})
}

// SetGroups replaces an interface's security groups.
func (c *Cloud) SetGroups(id vpc.ENIID, groups []vpc.SecurityGroupID) error {
	return c.modify(id, func(ch *change, i *Interface) error {
		if len(groups) == 0 {
			return MissingParameter("groupId")
		}
		i.Groups = slices.Clone(groups)
		return ch.checkGroups(groups)
	})
}

// SetDescription replaces an interface's description.
func (c *Cloud) SetDescription(id vpc.ENIID, text string) error {
	return c.modify(id, func(_ *change, i *Interface) error {
		i.Description = text
		return nil
	})
}

// SetSourceDestCheck turns the source/destination check on or off.
func (c *Cloud) SetSourceDestCheck(id vpc.ENIID, on bool) error {
	return c.modify(id, func(_ *change, i *Interface) error {
		i.SourceDestCheck = on
		return nil
	})
}

// SetDeleteOnTermination sets whether an interface is deleted with its instance.
func (c *Cloud) SetDeleteOnTermination(id vpc.ENIID, attachment vpc.AttachmentID, on bool) error {
	return c.modify(id, func(_ *change, i *Interface) error {
		if i.Attachment == nil || i.Attachment.ID != attachment {
			return KindAttachment.NotFound(string(attachment))
		}
		i.Attachment.DeleteOnTermination = on
		return nil
	})
}

// modify runs fn on a copy of an interface that the account's users may modify.
func (c *Cloud) modify(id vpc.ENIID, fn func(*change, *Interface) error) error {
	return c.apply(func(ch *change) error {
		i := ch.Interfaces[id]
		if i == nil {
			return KindInterface.NotFound(string(id))
		}
		if i.RequesterManaged {
			return Errorf("OperationNotPermitted", "You do not have permission to access the specified resource.")
		}
		i = i.clone()
		if err := fn(ch, i); err != nil {
			return err
		}
		ch.Interfaces[id] = i
		return nil
	})
}
