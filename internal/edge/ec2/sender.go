package ec2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// sender makes the calls that change something and translates their replies. It keeps no
// state of an action: execution decides when to call and what an error means.
type sender struct{ x *Executor }

// change makes one call. object is the interface or subnet that it changes, for error
// texts.
func (s sender) change(ctx context.Context, call, object string, f func(context.Context, API) error) error {
	return s.x.call(ctx, call, object, s.x.o.CallTimeout, func(ctx context.Context) error {
		return f(ctx, s.x.o.Clients.Kept)
	})
}

func (s sender) create(ctx context.Context, a cloud.Action) (cloud.Outcome, error) {
	made, err := s.createInterface(ctx, createRequest(a))
	if err != nil {
		return cloud.Outcome{}, err
	}
	return created(made), nil
}

// createInterface makes an interface and reads it from the reply.
func (s sender) createInterface(ctx context.Context, req *ec2.CreateNetworkInterfaceInput) (Interface, error) {
	var reply *ec2.CreateNetworkInterfaceOutput
	err := s.change(ctx, "CreateNetworkInterface", aws.ToString(req.SubnetId), func(ctx context.Context, api API) (err error) {
		reply, err = api.CreateNetworkInterface(ctx, req)
		return err
	})
	if err != nil {
		return Interface{}, err
	}
	if reply.NetworkInterface == nil {
		return Interface{}, &Error{Action: "CreateNetworkInterface", Err: errors.New("the reply holds no interface")}
	}
	made := readInterface(*reply.NetworkInterface)
	if made.ID == "" || len(made.Unreadable) > 0 {
		return Interface{}, &Error{
			Action: "CreateNetworkInterface", Object: string(made.ID),
			Err: fmt.Errorf("the reply's interface cannot be read: %s", strings.Join(made.Unreadable, "; ")),
		}
	}
	return made, nil
}

func createRequest(a cloud.Action) *ec2.CreateNetworkInterfaceInput {
	tags := []types.Tag{{Key: aws.String(vpc.TagIntent), Value: aws.String(string(a.ID))}}
	for _, k := range slices.Sorted(maps.Keys(a.Tags)) {
		tags = append(tags, types.Tag{Key: aws.String(k), Value: aws.String(a.Tags[k])})
	}
	req := &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(a.Subnet)), ClientToken: aws.String(string(a.ID)),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: tags,
		}},
	}
	for _, g := range a.Groups {
		req.Groups = append(req.Groups, string(g))
	}
	if a.Description != "" {
		req.Description = aws.String(a.Description)
	}
	if a.Count > 0 {
		req.SecondaryPrivateIpAddressCount = aws.Int32(int32(a.Count))
	}
	return req
}

// created is the outcome of a CreateENI that made i.
func created(i Interface) cloud.Outcome {
	return cloud.Outcome{ENI: i.ID, MAC: i.MAC, PrimaryIP: i.Primary, Groups: i.Groups, Addresses: i.Addresses}
}

func (s sender) attach(ctx context.Context, a cloud.Action) (vpc.AttachmentID, error) {
	var reply *ec2.AttachNetworkInterfaceOutput
	err := s.change(ctx, "AttachNetworkInterface", string(a.ENI), func(ctx context.Context, api API) (err error) {
		reply, err = api.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
			InstanceId: aws.String(string(a.Instance)), NetworkInterfaceId: eniID(a),
			DeviceIndex: aws.Int32(int32(a.Device)),
		})
		return err
	})
	if err != nil {
		return "", err
	}
	return vpc.AttachmentID(aws.ToString(reply.AttachmentId)), nil
}

// deleteOnTermination has EC2 delete the interface with the instance that it is attached
// to by id.
func (s sender) deleteOnTermination(ctx context.Context, eni vpc.ENIID, id vpc.AttachmentID) error {
	return s.change(ctx, "ModifyNetworkInterfaceAttribute", string(eni), func(ctx context.Context, api API) error {
		_, err := api.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: aws.String(string(eni)),
			Attachment: &types.NetworkInterfaceAttachmentChanges{
				AttachmentId: aws.String(string(id)), DeleteOnTermination: aws.Bool(true),
			},
		})
		return err
	})
}

func (s sender) assign(ctx context.Context, a cloud.Action) (cloud.Outcome, error) {
	var reply *ec2.AssignPrivateIpAddressesOutput
	err := s.change(ctx, "AssignPrivateIpAddresses", string(a.ENI), func(ctx context.Context, api API) (err error) {
		reply, err = api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId:             eniID(a),
			SecondaryPrivateIpAddressCount: aws.Int32(int32(a.Count)),
		})
		return err
	})
	if err != nil {
		return cloud.Outcome{}, err
	}
	var out cloud.Outcome
	for _, assigned := range reply.AssignedPrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(assigned.PrivateIpAddress))
		if err != nil {
			return cloud.Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(a.ENI), Err: err}
		}
		out.Addresses = append(out.Addresses, addr)
	}
	if len(out.Addresses) == 0 {
		return cloud.Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(a.ENI), Err: errors.New("the reply holds no address")}
	}
	return out, nil
}

// restore assigns the given addresses. EC2 refuses those that another interface has,
// because AllowReassignment is off.
func (s sender) restore(ctx context.Context, a cloud.Action) error {
	return s.change(ctx, "AssignPrivateIpAddresses", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: eniID(a), PrivateIpAddresses: texts(a.Addresses),
		})
		return err
	})
}

func (s sender) unassign(ctx context.Context, a cloud.Action) error {
	return s.change(ctx, "UnassignPrivateIpAddresses", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.UnassignPrivateIpAddresses(ctx, &ec2.UnassignPrivateIpAddressesInput{
			NetworkInterfaceId: eniID(a), PrivateIpAddresses: texts(a.Addresses),
		})
		return err
	})
}

func (s sender) detach(ctx context.Context, a cloud.Action) error {
	return s.change(ctx, "DetachNetworkInterface", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.DetachNetworkInterface(ctx, &ec2.DetachNetworkInterfaceInput{
			AttachmentId: aws.String(string(a.Attachment)),
		})
		return err
	})
}

func (s sender) delete(ctx context.Context, a cloud.Action) error {
	return s.change(ctx, "DeleteNetworkInterface", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: eniID(a)})
		return err
	})
}

func eniID(a cloud.Action) *string { return aws.String(string(a.ENI)) }

// texts are addresses in EC2's format.
func texts(list []netip.Addr) []string {
	out := make([]string, len(list))
	for i, a := range list {
		out[i] = a.String()
	}
	return out
}
