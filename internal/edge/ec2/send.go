package ec2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// send makes the action's call.
func (e *execution) send(ctx context.Context) (cloud.Outcome, error) {
	switch e.action.Kind {
	case cloud.CreateENI:
		return e.create(ctx)
	case cloud.Attach:
		return e.attach(ctx)
	case cloud.AssignAddresses:
		return e.assign(ctx)
	case cloud.RestoreAddresses:
		return cloud.Outcome{}, e.restore(ctx)
	case cloud.UnassignAddresses:
		return cloud.Outcome{}, e.unassign(ctx)
	case cloud.Detach:
		return cloud.Outcome{}, e.detach(ctx)
	case cloud.DeleteENI:
		return cloud.Outcome{}, e.delete(ctx)
	case cloud.SetUp: // Validate rejects it
	}
	return cloud.Outcome{}, fmt.Errorf("%s: %w", e.action, cloud.ErrUnsupported)
}

// change makes one call that changes something.
func (e *execution) change(ctx context.Context, call string, f func(context.Context, API) error) error {
	return e.x.call(ctx, call, e.object(), e.x.o.CallTimeout, func(ctx context.Context) error {
		return f(ctx, e.x.o.Clients.Kept)
	})
}

// object is the interface or subnet of the action, for error texts.
func (e *execution) object() string {
	if e.action.ENI != "" {
		return string(e.action.ENI)
	}
	return string(e.action.Subnet)
}

func (e *execution) eni() *string { return aws.String(string(e.action.ENI)) }

func (e *execution) create(ctx context.Context) (cloud.Outcome, error) {
	tags := []types.Tag{{Key: aws.String(vpc.TagIntent), Value: aws.String(string(e.action.ID))}}
	for _, k := range slices.Sorted(maps.Keys(e.action.Tags)) {
		tags = append(tags, types.Tag{Key: aws.String(k), Value: aws.String(e.action.Tags[k])})
	}
	req := &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(e.action.Subnet)), ClientToken: aws.String(string(e.action.ID)),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: tags,
		}},
	}
	for _, g := range e.action.Groups {
		req.Groups = append(req.Groups, string(g))
	}
	if e.action.Description != "" {
		req.Description = aws.String(e.action.Description)
	}
	if e.action.Count > 0 {
		req.SecondaryPrivateIpAddressCount = aws.Int32(int32(e.action.Count))
	}
	var reply *ec2.CreateNetworkInterfaceOutput
	err := e.change(ctx, "CreateNetworkInterface", func(ctx context.Context, api API) (err error) {
		reply, err = api.CreateNetworkInterface(ctx, req)
		return err
	})
	if err != nil {
		return cloud.Outcome{}, err
	}
	if reply.NetworkInterface == nil {
		return cloud.Outcome{}, &Error{Action: "CreateNetworkInterface", Err: errors.New("the reply holds no interface")}
	}
	made, err := readInterface(*reply.NetworkInterface)
	if err != nil {
		return cloud.Outcome{}, err
	}
	return created(made), nil
}

// created is the outcome of a CreateENI that made i.
func created(i Interface) cloud.Outcome {
	return cloud.Outcome{ENI: i.ID, MAC: i.MAC, PrimaryIP: i.Primary, Groups: i.Groups, Addresses: i.Addresses}
}

// attach attaches the interface and sets DeleteOnTermination.
func (e *execution) attach(ctx context.Context) (cloud.Outcome, error) {
	var reply *ec2.AttachNetworkInterfaceOutput
	err := e.change(ctx, "AttachNetworkInterface", func(ctx context.Context, api API) (err error) {
		reply, err = api.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
			InstanceId: aws.String(string(e.action.Instance)), NetworkInterfaceId: e.eni(),
			DeviceIndex: aws.Int32(int32(e.action.Device)),
		})
		return err
	})
	if err != nil {
		return cloud.Outcome{}, err
	}
	e.open = true // attached; not yet deleted with the instance
	return e.deleteWithInstance(ctx, vpc.AttachmentID(aws.ToString(reply.AttachmentId)), e.action.Device)
}

// deleteWithInstance sets DeleteOnTermination of the attachment. A refusal is only a
// warning, because the interface is attached.
func (e *execution) deleteWithInstance(ctx context.Context, id vpc.AttachmentID, device int) (cloud.Outcome, error) {
	out := cloud.Outcome{Attachment: id, Device: device}
	for n := 0; ; n++ {
		err := e.change(ctx, "ModifyNetworkInterfaceAttribute", func(ctx context.Context, api API) error {
			_, err := api.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
				NetworkInterfaceId: e.eni(),
				Attachment: &types.NetworkInterfaceAttachmentChanges{
					AttachmentId: aws.String(string(id)), DeleteOnTermination: aws.Bool(true),
				},
			})
			return err
		})
		switch {
		case err == nil:
			return out, nil
		case cancelled(ctx):
			return cloud.Outcome{}, err
		case !isAmbiguous(err) && !e.transient(err) || n+1 >= e.x.o.Tries:
			out.Warning = fmt.Sprintf("%s will leak when its instance is terminated, until the controller deletes it: %v", e.action.ENI, err)
			return out, nil
		}
		if err := e.x.pause(ctx, n); err != nil {
			return cloud.Outcome{}, &Error{Action: "ModifyNetworkInterfaceAttribute", Object: string(e.action.ENI), Err: err}
		}
	}
}

func (e *execution) assign(ctx context.Context) (cloud.Outcome, error) {
	var reply *ec2.AssignPrivateIpAddressesOutput
	err := e.change(ctx, "AssignPrivateIpAddresses", func(ctx context.Context, api API) (err error) {
		reply, err = api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId:             e.eni(),
			SecondaryPrivateIpAddressCount: aws.Int32(int32(e.action.Count)),
		})
		return err
	})
	if err != nil {
		return cloud.Outcome{}, err
	}
	var out cloud.Outcome
	for _, a := range reply.AssignedPrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		if err != nil {
			return cloud.Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(e.action.ENI), Err: err}
		}
		out.Addresses = append(out.Addresses, addr)
	}
	if len(out.Addresses) == 0 {
		return cloud.Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(e.action.ENI), Err: errors.New("the reply holds no address")}
	}
	return out, nil
}

// restore assigns the given addresses. EC2 refuses those that another interface has,
// because AllowReassignment is off.
func (e *execution) restore(ctx context.Context) error {
	return e.change(ctx, "AssignPrivateIpAddresses", func(ctx context.Context, api API) error {
		_, err := api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: e.eni(), PrivateIpAddresses: e.addresses(),
		})
		return err
	})
}

// addresses are the action's addresses in EC2's format.
func (e *execution) addresses() []string {
	out := make([]string, len(e.action.Addresses))
	for i, a := range e.action.Addresses {
		out[i] = a.String()
	}
	return out
}

func (e *execution) unassign(ctx context.Context) error {
	return e.change(ctx, "UnassignPrivateIpAddresses", func(ctx context.Context, api API) error {
		_, err := api.UnassignPrivateIpAddresses(ctx, &ec2.UnassignPrivateIpAddressesInput{
			NetworkInterfaceId: e.eni(), PrivateIpAddresses: e.addresses(),
		})
		return err
	})
}

func (e *execution) detach(ctx context.Context) error {
	return e.change(ctx, "DetachNetworkInterface", func(ctx context.Context, api API) error {
		_, err := api.DetachNetworkInterface(ctx, &ec2.DetachNetworkInterfaceInput{
			AttachmentId: aws.String(string(e.action.Attachment)),
		})
		return err
	})
}

func (e *execution) delete(ctx context.Context) error {
	return e.change(ctx, "DeleteNetworkInterface", func(ctx context.Context, api API) error {
		_, err := api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.eni()})
		return err
	})
}
