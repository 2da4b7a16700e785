package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

// EC2 created the interface, its reply was lost, describes do not show it yet, and more
// calls are throttled than the executor repeats: to give up would leak the interface.
func TestACreateWithALostReplyIsRepeatedThroughAnyThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *ec2.Options) { o.Tries = 4 })
		w.set(faults.Plan{DescribeLag: faults.Duration(time.Hour), Calls: []faults.Call{
			{Action: "CreateNetworkInterface", Do: faults.LoseReply, Count: 1},
			{Action: "CreateNetworkInterface", Do: faults.Fail, Code: "RequestLimitExceeded", Nth: 2, Count: 6},
		}})
		out, err := w.Do(t.Context(), w.withID(w.createAction(1)))
		w.set(faults.Plan{})
		left := w.all()
		if err != nil || len(left) != 1 || left[0].ID != out.ENI {
			t.Errorf("outcome %+v, %v; EC2 has %v, want the one interface of the outcome", out, err, left)
		}
	})
}

// A create that is open waits for the end of a freeze in the ledger, and reads nothing
// meanwhile: a describe every 20 s would be 180 an hour.
func TestACreateWithALostReplyEndsOnceTheBrakeIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{DescribeLag: faults.Duration(time.Hour)})
		reads := w.wire.count("DescribeNetworkInterfaces")
		w.wire.cut(nil, func(action string) error {
			if action != "CreateNetworkInterface" {
				return nil
			}
			w.SetBrake(cloud.FreezeAll, "")
			w.wire.cut(nil, nil)
			return errCut
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		_, err := w.Do(ctx, w.withID(w.createAction(1)))
		if !errors.Is(err, ec2.ErrOpen) || !errors.Is(err, ec2.ErrFrozen) || w.wire.count("DescribeNetworkInterfaces") > reads+1 {
			t.Fatalf("under a freeze: %v after %d reads, want it open after one", err, w.wire.count("DescribeNetworkInterfaces")-reads)
		}
		w.SetBrake(cloud.BrakeOff, "")
		recovered := w.recoverAll()
		w.set(faults.Plan{})
		left := w.all()
		if len(recovered) != 1 || recovered[0].Err != nil || len(left) != 1 || left[0].ID != recovered[0].Outcome.ENI {
			t.Errorf("recovered %+v; EC2 has %v, want the one interface of the outcome", recovered, left)
		}
	})
}

// The process was killed between the two calls of an attachment. Under a freeze the second
// one must wait as well.
func TestRecoveryUnderAFreezeSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		in := w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1})
		kill(w, in, "ModifyNetworkInterfaceAttribute", "before the call")
		w.SetBrake(cloud.FreezeAll, "")
		before := len(w.wire.calls)
		frozen := w.recoverAll()
		if len(frozen) != 1 || !errors.Is(frozen[0].Err, ec2.ErrOpen) || !errors.Is(frozen[0].Err, ec2.ErrFrozen) {
			t.Fatalf("recovered under a freeze: %+v, want the attachment open", frozen)
		}
		if sent := w.wire.calls[before:]; len(sent) != 0 {
			t.Errorf("sent %v under a freeze", sent)
		}
		w.SetBrake(cloud.BrakeOff, "")
		recovered := w.recoverAll()
		if len(recovered) != 1 || recovered[0].Err != nil {
			t.Fatalf("recovered once the freeze ended: %+v", recovered)
		}
	})
}

func TestEachErrorOfEC2HasItsReasonForThePlan(t *testing.T) {
	for want, codes := range map[cloud.FailReason]string{
		cloud.FailSubnetExhausted: "InsufficientFreeAddressesInSubnet InsufficientCidrBlocks",
		cloud.FailAddressLimit:    "PrivateIpAddressLimitExceeded InvalidInterface.IpAddressLimitExceeded",
		cloud.FailENILimit:        "AttachmentLimitExceeded NetworkInterfaceLimitExceeded InterfaceLimitExceeded",
		cloud.FailThrottled:       "RequestLimitExceeded Throttling ThrottlingException",
		cloud.FailUnauthorized:    "UnauthorizedOperation AccessDenied",
		cloud.FailCredentials:     "AuthFailure ExpiredToken RequestExpired InvalidClientTokenId SignatureDoesNotMatch",
		cloud.FailNotFound:        "InvalidNetworkInterfaceID.NotFound InvalidSubnetID.NotFound",
		cloud.FailOther:           "InvalidParameterValue InternalError",
	} {
		for code := range strings.FieldsSeq(codes) {
			err := fmt.Errorf("create: %w", &ec2.Error{Action: "CreateNetworkInterface", Code: code, Err: errCut})
			if f := ec2.FailureOf(err); f.Reason != want || !f.Definite || f.Message != err.Error() {
				t.Errorf("%s: %+v, want %q and definite", code, f, want)
			}
			if f := ec2.FailureOf(fmt.Errorf("%w: %w", ec2.ErrOpen, err)); f.Reason != want || f.Definite {
				t.Errorf("%s of an action that is open: %+v, want %q and not definite", code, f, want)
			}
		}
	}
	for action, want := range map[string]cloud.FailReason{"DeleteNetworkInterface": cloud.FailInUse, "AttachNetworkInterface": cloud.FailOther} {
		for _, code := range []string{"InvalidParameterValue", "InvalidNetworkInterface.InUse"} {
			if f := ec2.FailureOf(&ec2.Error{Action: action, Code: code, Err: errCut}); f.Reason != want {
				t.Errorf("%s of %s: %+v, want %q", code, action, f, want)
			}
		}
	}
	if f := ec2.FailureOf(fmt.Errorf("create: %w", ec2.ErrFrozen)); f.Reason != cloud.FailFrozen {
		t.Errorf("frozen: %+v", f)
	}
}
