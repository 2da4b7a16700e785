package kube

import (
	"errors"
	"fmt"
	"net/netip"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// BranchRecords are the branches of a ledger that annotations of pods may name. One that cannot be
// read is left out, so that no annotation agrees with it, and is part of the error.
func BranchRecords(l *vpcresources.BranchLedger) (list []podeni.Record, err error) {
	if l == nil {
		return nil, nil
	}
	for _, b := range l.Branches {
		if b.Pod == nil || b.Phase != vpcresources.BranchBinding && b.Phase != vpcresources.BranchBound {
			continue
		}
		r, wrong := branchRecord(b)
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("branch %s of pod %s/%s: %w", b.ENIID, b.Pod.Namespace, b.Pod.Name, wrong))
			continue
		}
		r.Instance = vpc.InstanceID(l.InstanceID)
		list = append(list, r)
	}
	return list, err
}

func branchRecord(b vpcresources.BranchRecord) (podeni.Record, error) {
	mac, err := vpc.ParseMAC(b.MAC)
	v4, err4 := optional(b.IPv4, netip.ParseAddr)
	v6, err6 := optional(b.IPv6, netip.ParseAddr)
	subnet4, errSubnet4 := optional(b.SubnetCIDR, netip.ParsePrefix)
	subnet6, errSubnet6 := optional(b.SubnetV6CIDR, netip.ParsePrefix)
	return podeni.Record{Pod: b.Pod.UID, Entry: podeni.Entry{
		ENI: vpc.ENIID(b.ENIID), MAC: mac, VLAN: int(b.VLANID), Association: b.AssociationID,
		IPv4: v4, IPv6: v6, Subnet4: subnet4, Subnet6: subnet6,
	}}, errors.Join(err, err4, err6, errSubnet4, errSubnet6)
}

// optional reads a text that may be empty, as the zero value.
func optional[T any](text string, parse func(string) (T, error)) (value T, err error) {
	if text == "" {
		return value, nil
	}
	return parse(text)
}
