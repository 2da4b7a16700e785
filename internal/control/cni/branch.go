package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// branchAddition is an ADD of a pod that requests a branch interface.
type branchAddition struct{ *addition }

// attach waits for the pod's branch and takes its addresses. An older sandbox of the same pod may
// have them: its DEL has not come, or its link is not deleted yet. Other holders are an error.
func (a branchAddition) attach(ctx context.Context) error {
	pod, name := a.e.Pod, a.e.Name() // the timer's function runs beside the step
	timer := time.AfterFunc(reportAfter, func() { a.c.warn(pod, waitsForBranch(name)) })
	defer timer.Stop()
	if e, has := a.further(); has {
		return &cnirpc.Error{
			Code: cnirpc.CodeRefused, Msg: "the pod has one branch interface, and " + e.Key.IfName + " has it",
			Details: "make " + a.e.Key.IfName + " a network of another plugin, or remove it",
		}
	}
	grant, err := a.c.Branches.Grant(ctx, a.pod, a.e.Key)
	if err != nil {
		return err
	}
	prefix := a.c.LinkPrefix
	if grant.Attachment.Branch.Mode == endpoint.Strict {
		prefix = endpoint.StrictLinkPrefix
	}
	for {
		changed := state.EndpointsChanged(a.c.State)
		pending, err := a.c.State.Update(func(tx *state.Tx) error {
			return a.assignOf(tx, prefix, func(endpoint.Endpoint, time.Time) (Grant, error) { return grant, nil })
		})
		if !errors.Is(err, endpoint.ErrTaken) {
			a.written = pending
			return err
		}
		older, waits := a.older(grant)
		if !waits {
			return err
		}
		for _, e := range older {
			if ctx.Err() != nil { // one of them may be a newer sandbox
				return context.Cause(ctx)
			}
			if err := a.c.detach(ctx, e); err != nil {
				return fmt.Errorf("remove the older sandbox's link %s: %w", e.Link, err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// waitsForBranch is what an event says of a pod that waits.
func waitsForBranch(pod string) error {
	return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "it waits for its branch interface; `trunkline explain pod " + pod + "` says what is missing"}
}

// further returns the endpoint that has the branch already in the same sandbox: the ADD is that of a
// further interface.
func (a branchAddition) further() (e endpoint.Endpoint, has bool) {
	for _, e := range a.c.State.Endpoints() {
		if e.Key != a.e.Key && e.Key.ContainerID == a.e.Key.ContainerID && e.Attachment.Kind == endpoint.Branch && e.Stage != endpoint.Removing {
			return e, true
		}
	}
	return e, false
}

// older returns the wired endpoints of older sandboxes of the same pod with one of the addresses.
// waits reports that all holders are such, or being removed.
func (a branchAddition) older(grant Grant) (wired []endpoint.Endpoint, waits bool) {
	waits = true
	for _, e := range a.c.State.Endpoints() {
		switch {
		case !e.Addresses.Overlaps(grant.Addresses), e.Key == a.e.Key, e.Stage == endpoint.Removing:
		case e.Pod == a.e.Pod && e.Key.ContainerID != a.e.Key.ContainerID:
			wired = append(wired, e)
		default:
			waits = false
		}
	}
	return wired, waits
}

// free returns the addresses of an endpoint to the backend. Those of a branch are the branch's: its
// controller gives it to another pod.
func (c *Controller) free(tx *state.Tx, e endpoint.Endpoint, why Reason, now time.Time) {
	if e.Attachment.Kind != endpoint.Branch {
		c.Backend.Free(tx, e, why, now)
	}
}
