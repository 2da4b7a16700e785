package trunk

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Pod is a pod of the node that security group policies select, or that has a branch.
type Pod struct {
	UID  PodUID
	Name string // namespace/name
	// Groups are the union of those of the policies that select it. A pod without groups gets
	// no branch; one that has a branch keeps its groups.
	Groups Groups
	// Ended: the pod is in a terminal phase, or a live GET did not find its uid. That a watch
	// does not show it is not enough.
	Ended bool
	// ENI is the branch that its annotation names; empty without one.
	ENI vpc.ENIID
}

// Limits are those of the instance type. The caller takes them from DescribeInstanceTypes, the
// operator's override or the table.
type Limits struct {
	ENIs     int // device indexes of the default network card
	Branches int // 0: the type has no trunk
}

// branches is the most branches that the node can have.
func (l Limits) branches() int { return min(l.Branches, maxVLAN-minVLAN+1) }

// Subnet is a subnet in which branches may be created.
type Subnet struct {
	ID    vpc.SubnetID
	Total int // addresses that EC2 can give
	Free  int // of them; -1: not known
}

// Placement is where the interfaces of a node are created: its own subnet and groups, or those of
// its ENIConfig.
type Placement struct {
	Subnets []Subnet // the preferred one first
	// Groups are those of the trunk.
	Groups Groups
}

// Snapshot is the input of Plan.
type Snapshot struct {
	State
	Pods   []Pod
	Limits Limits
	// Node is the placement by the instance. With custom networking, Custom is in its place, and
	// nothing is created while it is nil; WithoutCustom says why.
	Node             Placement
	CustomNetworking bool
	Custom           *Placement
	WithoutCustom    string
	Devices          []int // device indexes that interfaces other than the trunk have
	Brake            cloud.Brake
	// Shared: another controller makes branches on the node too, with the same tags. Those without an intent
	// are its own.
	Shared bool
	// Replaced: the Node has another instance now. No pod gets a branch of this one, and its branches are
	// given up as their pods end.
	Replaced bool
	// Terminated: EC2 shows the instance as terminated, and a live GET did not find its node or found it
	// replaced; or it is replaced and EC2 shows it as stopped. No pod runs on it.
	Terminated bool
}

// replaced says what the pods of a node with another instance wait for.
func (s Snapshot) replaced() string {
	return fmt.Sprintf("the node has another instance now, which gets branches once the %d of %s are given up: that ends when their pods have ended, or when that instance is stopped or terminated", len(s.Branches)+len(s.Unowned), s.Instance)
}

// placement is where interfaces are created; problem says why none can be.
func (s Snapshot) placement() (p Placement, problem string) {
	switch {
	case s.CustomNetworking && s.Custom == nil:
		return p, "custom networking is on: " + s.WithoutCustom
	case s.CustomNetworking:
		p = *s.Custom
	default:
		p = s.Node
	}
	if len(p.Subnets) == 0 {
		return p, "no subnet is known for trunk and branches"
	}
	return p, ""
}

// Seen is a branch or trunk as EC2 describes it.
type Seen struct {
	ENI         vpc.ENIID         `json:"eni"`
	Type        vpc.InterfaceType `json:"type,omitempty"`
	Intent      cloud.ActionID    `json:"intent,omitempty"` // of its tag vpc.TagIntent
	Subnet      vpc.SubnetID      `json:"subnet,omitempty"`
	MAC         vpc.MAC           `json:"mac,omitzero"`
	IPv4        netip.Addr        `json:"ipv4,omitzero"`
	IPv6        netip.Addr        `json:"ipv6,omitzero"`
	Groups      Groups            `json:"groups,omitempty"`
	Association AssociationID     `json:"association,omitempty"` // empty: it is not associated
	VLAN        int               `json:"vlan,omitempty"`
	Device      int               `json:"device,omitempty"` // of a trunk; 0: it is not attached
}

// Observation is what EC2 showed of the interfaces that carry the tag of the instance.
type Observation struct {
	At time.Time // when the first call of it began
	// Complete is false when a page could not be read. Such an observation shows of no
	// interface that it does not exist.
	Complete   bool
	Interfaces []Seen
}

// Unowned is a branch that EC2 showed and the state does not have.
type Unowned struct {
	Seen  Seen      `json:"seen"`
	First time.Time `json:"first"` // of the first of these observations
	// Passes counts the consecutive observations that showed it.
	Passes int `json:"passes"`
}
