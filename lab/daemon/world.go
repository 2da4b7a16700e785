package daemon

import (
	"context"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

// World is the embedded VPC as the daemon uses it.
type World interface {
	State() *cloud.State
	// Launch runs an instance, as RunInstances would.
	Launch(cloud.InstanceSpec) error
	// Plug puts an instance's interfaces into its namespace, which may be new.
	Plug(context.Context, vpc.InstanceID) error
	// Reboot and Terminate do what EC2's actions do, the machine included: they
	// use the Machines the world was started with, and return when it is done.
	Reboot(context.Context, vpc.InstanceID) error
	Terminate(context.Context, vpc.InstanceID) error
	// Trust makes STS accept service-account tokens of an issuer; keys is its
	// JSON Web Key Set.
	Trust(issuer string, keys []byte) error
	// Endpoint is EC2's API on the machine, AdminEndpoint that of faults and the
	// call log.
	Endpoint() string
	AdminEndpoint() string
	// Operator is the key of the account's owner.
	Operator() iam.Credentials
	Close() error
}

// Machines is the power switch of the instances, as sim/world wants it.
type Machines interface {
	Reboot(context.Context, vpc.InstanceID) error
	Terminate(context.Context, vpc.InstanceID) error
}

// instanceNamed returns the live instance of a name, and its primary interface.
func instanceNamed(s *cloud.State, name string) (*cloud.Instance, *cloud.Interface, error) {
	for _, i := range cloud.Sorted(s.Instances) {
		if i.Name != name || i.State == cloud.Terminated || i.State == cloud.ShuttingDown {
			continue
		}
		for _, eni := range s.Interfaces {
			if a := eni.Attachment; a != nil && a.Instance == i.ID && a.DeviceIndex == 0 {
				return i, eni, nil
			}
		}
		return nil, nil, fmt.Errorf("instance %s (%s) has no primary interface", name, i.ID)
	}
	return nil, nil, fmt.Errorf("no instance is called %s", name)
}

// hostInterface returns the interface of a machine of AWS's own.
func hostInterface(s *cloud.State, name string) (*cloud.Interface, error) {
	for _, eni := range s.Interfaces {
		if a := eni.Attachment; a != nil && a.Host == name {
			return eni, nil
		}
	}
	return nil, fmt.Errorf("no interface belongs to host %q", name)
}

// primary is what DHCP would tell the owner of an interface.
func primary(s *cloud.State, eni *cloud.Interface) (node.Primary, error) {
	subnet := s.Subnets[eni.Subnet]
	if subnet == nil || len(eni.IPv4) == 0 {
		return node.Primary{}, fmt.Errorf("interface %s has no subnet or address", eni.ID)
	}
	return node.Primary{MAC: eni.MAC, Address: eni.IPv4[0], Subnet: subnet.CIDR}, nil
}

// describe is a node's instance as its metadata would tell it.
func describe(s *cloud.State, name string) (node.Instance, error) {
	i, eni, err := instanceNamed(s, name)
	if err != nil {
		return node.Instance{}, err
	}
	p, err := primary(s, eni)
	if err != nil {
		return node.Instance{}, err
	}
	return node.Instance{
		ID: i.ID, Type: i.Type, Zone: s.Subnets[eni.Subnet].Zone, Region: s.Region,
		MAC: p.MAC, Address: p.Address, Subnet: p.Subnet,
		Resolver: vpc.Resolver(s.VPC.CIDRs[0]), MaxPods: i.Limits.MaxPods(),
	}, nil
}

// powerSwitch is the switch the embedded EC2 uses when somebody reboots or
// terminates an instance by the API.
type powerSwitch struct{ lab *lab }

// Reboot turns a machine off and on. Its namespace is a new one afterwards.
func (p powerSwitch) Reboot(ctx context.Context, id vpc.InstanceID) error {
	m := p.lab.machineByID(id)
	if m == nil {
		return fmt.Errorf("reboot %s: %w", id, errUnknownNode)
	}
	return m.reboot(ctx)
}

// Terminate turns a machine off for good and takes its Node object away, as the
// cloud's node lifecycle controller does.
func (p powerSwitch) Terminate(ctx context.Context, id vpc.InstanceID) error {
	m := p.lab.machineByID(id)
	if m == nil {
		return nil // never booted here, or gone already
	}
	return m.terminate(ctx)
}
