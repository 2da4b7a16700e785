package ec2_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

// refuses is a fault of all calls of an action from the nth on.
func refuses(action, code string, nth int) faults.Call {
	return faults.Call{Action: action, Do: faults.Fail, Code: code, Nth: nth, Count: -1}
}

// EC2 made the interface, its reply was lost, describes show it late, and the role lost its
// permission, or the quota is used up: the repetition is refused.
func TestACreateWithALostReplyAndARefusedRepetitionIsFoundByItsTag(t *testing.T) {
	for _, code := range []string{"UnauthorizedOperation", "NetworkInterfaceLimitExceeded", "InsufficientFreeAddressesInSubnet"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				time.Sleep(time.Minute)
				w.set(faults.Plan{DescribeLag: faults.Duration(5 * time.Second), Calls: []faults.Call{
					{Action: "CreateNetworkInterface", Do: faults.LoseReply}, refuses("CreateNetworkInterface", code, 2),
				}})
				out, err := w.Do(t.Context(), w.withID(w.createAction(1)))
				w.set(faults.Plan{})
				if left := w.all(); err != nil || len(left) != 1 || left[0].ID != out.ENI {
					t.Errorf("outcome %+v, %v; EC2 has %v, want the one interface of the outcome", out, err, left)
				}
			})
		})
	}
}

// The call did not arrive, so there is no interface: the refusal is the result.
func TestACreateThatWasLostAndIsRefusedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{Calls: []faults.Call{refuses("CreateNetworkInterface", "UnauthorizedOperation", 1)}})
		w.wire.cut(func(action string) error {
			if action == "CreateNetworkInterface" {
				w.wire.cut(nil, nil)
				return errCut
			}
			return nil
		}, nil)
		began := time.Now()
		_, err := w.Do(t.Context(), w.withID(w.createAction(1)))
		if !ec2.IsUnauthorized(err) || errors.Is(err, ec2.ErrOpen) {
			t.Errorf("%v, want the refusal", err)
		}
		if took := time.Since(began); took < 10*time.Second || took > time.Minute {
			t.Errorf("decided after %s, want as soon as a describe cannot be stale", took)
		}
	})
}

// Before the cure each run ended open, and was repeated every minute for as long as the agent
// ran: after a restart, or a lost reply.
func TestARecoveredReleaseThatEC2RefusesFails(t *testing.T) {
	for code, release := range map[string]func(*world) (string, cloud.Action){
		"InvalidNetworkInterface.InUse": func(w *world) (string, cloud.Action) {
			return "DeleteNetworkInterface", cloud.Action{Kind: cloud.DeleteENI, ENI: w.attached(1, 1).ID}
		},
		"OperationNotPermitted": func(w *world) (string, cloud.Action) {
			return "DeleteNetworkInterface", cloud.Action{Kind: cloud.DeleteENI, ENI: w.created(1).ID}
		},
		"UnauthorizedOperation": func(w *world) (string, cloud.Action) {
			eni := w.attached(2, 1)
			return "UnassignPrivateIpAddresses", cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses}
		},
		"InvalidParameterCombination": func(w *world) (string, cloud.Action) {
			eni := w.attached(1, 1)
			return "DetachNetworkInterface", cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: eni.Attachment.ID}
		},
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				name, action := release(w)
				action = w.withID(action)
				w.set(faults.Plan{Calls: []faults.Call{refuses(name, code, 1)}})
				kill(w, action, name, "before the call")
				w.boot()
				for range 3 {
					w.recoverAll()
				}
				if left := w.journal.inFlight(); len(left) > 0 {
					t.Fatalf("still in flight: %v", left)
				}
				if n := w.wire.count(name); n > 10 {
					t.Errorf("%d calls that EC2 refused", n)
				}
			})
		})
	}
}

// A role without ec2:DescribeNetworkInterfaces: the doubt stays, and nothing is called in a loop.
func TestARefusedDescribeEndsTheRunOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{Calls: []faults.Call{
			{Action: "CreateNetworkInterface", Do: faults.LoseReply}, refuses("DescribeNetworkInterfaces", "UnauthorizedOperation", 1),
		}})
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began, before := time.Now(), len(w.wire.calls)
		_, err := w.Do(ctx, w.withID(w.createAction(1)))
		if !errors.Is(err, ec2.ErrOpen) || !ec2.IsUnauthorized(err) {
			t.Errorf("%v, want that the outcome is open because the describe is refused", err)
		}
		if took, calls := time.Since(began), w.wire.calls[before:]; took > 2*time.Minute || len(calls) > 9 {
			t.Errorf("took %s with calls %v", took, calls)
		}
	})
}

// detaching is EC2 with an interface that is detaching: it refuses another call.
type detaching struct {
	ec2.API
	attachment *types.NetworkInterfaceAttachment
	detaches   int
}

func (d *detaching) DetachNetworkInterface(context.Context, *sdk.DetachNetworkInterfaceInput, ...func(*sdk.Options)) (*sdk.DetachNetworkInterfaceOutput, error) {
	d.detaches++
	return nil, &smithy.GenericAPIError{Code: "IncorrectState", Message: "it is detaching"}
}

func (d *detaching) DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{{
		NetworkInterfaceId: aws.String("eni-1"), MacAddress: aws.String("02:00:00:00:00:01"), Attachment: d.attachment,
	}}}, nil
}

// Its states follow each other in one direction, so one that is seen once is not stale.
func TestADetachOfADetachingInterfaceIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		attachment *types.NetworkInterfaceAttachment
		within     time.Duration
		calls      int
	}{
		"detaching": {&types.NetworkInterfaceAttachment{AttachmentId: aws.String("eni-attach-1"), Status: types.AttachmentStatusDetaching}, 2 * time.Second, 1},
		"detached":  {&types.NetworkInterfaceAttachment{AttachmentId: aws.String("eni-attach-1"), Status: types.AttachmentStatusDetached}, 2 * time.Second, 1},
		// May be from before it was attached.
		"gone": {nil, 30 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &detaching{attachment: c.attachment}
				x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err = x.Do(t.Context(), cloud.Action{ID: "a", Kind: cloud.Detach, ENI: "eni-1", Attachment: "eni-attach-1", Began: began})
				if took := time.Since(began); err != nil || took > c.within || api.detaches > c.calls {
					t.Errorf("%v after %s and %d calls, want success within %s and %d", err, took, api.detaches, c.within, c.calls)
				}
			})
		})
	}
}

// EC2 has unassigned the addresses, the reply was lost, and describes show them for longer than
// the call is repeated. Before the cure the action failed as without effect, and the ledger gave
// the addresses to pods.
func TestAnUnassignWithALostReplyIsNotUndoneByStaleDescribes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(4, 1)
		time.Sleep(10 * time.Minute)
		w.set(faults.Plan{DescribeLag: faults.Duration(5 * time.Minute), Calls: []faults.Call{
			{Action: "UnassignPrivateIpAddresses", Do: faults.LoseReply}, refuses("UnassignPrivateIpAddresses", "InvalidParameterValue", 2),
		}})
		_, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]}))
		if err != nil && !errors.Is(err, ec2.ErrOpen) {
			t.Fatalf("%v, want it open while describes show the addresses", err)
		}
		w.set(faults.Plan{Calls: []faults.Call{refuses("UnassignPrivateIpAddresses", "InvalidParameterValue", 1)}})
		for range 3 {
			for _, r := range w.recoverAll() {
				if r.Err != nil && !errors.Is(r.Err, ec2.ErrOpen) {
					t.Fatalf("recovered: %v", r.Err)
				}
			}
		}
		if left := w.journal.inFlight(); len(left) > 0 {
			t.Errorf("still in flight once describes are fresh: %v", left)
		}
	})
}
