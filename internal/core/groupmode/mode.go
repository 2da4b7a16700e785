// Package groupmode decides how the pods of a node that SecurityGroupPolicies select get their security
// groups, where the setting security-groups-for-pods is auto: at branches of AWS's controller, at
// branches of Trunkline's, or from the node itself.
//
// Choose is the decision, with its reason, from facts of the node: the label of its Node, the owner of its
// CNINode, its instance type, EC2's answer to a dry run, and the branches in use. Until these are known a
// node is undecided, and a selected pod waits.
//
// The package is pure: it may touch its arguments only. control/trunk decides for all nodes and records the
// decision in their CNINodes; control/branch decides for its own node where AWS's controller owns the CNINode,
// in which nothing can be recorded.
package groupmode

import (
	"fmt"
	"strings"
)

// Mode is how selected pods of a node get their groups. The values are those of the setting
// security-groups-for-pods.
type Mode string

// Modes.
const (
	Undecided Mode = ""
	Managed   Mode = "managed" // the VPC, at branches of AWS's controller
	Own       Mode = "own"     // the VPC, at branches of Trunkline's controller
	EBPF      Mode = "ebpf"    // the node, without branches
)

// String is the mode in a sentence.
func (m Mode) String() string {
	if m == Undecided {
		return "undecided"
	}
	return string(m)
}

// Label of a Node overrides the decision by one of the modes.
const Label = "trunkline.dev/security-groups-for-pods"

// Reason is why a mode was chosen, or why none is, in CamelCase.
type Reason string

// Reasons.
const (
	BySetting      Reason = "Setting"                  // the setting is a mode, and nothing is chosen
	ByLabel        Reason = "Label"                    // of the Node
	OwnedByAWS     Reason = "OwnedByAWSController"     // the CNINode is AWS's
	WithoutTrunk   Reason = "InstanceTypeWithoutTrunk" // the type has no branches
	Allowed        Reason = "TrunkCallsAllowed"        // by EC2's dry run
	Refused        Reason = "TrunkCallsRefused"        // by EC2's dry run
	NotProbed      Reason = "TrunkCallsNotProbed"      // EC2 has not answered the dry run
	BranchesInUse  Reason = "BranchesInUse"            // pods have branches of another mode than that which would be chosen
	InvalidLabel   Reason = "InvalidLabel"             // the label cannot be followed
	UnknownType    Reason = "InstanceTypeUnknown"      // the Node has no label of its type
	NotRecorded    Reason = "NotDecided"               // the controller has recorded no decision
	longestMessage        = 1000                       // bytes, below the bound of the record
	instanceType          = "node.kubernetes.io/instance-type"
	awsFinalizer          = "networking.k8s.aws/resource-cleanup"
)

// Choice is a mode with its reason. Message says what that is from and, where pods wait, what to do.
type Choice struct {
	Mode    Mode
	Reason  Reason
	Message string
}

// String is the choice for logs and users.
func (c Choice) String() string { return fmt.Sprintf("%s (%s): %s", c.Mode, c.Reason, c.Message) }

// Facts of a node.
type Facts struct {
	// Label is the value of the label; nil without one.
	Label *string
	// AWS is why AWS's controller owns the node's branches; empty if it does not.
	AWS string
	// Type is the instance type, and Branches how many branches it can have, with where that is from.
	Type         string
	Branches     int
	BranchesFrom string
	Probe        Probe
	// Held is how many branches of Trunkline's controller pods have, or may have.
	Held int
	// Before is the choice in force.
	Before Choice
}

// Probe is EC2's answer to the dry run of the calls that branches need.
type Probe struct {
	Answered bool
	Refusal  string // EC2's words; empty: it refuses nothing
	Tries    int    // refusals in a row
}

// confirmed is how many refusals in a row, half an hour apart, end the mode own of a node without
// branches in use: a role that lacks a right for a moment changes nothing.
const confirmed = 2

// Choose decides. It is deterministic, and a choice that is in force stays without a change of the
// facts.
func Choose(f Facts) Choice {
	c := f.wanted()
	switch before := f.Before.Mode; {
	case c.Mode == Undecided && before != Undecided:
		c = Choice{before, c.Reason, fmt.Sprintf("it stays %s: %s", before, c.Message)}
	case c.Mode == Managed && f.Held > 0:
		c = Choice{Own, BranchesInUse, fmt.Sprintf("it stays own while pods have branches of Trunkline's controller (%d); then it is managed, because %s", f.Held, c.Message)}
	case c.Reason == Refused && before == Own && f.Held > 0:
		c = Choice{Own, Refused, fmt.Sprintf("it stays own while pods have branches (%d), and new pods wait: %s", f.Held, c.Message)}
	case c.Reason == Refused && before == Own && f.Probe.Tries < confirmed:
		c = Choice{Own, Refused, "it stays own until a second dry run is refused, and new pods wait: " + c.Message}
	}
	if len(c.Message) > longestMessage {
		c.Message = strings.ToValidUTF8(c.Message[:longestMessage], "")
	}
	return c
}

// wanted is the choice by what is known now, without a regard to the one in force.
func (f Facts) wanted() Choice {
	if f.Label != nil {
		return f.labelled(Mode(*f.Label))
	}
	switch {
	case f.Type == "":
		return Choice{Undecided, UnknownType, "the Node has no label " + instanceType + ", by which the number of branches is known: set it, or the label " + Label}
	case f.Branches < 1:
		return Choice{EBPF, WithoutTrunk, fmt.Sprintf("instance type %s: %s", f.Type, f.BranchesFrom)}
	case f.AWS != "":
		return Choice{Managed, OwnedByAWS, f.AWS}
	case !f.Probe.Answered:
		return Choice{Undecided, NotProbed, "EC2 has not answered the dry run of AssociateTrunkInterface yet: see the log of the controller"}
	case f.Probe.Refusal != "":
		return Choice{EBPF, Refused, "EC2 refuses the calls that branches need: " + f.Probe.Refusal}
	}
	return Choice{Own, Allowed, fmt.Sprintf("EC2 allows the calls that branches need, and instance type %s has %d branches", f.Type, f.Branches)}
}

// labelled is the choice by the label. One that cannot work is refused by name: another mode in its place
// would not be what was asked for.
func (f Facts) labelled(m Mode) Choice {
	invalid := func(format string, args ...any) Choice {
		return Choice{Undecided, InvalidLabel, fmt.Sprintf("label %s: %s: ", Label, string(m)) + fmt.Sprintf(format, args...)}
	}
	switch {
	case m != Managed && m != Own && m != EBPF:
		return invalid("must be managed, own or ebpf: correct or remove it")
	case m != EBPF && f.Type != "" && f.Branches < 1:
		return invalid("instance type %s has no branches (%s): use ebpf, or remove it", f.Type, f.BranchesFrom)
	case m == Own && f.AWS != "":
		return invalid("%s, and two controllers must not use one trunk: use managed or ebpf; if AWS's controller does not run any more, remove its finalizer %s from the CNINode", f.AWS, awsFinalizer)
	case m == Own && f.Probe.Refusal != "":
		return Choice{Own, ByLabel, fmt.Sprintf("label %s: own; pods wait, because EC2 refuses the calls that branches need: %s", Label, f.Probe.Refusal)}
	case m == Managed && f.AWS == "":
		return Choice{Managed, ByLabel, fmt.Sprintf("label %s: managed; pods wait until AWS's VPC resource controller serves the node: nothing shows that it does", Label)}
	}
	return Choice{m, ByLabel, fmt.Sprintf("label %s: %s", Label, string(m))}
}
