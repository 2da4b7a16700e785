package branch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Record is the CNINode of the node, in which the controller of branches records them;
// *kube.OwnCNINode is one.
type Record interface {
	// Object is the CNINode, nil without one; false if it is not known whether there is one.
	Object() (*vpcresources.CNINode, bool)
	// Live reads it from the API server.
	Live(ctx context.Context) (*vpcresources.CNINode, error)
}

// errNoRecord is why an ADD waits for the record.
var errNoRecord = errors.New("the record of the node's branches cannot be read, and the annotation is compared with it")

// verify compares an annotation with the record of the controller that owns the node's branches. That
// is written before the annotation, and another watch shows it: where the cached one does not agree,
// it is read from the API server.
func (c *Controller) verify(ctx context.Context, instance vpc.InstanceID, pod kube.Pod, entries []podeni.Entry) error {
	if object, known := c.Record.Object(); known && c.agrees(object, instance, pod, entries) == nil {
		return nil
	}
	live, err := c.Record.Live(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoRecord, err)
	}
	if live != nil && live.Status.Trunkline != nil && live.Status.Trunkline.Unreadable != "" {
		return fmt.Errorf("%w: it cannot be decoded until it is corrected: %s", errNoRecord, live.Status.Trunkline.Unreadable)
	}
	if err := c.agrees(live, instance, pod, entries); err != nil {
		return refused(err)
	}
	return nil
}

// agrees compares an annotation with a CNINode. AWS's record names no pods, and it is not known when
// it is written: there, what it has of a branch must be what the annotation has.
func (c *Controller) agrees(n *vpcresources.CNINode, instance vpc.InstanceID, pod kube.Pod, entries []podeni.Entry) error {
	if n == nil {
		n = &vpcresources.CNINode{}
	}
	if c.Owned() {
		records, _ := kube.BranchRecords(n.Status.Trunkline) // an annotation disagrees with what cannot be read
		return podeni.Verify(instance, types.UID(pod.UID), entries, records)
	}
	if n.Status.TrunkInterface == nil {
		return nil
	}
	for _, e := range entries {
		i := slices.IndexFunc(n.Status.TrunkInterface.Branches, func(b vpcresources.BranchInterface) bool { return b.ID == string(e.ENI) })
		if i < 0 {
			continue
		}
		switch b := n.Status.TrunkInterface.Branches[i]; {
		case int(b.VLANID) != e.VLAN:
			return fmt.Errorf("%s: vlanId %d, and its VLAN is %d: %w", e.ENI, e.VLAN, b.VLANID, podeni.ErrOtherVLAN)
		case b.MACAddress != "" && b.MACAddress != e.MAC.String():
			return fmt.Errorf("%s: ifAddress %s, and its MAC is %s: %w", e.ENI, e.MAC, b.MACAddress, podeni.ErrForged)
		}
	}
	return nil
}
