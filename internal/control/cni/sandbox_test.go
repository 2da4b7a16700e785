package cni

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

const knownArgs = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=known"

// The runtime was restarted and no DEL of the pod's older sandbox came. Its address may be the only one
// that the pod can get.
func TestAnADDOnAFullNodeEndsTheOlderSandboxOfItsPod(t *testing.T) {
	h := newHarness(t)
	old := statetest.Ready(t, h.State, "known") // the container "known"
	statetest.Ready(t, h.State, "two")
	ctx, stop := context.WithCancel(t.Context())
	answered := h.begin(t, ctx, "c1", knownArgs)
	h.untilWaiting(t, "c1")
	if e, there := h.State.Endpoint(old.Key); there && e.Stage != endpoint.Removing || h.count(ipam.Cooling) != 1 {
		t.Errorf("the older endpoint is %+v, %d addresses cool down; want it ended", e, h.count(ipam.Cooling))
	}
	stop()
	<-answered
}

// The plugin of the older sandbox runs still, and waits before the newer one.
func TestTheADDOfAnOlderSandboxEndsOnceANewerOneComes(t *testing.T) {
	h, holders := full(t)
	older := h.begin(t, t.Context(), "c1", knownArgs)
	h.untilWaiting(t, "c1")
	newer := h.begin(t, t.Context(), "c2", knownArgs)
	if failure := <-older; failure == nil || failure.Msg != "a newer sandbox of the pod is being added" {
		t.Fatalf("the older sandbox: %v", failure)
	}
	h.untilWaiting(t, "c2")
	h.free(t, holders[0])
	if failure := <-newer; failure != nil {
		t.Fatal(failure)
	}
	if e, ok := h.State.Endpoint(endpoint.Key{ContainerID: "c2", IfName: "eth0"}); !ok || e.Stage != endpoint.Ready {
		t.Errorf("the newer sandbox has %+v", e)
	}
	if len(h.events.events) > 0 {
		t.Errorf("events %q", h.events.events)
	}
	if h.sandboxes.newest[podInterface{"default", "known", "eth0"}] != nil {
		t.Error("an ADD that has ended is still entered")
	}
}

// The endpoint was removed between its address and its link.
func TestAnADDOfARemovedEndpointMakesNoLinkAndFreesNothing(t *testing.T) {
	h := newHarness(t)
	a := addOf("known", "u1").on(h)
	if err := errors.Join(a.identify(t.Context()), a.attach(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(t.Context(), a.e); err != nil {
		t.Fatal(err)
	}
	h.wires.done = nil
	if err := a.wire(t.Context()); !errors.Is(err, errRemoved) || slices.Contains(h.wires.done, "wire") {
		t.Errorf("wire: %v, steps %q", err, h.wires.done)
	}
	a.endLock(nil)
	if err := a.giveBack(t.Context()); err != nil || h.count(ipam.Cooling) != 1 || h.count(ipam.Free) != 1 {
		t.Errorf("%v: %d addresses cool down, %d are free; want one each", err, h.count(ipam.Cooling), h.count(ipam.Free))
	}
}

// An ADD sees an endpoint of a newer sandbox only after its own context has ended.
func TestAnOlderSandboxRemovesNothingOfANewerOne(t *testing.T) {
	h := newHarness(t)
	newer := statetest.Ready(t, h.State, "known")
	a := addOf("known", "u1").on(h)
	if err := a.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, left := h.sandboxes.enter(t.Context(), a.e.Key, a.e.Pod)
	defer left()
	_, end := h.sandboxes.enter(t.Context(), newer.Key, newer.Pod)
	defer end()
	late, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if err := a.attach(late); !errors.Is(err, errNewerSandbox) {
		t.Errorf("attach: %v", err)
	}
	if e, there := h.State.Endpoint(newer.Key); !there || e.Stage != endpoint.Ready {
		t.Errorf("the newer sandbox has %+v", e)
	}
}
