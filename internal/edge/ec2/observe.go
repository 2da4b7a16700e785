package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// CodeNotCarriedOut is the code of an action that had no effect, as Recover found. EC2
// does not use it.
const CodeNotCarriedOut = "Trunkline.NotCarriedOut"

// observe reads from EC2 whether the action had its effect. known with a nil error: the
// effect exists, or is no longer needed; known with an error: it does not exist and the
// action has failed. Not known and no error: make the call (again).
//
// A describe may be stale by up to Options.Window. So what a describe shows exists, but
// what it does not show is known to be absent only if Options.Window has passed since
// the action started.
func (e *execution) observe(ctx context.Context) (out cloud.Outcome, known bool, err error) {
	e.recheck = false
	switch e.action.Kind {
	case cloud.CreateENI:
		return e.findCreated(ctx)
	case cloud.AssignAddresses:
		return e.findAssigned(ctx)
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI:
	}
	late := time.Since(e.started) >= e.x.o.Window
	eni, err := e.x.Interface(ctx, e.action.ENI)
	switch {
	case IsNotFound(err):
		known, err := e.interfaceMissing(err, late)
		return cloud.Outcome{}, known, err
	case err != nil:
		return cloud.Outcome{}, false, err
	}
	return e.compare(ctx, eni, late)
}

// compare searches for the effect on the interface that EC2 shows.
func (e *execution) compare(ctx context.Context, eni Interface, late bool) (out cloud.Outcome, known bool, err error) {
	switch e.action.Kind {
	case cloud.Attach:
		if out, known, err := e.attached(ctx, eni); known || err != nil {
			return out, known, err
		}
	case cloud.RestoreAddresses:
		e.action.Addresses = without(e.action.Addresses, eni.Addresses)
		if len(e.action.Addresses) == 0 {
			return cloud.Outcome{}, true, nil
		}
	case cloud.UnassignAddresses:
		left := both(e.action.Addresses, eni.Addresses)
		switch {
		case len(left) > 0:
			e.action.Addresses = left
		case late:
			return cloud.Outcome{}, true, nil
		}
	case cloud.Detach:
		switch {
		case detaching(eni, e.action.Attachment), detached(eni, e.action.Attachment) && late:
			return cloud.Outcome{}, true, nil
		case detached(eni, e.action.Attachment):
			e.recheck = true
			return cloud.Outcome{}, false, errStale
		}
	case cloud.CreateENI, cloud.SetUp, cloud.AssignAddresses, cloud.DeleteENI:
	}
	e.open = false
	if e.deniedPermission(late) {
		return cloud.Outcome{}, true, e.denied
	}
	return cloud.Outcome{}, false, nil
}

// deniedPermission reports whether a refusal by policy is about permissions, and not about an
// interface that does not exist: EC2 shows the interface, and either the describe cannot be
// stale, or the interface is not new and no earlier call can have deleted or detached it.
func (e *execution) deniedPermission(late bool) bool {
	return e.denied != nil && (late || e.action.Kind.Frees() && !e.unanswered && !e.resumed)
}

// interfaceMissing handles an interface that EC2 does not show. It no longer exists if
// the describe cannot be stale, or if one of our calls may have deleted it and EC2
// refused a call as for an interface that does not exist.
func (e *execution) interfaceMissing(err error, late bool) (known bool, _ error) {
	expected := e.denied != nil && (e.open || e.resumed)
	switch {
	case !late && !expected:
		return false, nil
	case e.action.Kind.Frees():
		return true, nil
	}
	return true, err
}

// errStale is for a describe that may be from before the attachment.
var errStale = errors.New("the describe may be stale")

// detaching reports whether EC2 shows that an attachment ends, or has ended. Its states follow
// each other in one direction, so a describe that shows this is not stale.
func detaching(eni Interface, id vpc.AttachmentID) bool {
	a := eni.Attachment
	return a != nil && a.ID == id && (a.Status == "detaching" || a.Status == "detached")
}

// detached reports whether EC2 shows the interface without the attachment: before or after it.
func detached(eni Interface, id vpc.AttachmentID) bool {
	return eni.Attachment == nil || eni.Attachment.ID != id
}

// attached completes an attachment that exists.
func (e *execution) attached(ctx context.Context, eni Interface) (cloud.Outcome, bool, error) {
	if !eni.On(e.action.Instance) {
		known, err := e.elsewhere(eni)
		return cloud.Outcome{}, known, err
	}
	if eni.Attachment.DeleteOnTermination {
		return cloud.Outcome{Attachment: eni.Attachment.ID, Device: eni.Attachment.Device}, true, nil
	}
	out, err := e.completeAttachment(ctx, eni.Attachment.ID, eni.Attachment.Device)
	return out, err == nil, err
}

// elsewhere handles an interface to attach that is not on the instance.
func (e *execution) elsewhere(eni Interface) (known bool, _ error) {
	if a := eni.Attachment; a != nil && a.Instance != e.action.Instance && time.Since(e.started) >= e.x.o.Window {
		return true, &Error{
			Action: "AttachNetworkInterface", Object: string(e.action.ENI), Code: "InvalidNetworkInterface.InUse",
			Message: fmt.Sprintf("it is attached to %s", a.Instance),
		}
	}
	e.open = false
	return false, nil
}

// findCreated finds the interface by the action's tag. If a stale describe does not show
// it, repeating the call is safe because of the client token.
func (e *execution) findCreated(ctx context.Context) (cloud.Outcome, bool, error) {
	found, err := e.x.byTag(ctx, vpc.TagIntent, string(e.action.ID))
	if err != nil || len(found) == 0 {
		return cloud.Outcome{}, false, err
	}
	return created(found[0]), true, nil
}

// findAssigned searches, for as long as a describe may be stale, for addresses that the
// interface did not have before. The call has no client token.
func (e *execution) findAssigned(ctx context.Context) (cloud.Outcome, bool, error) {
	since := time.Now()
	for n := 0; ; n++ {
		eni, err := e.x.Interface(ctx, e.action.ENI)
		switch {
		case IsNotFound(err) && time.Since(since) < e.x.o.Window:
		case err != nil:
			return cloud.Outcome{}, IsNotFound(err), err
		default:
			if added := without(without(eni.Addresses, e.action.Held), e.action.Recent); len(added) > 0 {
				return cloud.Outcome{Addresses: added}, true, nil
			}
		}
		if time.Since(since) >= e.x.o.Window {
			e.open = false
			if e.resumed {
				return cloud.Outcome{}, true, &Error{
					Action: "AssignPrivateIpAddresses", Object: string(e.action.ENI), Code: CodeNotCarriedOut,
					Message: "it had no effect before the restart",
				}
			}
			return cloud.Outcome{}, false, nil
		}
		if err := e.x.pause(ctx, min(n, 2)); err != nil {
			return cloud.Outcome{}, false, err
		}
	}
}

// without returns those of list that are not among others.
func without(list, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// both returns those of list that are among others.
func both(list, others []netip.Addr) []netip.Addr {
	return without(list, without(list, others))
}
