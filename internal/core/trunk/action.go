package trunk

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Kind is what an action does.
type Kind string

// Kinds of action. Bind is carried out at the API server, Release and Adopt change the state
// only; the others are one call to EC2 each.
const (
	CreateTrunk  Kind = "CreateTrunk"  // in Subnet with Groups
	AttachTrunk  Kind = "AttachTrunk"  // ENI to Instance at Device; deleted with the instance from then on
	DeleteTrunk  Kind = "DeleteTrunk"  // ENI, which is not attached
	CreateBranch Kind = "CreateBranch" // in Subnet with Groups
	TagBranch    Kind = "TagBranch"    // ENI with its VLAN and trunk
	Associate    Kind = "Associate"    // ENI with Trunk under VLAN
	SetGroups    Kind = "SetGroups"    // ENI has Groups and no others
	Bind         Kind = "Bind"         // Pod uses Branch
	Release      Kind = "Release"      // Branch is not Pod's any more
	Adopt        Kind = "Adopt"        // ENI, which EC2 showed, is the branch of Pod
	Disassociate Kind = "Disassociate" // Association of ENI
	DeleteBranch Kind = "DeleteBranch" // ENI, which is not associated
)

// local reports whether an action of kind k is complete once it has begun.
func (k Kind) local() bool { return k == Release || k == Adopt }

// frees reports whether k gives up an interface or an association.
func (k Kind) frees() bool { return k == Disassociate || k == DeleteBranch || k == DeleteTrunk }

// AllowedBy reports whether a brake permits actions of kind k.
func (k Kind) AllowedBy(b cloud.Brake) bool {
	switch {
	case k.local() || k == Bind:
		return true
	case k.frees():
		return b.AllowsRelease()
	}
	return b.AllowsAllocate()
}

// Action is one step of a plan. While it is in flight it is the intent of its branch.
type Action struct {
	ID          cloud.ActionID `json:"id,omitempty"` // in a plan: empty, unless the action is repeated
	Kind        Kind           `json:"kind"`
	Instance    vpc.InstanceID `json:"instance"`
	Branch      BranchID       `json:"branch,omitempty"` // of CreateBranch: set by Begin
	Pod         PodUID         `json:"pod,omitempty"`
	Trunk       vpc.ENIID      `json:"trunk,omitempty"`
	ENI         vpc.ENIID      `json:"eni,omitempty"`
	Subnet      vpc.SubnetID   `json:"subnet,omitempty"`
	Groups      Groups         `json:"groups,omitempty"`
	VLAN        int            `json:"vlan,omitempty"`
	Association AssociationID  `json:"association,omitempty"`
	Device      int            `json:"device,omitempty"`
	Began       time.Time      `json:"began,omitzero"` // zero in a plan
	Why         string         `json:"why"`
}

// String is the action in one line, without its reason.
func (a Action) String() string {
	switch a.Kind {
	case CreateTrunk, CreateBranch:
		return fmt.Sprintf("%s in %s with %s%s", a.Kind, a.Subnet, a.Groups, forPod(a.Pod))
	case AttachTrunk:
		return fmt.Sprintf("AttachTrunk %s at device %d", a.ENI, a.Device)
	case TagBranch:
		return fmt.Sprintf("TagBranch %s with VLAN %d of %s", a.ENI, a.VLAN, a.Trunk)
	case Associate:
		return fmt.Sprintf("Associate %s with %s under VLAN %d", a.ENI, a.Trunk, a.VLAN)
	case SetGroups:
		return fmt.Sprintf("SetGroups %s to %s%s", a.ENI, a.Groups, forPod(a.Pod))
	case Bind, Adopt:
		return fmt.Sprintf("%s %s%s", a.Kind, a.ENI, forPod(a.Pod))
	case Release:
		return fmt.Sprintf("Release %s from %s", cmp.Or(string(a.Branch), "nothing"), a.Pod)
	case Disassociate:
		return fmt.Sprintf("Disassociate %s (%s)", a.ENI, a.Association)
	case DeleteTrunk, DeleteBranch:
		return fmt.Sprintf("%s %s", a.Kind, a.ENI)
	}
	return fmt.Sprintf("unknown action %q", string(a.Kind))
}

func forPod(pod PodUID) string {
	if pod == "" {
		return ""
	}
	return " for " + string(pod)
}

// Outcome is the effect of an action that succeeded, now or by an earlier try. Of the kinds that
// it does not name it has no fields.
type Outcome struct {
	// ENI, MAC, IPv4, IPv6 and Groups are those of an interface that was created. Groups is
	// empty where the reply has none.
	ENI    vpc.ENIID
	MAC    vpc.MAC
	IPv4   netip.Addr
	IPv6   netip.Addr
	Groups Groups
	// Association is that of Associate.
	Association AssociationID
}

// Reason is why an action failed, as far as a plan distinguishes.
type Reason string

// Reasons an action fails.
const (
	FailSubnet    Reason = "subnet exhausted"
	FailLimit     Reason = "branch limit"   // EC2 has more branches on the trunk than the state
	FailVLAN      Reason = "VLAN in use"    // by a branch that the state does not have
	FailGroups    Reason = "groups refused" // not known, of another VPC, or too many
	FailDevice    Reason = "device in use"  // by another interface
	FailNotFound  Reason = "not found"      // the interface or the trunk is gone, or not shown yet
	FailThrottled Reason = "throttled"
	FailRefused   Reason = "refused" // by a dry run: the account or the role may not make the calls
	FailOther     Reason = "failed"
)

// Failure is how an action failed.
type Failure struct {
	Reason Reason
	// Definite: this try had no effect. Otherwise its outcome is unknown.
	Definite bool
	Message  string // in words that a user understands
}
