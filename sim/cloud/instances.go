package cloud

import (
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Terminate starts the termination of instances: they are "shutting-down" until
// FinishTerminate. Terminating a terminated instance is a success.
func (c *Cloud) Terminate(ids []vpc.InstanceID) error {
	return c.apply(func(ch *change) error {
		if err := ch.checkInstances(ids); err != nil {
			return err
		}
		for _, id := range ids {
			if ch.Instances[id].Protected {
				return Errorf("OperationNotPermitted",
					"The instance '%s' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again.", id)
			}
		}
		for _, id := range ids {
			n := ch.Instances[id]
			if n.State == Terminated {
				continue
			}
			m := *n
			m.State = ShuttingDown
			ch.Instances[id] = &m
			if c.instant {
				ch.finishTerminate(&m)
			}
		}
		return nil
	})
}

// checkInstances refuses ids of instances that do not exist.
func (s *State) checkInstances(ids []vpc.InstanceID) error {
	var missing []string
	for _, id := range ids {
		if s.Instances[id] == nil {
			missing = append(missing, string(id))
		}
	}
	if len(missing) > 0 {
		return KindInstance.NotFound(missing...)
	}
	return nil
}

// FinishTerminate marks an instance as terminated: its machine is off. Its interfaces
// with DeleteOnTermination are deleted, the others become available.
func (c *Cloud) FinishTerminate(id vpc.InstanceID) error {
	return c.apply(func(ch *change) error {
		n := ch.Instances[id]
		if n == nil {
			return KindInstance.NotFound(string(id))
		}
		m := *n
		ch.Instances[id] = &m
		ch.finishTerminate(&m)
		return nil
	})
}

// finishTerminate terminates n, a copy that this change owns.
func (ch *change) finishTerminate(n *Instance) {
	n.State = Terminated
	for _, i := range ch.InterfacesOf(n.ID) {
		if i.Attachment.DeleteOnTermination {
			deleteInterface(ch, i.ID)
			continue
		}
		ch.endTrunk(i.ID)
		i = i.clone()
		i.Attachment = nil
		i.Public = slices.DeleteFunc(i.Public, func(p PublicAddress) bool { return p.Owner == AmazonPool })
		ch.Interfaces[i.ID] = i
	}
}

// InstanceHandle changes one instance.
type InstanceHandle struct {
	cloud *Cloud
	id    vpc.InstanceID
}

// Instance returns the handle of an instance, which need not exist.
func (c *Cloud) Instance(id vpc.InstanceID) InstanceHandle { return InstanceHandle{c, id} }

// Protect sets disableApiTermination.
func (h InstanceHandle) Protect(on bool) error {
	return h.cloud.apply(func(ch *change) error {
		if err := ch.checkInstances([]vpc.InstanceID{h.id}); err != nil {
			return err
		}
		n := *ch.Instances[h.id]
		if n.State == Terminated {
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be modified.", h.id)
		}
		n.Protected = on
		ch.Instances[h.id] = &n
		return nil
	})
}

// Reboot requests a reboot of all of the instances; if one is not running, none is
// rebooted.
func (c *Cloud) Reboot(ids []vpc.InstanceID) error {
	return c.apply(func(ch *change) error {
		if err := ch.checkInstances(ids); err != nil {
			return err
		}
		for _, id := range ids {
			n := ch.Instances[id]
			if n.State != Running {
				return Errorf("IncorrectState", "The instance '%s' is not in the 'running' state.", id)
			}
			m := *n
			m.Reboots++
			ch.Instances[id] = &m
		}
		return nil
	})
}

// Launch adds an instance to a running account, as RunInstances with one instance
// would.
func (c *Cloud) Launch(spec InstanceSpec) (*Instance, error) {
	var made *Instance
	err := c.apply(func(ch *change) (err error) {
		made, err = ch.launch(spec)
		return err
	})
	return made, err
}

func (ch *change) launch(spec InstanceSpec) (*Instance, error) {
	limits, ok := ch.cloud.types[spec.Type]
	if !ok {
		return nil, InvalidParameter("Invalid value '%s' for InstanceType.", spec.Type)
	}
	n := ch.SubnetNamed(spec.Subnet)
	if n == nil {
		return nil, KindSubnet.NotFound(spec.Subnet)
	}
	groups, err := ch.groupIDs(spec.Groups)
	if err != nil {
		return nil, err
	}
	i, err := ch.createInterface(NewInterface{
		Subnet: n.ID, Groups: groups, Primary: spec.Address, Type: spec.PrimaryType, IPv4: Want{PrefixCount: spec.Prefixes},
	})
	if err != nil {
		return nil, err
	}
	made := &Instance{
		ID: vpc.InstanceID(ch.newID("i-")), Name: spec.Name, Type: spec.Type, Limits: limits,
		Subnet: n.ID, Zone: n.Zone, State: Running, Role: spec.Role, Namespace: spec.Namespace,
		Metadata: spec.Metadata, Launched: ch.now, Tags: Tags{},
	}
	if err := nameTags(made.Tags, spec.Name, spec.Tags); err != nil {
		return nil, err
	}
	ch.Instances[made.ID] = made
	if i.Type == vpc.TypeEFAOnly {
		return nil, InvalidParameter("An EFA-only network interface cannot be the primary network interface.")
	}
	if n.Public {
		ch.makePublic(i)
	}
	if err := ch.launchWith(i, made, 0, vpc.DefaultCard); err != nil {
		return nil, err
	}
	for _, more := range spec.Interfaces {
		i, err := ch.createInterface(NewInterface{
			Subnet: n.ID, Groups: groups, Type: more.Type, Tags: more.Tags,
			IPv4: Want{Count: more.Addresses, PrefixCount: more.Prefixes},
		})
		if err != nil {
			return nil, err
		}
		if err := ch.launchWith(i, made, more.Device, more.Card); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// launchWith attaches a new interface to an instance that is being launched.
func (ch *change) launchWith(i *Interface, n *Instance, index, card int) error {
	if err := ch.canAttach(i, n, index, card); err != nil {
		return err
	}
	if err := ch.checkEFA(i, n, card, true); err != nil {
		return err
	}
	i.Attachment = &Attachment{
		ID: vpc.AttachmentID(ch.newID("eni-attach-")), Instance: n.ID, DeviceIndex: index, NetworkCard: card,
		Status: Attaching, Since: ch.now, DeleteOnTermination: true,
	}
	if ch.cloud.instant || i.Type == vpc.TypeEFAOnly { // it has no link in the fabric
		i.Attachment.Status = Attached
	}
	return nil
}

// groupIDs resolves group names of a Spec.
func (ch *change) groupIDs(names []string) ([]vpc.SecurityGroupID, error) {
	var out []vpc.SecurityGroupID
	for _, name := range names {
		g := ch.GroupNamed(name)
		if g == nil {
			return nil, KindGroup.NotFound(name)
		}
		out = append(out, g.ID)
	}
	return slices.Clip(out), nil
}
