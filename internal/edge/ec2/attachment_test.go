package ec2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// refusal is an error of EC2 as the SDK returns it.
func refusal(code string) error { return &smithy.GenericAPIError{Code: code, Message: "m"} }

// attaching is EC2 as far as an attachment needs it.
type attaching struct {
	API
	refuses bool // to delete the interface with the instance
}

func (attaching) AttachNetworkInterface(context.Context, *ec2.AttachNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.AttachNetworkInterfaceOutput, error) {
	return &ec2.AttachNetworkInterfaceOutput{AttachmentId: aws.String("eni-attach-1")}, nil
}

func (a attaching) ModifyNetworkInterfaceAttribute(context.Context, *ec2.ModifyNetworkInterfaceAttributeInput, ...func(*ec2.Options)) (*ec2.ModifyNetworkInterfaceAttributeOutput, error) {
	if a.refuses {
		return nil, refusal("OperationNotPermitted")
	}
	return &ec2.ModifyNetworkInterfaceAttributeOutput{}, nil
}

// modifying is EC2 that answers each change of an attribute with an error, until none is left.
type modifying struct {
	attaching
	calls *int
	fail  func(call int) error
}

func (m modifying) ModifyNetworkInterfaceAttribute(context.Context, *ec2.ModifyNetworkInterfaceAttributeInput, ...func(*ec2.Options)) (*ec2.ModifyNetworkInterfaceAttributeOutput, error) {
	*m.calls++
	return &ec2.ModifyNetworkInterfaceAttributeOutput{}, m.fail(*m.calls)
}

// The interface is attached already; without the second call it outlives its instance.
func TestTheSecondCallOfAnAttachmentIsRepeatedWhereThatHelps(t *testing.T) {
	once := func(err error) func(int) error {
		return func(call int) error {
			if call > 1 {
				return nil
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		fail  func(int) error
		calls int
		warns bool
	}{
		"success":          {once(nil), 1, false},
		"no reply":         {once(io.EOF), 2, false},
		"no connection":    {once(fmt.Errorf("%w: %w", errNoConnection, io.EOF)), 2, false},
		"throttled":        {once(refusal("Throttling")), 2, false},
		"not found yet":    {once(refusal("InvalidNetworkInterfaceID.NotFound")), 2, false},
		"refused":          {once(refusal("OperationNotPermitted")), 1, true},
		"never with reply": {func(int) error { return io.EOF }, 4, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			x := executorOf(t, Options{Tries: 4})
			x.o.Clients.Kept = modifying{calls: &calls, fail: c.fail}
			out, err := x.run(t.Context(), cloud.Action{ID: "act-1", Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1", Device: 2}, false)
			if err != nil || calls != c.calls || (out.Warning != "") != c.warns || out.Attachment != "eni-attach-1" {
				t.Errorf("%s: %+v, %v after %d calls; want a warning %v after %d", name, out, err, calls, c.warns, c.calls)
			}
		})
	}
}

func TestAnAttachmentThatIsInterruptedBeforeItsSecondCallIsOpen(t *testing.T) {
	for _, during := range []string{"the call", "the pause"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			calls := 0
			x := executorOf(t, Options{})
			x.o.Clients.Kept = modifying{calls: &calls, fail: func(int) error {
				if during == "the call" {
					end()
				} else {
					time.AfterFunc(time.Millisecond, end)
				}
				return refusal("Throttling")
			}}
			_, err := x.run(ctx, cloud.Action{ID: "act-1", Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1", Device: 2}, false)
			if !errors.Is(err, ErrOpen) || !errors.Is(err, context.Canceled) || calls != 1 {
				t.Errorf("interrupted during %s: %v after %d calls, want it open after one", during, err, calls)
			}
			var e *Error
			if named := errors.As(err, &e); during == "the pause" && (!named || e.Action != "ModifyNetworkInterfaceAttribute" || e.Object != "eni-1") {
				t.Errorf("%v does not name the call", err)
			}
		})
	}
}
