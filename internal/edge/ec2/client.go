package ec2

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// operation is one call of the SDK's client, bound to it.
type operation[In, Out any] func(context.Context, *In, ...func(*ec2.Options)) (*Out, error)

// client is the SDK's client reduced to API, as functions. If *ec2.Client itself were
// the API, the linker would keep all of its 700 operations, because the command line
// finds methods by reflection: half of the program and of its memory
// (docs/performance.md).
type client struct {
	createNetworkInterface          operation[ec2.CreateNetworkInterfaceInput, ec2.CreateNetworkInterfaceOutput]
	attachNetworkInterface          operation[ec2.AttachNetworkInterfaceInput, ec2.AttachNetworkInterfaceOutput]
	modifyNetworkInterfaceAttribute operation[ec2.ModifyNetworkInterfaceAttributeInput, ec2.ModifyNetworkInterfaceAttributeOutput]
	assignPrivateIpAddresses        operation[ec2.AssignPrivateIpAddressesInput, ec2.AssignPrivateIpAddressesOutput]
	unassignPrivateIpAddresses      operation[ec2.UnassignPrivateIpAddressesInput, ec2.UnassignPrivateIpAddressesOutput]
	detachNetworkInterface          operation[ec2.DetachNetworkInterfaceInput, ec2.DetachNetworkInterfaceOutput]
	deleteNetworkInterface          operation[ec2.DeleteNetworkInterfaceInput, ec2.DeleteNetworkInterfaceOutput]
	describeNetworkInterfaces       operation[ec2.DescribeNetworkInterfacesInput, ec2.DescribeNetworkInterfacesOutput]
	describeSubnets                 operation[ec2.DescribeSubnetsInput, ec2.DescribeSubnetsOutput]
	describeRouteTables             operation[ec2.DescribeRouteTablesInput, ec2.DescribeRouteTablesOutput]
	describeInstances               operation[ec2.DescribeInstancesInput, ec2.DescribeInstancesOutput]
	describeInstanceTypes           operation[ec2.DescribeInstanceTypesInput, ec2.DescribeInstanceTypesOutput]
}

// newClient reduces c to API.
func newClient(c *ec2.Client) API {
	return client{
		createNetworkInterface:          c.CreateNetworkInterface,
		attachNetworkInterface:          c.AttachNetworkInterface,
		modifyNetworkInterfaceAttribute: c.ModifyNetworkInterfaceAttribute,
		assignPrivateIpAddresses:        c.AssignPrivateIpAddresses,
		unassignPrivateIpAddresses:      c.UnassignPrivateIpAddresses,
		detachNetworkInterface:          c.DetachNetworkInterface,
		deleteNetworkInterface:          c.DeleteNetworkInterface,
		describeNetworkInterfaces:       c.DescribeNetworkInterfaces,
		describeSubnets:                 c.DescribeSubnets,
		describeRouteTables:             c.DescribeRouteTables,
		describeInstances:               c.DescribeInstances,
		describeInstanceTypes:           c.DescribeInstanceTypes,
	}
}

func (c client) CreateNetworkInterface(ctx context.Context, in *ec2.CreateNetworkInterfaceInput, opts ...func(*ec2.Options)) (*ec2.CreateNetworkInterfaceOutput, error) {
	return c.createNetworkInterface(ctx, in, opts...)
}

func (c client) AttachNetworkInterface(ctx context.Context, in *ec2.AttachNetworkInterfaceInput, opts ...func(*ec2.Options)) (*ec2.AttachNetworkInterfaceOutput, error) {
	return c.attachNetworkInterface(ctx, in, opts...)
}

func (c client) ModifyNetworkInterfaceAttribute(ctx context.Context, in *ec2.ModifyNetworkInterfaceAttributeInput, opts ...func(*ec2.Options)) (*ec2.ModifyNetworkInterfaceAttributeOutput, error) {
	return c.modifyNetworkInterfaceAttribute(ctx, in, opts...)
}

func (c client) AssignPrivateIpAddresses(ctx context.Context, in *ec2.AssignPrivateIpAddressesInput, opts ...func(*ec2.Options)) (*ec2.AssignPrivateIpAddressesOutput, error) {
	return c.assignPrivateIpAddresses(ctx, in, opts...)
}

func (c client) UnassignPrivateIpAddresses(ctx context.Context, in *ec2.UnassignPrivateIpAddressesInput, opts ...func(*ec2.Options)) (*ec2.UnassignPrivateIpAddressesOutput, error) {
	return c.unassignPrivateIpAddresses(ctx, in, opts...)
}

func (c client) DetachNetworkInterface(ctx context.Context, in *ec2.DetachNetworkInterfaceInput, opts ...func(*ec2.Options)) (*ec2.DetachNetworkInterfaceOutput, error) {
	return c.detachNetworkInterface(ctx, in, opts...)
}

func (c client) DeleteNetworkInterface(ctx context.Context, in *ec2.DeleteNetworkInterfaceInput, opts ...func(*ec2.Options)) (*ec2.DeleteNetworkInterfaceOutput, error) {
	return c.deleteNetworkInterface(ctx, in, opts...)
}

func (c client) DescribeNetworkInterfaces(ctx context.Context, in *ec2.DescribeNetworkInterfacesInput, opts ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error) {
	return c.describeNetworkInterfaces(ctx, in, opts...)
}

func (c client) DescribeSubnets(ctx context.Context, in *ec2.DescribeSubnetsInput, opts ...func(*ec2.Options)) (*ec2.DescribeSubnetsOutput, error) {
	return c.describeSubnets(ctx, in, opts...)
}

func (c client) DescribeRouteTables(ctx context.Context, in *ec2.DescribeRouteTablesInput, opts ...func(*ec2.Options)) (*ec2.DescribeRouteTablesOutput, error) {
	return c.describeRouteTables(ctx, in, opts...)
}

func (c client) DescribeInstances(ctx context.Context, in *ec2.DescribeInstancesInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error) {
	return c.describeInstances(ctx, in, opts...)
}

func (c client) DescribeInstanceTypes(ctx context.Context, in *ec2.DescribeInstanceTypesInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstanceTypesOutput, error) {
	return c.describeInstanceTypes(ctx, in, opts...)
}
