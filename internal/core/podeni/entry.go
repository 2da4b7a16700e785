// Package podeni is the annotation vpc.amazonaws.com/pod-eni, by which a controller gives a pod its
// branches: its text, what is wrong with a text, and which branches it may name.
//
// Encode writes it byte for byte as AWS's controller does, Decode reads it strictly, AdmitCreate and
// AdmitUpdate judge which user writes it, Verify compares it with the record of the controller, and Conflict with the
// branches of other pods of the node. All refusals wrap a named error.
//
// Pure: values in, values out. The controller of branches writes it, admission and the node's agent
// read it.
package podeni

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// MaxVLAN is the highest VLAN of a tag: IEEE 802.1Q reserves 0 and 4095. AWS's controller uses 1 to
// 120 (pkg/provider/branch/trunk, MaxAllocatableVlanIds).
const MaxVLAN = 4094

// Entry is one branch of a pod. A pod that requests several has several.
type Entry struct {
	ENI         vpc.ENIID
	MAC         vpc.MAC
	IPv4, IPv6  netip.Addr   // invalid is none; one of them at least
	VLAN        int          // on the trunk of the pod's node
	Subnet4     netip.Prefix // of the branch; invalid is none
	Subnet6     netip.Prefix
	Association string // of branch and trunk; texts of earlier versions of AWS's controller lack it
}

// wire is an entry as AWS's controller encodes it: all fields, in this order.
//
// Source: ENIDetails in pkg/provider/branch/trunk/trunk.go of aws/amazon-vpc-resource-controller-k8s.
type wire struct {
	ENI         string `json:"eniId"`
	MAC         string `json:"ifAddress"`
	IPv4        string `json:"privateIp"`
	IPv6        string `json:"ipv6Addr"`
	VLAN        int    `json:"vlanId"`
	Subnet4     string `json:"subnetCidr"`
	Subnet6     string `json:"subnetV6Cidr"`
	Association string `json:"associationID"`
}

// Encode returns the annotation's text. Entries that Decode would refuse are an error.
func Encode(entries []Entry) (string, error) {
	list := make([]wire, len(entries))
	for i, e := range entries {
		list[i] = wire{ENI: string(e.ENI), MAC: e.MAC.String(), VLAN: e.VLAN, Association: e.Association}
		for _, f := range []struct {
			to    *string
			valid bool
			value fmt.Stringer
		}{{&list[i].IPv4, e.IPv4.IsValid(), e.IPv4}, {&list[i].IPv6, e.IPv6.IsValid(), e.IPv6}, {&list[i].Subnet4, e.Subnet4.IsValid(), e.Subnet4}, {&list[i].Subnet6, e.Subnet6.IsValid(), e.Subnet6}} {
			if f.valid {
				*f.to = f.value.String()
			}
		}
	}
	if err := check(entries); err != nil {
		return "", err
	}
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode annotation: %w", err)
	}
	return string(text), nil
}
