package cloud

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ErrUnsupported is for an action that asks for what this version cannot do.
var ErrUnsupported = errors.New("not supported in this version")

// ActionID names one execution of an action. Its creator chooses it, unique for
// ever; EC2 gets it as client token and as the tag vpc.TagIntent.
type ActionID string

// maxID is the longest client token that EC2 takes, in ASCII characters.
const maxID = 64

// Kind is what an action does.
type Kind string

// Kinds of action. SetUp is carried out on the node, the others at EC2.
const (
	CreateENI         Kind = "CreateENI"         // in Subnet with Groups and Count secondary addresses
	Attach            Kind = "Attach"            // ENI to Instance at Device; deleted with the instance from then on
	SetUp             Kind = "SetUp"             // link, routes and rules of ENI
	AssignAddresses   Kind = "AssignAddresses"   // Count more addresses to ENI
	RestoreAddresses  Kind = "RestoreAddresses"  // Addresses, which pods have and ENI lost at EC2, to ENI again
	UnassignAddresses Kind = "UnassignAddresses" // Addresses of ENI, back to the subnet
	Detach            Kind = "Detach"            // ENI by Attachment
	DeleteENI         Kind = "DeleteENI"         // ENI
)

// Frees reports whether k gives something back.
func (k Kind) Frees() bool { return k == UnassignAddresses || k == Detach || k == DeleteENI }

// Action is one step of a plan, and one row of the ledger and of its journal while
// it is in flight.
type Action struct {
	ID         ActionID              `json:"id,omitempty"` // empty in a plan
	Kind       Kind                  `json:"kind"`
	Instance   vpc.InstanceID        `json:"instance,omitempty"` // see Node.Complete
	ENI        vpc.ENIID             `json:"eni,omitempty"`
	Subnet     vpc.SubnetID          `json:"subnet,omitempty"`
	SubnetCIDR netip.Prefix          `json:"subnetCIDR,omitzero"`
	Groups     []vpc.SecurityGroupID `json:"groups,omitempty"`
	// Description and Tags of a created interface. The executor adds vpc.TagIntent.
	Description string            `json:"description,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Count       int               `json:"count,omitempty"`
	Device      int               `json:"device,omitempty"`
	Attachment  vpc.AttachmentID  `json:"attachment,omitempty"`
	Addresses   []netip.Addr      `json:"addresses,omitempty"` // of Detach: those it made unavailable
	// From is, for Detach, the phase that the ledger returns the interface to when
	// EC2 refuses.
	From string `json:"from,omitempty"`
	// Held is, for AssignAddresses, every secondary address of ENI by the ledger's
	// record. What EC2 shows beyond it after a lost reply is this action's effect.
	Held []netip.Addr `json:"held,omitempty"`
	// Recent are addresses given back so lately that EC2 may still show them: not
	// this action's effect either.
	Recent []netip.Addr `json:"recent,omitempty"`
	// Began is when the ledger recorded the action; zero in a plan.
	Began time.Time `json:"began,omitzero"`
	Why   string    `json:"why"`
}

// String is the action in one line, without its reason.
func (a Action) String() string {
	switch a.Kind {
	case CreateENI:
		return fmt.Sprintf("CreateENI in %s with %d addresses", a.Subnet, a.Count)
	case Attach:
		return fmt.Sprintf("Attach %s at device %d", a.ENI, a.Device)
	case AssignAddresses:
		return fmt.Sprintf("AssignAddresses %d to %s", a.Count, a.ENI)
	case RestoreAddresses:
		return fmt.Sprintf("RestoreAddresses %v to %s", a.Addresses, a.ENI)
	case UnassignAddresses:
		return fmt.Sprintf("UnassignAddresses %v from %s", a.Addresses, a.ENI)
	case SetUp, Detach, DeleteENI:
		return fmt.Sprintf("%s %s", a.Kind, a.ENI)
	}
	return fmt.Sprintf("unknown action %q", string(a.Kind))
}

// Validate reports why a cannot be carried out at EC2: a field that its kind needs
// is missing, or it asks for what this version cannot do (ErrUnsupported). An
// action that no ledger has recorded is refused too: after a crash its effect
// would belong to no record.
func (a Action) Validate() error {
	if a.ID == "" || len(a.ID) > maxID {
		return fmt.Errorf("%s: id %q: must have 1 to %d characters", a, a.ID, maxID)
	}
	if a.Began.IsZero() {
		return fmt.Errorf("%s: it was not recorded before the call", a)
	}
	if field := a.missing(); field != "" {
		return fmt.Errorf("%s: the action has no %s", a, field)
	}
	for _, list := range [][]netip.Addr{a.Addresses, a.Held} {
		for _, addr := range list {
			if !addr.Is4() {
				return fmt.Errorf("%s: address %s: IPv6 on interfaces: %w", a, addr, ErrUnsupported)
			}
		}
	}
	switch a.Kind {
	case CreateENI, Attach, AssignAddresses, RestoreAddresses, UnassignAddresses, Detach, DeleteENI:
		return nil
	case SetUp:
		return fmt.Errorf("%s: carried out on the node, not at EC2: %w", a, ErrUnsupported)
	}
	return fmt.Errorf("%s: %w", a, ErrUnsupported)
}

// missing names a field that the kind needs and the action does not have, or "".
func (a Action) missing() string {
	switch {
	case a.Kind == CreateENI && a.Subnet == "":
		return "subnet"
	case a.Kind != CreateENI && a.ENI == "":
		return "interface"
	case (a.Kind == CreateENI || a.Kind == Attach) && a.Instance == "":
		return "instance"
	case a.Kind == Detach && a.Attachment == "":
		return "attachment"
	case a.Kind == AssignAddresses && a.Count < 1:
		return "count"
	case (a.Kind == UnassignAddresses || a.Kind == RestoreAddresses) && len(a.Addresses) == 0:
		return "addresses"
	}
	return ""
}
