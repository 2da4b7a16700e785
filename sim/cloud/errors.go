package cloud

import (
	"fmt"
	"net/http"
	"strings"
)

// Error is an EC2 API error. Code and Message are EC2's own, because clients branch
// on the code and, where EC2 leaves no other way, parse ids from the message. Source:
// EC2 API reference, "Error codes".
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

// Kind is a kind of resource, named as in ARNs and DescribeTags.
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
	KindAddress    Kind = "elastic-ip"
	// KindReservation is a subnet CIDR reservation.
	KindReservation Kind = "subnet-cidr-reservation"
	// KindPermission is a network interface permission, which cannot be tagged. How EC2
	// spells its errors is not known.
	KindPermission Kind = "network-interface-permission"
	// KindTrunkAssociation is the association of a branch with a trunk, which is no resource
	// of its own.
	KindTrunkAssociation Kind = "trunk-interface-association"
)

// words are the stem of the error codes, the noun and the id prefix EC2 uses for a
// kind.
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
		return "InvalidInternetGatewayID", "internetGateway ID", "igw-"
	case KindAttachment:
		return "InvalidAttachmentID", "attachment ID", "eni-attach-"
	case KindAddress:
		return "InvalidAllocationID", "allocation ID", "eipalloc-"
	case KindReservation:
		return "InvalidSubnetCidrReservationID", "subnet CIDR reservation ID", "scr-"
	case KindPermission:
		return "InvalidNetworkInterfacePermissionID", "network interface permission ID", "eni-perm-"
	case KindTrunkAssociation:
		return "InvalidAssociationID", "association ID", "trunk-assoc-"
	default:
		return "InvalidID", "ID", ""
	}
}

// NotFound is EC2's error for unknown ids. It quotes the ids, which clients parse.
// Source for several instances: github.com/getmoto/moto/issues/4903.
func (k Kind) NotFound(ids ...string) *Error {
	code, noun, _ := k.words()
	if len(ids) > 1 {
		return Errorf(code+".NotFound", "The %ss '%s' do not exist", noun, strings.Join(ids, ", "))
	}
	return Errorf(code+".NotFound", "The %s '%s' does not exist", noun, strings.Join(ids, ", "))
}

// NoGroupForInterface is EC2's error for a new interface with an unknown group. Other
// calls answer KindGroup.NotFound. Sources: github.com/aws/amazon-vpc-cni-k8s/issues/343,
// github.com/hashicorp/terraform-provider-aws/issues/3372.
func NoGroupForInterface(id string) *Error {
	return Errorf("InvalidSecurityGroupID.NotFound", "The securityGroup ID '%s' does not exist", id)
}

// CheckID refuses an id that is malformed for this kind.
func (k Kind) CheckID(id string) error {
	_, _, prefix := k.words()
	digits, ok := strings.CutPrefix(id, prefix)
	if ok && (len(digits) == 8 || len(digits) == 17) && strings.Trim(digits, "0123456789abcdef") == "" {
		return nil
	}
	return Errorf(k.malformed(), "Invalid id: %q (expecting %q)", id, prefix+"...")
}

// malformed is EC2's error code for a malformed id. For some kinds it is spelled
// differently from the code for an unknown id. Source: EC2 API reference, "Error
// codes".
func (k Kind) malformed() string {
	switch k {
	case KindInterface:
		return "InvalidNetworkInterfaceId.Malformed"
	case KindAttachment:
		return "InvalidNetworkInterfaceAttachmentId.Malformed"
	case KindTable:
		return "InvalidRouteTableId.Malformed"
	case KindGroup:
		return "InvalidGroupId.Malformed"
	default:
		code, _, _ := k.words()
		return code + ".Malformed"
	}
}

// MissingParameter is the error for an absent required parameter.
func MissingParameter(name string) *Error {
	return Errorf("MissingParameter", "The request must contain the parameter %s", name)
}

// InvalidParameter is the error for a value that EC2 does not accept.
func InvalidParameter(format string, args ...any) *Error {
	return Errorf("InvalidParameterValue", format, args...)
}

func insufficientAddresses() *Error {
	return Errorf("InsufficientFreeAddressesInSubnet",
		"The specified subnet does not have enough free addresses to satisfy the request.")
}

// insufficientBlocks is EC2's error for a fragmented subnet: enough addresses are
// free, but no aligned sixteen of them.
func insufficientBlocks() *Error {
	return Errorf("InsufficientCidrBlocks",
		"The specified subnet does not have enough free cidr blocks to satisfy the request.")
}

// insufficientForPrefix is EC2's error for a subnet with fewer free addresses than
// the requested prefixes take.
// Source: AWS support, quoted in github.com/cilium/cilium/pull/31016.
func insufficientForPrefix() *Error {
	return InvalidParameter("There aren't sufficient free Ipv4 addresses or prefixes")
}
