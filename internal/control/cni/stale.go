package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/stale"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// collector removes stale endpoints, and names the pods of adopted ones.
type collector struct{ *Controller }

// run does so until ctx ends.
func (c collector) run(ctx context.Context) error {
	var suspects stale.Suspects
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		if !c.Pods.Synced() {
			return time.Now().Add(time.Second), nil
		}
		return time.Time{}, errors.Join(c.identify(), c.collect(ctx, &suspects, time.Now()))
	})
	l.Every = min(time.Minute, c.StaleAfter/4)
	l.Report = func(err error, pause time.Duration) {
		c.Log.Warn("endpoints of pods that are gone are left", "error", err, "pause", pause)
	}
	return l.Run(ctx)
}

// collect removes an endpoint if its pod has been missing in the watch for StaleAfter, and the
// API server confirms that it is gone: it has no such pod, or one with another uid. While it
// does not answer nothing is removed.
func (c collector) collect(ctx context.Context, suspects *stale.Suspects, now time.Time) (problems error) {
	if !c.Pods.Synced() {
		return nil
	}
	// First the endpoints: the pod of an endpoint that is added meanwhile may not be in the
	// list of pods that is read before.
	endpoints := c.State.Endpoints()
	view := stale.View{Node: c.NodeName, UIDs: map[string]bool{}}
	for _, p := range c.Pods.Pods() {
		view.UIDs[p.UID] = true
	}
	for _, e := range suspects.Observe(endpoints, view, now, c.StaleAfter) {
		_, err := c.Pods.Pod(ctx, kube.PodRef{Namespace: e.Pod.Namespace, Name: e.Pod.Name}, e.Pod.UID)
		switch {
		case errors.Is(err, kube.ErrNoPod):
			err = c.delete(ctx, e)
		case errors.Is(err, kube.ErrNoMirror):
			err = nil
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("endpoint of pod %s: %w", e.Name(), err))
		}
	}
	return problems
}

// delete removes an endpoint as its DEL would, unless a call of it came meanwhile.
func (c collector) delete(ctx context.Context, e endpoint.Endpoint) error {
	if c.calls.Busy(e.Key) > 0 {
		return nil
	}
	return c.calls.Do(ctx, e.Key, func(ctx context.Context) error {
		if now, ok := c.State.Endpoint(e.Key); !ok || now.ID != e.ID || now.Generation != e.Generation {
			return nil
		}
		if err := c.del(ctx, e.Key); err != nil {
			return err
		}
		c.metrics.stale.Inc()
		c.Log.Warn("endpoint removed without a DEL: its pod is gone", "pod", e.Name(), "uid", e.Pod.UID, "container", e.Key.ContainerID, "ip", e.Addresses.Primary())
		c.Events.NodeWarning("StaleEndpointRemoved", fmt.Sprintf(
			"Pod %s (uid %s) has been gone from the cluster for %s, and the container runtime never had its network removed (container %s): its address %s was released.",
			e.Name(), e.Pod.UID, c.StaleAfter, e.Key.ContainerID, e.Addresses.Primary()))
		return nil
	})
}
