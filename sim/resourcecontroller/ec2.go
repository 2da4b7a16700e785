package resourcecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
)

// instance is what is read of a node's instance.
type instance struct {
	id, kind, subnet, cidr string
	groups                 []string // of the primary interface
	devices                []int    // device indexes in use
	trunk                  string   // empty without one
}

func (c *Controller) describeInstance(ctx context.Context, id string) (out instance, err error) {
	reply, err := c.EC2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	if err != nil {
		return out, fmt.Errorf("describe instance %s: %w", id, err)
	}
	if len(reply.Reservations) == 0 || len(reply.Reservations[0].Instances) == 0 {
		return out, fmt.Errorf("instance %s is not described", id)
	}
	i := reply.Reservations[0].Instances[0]
	out = instance{id: id, kind: string(i.InstanceType), subnet: aws.ToString(i.SubnetId)}
	for _, n := range i.NetworkInterfaces {
		device := int(aws.ToInt32(n.Attachment.DeviceIndex))
		out.devices = append(out.devices, device)
		if device == 0 {
			for _, g := range n.Groups {
				out.groups = append(out.groups, aws.ToString(g.GroupId))
			}
		}
		if aws.ToString(n.InterfaceType) == "trunk" {
			out.trunk = aws.ToString(n.NetworkInterfaceId)
		}
	}
	subnets, err := c.EC2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{out.subnet}})
	if err != nil {
		return out, fmt.Errorf("describe subnet %s: %w", out.subnet, err)
	}
	if len(subnets.Subnets) == 0 {
		return out, fmt.Errorf("subnet %s is not described", out.subnet)
	}
	out.cidr = aws.ToString(subnets.Subnets[0].CidrBlock)
	return out, nil
}

// create makes an interface, and permits its attachment.
func (c *Controller) create(ctx context.Context, i instance, groups []string, description string, kind types.NetworkInterfaceCreationType, tags map[string]string) (*types.NetworkInterface, error) {
	list := []types.Tag{
		{Key: aws.String("eks:eni:owner"), Value: aws.String("eks-vpc-resource-controller")},
		{Key: aws.String("kubernetes.io/cluster/" + c.Cluster), Value: aws.String("owned")},
		{Key: aws.String("node.k8s.amazonaws.com/instance_id"), Value: aws.String(i.id)},
	}
	for key, value := range tags {
		list = append(list, types.Tag{Key: aws.String(key), Value: aws.String(value)})
	}
	made, err := c.EC2.CreateNetworkInterface(ctx, &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(i.subnet), Groups: groups, Description: aws.String(description), InterfaceType: kind,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: list}},
	})
	if err != nil {
		return nil, err
	}
	_, err = c.EC2.CreateNetworkInterfacePermission(ctx, &ec2.CreateNetworkInterfacePermissionInput{
		NetworkInterfaceId: made.NetworkInterface.NetworkInterfaceId, Permission: types.InterfacePermissionTypeInstanceAttach, AwsAccountId: aws.String(c.Account),
	})
	return made.NetworkInterface, err
}

// makeTrunk attaches a trunk at the highest free device index: AWS's agent takes the lowest.
func (c *Controller) makeTrunk(ctx context.Context, i instance) (string, error) {
	device := c.Devices(i.kind) - 1
	for device > 0 && slices.Contains(i.devices, device) {
		device--
	}
	if device <= 0 {
		return "", errors.New("no device index is free")
	}
	made, err := c.create(ctx, i, i.groups, "aws-k8s-trunk-eni", types.NetworkInterfaceCreationTypeTrunk, nil)
	if err != nil {
		return "", err
	}
	attached, err := c.EC2.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
		InstanceId: aws.String(i.id), NetworkInterfaceId: made.NetworkInterfaceId, DeviceIndex: aws.Int32(int32(device)),
	})
	if err != nil {
		return "", err
	}
	_, err = c.EC2.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: made.NetworkInterfaceId,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: attached.AttachmentId, DeleteOnTermination: aws.Bool(true)},
	})
	return aws.ToString(made.NetworkInterfaceId), err
}

func (c *Controller) makeBranch(ctx context.Context, t *trunk, vlan int, groups []string) (*branch, details, error) {
	made, err := c.create(ctx, t.instance, groups, "aws-k8s-branch-eni", "", map[string]string{
		"vpcresources.k8s.aws/vlan-id": fmt.Sprint(vlan), "vpcresources.k8s.aws/trunk-eni-id": t.eni,
	})
	if err != nil {
		return nil, details{}, err
	}
	reply, err := c.EC2.AssociateTrunkInterface(ctx, &ec2.AssociateTrunkInterfaceInput{
		TrunkInterfaceId: aws.String(t.eni), BranchInterfaceId: made.NetworkInterfaceId, VlanId: aws.Int32(int32(vlan)),
	})
	if err != nil {
		return nil, details{}, err
	}
	b := &branch{eni: aws.ToString(made.NetworkInterfaceId), association: aws.ToString(reply.InterfaceAssociation.AssociationId), vlan: vlan}
	return b, details{
		ID: b.eni, MAC: aws.ToString(made.MacAddress), IPv4: aws.ToString(made.PrivateIpAddress), VLAN: vlan,
		Subnet: t.instance.cidr, Association: b.association,
	}, nil
}

// deleteBranch ends a branch. That it is gone is no error.
func (c *Controller) deleteBranch(ctx context.Context, b *branch) error {
	_, err := c.EC2.DisassociateTrunkInterface(ctx, &ec2.DisassociateTrunkInterfaceInput{AssociationId: aws.String(b.association)})
	if err != nil && code(err) != "InvalidAssociationID.NotFound" {
		return err
	}
	_, err = c.EC2.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(b.eni)})
	if err != nil && code(err) != "InvalidNetworkInterfaceID.NotFound" {
		return err
	}
	return nil
}

// code is the code of an error of EC2; empty for another error.
func code(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}
