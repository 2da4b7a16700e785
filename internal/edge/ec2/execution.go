package ec2

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// execution is one action being carried out.
type execution struct {
	x       *Executor
	action  cloud.Action
	resumed bool // an earlier run may have sent it
	started time.Time
	// open: a call may have had its effect although its reply was lost.
	open bool
	// recheck: EC2 refused a call in a way that may mean the effect is there already.
	recheck bool
	// denied is the refusal by policy that caused the recheck; see deniedAsGone.
	denied *Error
}

// run calls, observes and repeats until the outcome is known.
func (e *execution) run(ctx context.Context) (cloud.Outcome, error) {
	e.open = e.resumed
	for n := 0; ; n++ {
		if n > 0 {
			if err := e.x.pause(ctx, n-1); err != nil {
				return cloud.Outcome{}, e.interrupted(err)
			}
		}
		if e.mustObserve() {
			out, known, err := e.observe(ctx)
			switch {
			case known:
				return out, e.disproveDenial(err)
			case err != nil && cancelled(ctx):
				return cloud.Outcome{}, e.interrupted(err)
			case err != nil:
				continue
			}
		}
		if err := e.x.brakes.allow(e.action.Kind, time.Now()); err != nil {
			if e.open && e.action.Kind == cloud.CreateENI {
				continue // only repeating the call shows whether the first had its effect
			}
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

// mustObserve reports whether EC2's state is to be read before the next call. A
// call that frees something needs no read: repeating it does no harm, and its
// answer is current, which a describe's is not.
func (e *execution) mustObserve() bool { return e.recheck || e.open && !e.action.Kind.Frees() }

// interrupted is the error of a run whose context ended or that a brake stopped.
// What this run or an earlier one may have sent is open: it must not be taken for
// undone.
func (e *execution) interrupted(err error) error {
	if e.open || e.resumed {
		return fmt.Errorf("%s: %w: %w", e.action, ErrOpen, err)
	}
	return fmt.Errorf("%s: %w", e.action, err)
}

// after handles the error of call n. The run is over, with the error returned (nil:
// the effect is there), or its next round observes or calls again.
func (e *execution) after(ctx context.Context, err error, n int) (over bool, _ error) {
	switch {
	case errors.Is(err, errNotSent):
		return true, e.interrupted(err)
	case isAmbiguous(err):
		e.open = true
		if cancelled(ctx) {
			return true, e.interrupted(err)
		}
		return false, nil
	case IsNotFound(err) && e.action.Kind.Frees():
		return true, nil
	case e.transient(err):
		if n+1 < e.x.o.Tries || e.open && e.action.Kind == cloud.CreateENI {
			return false, nil
		}
	case e.mayBeDone(err):
		if n+1 < e.x.o.Tries {
			e.recheck = true
			if e.deniedAsGone(err) {
				errors.As(err, &e.denied)
			}
			return false, nil
		}
	}
	if e.open && e.action.Kind.Frees() { // an earlier call may have had its effect
		return true, e.interrupted(err)
	}
	return true, err
}

// transient reports whether waiting resolves err and nothing happened.
func (e *execution) transient(err error) bool {
	switch {
	case IsThrottled(err):
		return true
	case IsNotFound(err): // a new interface may not be known everywhere
		return time.Since(e.started) < e.x.o.Window
	case IsInUse(err) || Code(err) == "InvalidParameterValue": // the interface is still detaching
		return e.action.Kind == cloud.DeleteENI
	}
	return false
}

// mayBeDone reports whether err may mean that the effect is there already.
func (e *execution) mayBeDone(err error) bool {
	switch e.action.Kind {
	case cloud.Attach, cloud.Detach:
		return IsInUse(err) || Code(err) == "InvalidParameterValue" || e.deniedAsGone(err)
	case cloud.UnassignAddresses, cloud.RestoreAddresses:
		return Code(err) == "InvalidParameterValue"
	case cloud.DeleteENI:
		return e.deniedAsGone(err)
	case cloud.CreateENI, cloud.SetUp, cloud.AssignAddresses:
	}
	return false
}

// deniedAsGone reports whether a refusal by policy may mean that the interface is
// gone: our grants depend on its tag, and an interface that does not exist has none.
// Source: github.com/aws/karpenter-provider-aws/issues/2100.
func (e *execution) deniedAsGone(err error) bool {
	switch e.action.Kind {
	case cloud.Attach, cloud.Detach, cloud.DeleteENI:
		return Code(err) == "UnauthorizedOperation"
	case cloud.CreateENI, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.UnassignAddresses:
	}
	return false
}

// disproveDenial returns err, the end of a run by observation. A refusal by policy
// that the observation disproves is no longer reported.
func (e *execution) disproveDenial(err error) error {
	if e.denied != nil && !errors.Is(err, e.denied) {
		e.x.refused.note(e.denied.Action, nil, time.Now())
	}
	return err
}
