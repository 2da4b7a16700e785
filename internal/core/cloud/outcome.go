package cloud

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Outcome is the effect of an action that succeeded, now or by an earlier attempt.
type Outcome struct {
	// ENI, MAC, PrimaryIP and Groups are those of the interface that a CreateENI
	// made. Groups is empty where the reply has none.
	ENI       vpc.ENIID
	MAC       vpc.MAC
	PrimaryIP netip.Addr
	Groups    []vpc.SecurityGroupID
	// Addresses are the secondary addresses that CreateENI or AssignAddresses
	// brought: possibly more or fewer than asked for.
	Addresses []netip.Addr
	// Attachment and Device are, for Attach, where the interface is.
	Attachment vpc.AttachmentID
	Device     int
	// Warning names a part of the action that failed although its effect is there.
	Warning string
}

// FailReason is why an action failed, as far as a planner distinguishes.
type FailReason string

// Reasons an action fails.
const (
	FailSubnetExhausted FailReason = "subnet exhausted"
	FailAddressLimit    FailReason = "address limit"   // the interface holds more than the ledger knows
	FailENILimit        FailReason = "interface limit" // of the instance or the account
	FailThrottled       FailReason = "throttled"
	FailUnauthorized    FailReason = "unauthorized"
	FailCredentials     FailReason = "credentials" // expired or not known to EC2
	FailInUse           FailReason = "in use"      // the interface to delete is attached
	FailNotFound        FailReason = "not found"   // the interface is gone
	FailFrozen          FailReason = "frozen"      // a brake was on
	FailOther           FailReason = "failed"
)

// Failure is how an action failed.
type Failure struct {
	Reason FailReason
	// Definite: nothing happened at EC2. Otherwise the effect is open: fenced
	// addresses stay fenced and the action is tried again.
	Definite bool
	Message  string // in words a user understands
}
