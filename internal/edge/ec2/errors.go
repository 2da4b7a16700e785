package ec2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// Errors of calls that were not, or may not have been, carried out.
var (
	// ErrFrozen: a brake forbids the call; nothing was sent.
	ErrFrozen = errors.New("EC2 calls are frozen")
	// ErrOpen: the outcome at EC2 is not known. The action stays in flight until Recover
	// finishes it.
	ErrOpen = errors.New("outcome not known yet")
	// errNotSent: the caller's context ended while the call waited for the budget.
	errNotSent = errors.New("not sent")
	// errNoConnection: no connection to EC2 was made for the call: its name was not resolved,
	// it refused the connection, or the TLS handshake failed.
	errNoConnection = errors.New("no connection")
)

// Error is a call that EC2 refused or that got no reply.
type Error struct {
	Action    string // of the API, such as "CreateNetworkInterface"
	Object    string // the interface, subnet or filter of the call
	Code      string // EC2's error code; empty without a reply
	Message   string // EC2's error message
	RequestID string // for AWS's support
	Status    int    // HTTP status; 0 without a reply
	Err       error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "EC2 %s", e.Action)
	if e.Object != "" {
		fmt.Fprintf(&b, " %s", e.Object)
	}
	switch {
	case errors.Is(e.Err, errNotSent):
		fmt.Fprintf(&b, ": %v", e.Err)
		return b.String()
	case e.Code == "":
		fmt.Fprintf(&b, ": no reply: %v", e.Err)
		return b.String()
	}
	fmt.Fprintf(&b, ": %s: %s", e.Code, e.Message)
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// wrap returns the SDK's error as an *Error.
func wrap(action, object string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Action: action, Object: object, Err: err}
	var api smithy.APIError
	if errors.As(err, &api) {
		e.Code, e.Message = api.ErrorCode(), api.ErrorMessage()
	}
	var reply *awshttp.ResponseError
	if errors.As(err, &reply) {
		e.RequestID, e.Status = reply.ServiceRequestID(), reply.HTTPStatusCode()
	}
	return e
}

// Code returns EC2's error code of err, or "".
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// IsNotFound reports whether err is EC2's error for an object that does not exist.
func IsNotFound(err error) bool { return strings.HasSuffix(Code(err), ".NotFound") }

// IsThrottled reports whether EC2 throttled the call: it had no effect.
func IsThrottled(err error) bool {
	return slices.Contains([]string{
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled",
		"ClientThrottlingError", "TooManyRequestsException", "EC2ThrottledException",
	}, Code(err))
}

// IsAddressLimit reports whether an interface can hold no more addresses: at assign, or
// at attach because it holds more than the instance type takes. Source of the second:
// github.com/cilium/cilium/issues/9730.
func IsAddressLimit(err error) bool {
	return slices.Contains([]string{
		"PrivateIpAddressLimitExceeded", "InvalidInterface.IpAddressLimitExceeded",
	}, Code(err))
}

// IsInterfaceLimit reports whether the instance or the account can have no more
// interfaces.
func IsInterfaceLimit(err error) bool {
	return slices.Contains([]string{
		"AttachmentLimitExceeded", "NetworkInterfaceLimitExceeded", "InterfaceLimitExceeded",
	}, Code(err))
}

// IsSubnetExhausted reports whether the subnet has not enough free addresses.
func IsSubnetExhausted(err error) bool {
	return slices.Contains([]string{"InsufficientFreeAddressesInSubnet", "InsufficientCidrBlocks"}, Code(err))
}

// IsUnauthorized reports whether the role may not make the call.
func IsUnauthorized(err error) bool {
	return slices.Contains([]string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}, Code(err))
}

// IsUnpermitted reports whether no policy of the role permits the call.
func IsUnpermitted(err error) bool { return Code(err) == "UnauthorizedOperation" }

// IsInUse reports whether an interface is attached, attaching or detaching.
func IsInUse(err error) bool {
	return slices.Contains([]string{
		"InvalidNetworkInterface.InUse", "InvalidParameterValue.InUse", "IncorrectState",
		"InvalidNetworkInterfaceID.InUse",
	}, Code(err))
}

// FailureOf returns an error of Do or Recover as a failure for the planner.
func FailureOf(err error) cloud.Failure {
	f := cloud.Failure{Reason: cloud.FailOther, Definite: !errors.Is(err, ErrOpen), Message: err.Error()}
	switch {
	case errors.Is(err, ErrFrozen):
		f.Reason = cloud.FailFrozen
	case IsSubnetExhausted(err):
		f.Reason = cloud.FailSubnetExhausted
	case IsAddressLimit(err):
		f.Reason = cloud.FailAddressLimit
	case IsInterfaceLimit(err):
		f.Reason = cloud.FailENILimit
	case IsThrottled(err):
		f.Reason = cloud.FailThrottled
	case refusedCredentials(err):
		f.Reason = cloud.FailCredentials
	case IsUnauthorized(err):
		f.Reason = cloud.FailUnauthorized
	case IsNotFound(err):
		f.Reason = cloud.FailNotFound
	case deletionInUse(err):
		f.Reason = cloud.FailInUse
	}
	return f
}

// deletionInUse reports whether EC2 refused to delete an interface because it is attached.
func deletionInUse(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Action == "DeleteNetworkInterface" && inUse(err)
}

// isAmbiguous reports whether the call may have had its effect although it failed:
// there was no reply, or the server failed.
func isAmbiguous(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true
	}
	if IsThrottled(err) || errors.Is(err, errNotSent) || unsent(err) {
		return false
	}
	return e.Code == "" || e.Status >= 500 || slices.Contains([]string{"InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable"}, e.Code)
}

// unsent reports whether EC2 got nothing of the call, which has no effect therefore: there was
// no connection, or there were no credentials.
func unsent(err error) bool {
	var op *net.OpError
	return errors.Is(err, errNoConnection) || errors.Is(err, errCredentials) || errors.As(err, &op) && op.Op == "dial"
}

// cancelled reports whether the caller ended the call.
func cancelled(ctx context.Context) bool { return ctx.Err() != nil }
