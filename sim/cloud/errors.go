package cloud

import (
	"fmt"
	"net/http"
)

// Error is an EC2 API error. Code and Message are EC2's own, for clients branch
// on the code and, where EC2 leaves them no choice, parse ids out of the message.
// Source: EC2 API reference, "Error codes".
type Error struct {
	Code    string
	Message string
	Status  int // HTTP status
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Errorf is a client error: HTTP status 400.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Status: http.StatusBadRequest}
}

// resource tells how EC2 names a kind of thing in "not found" errors.
type resource struct{ code, noun, prefix string }

func (r resource) notFound(id string) *Error {
	return Errorf(r.code+".NotFound", "The %s '%s' does not exist", r.noun, id)
}

func kindInterface() resource {
	return resource{"InvalidNetworkInterfaceID", "networkInterface ID", "eni-"}
}
func kindSubnet() resource   { return resource{"InvalidSubnetID", "subnet ID", "subnet-"} }
func kindVPC() resource      { return resource{"InvalidVpcID", "vpc ID", "vpc-"} }
func kindInstance() resource { return resource{"InvalidInstanceID", "instance ID", "i-"} }
func kindGroup() resource    { return resource{"InvalidGroup", "security group", "sg-"} }
func kindTable() resource    { return resource{"InvalidRouteTableID", "routeTable ID", "rtb-"} }
func kindAttachment() resource {
	return resource{"InvalidAttachmentID", "attachment ID", "eni-attach-"}
}
func kindGateway() resource { return resource{"InvalidGatewayID", "gateway ID", "igw-"} }

// MissingParameter says that a required parameter is absent.
func MissingParameter(name string) *Error {
	return Errorf("MissingParameter", "The request must contain the parameter %s", name)
}

// InvalidParameter says that a value is not one EC2 takes.
func InvalidParameter(format string, args ...any) *Error {
	return Errorf("InvalidParameterValue", format, args...)
}

func insufficientAddresses() *Error {
	return Errorf("InsufficientFreeAddressesInSubnet",
		"The specified subnet does not have enough free addresses to satisfy the request.")
}

// insufficientBlocks is what EC2 says of a fragmented subnet: addresses are
// free, but no sixteen of them in a row.
func insufficientBlocks() *Error {
	return Errorf("InsufficientCidrBlocks",
		"The specified subnet does not have enough free cidr blocks to satisfy the request.")
}

// noRoomForPrefix is what EC2 says when a subnet has fewer free addresses than
// the prefixes asked for would take.
// Source: AWS support, quoted in github.com/cilium/cilium/pull/31016.
func noRoomForPrefix() *Error {
	return InvalidParameter("There aren't sufficient free Ipv4 addresses or prefixes")
}
