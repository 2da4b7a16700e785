package ec2

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// execution is one action being carried out. It decides, from what is known of the
// effect at EC2, whether to observe, to call or to end.
type execution struct {
	x       *Executor
	sender  sender
	action  cloud.Action // its addresses are narrowed to those that are left
	resumed bool         // an earlier run may have sent the call
	started time.Time
	// open: a call may have had its effect although its reply was lost.
	open bool
	// unanswered: a call of this run got no reply.
	unanswered bool
	// detaching: EC2 refused to delete the interface because it is attached, or detaching.
	detaching bool
	// recheck: EC2 refused a call with an error that may mean that the effect exists.
	recheck bool
	// renewed: EC2 refused the credentials of a call, and they are read again.
	renewed bool
	// denied is the refusal by policy that caused the recheck; see deniedAsGone.
	denied *Error
	// refused is EC2's refusal, at refusedAt, of a call that repeated one without a reply: it is
	// the result unless a describe shows the effect of the first one.
	refused   error
	refusedAt time.Time
	// unread counts the describes that EC2 refused.
	unread int
}

// run calls, observes and repeats until the outcome is known.
func (e *execution) run(ctx context.Context) (cloud.Outcome, error) {
	e.open = e.resumed
	for n := 0; ; n++ {
		if n > 0 {
			if err := e.x.pause(ctx, e.pauses(n)); err != nil {
				return cloud.Outcome{}, e.interrupted(err)
			}
		}
		if e.mustObserve() {
			out, next, err := e.check(ctx)
			switch next {
			case end:
				return out, err
			case again:
				continue
			case call:
			}
		}
		if err := e.x.brakes.allow(e.action.Kind, time.Now()); err != nil {
			return cloud.Outcome{}, e.interrupted(err)
		}
		out, err := e.send(ctx)
		if err == nil {
			return out, nil
		}
		if over, err := e.after(ctx, err, n); over {
			return cloud.Outcome{}, err
		}
	}
}

// next is what follows a read of EC2's state.
type next int

const (
	call  next = iota // the action's call
	again             // another read, after a pause
	end               // the end of the run
)

// check reads EC2's state, and decides whether the run ends, with its result. Before another read,
// the error is that of this one.
func (e *execution) check(ctx context.Context) (cloud.Outcome, next, error) {
	out, known, err := e.observe(ctx)
	switch {
	case known:
		return out, end, e.disproveDenial(err)
	case err != nil && cancelled(ctx):
		return cloud.Outcome{}, end, e.interrupted(err)
	case err != nil && e.blind(err):
		return cloud.Outcome{}, end, e.undecided(err)
	case err == nil && e.refused != nil && time.Since(e.refusedAt) >= e.x.o.Window:
		return cloud.Outcome{}, end, e.refused
	case err != nil || e.refused != nil:
		return cloud.Outcome{}, again, err
	}
	return cloud.Outcome{}, call, nil
}

// pauses is the number of the pause before round n. A detachment takes seconds, so that of
// an interface that was still detaching is longer.
func (e *execution) pauses(n int) int {
	if e.detaching {
		return n + 3
	}
	return n - 1
}

// mustObserve reports whether EC2's state is read before the next call. A call that
// releases needs no read: it is idempotent, and its reply is current, while a describe
// may be stale.
func (e *execution) mustObserve() bool {
	return e.recheck || e.refused != nil || e.open && !e.action.Kind.Frees()
}

// blind reports whether EC2 has refused so many describes that the cause does not end soon.
func (e *execution) blind(err error) bool {
	if IsUnauthorized(err) || refusedCredentials(err) {
		e.unread++
	}
	return e.unread >= e.x.o.Tries
}

// undecided is the error of a run in which EC2 refuses to describe. It is open if a call may have had
// its effect; the caller repeats it with growing pauses.
func (e *execution) undecided(err error) error {
	if e.denied != nil && !e.open && !e.resumed {
		return e.denied
	}
	return e.interrupted(err)
}

// interrupted is the error of a run that a brake or the end of its context stopped. If
// this run or an earlier one may have sent a call, the outcome is open: the call may
// have had its effect. A describe that may be stale and does not show the effect of a release
// does not change that.
func (e *execution) interrupted(err error) error {
	if e.open || e.resumed || e.refused != nil || e.unanswered && e.action.Kind.Frees() {
		return fmt.Errorf("%s: %w: %w", e.action, ErrOpen, err)
	}
	return fmt.Errorf("%s: %w", e.action, err)
}

// send makes the action's call.
func (e *execution) send(ctx context.Context) (cloud.Outcome, error) {
	switch e.action.Kind {
	case cloud.CreateENI:
		return e.sender.create(ctx, e.action)
	case cloud.Attach:
		id, err := e.sender.attach(ctx, e.action)
		if err != nil {
			return cloud.Outcome{}, err
		}
		return e.completeAttachment(ctx, id, e.action.Device)
	case cloud.AssignAddresses:
		return e.sender.assign(ctx, e.action)
	case cloud.RestoreAddresses:
		return cloud.Outcome{}, e.sender.restore(ctx, e.action)
	case cloud.UnassignAddresses:
		return cloud.Outcome{}, e.sender.unassign(ctx, e.action)
	case cloud.Detach:
		return cloud.Outcome{}, e.sender.detach(ctx, e.action)
	case cloud.DeleteENI:
		return cloud.Outcome{}, e.sender.delete(ctx, e.action)
	case cloud.SetUp: // Validate rejects it
	}
	return cloud.Outcome{}, fmt.Errorf("%s: %w", e.action, cloud.ErrUnsupported)
}

// completeAttachment sets DeleteOnTermination of the attachment. A refusal is only a
// warning, because the interface is attached.
func (e *execution) completeAttachment(ctx context.Context, id vpc.AttachmentID, device int) (cloud.Outcome, error) {
	e.open = true // attached; not yet deleted with the instance
	out := cloud.Outcome{Attachment: id, Device: device}
	for n := 0; ; n++ {
		err := e.sender.deleteOnTermination(ctx, e.action.ENI, id)
		switch {
		case err == nil:
			return out, nil
		case cancelled(ctx):
			return cloud.Outcome{}, err
		case !isAmbiguous(err) && !unsent(err) && !e.transient(err) || n+1 >= e.x.o.Tries:
			out.Warning = fmt.Sprintf("%s will leak when its instance is terminated, until the controller deletes it: %v", e.action.ENI, err)
			return out, nil
		}
		if err := e.x.pause(ctx, n); err != nil {
			return cloud.Outcome{}, &Error{Action: "ModifyNetworkInterfaceAttribute", Object: string(e.action.ENI), Err: err}
		}
	}
}

// after handles the error of call n. It returns over if the run ends, with the error of
// the run (nil: the effect exists). Otherwise the next round observes or calls again.
func (e *execution) after(ctx context.Context, err error, n int) (over bool, _ error) {
	if e.action.Kind == cloud.DeleteENI && inUse(err) {
		e.open, e.resumed, e.unanswered = false, false, false // it exists, so no earlier call deleted it
	}
	switch {
	case errors.Is(err, errNotSent), unsent(err), isAmbiguous(err):
		return e.withoutReply(ctx, err)
	case IsNotFound(err) && e.action.Kind.Frees():
		return true, nil
	case e.transient(err):
		if n+1 < e.x.o.Tries || e.open && e.action.Kind == cloud.CreateENI {
			return false, nil
		}
	case mayBeDone(e.action.Kind, err):
		if n+1 < e.x.o.Tries {
			e.recheck = true
			if deniedAsGone(e.action.Kind, err) {
				errors.As(err, &e.denied)
			}
			return false, nil
		}
	}
	return e.conclude(err)
}

// withoutReply handles a call that got no reply. One that was not sent has no effect, and the
// same call with the same token is made again.
func (e *execution) withoutReply(ctx context.Context, err error) (over bool, _ error) {
	if isAmbiguous(err) {
		e.open, e.unanswered = true, true
	}
	if errors.Is(err, errNotSent) || cancelled(ctx) {
		return true, e.interrupted(err)
	}
	return false, nil
}

// conclude ends a run with EC2's refusal, unless an earlier call may have had its effect: then a
// describe that cannot be stale decides. A throttled call says nothing of the effect.
func (e *execution) conclude(err error) (over bool, _ error) {
	switch {
	case e.contradicted(err):
		e.open = true
		return true, e.interrupted(err)
	case !e.open:
		return true, err
	case IsThrottled(err) && e.action.Kind.Frees():
		return true, e.interrupted(err)
	case e.action.Kind.Frees(), e.action.Kind == cloud.CreateENI:
		e.refused, e.refusedAt = err, time.Now()
		return false, nil
	}
	return true, err
}

// contradicted reports whether EC2 refuses to unassign addresses, as it does where the interface
// does not have them, which a lost call of ours explains, while describes still show them: they
// are stale for longer than Options.Window. The addresses must not be given to pods. After
// staleAtMost the interface has them.
func (e *execution) contradicted(err error) bool {
	return e.action.Kind == cloud.UnassignAddresses && (e.unanswered || e.resumed) && Code(err) == "InvalidParameterValue" &&
		(e.action.Began.IsZero() || time.Since(e.action.Began) < staleAtMost)
}

// staleAtMost is how old the state is that a describe shows, at most. EC2 states no bound; minutes
// were seen.
const staleAtMost = 20 * time.Minute

// transient reports whether the call had no effect and err ends with time.
func (e *execution) transient(err error) bool {
	switch {
	case IsThrottled(err):
		return true
	case refusedCredentials(err) && !e.renewed:
		e.renewed = true
		return true
	case IsNotFound(err): // EC2 may not show a new interface yet
		return time.Since(e.started) < e.x.o.Window
	case inUse(err): // the interface is still detaching
		e.detaching = e.action.Kind == cloud.DeleteENI
		return e.detaching
	}
	return false
}

// inUse reports whether EC2 refused a call because the interface is attached, attaching or
// detaching.
func inUse(err error) bool { return IsInUse(err) || Code(err) == "InvalidParameterValue" }

// mayBeDone reports whether err may mean that the effect exists.
func mayBeDone(k cloud.Kind, err error) bool {
	switch k {
	case cloud.Attach, cloud.Detach:
		return inUse(err) || deniedAsGone(k, err)
	case cloud.UnassignAddresses, cloud.RestoreAddresses:
		return Code(err) == "InvalidParameterValue"
	case cloud.DeleteENI:
		return deniedAsGone(k, err)
	case cloud.CreateENI, cloud.SetUp, cloud.AssignAddresses:
	}
	return false
}

// deniedAsGone reports whether a refusal by policy may mean that the interface does not
// exist: our permissions depend on its tag, and such an interface has none.
// Source: github.com/aws/karpenter-provider-aws/issues/2100.
func deniedAsGone(k cloud.Kind, err error) bool {
	switch k {
	case cloud.Attach, cloud.Detach, cloud.DeleteENI:
		return Code(err) == "UnauthorizedOperation"
	case cloud.CreateENI, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.UnassignAddresses:
	}
	return false
}

// disproveDenial returns err, the result of a run that an observation ended. It clears a
// reported refusal by policy if the observation shows that the cause was a missing
// interface.
func (e *execution) disproveDenial(err error) error {
	if e.denied != nil && !errors.Is(err, e.denied) {
		e.x.refused.note(e.denied.Action, e.denied.Object, nil, time.Now())
	}
	return err
}
