package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// errUnknown refuses pods on a node that cannot know whether policies select them.
var errUnknown = errors.New("the network policies of the cluster are not known to this node: the API server has not answered since the agent started, and the node has no copy of them. The pod is tried again")

// Admit implements control/cni.Component: without the policies no pod is connected.
func (c *Controller) Admit(_ context.Context, pod kube.Pod) error {
	if !c.Objects.Known() {
		return errUnknown
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admitted[policy.PodRef{Namespace: pod.Namespace, Name: pod.Name}] = admission{pod, time.Now()}
	return nil
}

// spares reports whether a pod starts although the node cannot enforce: nothing of what is enforced would be for
// it, and no program would drop its packets.
func spares(c *Controller, pod kube.Pod) bool {
	return c.Spared != nil && !c.on.called && !c.on.orphaned && c.problem != "" && c.Spared(pod)
}

// startFor begins to enforce for an ADD, unless that has failed already: the loop tries again.
func startFor(ctx context.Context, c *Controller) error {
	if err := c.problem.refuses(); err != nil {
		return err
	}
	err := c.turnOn(ctx)
	if err != nil {
		c.Loop.Mark()
	}
	return err
}

// Ready implements control/cni.Component: it returns once the policies that select the pod are
// in force for its link, which is still down.
func (c *Controller) Ready(ctx context.Context, e endpoint.Endpoint, link int) error {
	if err := c.listing.wait(ctx, c.on.Load); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	read, admitted := c.admitted[refOf(e)]
	delete(c.admitted, refOf(e))
	if !c.on.Load() {
		if !c.Objects.Any() {
			return nil
		}
		if err := startFor(ctx, c); err != nil {
			if admitted && spares(c, read.pod) {
				return nil
			}
			return err
		}
	}
	feedObjects(c) // the pod was admitted by them
	if admitted {
		addresses := e.Addresses.List()
		for id, other := range c.wired {
			if id != e.ID && refOf(other.endpoint) == refOf(e) {
				addresses = append(addresses, other.endpoint.Addresses.List()...)
			}
		}
		c.engine.SetPod(podOf(read.pod, addresses))
	}
	c.enter(e)
	if err := c.placeOne(e.ID, e, link); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		c.Loop.Mark()
		return named(err)
	}
	if c.datapath.State.InForce(e.ID) == bpf.SetPending {
		return fmt.Errorf("the labels of namespace %s are not known to this node yet", e.Pod.Namespace)
	}
	return c.datapath.Attach(link)
}
