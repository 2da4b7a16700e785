package trunk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// written is the CNINode with the record as it was read or written last.
type written struct {
	object *vpcresources.CNINode // nil: not read yet
	// tried are records of later writes with an unknown outcome: the CNINode may have one of them.
	tried []*vpcresources.BranchLedger
}

// write writes a state to the CNINode, if it is another one than that written last, and keeps it.
func (n *node) write(ctx context.Context, object *vpcresources.CNINode, s core.State) error {
	rec := n.rec
	rec.state = s
	rec.trim()
	l := rec.ledger()
	if n.written.object.Status.Trunkline == nil && s.Trunk.Stage == core.Absent && len(s.Branches) == 0 && len(s.Unowned) == 0 && len(s.Backoffs) == 0 && s.Observed.IsZero() && rec.choice == (groupmode.Choice{}) {
		n.rec = rec
		return nil // there is nothing to record yet
	}
	if len(n.written.tried) > 0 || !sameLedger(l, n.written.object.Status.Trunkline) {
		if err := writeLedger(ctx, n, object, l); err != nil {
			return err
		}
	}
	n.rec, n.times.bound = rec, time.Time{}
	return nil
}

// writeLedger writes a record that the next process can read.
func writeLedger(ctx context.Context, n *node, object *vpcresources.CNINode, l *vpcresources.BranchLedger) error {
	if err := errors.Join(l.Check(l.InstanceID)...); err != nil {
		badRecord(n, "No branch of the node is changed and no pod gets one, because the record would be refused by the next process: "+err.Error())
		return fmt.Errorf("the record of node %s would be refused by the next process, and is not written: %w", n.name, err)
	}
	if !bare(l) && !slices.Contains(object.Finalizers, finalizer) && object.DeletionTimestamp == nil {
		if err := n.c.objects.SetFinalizer(ctx, object, finalizer, true); err != nil {
			return err
		}
	}
	next, err := n.c.objects.WriteLedger(ctx, n.written.object, l, n.written.tried...)
	if err != nil {
		return n.lost(err, l)
	}
	n.written, n.said.record = written{object: next}, ""
	return nil
}

// triedMost is how many records of writes with an unknown outcome are kept. Another one is found by
// reading the record again.
const triedMost = 8

// lost notes a write of l that failed. A write without a reply may have had its effect; none of the
// actions in it were begun, so the next write replaces it. The record is read again where another program
// has changed it.
func (n *node) lost(err error, l *vpcresources.BranchLedger) error {
	switch {
	case errors.Is(err, kube.ErrChanged):
		n.flights.Wait()
		n.written = written{}
	case !kube.Refused(err):
		n.written.tried = append(n.written.tried, l)
		n.written.tried = n.written.tried[max(0, len(n.written.tried)-triedMost):]
	}
	return err
}

// trim drops the names of pods and the ranges of subnets that nothing in the state has.
func (r *record) trim() {
	pods, subnets := map[core.PodUID]bool{}, map[vpc.SubnetID]bool{r.host.subnet: true}
	if r.custom != nil {
		subnets[r.custom.subnet] = true
	}
	for _, b := range r.state.Branches {
		pods[b.Pod], subnets[b.Subnet] = true, true
	}
	r.names, r.ranges = maps.Clone(r.names), maps.Clone(r.ranges)
	maps.DeleteFunc(r.names, func(uid core.PodUID, _ types.NamespacedName) bool { return !pods[uid] })
	maps.DeleteFunc(r.ranges, func(id vpc.SubnetID, _ ranges) bool { return !subnets[id] })
}
