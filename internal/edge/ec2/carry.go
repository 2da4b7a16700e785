package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// carry is one intent being carried out.
type carry struct {
	x       *Executor
	in      Intent
	resumed bool // taken from the journal of an earlier process
	started time.Time
	// open: a call may have had its effect unseen.
	open bool
	// doubt: EC2 refused a call in a way that may mean that its effect is there.
	doubt bool
	// denied is the refusal by policy that made the doubt; see vanished.
	denied *Error
}

// run calls, looks and repeats until it is known what happened.
func (c *carry) run(ctx context.Context) (Outcome, error) {
	c.open = c.resumed
	for n := 0; ; n++ {
		if n > 0 {
			if err := c.x.pause(ctx, n-1); err != nil {
				return c.interrupted(err)
			}
		}
		if c.mustLook() {
			out, known, err := c.look(ctx)
			switch {
			case known:
				return out, c.settled(err)
			case err != nil && cancelled(ctx):
				return c.interrupted(err)
			case err != nil:
				continue
			}
		}
		if err := c.x.brake.allow(c.in.Kind, time.Now()); err != nil {
			if c.open && c.in.Kind == Create {
				continue // only the call itself can tell
			}
			return c.interrupted(err)
		}
		out, err := c.attempt(ctx)
		if err == nil {
			out.Done = true
			return out, nil
		}
		if done, out, err := c.judge(ctx, err, n); done {
			return out, err
		}
	}
}

// mustLook reports whether EC2's state is to be read before the next call. To take
// something away again does no harm, and the answer is the truth of the moment,
// which a describe is not.
func (c *carry) mustLook() bool { return c.doubt || c.open && !c.in.Kind.frees() }

// interrupted ends a run whose context ended or that a brake stopped. What it, or an
// earlier process, began and did not see the end of is open: nobody may take it for
// undone.
func (c *carry) interrupted(err error) (Outcome, error) {
	if c.open || c.resumed {
		return Outcome{}, fmt.Errorf("%s: %w: %w", c.in, ErrOpen, err)
	}
	return Outcome{}, fmt.Errorf("%s: %w", c.in, err)
}

// judge decides what an error of an attempt means: the end (done), or that the
// next round looks or calls again.
func (c *carry) judge(ctx context.Context, err error, n int) (bool, Outcome, error) {
	gone := IsNotFound(err)
	switch {
	case errors.Is(err, errNotSent):
		out, err := c.interrupted(err)
		return true, out, err
	case isAmbiguous(err):
		c.open = true
		if cancelled(ctx) {
			out, err := c.interrupted(err)
			return true, out, err
		}
		return false, Outcome{}, nil
	case gone && c.in.Kind.frees():
		return true, Outcome{Done: true}, nil
	case c.passing(err):
		if n+1 < c.x.o.Tries || c.open && c.in.Kind == Create {
			return false, Outcome{}, nil
		}
	case c.doubtful(err):
		if n+1 < c.x.o.Tries {
			c.doubt = true
			if c.vanished(err) {
				errors.As(err, &c.denied)
			}
			return false, Outcome{}, nil
		}
	}
	if c.open && c.in.Kind.frees() { // an earlier call may have had its effect
		out, err := c.interrupted(err)
		return true, out, err
	}
	return true, Outcome{}, err
}

// passing reports whether err goes away by waiting, and nothing happened.
func (c *carry) passing(err error) bool {
	switch {
	case IsThrottled(err):
		return true
	case IsNotFound(err): // what was just made may not be known everywhere
		return time.Since(c.started) < c.x.o.Window
	case IsInUse(err) || Code(err) == "InvalidParameterValue": // on its way off the instance
		return c.in.Kind == Delete
	}
	return false
}

// doubtful reports whether err may mean that the effect is there already.
func (c *carry) doubtful(err error) bool {
	switch c.in.Kind {
	case Attach, Detach:
		return IsInUse(err) || Code(err) == "InvalidParameterValue" || c.vanished(err)
	case Unassign, Restore:
		return Code(err) == "InvalidParameterValue"
	case Delete:
		return c.vanished(err)
	case Create, Assign:
	}
	return false
}

// attempt makes the call.
func (c *carry) attempt(ctx context.Context) (Outcome, error) {
	switch c.in.Kind {
	case Create:
		return c.create(ctx)
	case Attach:
		return c.attach(ctx)
	case Assign:
		return c.assign(ctx)
	case Restore:
		return Outcome{Addresses: c.in.Addresses}, c.restore(ctx)
	case Unassign:
		return Outcome{}, c.unassign(ctx)
	case Detach:
		return Outcome{}, c.detach(ctx)
	case Delete:
		return Outcome{}, c.mutate(ctx, "DeleteNetworkInterface", func(ctx context.Context, api API) error {
			_, err := api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(string(c.in.ENI))})
			return err
		})
	}
	return Outcome{}, fmt.Errorf("%s: %w", c.in, ErrUnsupported)
}

func (c *carry) mutate(ctx context.Context, action string, f func(context.Context, API) error) error {
	return c.x.call(ctx, action, object(c.in), c.x.o.CallTimeout, func(ctx context.Context) error {
		return f(ctx, c.x.o.Clients.Kept)
	})
}

func (c *carry) create(ctx context.Context) (Outcome, error) {
	tags := []types.Tag{{Key: aws.String(vpc.TagIntent), Value: aws.String(c.in.ID)}}
	for _, k := range sorted(c.in.Tags) {
		tags = append(tags, types.Tag{Key: aws.String(k), Value: aws.String(c.in.Tags[k])})
	}
	req := &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(c.in.Subnet)), Groups: ids(c.in.Groups),
		ClientToken: aws.String(c.in.ID),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: tags,
		}},
	}
	if c.in.Description != "" {
		req.Description = aws.String(c.in.Description)
	}
	if c.in.Count > 0 {
		req.SecondaryPrivateIpAddressCount = aws.Int32(int32(c.in.Count))
	}
	var reply *ec2.CreateNetworkInterfaceOutput
	err := c.mutate(ctx, "CreateNetworkInterface", func(ctx context.Context, api API) (err error) {
		reply, err = api.CreateNetworkInterface(ctx, req)
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	if reply.NetworkInterface == nil {
		return Outcome{}, &Error{Action: "CreateNetworkInterface", Err: errors.New("the reply holds no interface")}
	}
	eni, err := readInterface(*reply.NetworkInterface)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Interface: &eni, Addresses: eni.Addresses}, nil
}

// attach puts the interface on the instance and has it deleted with it.
func (c *carry) attach(ctx context.Context) (Outcome, error) {
	var reply *ec2.AttachNetworkInterfaceOutput
	err := c.mutate(ctx, "AttachNetworkInterface", func(ctx context.Context, api API) (err error) {
		req := &ec2.AttachNetworkInterfaceInput{
			InstanceId: aws.String(string(c.in.Instance)), NetworkInterfaceId: aws.String(string(c.in.ENI)),
			DeviceIndex: aws.Int32(int32(c.in.Device)),
		}
		if c.in.Card > 0 {
			req.NetworkCardIndex = aws.Int32(int32(c.in.Card))
		}
		reply, err = api.AttachNetworkInterface(ctx, req)
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	c.open = true // attached, not yet tied to the instance's life
	return c.tie(ctx, vpc.AttachmentID(aws.ToString(reply.AttachmentId)), c.in.Device)
}

// tie has the interface deleted with its instance. That it cannot be is a warning:
// the attachment is there.
func (c *carry) tie(ctx context.Context, id vpc.AttachmentID, device int) (Outcome, error) {
	out := Outcome{Done: true, Attachment: id, Device: device}
	for n := 0; ; n++ {
		err := c.mutate(ctx, "ModifyNetworkInterfaceAttribute", func(ctx context.Context, api API) error {
			_, err := api.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
				NetworkInterfaceId: aws.String(string(c.in.ENI)),
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
			return Outcome{}, err
		case !isAmbiguous(err) && !c.passing(err) || n+1 >= c.x.o.Tries:
			out.Warning = fmt.Sprintf("%s outlives its instance until it is collected: %v", c.in.ENI, err)
			return out, nil
		}
		if err := c.x.pause(ctx, n); err != nil {
			return Outcome{}, &Error{Action: "ModifyNetworkInterfaceAttribute", Object: string(c.in.ENI), Err: err}
		}
	}
}

func (c *carry) assign(ctx context.Context) (Outcome, error) {
	var reply *ec2.AssignPrivateIpAddressesOutput
	err := c.mutate(ctx, "AssignPrivateIpAddresses", func(ctx context.Context, api API) (err error) {
		reply, err = api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId:             aws.String(string(c.in.ENI)),
			SecondaryPrivateIpAddressCount: aws.Int32(int32(c.in.Count)),
		})
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	var out Outcome
	for _, a := range reply.AssignedPrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		if err != nil {
			return Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(c.in.ENI), Err: err}
		}
		out.Addresses = append(out.Addresses, addr)
	}
	if len(out.Addresses) == 0 {
		return Outcome{}, &Error{Action: "AssignPrivateIpAddresses", Object: string(c.in.ENI), Err: errors.New("the reply holds no address")}
	}
	return out, nil
}

// restore claims addresses by name. EC2 refuses those that another interface has:
// AllowReassignment stays off.
func (c *carry) restore(ctx context.Context) error {
	return c.mutate(ctx, "AssignPrivateIpAddresses", func(ctx context.Context, api API) error {
		_, err := api.AssignPrivateIpAddresses(ctx, &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: aws.String(string(c.in.ENI)), PrivateIpAddresses: c.addresses(),
		})
		return err
	})
}

// addresses are the intent's, as EC2 writes them.
func (c *carry) addresses() []string {
	out := make([]string, len(c.in.Addresses))
	for i, a := range c.in.Addresses {
		out[i] = a.String()
	}
	return out
}

func (c *carry) unassign(ctx context.Context) error {
	addrs := c.addresses()
	return c.mutate(ctx, "UnassignPrivateIpAddresses", func(ctx context.Context, api API) error {
		_, err := api.UnassignPrivateIpAddresses(ctx, &ec2.UnassignPrivateIpAddressesInput{
			NetworkInterfaceId: aws.String(string(c.in.ENI)), PrivateIpAddresses: addrs,
		})
		return err
	})
}

func (c *carry) detach(ctx context.Context) error {
	return c.mutate(ctx, "DetachNetworkInterface", func(ctx context.Context, api API) error {
		_, err := api.DetachNetworkInterface(ctx, &ec2.DetachNetworkInterfaceInput{
			AttachmentId: aws.String(string(c.in.Attachment)),
		})
		return err
	})
}

// look asks EC2 whether the effect is there. known with a nil error: it is, or it
// is not needed any more; known with an error: it is not and will not be. Not
// known and no error: call (again).
//
// A describe may tell of the past, by less than Options.Window. That something is
// there is believed at once; that it is not, only of a describe so late that it
// cannot be older than the intent.
func (c *carry) look(ctx context.Context) (out Outcome, known bool, err error) {
	c.doubt = false
	switch c.in.Kind {
	case Create:
		return c.lookCreate(ctx)
	case Assign:
		return c.lookAssign(ctx)
	case Attach, Restore, Unassign, Detach, Delete:
	}
	late := time.Since(c.started) >= c.x.o.Window
	eni, err := c.x.Interface(ctx, c.in.ENI)
	switch {
	case IsNotFound(err):
		return c.lookMissing(err, late)
	case err != nil:
		return Outcome{}, false, err
	}
	return c.lookAt(ctx, eni, late)
}

// lookAt looks for the effect on the interface that EC2 shows.
func (c *carry) lookAt(ctx context.Context, eni Interface, late bool) (out Outcome, known bool, err error) {
	switch c.in.Kind {
	case Attach:
		if out, known, err := c.lookAttach(ctx, eni); known || err != nil {
			return out, known, err
		}
	case Restore:
		c.in.Addresses = slices.DeleteFunc(slices.Clone(c.in.Addresses), func(a netip.Addr) bool {
			return slices.Contains(eni.Addresses, a)
		})
		if len(c.in.Addresses) == 0 {
			return Outcome{Done: true}, true, nil
		}
	case Unassign:
		if c.unassigned(eni) && late {
			return Outcome{Done: true}, true, nil
		}
	case Detach:
		if c.detached(eni) && late {
			return Outcome{Done: true}, true, nil
		}
	case Create, Assign, Delete:
	}
	c.open = false
	if c.denied != nil && late { // it is there, and the refusal is about that
		return Outcome{}, true, c.denied
	}
	return Outcome{}, false, nil
}

// lookMissing handles an interface that EC2 does not show. That EC2 shows it no
// more, and refuses us as it refuses what is not there, after a call of ours that
// may have taken it away, is proof enough at once.
func (c *carry) lookMissing(err error, late bool) (Outcome, bool, error) {
	expected := c.denied != nil && (c.open || c.resumed)
	switch {
	case !late && !expected:
		return Outcome{}, false, nil
	case c.in.Kind.frees():
		return Outcome{Done: true}, true, nil
	}
	return Outcome{}, true, err
}

// unassigned reports whether the interface has none of the intent's addresses. If
// it has some, the intent is narrowed to them.
func (c *carry) unassigned(eni Interface) bool {
	left := slices.DeleteFunc(slices.Clone(c.in.Addresses), func(a netip.Addr) bool {
		return !slices.Contains(eni.Addresses, a)
	})
	if len(left) > 0 {
		c.in.Addresses = left
	}
	return len(left) == 0
}

// detached reports whether the intent's attachment is gone or on its way.
func (c *carry) detached(eni Interface) bool {
	a := eni.Attachment
	return a == nil || a.ID != c.in.Attachment || a.Status == "detaching"
}

// lookAttach completes an attachment that is there.
func (c *carry) lookAttach(ctx context.Context, eni Interface) (Outcome, bool, error) {
	if !eni.On(c.in.Instance) {
		return c.elsewhere(eni)
	}
	if eni.Attachment.DeleteOnTermination {
		return Outcome{Done: true, Attachment: eni.Attachment.ID, Device: eni.Attachment.Device}, true, nil
	}
	c.open = true // attached, not yet tied to the instance's life
	out, err := c.tie(ctx, eni.Attachment.ID, eni.Attachment.Device)
	return out, err == nil, err
}

// elsewhere handles an interface to attach that is not on the instance.
func (c *carry) elsewhere(eni Interface) (Outcome, bool, error) {
	if a := eni.Attachment; a != nil && a.Instance != c.in.Instance && time.Since(c.started) >= c.x.o.Window {
		return Outcome{}, true, &Error{
			Action: "AttachNetworkInterface", Object: string(c.in.ENI), Code: "InvalidNetworkInterface.InUse",
			Message: fmt.Sprintf("it is on %s", a.Instance),
		}
	}
	c.open = false
	return Outcome{}, false, nil
}

// lookCreate finds the interface by its intent's tag. That it is not shown proves
// nothing; the client token makes it safe to ask again.
func (c *carry) lookCreate(ctx context.Context) (Outcome, bool, error) {
	found, err := c.x.byTag(ctx, vpc.TagIntent, c.in.ID)
	if err != nil || len(found) == 0 {
		return Outcome{}, false, err
	}
	return Outcome{Done: true, Interface: &found[0], Addresses: found[0].Addresses}, true, nil
}

// lookAssign looks for addresses beyond those the interface had, for as long as a
// describe may be stale. There is no client token for this call.
func (c *carry) lookAssign(ctx context.Context) (Outcome, bool, error) {
	since := time.Now()
	for n := 0; ; n++ {
		eni, err := c.x.Interface(ctx, c.in.ENI)
		switch {
		case IsNotFound(err) && time.Since(since) < c.x.o.Window:
		case err != nil:
			return Outcome{}, IsNotFound(err), err
		default:
			added := slices.DeleteFunc(slices.Clone(eni.Addresses), func(a netip.Addr) bool {
				return slices.Contains(c.in.Held, a) || slices.Contains(c.in.Recent, a)
			})
			if len(added) > 0 {
				return Outcome{Done: true, Addresses: added}, true, nil
			}
		}
		if time.Since(since) >= c.x.o.Window {
			c.open = false
			if c.resumed {
				return Outcome{}, true, &Error{
					Action: "AssignPrivateIpAddresses", Object: string(c.in.ENI), Code: CodeNotCarriedOut,
					Message: "it had no effect before the restart",
				}
			}
			return Outcome{}, false, nil
		}
		if err := c.x.pause(ctx, min(n, 2)); err != nil {
			return Outcome{}, false, err
		}
	}
}

// CodeNotCarriedOut is the code of an outcome that Recover found to have had no
// effect. It is ours, not EC2's.
const CodeNotCarriedOut = "Trunkline.NotCarriedOut"
