package cloud

import (
	"fmt"
	"net/http"
	"strings"
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

// Kind is a kind of thing that has an id, named as in ARNs and DescribeTags.
type Kind string

// Kinds.
const (
	KindInterface  Kind = "network-interface"
	KindSubnet     Kind = "subnet"
	KindVPC        Kind = "vpc"
	KindInstance   Kind = "instance"
	KindGroup      Kind = "security-group"
	KindRule       Kind = "security-group-rule"
	KindTable      Kind = "route-table"
	KindGateway    Kind = "internet-gateway"
	KindAttachment Kind = "network-interface-attachment"
)

// words are the error code, the noun and the id prefix EC2 uses for a kind.
func (k Kind) words() (code, noun, prefix string) {
	switch k {
	case KindInterface:
		return "InvalidNetworkInterfaceID", "networkInterface ID", "eni-"
	case KindSubnet:
		return "InvalidSubnetID", "subnet ID", "subnet-"
	case KindVPC:
		return "InvalidVpcID", "vpc ID", "vpc-"
	case KindInstance:
		return "InvalidInstanceID", "instance ID", "i-"
	case KindGroup:
		return "InvalidGroup", "security group", "sg-"
	case KindRule:
		return "InvalidSecurityGroupRuleId", "security group rule ID", "sgr-"
	case KindTable:
		return "InvalidRouteTableID", "routeTable ID", "rtb-"
	case KindGateway:
		return "InvalidGatewayID", "gateway ID", "igw-"
	case KindAttachment:
		return "InvalidAttachmentID", "attachment ID", "eni-attach-"
	default:
		return "InvalidID", "ID", ""
	}
}

// NotFound is EC2's error for an id that names nothing. It quotes the id, which
// clients parse.
func (k Kind) NotFound(id string) *Error {
	code, noun, _ := k.words()
	return Errorf(code+".NotFound", "The %s '%s' does not exist", noun, id)
}

// CheckID refuses an id that could not be one of this kind.
func (k Kind) CheckID(id string) error {
	code, _, prefix := k.words()
	digits, ok := strings.CutPrefix(id, prefix)
	if ok && (len(digits) == 8 || len(digits) == 17) && strings.Trim(digits, "0123456789abcdef") == "" {
		return nil
	}
	if k == KindGroup {
		code = "InvalidGroupId"
	}
	return Errorf(code+".Malformed", "Invalid id: %q (expecting %q)", id, prefix+"...")
}

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
