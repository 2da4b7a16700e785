// Package handover decides what AWS's daemon needs to take over the pods of a node: the
// content of its checkpoint.
//
// AWS's daemon learns which addresses are in use from that file only, and gives every other
// address of the node's interfaces to new pods (aws/amazon-vpc-cni-k8s v1.23.1,
// pkg/ipamd/datastore/data_store.go, ReadBackingStore). It is pure: control/handover reads
// and writes the file.
package handover

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// Version is the format of the checkpoint. AWS's daemon does not start with another one.
const Version = "vpc-cni-ipam/1"

// Network is the name of AWS's network configuration. AWS's daemon finds an allocation at
// DEL by network, container and interface, and the runtime passes the name of the
// configuration that is in place by then.
const Network = "aws-cni"

// Checkpoint is the content of the file.
type Checkpoint struct {
	Version     string       `json:"version"`
	Allocations []Allocation `json:"allocations"`
}

// Allocation is one sandbox with its address.
type Allocation struct {
	Network     string     `json:"networkName"`
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
	IPv4        netip.Addr `json:"ipv4,omitzero"`
	IPv6        netip.Addr `json:"ipv6,omitzero"`
	Allocated   int64      `json:"allocationTimestamp"` // nanoseconds since 1970
	Metadata    Metadata   `json:"metadata"`
}

// Metadata names the pod. At its start, AWS's daemon drops an allocation when no link of the
// node has a name that ends with the hash of namespace and pod. It does not check an
// allocation without both names.
type Metadata struct {
	Namespace  string `json:"k8sPodNamespace,omitempty"`
	Pod        string `json:"k8sPodName,omitempty"`
	Interfaces int    `json:"interfacesCount,omitempty"`
}

// Parse reads a checkpoint. A format other than Version is an error: AWS's daemon wrote it
// in a version that is not known here.
func Parse(raw []byte) (Checkpoint, error) {
	var c Checkpoint
	if err := json.Unmarshal(raw, &c); err != nil {
		return Checkpoint{}, fmt.Errorf("parse the checkpoint of AWS's daemon: %w", err)
	}
	if c.Version != Version {
		return Checkpoint{}, fmt.Errorf("the checkpoint of AWS's daemon has version %q, must be %q", c.Version, Version)
	}
	return c, nil
}

// Encode returns the content of the file.
func (c Checkpoint) Encode() []byte {
	c.Version = Version
	if c.Allocations == nil {
		c.Allocations = []Allocation{}
	}
	raw, err := json.Marshal(c)
	if err != nil { // strings, numbers and addresses
		panic("handover: " + err.Error())
	}
	return append(raw, '\n')
}
