package resourcecontroller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"golang.org/x/time/rate"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// calls are the calls of EC2.
type calls struct {
	user, service    *ec2.Client
	cluster, account string
}

func newCalls(o Options) calls {
	c := calls{user: newClient(o.User), cluster: o.Cluster, account: o.Account}
	c.service = c.user
	if o.Service != nil {
		c.service = newClient(*o.Service)
	}
	return c
}

// newClient returns a client with a rate of its own.
func newClient(config aws.Config) *ec2.Client {
	return ec2.NewFromConfig(config, func(o *ec2.Options) {
		o.HTTPClient = paced{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: podWorkers}}, rate.NewLimiter(ec2Rate, ec2Burst)}
	})
}

// paced sends requests at the rate of a bucket.
type paced struct {
	next   aws.HTTPClient
	bucket *rate.Limiter
}

// Do implements aws.HTTPClient.
func (p paced) Do(r *http.Request) (*http.Response, error) {
	if err := p.bucket.Wait(r.Context()); err != nil {
		return nil, err
	}
	return p.next.Do(r)
}

// instance is what is read of a node's instance.
type instance struct {
	id, kind, subnet, cidr string
	groups                 []string // of the primary interface
	devices                []int    // device indexes in use
	trunk                  string   // empty without one
}

func (c calls) describe(ctx context.Context, id string) (out instance, err error) {
	reply, err := c.user.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
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
	subnets, err := c.user.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{out.subnet}})
	if err != nil {
		return out, fmt.Errorf("describe subnet %s: %w", out.subnet, err)
	}
	if len(subnets.Subnets) == 0 {
		return out, fmt.Errorf("subnet %s is not described", out.subnet)
	}
	out.cidr = aws.ToString(subnets.Subnets[0].CidrBlock)
	return out, nil
}

// create makes an interface, and permits its attachment. An interface that must not be attached is
// returned with the error.
func (c calls) create(ctx context.Context, i instance, groups []string, description string, kind types.NetworkInterfaceCreationType, tags map[string]string) (*types.NetworkInterface, error) {
	list := []types.Tag{
		{Key: aws.String(vpc.TagOwner), Value: aws.String(vpc.OwnerResourceController)},
		{Key: aws.String(vpc.TagClusterOfPfx + c.cluster), Value: aws.String("owned")},
		{Key: aws.String(vpc.TagInstanceID), Value: aws.String(i.id)},
	}
	for key, value := range tags {
		list = append(list, types.Tag{Key: aws.String(key), Value: aws.String(value)})
	}
	made, err := c.user.CreateNetworkInterface(ctx, &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(i.subnet), Groups: groups, Description: aws.String(description), InterfaceType: kind,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: list}},
	})
	if err != nil {
		return nil, err
	}
	_, err = c.user.CreateNetworkInterfacePermission(ctx, &ec2.CreateNetworkInterfacePermissionInput{
		NetworkInterfaceId: made.NetworkInterface.NetworkInterfaceId, Permission: types.InterfacePermissionTypeInstanceAttach, AwsAccountId: aws.String(c.account),
	})
	return made.NetworkInterface, err
}

// makeTrunk attaches a trunk at the highest free device index: AWS's agent takes the lowest. One that
// cannot be attached is deleted.
func (c calls) makeTrunk(ctx context.Context, i instance, devices int) (id string, err error) {
	device := devices - 1
	for device > 0 && slices.Contains(i.devices, device) {
		device--
	}
	if device <= 0 {
		return "", errors.New("no device index is free")
	}
	made, err := c.create(ctx, i, i.groups, vpc.DescriptionTrunk, types.NetworkInterfaceCreationTypeTrunk, nil)
	if made != nil {
		id = aws.ToString(made.NetworkInterfaceId)
	}
	if err == nil {
		err = c.attach(ctx, i.id, id, device)
	}
	if err != nil && id != "" {
		_, gone := c.user.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)})
		err = errors.Join(err, gone)
	}
	return id, err
}

func (c calls) attach(ctx context.Context, instance, id string, device int) error {
	attached, err := c.user.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
		InstanceId: aws.String(instance), NetworkInterfaceId: aws.String(id), DeviceIndex: aws.Int32(int32(device)),
	})
	if err != nil {
		return err
	}
	if _, err := c.user.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: aws.String(id),
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: attached.AttachmentId, DeleteOnTermination: aws.Bool(true)},
	}); err != nil {
		return err
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for range 60 {
		reply, err := c.user.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}})
		if err != nil {
			return err
		}
		if a := reply.NetworkInterfaces[0].Attachment; a != nil && a.Status == types.AttachmentStatusAttached {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return fmt.Errorf("%s is not attached", id)
}

// makeBranch makes a branch by three calls. One that could not be associated is returned with the
// error.
func (c calls) makeBranch(ctx context.Context, i instance, vlan int, groups []string) (*branch, error) {
	made, err := c.create(ctx, i, groups, vpc.DescriptionBranch, "", map[string]string{
		vpc.TagTrunkVLAN: strconv.Itoa(vlan), vpc.TagTrunkENI: i.trunk,
	})
	if made == nil {
		return nil, err
	}
	b := &branch{details: details{
		ID: aws.ToString(made.NetworkInterfaceId), MAC: aws.ToString(made.MacAddress), IPv4: aws.ToString(made.PrivateIpAddress), VLAN: vlan, Subnet: i.cidr,
	}}
	if err != nil {
		return b, err
	}
	reply, err := c.service.AssociateTrunkInterface(ctx, &ec2.AssociateTrunkInterfaceInput{
		TrunkInterfaceId: aws.String(i.trunk), BranchInterfaceId: made.NetworkInterfaceId, VlanId: aws.Int32(int32(vlan)),
	})
	if err != nil {
		return b, err
	}
	b.Association = aws.ToString(reply.InterfaceAssociation.AssociationId)
	return b, nil
}

// deleteBranch ends a branch. That it is gone is no error.
func (c calls) deleteBranch(ctx context.Context, b *branch) error {
	if b.Association != "" {
		_, err := c.service.DisassociateTrunkInterface(ctx, &ec2.DisassociateTrunkInterfaceInput{AssociationId: aws.String(b.Association)})
		if err != nil && code(err) != "InvalidAssociationID.NotFound" {
			return err
		}
	}
	_, err := c.user.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(b.ID)})
	if err != nil && code(err) != "InvalidNetworkInterfaceID.NotFound" {
		return err
	}
	return nil
}

// branchesOf finds the branches of a trunk, with their VLANs, by their tags and the subnet.
func (c calls) branchesOf(ctx context.Context, i instance) (map[string]int, error) {
	found := map[string]int{}
	pages := ec2.NewDescribeNetworkInterfacesPaginator(c.user, &ec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{
		{Name: aws.String("tag:" + vpc.TagTrunkENI), Values: []string{i.trunk}}, {Name: aws.String("subnet-id"), Values: []string{i.subnet}},
	}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe branches of %s: %w", i.trunk, err)
		}
		for _, n := range page.NetworkInterfaces {
			for _, tag := range n.TagSet {
				if aws.ToString(tag.Key) != vpc.TagTrunkVLAN {
					continue
				}
				vlan, err := strconv.Atoi(aws.ToString(tag.Value))
				if err != nil {
					return nil, fmt.Errorf("VLAN of %s: %w", aws.ToString(n.NetworkInterfaceId), err)
				}
				found[aws.ToString(n.NetworkInterfaceId)] = vlan
			}
		}
	}
	return found, nil
}

// associations are those of all branches, by their ids.
func (c calls) associations(ctx context.Context) (map[string]string, error) {
	found := map[string]string{}
	pages := ec2.NewDescribeTrunkInterfaceAssociationsPaginator(c.service, &ec2.DescribeTrunkInterfaceAssociationsInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe associations: %w", err)
		}
		for _, a := range page.InterfaceAssociations {
			found[aws.ToString(a.BranchInterfaceId)] = aws.ToString(a.AssociationId)
		}
	}
	return found, nil
}

// code is the code of an error of EC2; empty for another error.
func code(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}
