package cloud

import (
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Terminate starts the end of instances: they are shutting down until
// FinishTerminate. Terminating a terminated instance is a success.
func (c *Cloud) Terminate(ids []vpc.InstanceID) error {
	return c.apply(func(ch *change) error {
		for _, id := range ids {
			n := ch.Instances[id]
			if n == nil {
				return kindInstance().notFound(string(id))
			}
			if n.State == Terminated {
				continue
			}
			m := *n
			m.State = ShuttingDown
			ch.Instances[id] = &m
		}
		return nil
	})
}

// FinishTerminate marks an instance as terminated: the machine is off. Its
// interfaces with DeleteOnTermination are deleted, the others are free again.
func (c *Cloud) FinishTerminate(id vpc.InstanceID) error {
	return c.apply(func(ch *change) error {
		n := ch.Instances[id]
		if n == nil {
			return kindInstance().notFound(string(id))
		}
		m := *n
		m.State = Terminated
		ch.Instances[id] = &m
		for _, i := range ch.InterfacesOf(id) {
			if i.Attachment.DeleteOnTermination {
				delete(ch.Interfaces, i.ID)
				continue
			}
			i = i.clone()
			i.Attachment, i.Public = nil, false
			ch.Interfaces[i.ID] = i
		}
		return nil
	})
}

// CheckRunning refuses instances that do not exist or cannot be rebooted.
func (s *State) CheckRunning(ids []vpc.InstanceID) error {
	for _, id := range ids {
		n := s.Instances[id]
		if n == nil {
			return kindInstance().notFound(string(id))
		}
		if n.State != Running {
			return Errorf("IncorrectState", "The instance '%s' is not in the 'running' state.", id)
		}
	}
	return nil
}

// Launch adds an instance while the account lives, as RunInstances with one
// instance would.
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
		return nil, kindSubnet().notFound(spec.Subnet)
	}
	groups, err := ch.groupIDs(spec.Groups)
	if err != nil {
		return nil, err
	}
	i, err := ch.createInterface(NewInterface{Subnet: n.ID, Groups: groups, Primary: spec.Address})
	if err != nil {
		return nil, err
	}
	made := &Instance{
		ID: vpc.InstanceID(ch.newID("i-")), Name: spec.Name, Type: spec.Type, Limits: limits,
		Subnet: n.ID, State: Running, Role: spec.Role, Namespace: spec.Namespace,
		Metadata: spec.Metadata, Launched: ch.now, Tags: Tags{},
	}
	if err := nameTags(made.Tags, spec.Name, spec.Tags); err != nil {
		return nil, err
	}
	ch.Instances[made.ID] = made
	i.Public = n.Public
	i.Attachment = &Attachment{
		ID: vpc.AttachmentID(ch.newID("eni-attach-")), Instance: made.ID,
		Status: Attaching, Since: ch.now, DeleteOnTermination: true,
	}
	if ch.cloud.instant {
		i.Attachment.Status = Attached
	}
	return made, nil
}

// groupIDs resolves names of a Spec.
func (ch *change) groupIDs(names []string) ([]vpc.SecurityGroupID, error) {
	var out []vpc.SecurityGroupID
	for _, name := range names {
		g := ch.GroupNamed(name)
		if g == nil {
			return nil, kindGroup().notFound(name)
		}
		out = append(out, g.ID)
	}
	return slices.Clip(out), nil
}
