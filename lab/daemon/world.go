package daemon

import (
	"context"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/ca"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

// World is the part of the embedded VPC that the daemon uses.
type World interface {
	State() *cloud.State
	// Launch runs an instance, as RunInstances would.
	Launch(cloud.InstanceSpec) error
	// Plug moves an instance's interfaces into its network namespace, which may be new.
	Plug(context.Context, vpc.InstanceID) error
	// Reboot and Terminate perform EC2's actions, including those on the machine through
	// Machines, and return when they are complete.
	Reboot(context.Context, vpc.InstanceID) error
	Terminate(context.Context, vpc.InstanceID) error
	// Trust makes STS accept service-account tokens of an issuer; keys is its
	// JSON Web Key Set.
	Trust(issuer string, keys []byte) error
	// Endpoint is the URL of EC2's API on the machine, AdminEndpoint that of faults and
	// the call log.
	Endpoint() string
	AdminEndpoint() string
	// Operator returns the key of the account's operator.
	Operator() iam.Credentials
	// EKS returns the key of Amazon EKS in the account.
	EKS() iam.Credentials
	// Authority is the CA of EC2 and STS inside the VPC.
	Authority() *ca.Authority
	Close() error
}

// Machines switches the machines of instances, for sim/world.
type Machines interface {
	Reboot(context.Context, vpc.InstanceID) error
	Terminate(context.Context, vpc.InstanceID) error
}

// instanceNamed returns the instance of a name that is not terminated, and its primary
// interface.
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
	return nil, nil, fmt.Errorf("no instance with name %s", name)
}

// hostInterface returns the interface of one of AWS's own hosts, such as the control
// plane.
func hostInterface(s *cloud.State, name string) (*cloud.Interface, error) {
	for _, eni := range s.Interfaces {
		if a := eni.Attachment; a != nil && a.Host == name {
			return eni, nil
		}
	}
	return nil, fmt.Errorf("host %q has no interface", name)
}

// primary returns the configuration of an interface that DHCP would provide.
func primary(s *cloud.State, eni *cloud.Interface) (node.Primary, error) {
	subnet := s.Subnets[eni.Subnet]
	if subnet == nil || len(eni.IPv4.Addresses) == 0 {
		return node.Primary{}, fmt.Errorf("interface %s has no subnet or address", eni.ID)
	}
	return node.Primary{MAC: eni.MAC, Address: eni.IPv4.Addresses[0], Subnet: subnet.CIDR}, nil
}

// describe returns a node's instance as its metadata describes it.
func describe(s *cloud.State, name string, lab Lab) (node.Instance, error) {
	i, eni, err := instanceNamed(s, name)
	if err != nil {
		return node.Instance{}, err
	}
	p, err := primary(s, eni)
	if err != nil {
		return node.Instance{}, err
	}
	maxPods, machineName := i.Limits.MaxPods(), ""
	if spec.HasTrunks(lab.PodGroups) {
		maxPods = i.Limits.WithTrunk().MaxPods()
	}
	if lab.NoCloud {
		maxPods, machineName = node.MaxPodsWithoutCloud, name
	}
	return node.Instance{
		ID: i.ID, Type: i.Type, Zone: s.Subnets[eni.Subnet].Zone, Region: s.Region,
		MAC: p.MAC, Address: p.Address, Subnet: p.Subnet,
		Resolver: vpc.Resolver(s.VPC.CIDRs[0]), MaxPods: maxPods, Name: machineName,
	}, nil
}
