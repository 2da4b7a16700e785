package branch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// requestEvery is the time between two checks whether the trunk is requested, without an event.
const requestEvery = 30 * time.Second

// ReasonNoSlot is the reason of the event on a Node that cannot have a trunk.
const ReasonNoSlot = "NoSlotForTrunk"

// Features are those in the CNINode of the node; *kube.OwnCNINode is one.
type Features interface {
	Object() (*vpcresources.CNINode, bool)
	AddFeature(ctx context.Context, f vpcresources.Feature) error
}

// NodeEvents creates events of the node; *kube.Events is one.
type NodeEvents interface {
	NodeWarning(reason, message string)
}

// RequestDeps is what a Request works with.
type RequestDeps struct {
	Log      *slog.Logger
	State    *state.Store
	Features Features
	Events   NodeEvents
	// Wanted reports whether AWS's controller is to make branches on the node.
	Wanted func() bool
}

// Request asks AWS's VPC resource controller for a trunk, where that owns branches: by the feature
// SecurityGroupsForPods in the CNINode, as AWS's agent does once the node has a slot for another
// interface. It writes nothing else, and never removes the feature: without it AWS's controller
// serves the node no more, while pods have branches.
//
// Source: tryEnableSecurityGroupsForPods in pkg/ipamd/ipamd.go of aws/amazon-vpc-cni-k8s.
type Request struct {
	RequestDeps
	Loop *loop.Loop

	noSlot bool // the event was written
}

// NewRequest returns a request. Its loop is run by the caller.
func NewRequest(d RequestDeps) *Request {
	r := &Request{RequestDeps: d}
	r.Loop = loop.New(r.pass)
	r.Loop.MinInterval, r.Loop.Every, r.Loop.MaxBackoff = time.Second, requestEvery, requestEvery
	return r
}

func (r *Request) pass(ctx context.Context, _ bool) (time.Time, error) {
	feature := vpcresources.Feature{Name: vpcresources.SecurityGroupsForPods}
	object, known := r.Features.Object()
	if !known || !r.Wanted() || object != nil && slices.Contains(object.Spec.Features, feature) {
		return time.Time{}, nil
	}
	view, _ := r.State.View(time.Now())
	numbers := r.State.Pool().Decision.Numbers
	if len(view.ENIs) == 0 || numbers.MaxENIs == 0 {
		return time.Time{}, nil // EC2 was not read yet
	}
	trunk := slices.ContainsFunc(view.ENIs, func(e ipam.ENIView) bool { return e.Type == vpc.TypeTrunk })
	if !trunk && numbers.ENIs > numbers.MaxENIs { // MaxENIs leaves one slot for the trunk
		if !r.noSlot {
			r.noSlot = true
			r.Events.NodeWarning(ReasonNoSlot, fmt.Sprintf("The node has %d interfaces, and none of its slots is left for a trunk: pods with security groups of their own wait until an interface is released, as by a drain of the node.", numbers.ENIs))
		}
		return time.Time{}, nil
	}
	r.noSlot = false
	if err := r.Features.AddFeature(ctx, feature); err != nil {
		return time.Time{}, err
	}
	r.Log.Info("trunk requested of AWS's VPC resource controller", "feature", string(feature.Name))
	return time.Time{}, nil
}
