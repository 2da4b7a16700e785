package cni

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

var errKernel = errors.New("the kernel refuses it")

// refuseLocks has every lock on an endpoint's objects in the kernel fail.
func (h *harness) refuseLocks() {
	h.Lock = func(context.Context, endpoint.Endpoint) (func(endpoint.Endpoint, error), error) {
		return nil, errKernel
	}
}

// count returns how many addresses of the node are in a state.
func (h *harness) count(of ipam.State) (n int) {
	view, _ := h.State.View(time.Now())
	for _, e := range view.ENIs {
		n += e.Count(of)
	}
	return n
}

// ofCall is the endpoint of the harness's calls.
func (h *harness) ofCall() (endpoint.Endpoint, bool) {
	return h.State.Endpoint(endpoint.Key{ContainerID: "c1", IfName: "eth0"})
}

func TestAnADDThatFailsBeforeItsLinkIsMadeGivesItsAddressBackAtOnce(t *testing.T) {
	h := newHarness(t)
	h.refuseLocks()
	if _, failure := h.call(t, request("ADD", "known")); failure == nil || !strings.Contains(failure.Error(), errKernel.Error()) {
		t.Errorf("%v, want the error of the lock", failure)
	}
	if left := h.State.Endpoints(); len(left) > 0 || h.count(ipam.Free) != 2 || len(h.wires.done) > 0 {
		t.Errorf("left %+v, %d addresses free, steps %v; want nothing done and both free", left, h.count(ipam.Free), h.wires.done)
	}
}

// The pod of the earlier ADD runs: it keeps its address, its endpoint and its link.
func TestARepeatedADDThatFailsBeforeTheLinkLeavesTheEarlierEndpoint(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	first, _ := h.ofCall()
	h.wires.done = nil
	h.refuseLocks()
	if _, failure := h.call(t, request("ADD", "known")); failure == nil {
		t.Fatal("it succeeded")
	}
	second, ok := h.ofCall()
	if !ok || second.Stage != endpoint.Ready || second.ID != first.ID || second.Addresses != first.Addresses {
		t.Errorf("the endpoint is %+v, was %+v", second, first)
	}
	if h.count(ipam.Assigned) != 1 || len(h.wires.done) > 0 {
		t.Errorf("%d addresses assigned, steps %v; want the pod's one and none", h.count(ipam.Assigned), h.wires.done)
	}
}

// Its link may be half changed, so the endpoint is removed; the runtime repeats the ADD.
func TestARepeatedADDThatFailsAtItsLinkRemovesTheEndpoint(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.wires.done = nil
	h.wires.fail["wire"] = errKernel
	if _, failure := h.call(t, request("ADD", "known")); failure == nil {
		t.Fatal("it succeeded")
	}
	if _, there := h.ofCall(); there || !slices.Equal(h.wires.done, []string{"wire", "remove", "unwire"}) || h.count(ipam.Cooling) != 1 {
		t.Errorf("still there: %v, steps %v, %d cooling", there, h.wires.done, h.count(ipam.Cooling))
	}
	delete(h.wires.fail, "wire")
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Errorf("the next ADD: %v", failure)
	}
}

// The older sandbox has the link's name: two links cannot have it.
func TestAnADDFailsIfTheOlderSandboxOfItsPodCannotBeRemoved(t *testing.T) {
	h := newHarness(t)
	old := statetest.Ready(t, h.State, "known")
	h.wires.fail["unwire"] = errKernel
	_, failure := h.call(t, request("ADD", "known"))
	if failure == nil || !strings.Contains(failure.Error(), "remove the older link") || slices.Contains(h.wires.done, "wire") {
		t.Errorf("%v after steps %v, want that the older link cannot be removed, and no new one", failure, h.wires.done)
	}
	if e, ok := h.State.Endpoint(old.Key); !ok || e.Stage != endpoint.Removing {
		t.Errorf("the older endpoint is %+v, want it as being removed", e)
	}
	if _, there := h.ofCall(); there || h.count(ipam.Free) != 1 {
		t.Errorf("the new endpoint is there: %v; %d addresses free, want the new one's", there, h.count(ipam.Free))
	}
}

func TestAnADDFailsIfThePacketFilterCannotBeRestored(t *testing.T) {
	h := newHarness(t)
	h.wires.fail["put"] = nft.ErrNoTable
	h.RestoreFilter = func(context.Context) error { return errKernel }
	_, failure := h.call(t, request("ADD", "known"))
	if failure == nil || !strings.Contains(failure.Error(), errKernel.Error()) || slices.Contains(h.wires.done, "up") {
		t.Errorf("%v after steps %v, want the error of the restore and no link up", failure, h.wires.done)
	}
}

func TestAnADDWithoutANamespaceIsRefused(t *testing.T) {
	h := newHarness(t)
	_, failure := h.answered(t.Context(), request("ADD", "known"), nil)
	if failure == nil || failure.Code != cnirpc.CodeInvalidNetns || len(h.State.Endpoints()) > 0 {
		t.Errorf("%v, endpoints %+v; want code %d and none", failure, h.State.Endpoints(), cnirpc.CodeInvalidNetns)
	}
}

// The plugin gives up at its deadline: it is answered before, and with the reason.
func TestAnADDThatWaitsIsAnsweredBeforeThePluginGivesUp(t *testing.T) {
	h, _ := full(t)
	h.Backend = ledger{explain: errors.Join(ipam.ErrNoAddress, errors.New("subnet-1 is full"))}
	const wait = answerWithin + 50*time.Millisecond
	ctx, stop := context.WithTimeout(t.Context(), wait)
	defer stop()
	_, failure := h.answered(ctx, request("ADD", "known"), selfNetns(t))
	if failure == nil || failure.Code != cnirpc.CodeTryAgain || !strings.Contains(failure.Error(), "subnet-1 is full") {
		t.Errorf("%v, want code %d and why no address is free", failure, cnirpc.CodeTryAgain)
	}
	if ctx.Err() != nil {
		t.Error("the answer came after the plugin gave up")
	}
}

func TestADELThatCannotBeWrittenTouchesNothing(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.wires.done = nil
	if err := h.State.Close(); err != nil {
		t.Fatal(err)
	}
	if _, failure := h.call(t, request("DEL", "known")); failure == nil {
		t.Error("it succeeded: after a crash the endpoint would be ready without a link")
	}
	if len(h.wires.done) > 0 || h.count(ipam.Cooling)+h.count(ipam.Free) > 1 {
		t.Errorf("steps %v, %d addresses cooling; want nothing done", h.wires.done, h.count(ipam.Cooling))
	}
}

// The address may be on a link that works: no other pod gets it until the link is gone.
func TestADELWithALinkThatStaysKeepsTheAddressInQuarantineUntilItIsRepeated(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.wires.fail["unwire"] = errKernel
	if _, failure := h.call(t, request("DEL", "known")); failure == nil || !strings.Contains(failure.Error(), errKernel.Error()) {
		t.Fatalf("%v, want the kernel's error", failure)
	}
	if e, ok := h.ofCall(); !ok || e.Stage != endpoint.Removing || h.count(ipam.Quarantined) != 1 {
		t.Errorf("endpoint %+v, %d addresses in quarantine; want it as being removed, and one", e, h.count(ipam.Quarantined))
	}
	if got := h.ended[len(h.ended)-1]; got != "removing false" {
		t.Errorf("the lock ended with %q, want that the work failed", got)
	}
	delete(h.wires.fail, "unwire")
	if _, failure := h.call(t, request("DEL", "known")); failure != nil {
		t.Fatal(failure)
	}
	if _, there := h.ofCall(); there || h.count(ipam.Cooling) != 1 {
		t.Errorf("still there: %v, %d addresses cooling, want one", there, h.count(ipam.Cooling))
	}
}

// Elements of the filter are keyed by the link's name, MAC and address, so those that are
// left accept nothing of another pod; the comparison of the kernel removes them.
func TestADELSucceedsAlthoughFilterElementsAreLeft(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.wires.fail["remove"] = errKernel
	if _, failure := h.call(t, request("DEL", "known")); failure != nil {
		t.Error(failure)
	}
	if _, there := h.ofCall(); there || h.wires.done[len(h.wires.done)-1] != "unwire" {
		t.Errorf("still there: %v, steps %v", there, h.wires.done)
	}
	if got := h.ended[len(h.ended)-1]; got != "removing false" {
		t.Errorf("the lock ended with %q, want that elements are left, so that they are compared", got)
	}
}

func TestADELOfAnUnknownContainerSucceedsAndTouchesNothing(t *testing.T) {
	h := newHarness(t)
	h.refuseLocks()
	if _, failure := h.call(t, request("DEL", "known")); failure != nil || len(h.wires.done) > 0 {
		t.Errorf("%v after steps %v", failure, h.wires.done)
	}
}

// An earlier process was killed during an ADD and during a DEL.
func TestInterruptedCallsAreFinishedAndReadyEndpointsStay(t *testing.T) {
	h := newHarness(t)
	half := statetest.Wiring(t, h.State, "half", "half")
	ready := statetest.Ready(t, h.State, "ready")
	h.wires.fail["unwire"] = errKernel
	if err := h.FinishInterrupted(t.Context()); err == nil || !strings.Contains(err.Error(), half.Name()) {
		t.Errorf("%v, want which pod is left", err)
	}
	if e, ok := h.State.Endpoint(half.Key); !ok || e.Stage != endpoint.Removing {
		t.Errorf("the interrupted endpoint is %+v, want it as being removed", e)
	}
	delete(h.wires.fail, "unwire")
	if err := h.FinishInterrupted(t.Context()); err != nil { // now of a DEL
		t.Fatal(err)
	}
	if left := h.State.Endpoints(); len(left) != 1 || left[0] != ready {
		t.Errorf("left %+v, want %+v alone", left, ready)
	}
	if h.count(ipam.Cooling) != 1 || h.count(ipam.Assigned) != 1 {
		t.Errorf("%d addresses cooling, %d assigned; want one each", h.count(ipam.Cooling), h.count(ipam.Assigned))
	}
}

// The plugin does not wait for the rows of what its pod has in the kernel; a failed ADD has
// ended its work when it answers.
func TestTheLockOnTheKernelEndsAfterTheAnswerOfAnADDAndBeforeThatOfAFailure(t *testing.T) {
	for fails, want := range map[string][]string{"": {"answer", "unlock"}, "up": {"unlock", "answer"}} {
		h := newHarness(t)
		var order []string
		lock := h.Lock
		h.Lock = func(ctx context.Context, e endpoint.Endpoint) (func(endpoint.Endpoint, error), error) {
			end, err := lock(ctx, e)
			return func(e endpoint.Endpoint, err error) { order = append(order, "unlock"); end(e, err) }, err
		}
		if fails != "" {
			h.wires.fail[fails] = errKernel
		}
		h.Handle(t.Context(), request("ADD", "known"), selfNetns(t), func(json.RawMessage, *cnirpc.Error) { order = append(order, "answer") })
		if len(order) < 2 || order[0] != want[0] || order[len(order)-1] != want[1] {
			t.Errorf("with a failing %q: %v, want %v first and last", fails, order, want)
		}
	}
}

// The runtime may call DEL as soon as it has the answer of the ADD.
func TestADELThatFollowsTheAnswerOfAnADDWaitsForItsEnd(t *testing.T) {
	h := newHarness(t)
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	lock := h.Lock
	h.Lock = func(ctx context.Context, e endpoint.Endpoint) (func(endpoint.Endpoint, error), error) {
		note("lock")
		end, err := lock(ctx, e)
		return func(e endpoint.Endpoint, err error) { note("unlock"); end(e, err) }, err
	}
	key := endpoint.Key{ContainerID: "c1", IfName: "eth0"}
	deleted := make(chan *cnirpc.Error, 1)
	h.Handle(t.Context(), request("ADD", "known"), selfNetns(t), func(_ json.RawMessage, failure *cnirpc.Error) {
		if failure != nil {
			t.Error(failure)
		}
		note("answer")
		go func() {
			_, failure := h.answered(context.Background(), request("DEL", "known"), nil)
			deleted <- failure
		}()
		for late := time.Now().Add(10 * time.Second); h.calls.Busy(key) < 2 && time.Now().Before(late); {
			runtime.Gosched()
		}
	})
	if failure := <-deleted; failure != nil {
		t.Fatal(failure)
	}
	if e, ok := h.State.Endpoint(key); ok && e.Stage != endpoint.Removing {
		t.Errorf("after the DEL the endpoint is %s", e.Stage)
	}
	if want := []string{"lock", "answer", "unlock", "lock", "unlock"}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

func TestAnInterruptedCallThatCannotBeFinishedDoesNotKeepTheOthersFromIt(t *testing.T) {
	h := newHarness(t)
	stuck, other := statetest.Wiring(t, h.State, "stuck", "stuck"), statetest.Wiring(t, h.State, "other", "other")
	lock := h.Lock
	h.Lock = func(ctx context.Context, e endpoint.Endpoint) (func(endpoint.Endpoint, error), error) {
		if e.ID == stuck.ID {
			return nil, errKernel
		}
		return lock(ctx, e)
	}
	if err := h.FinishInterrupted(t.Context()); !errors.Is(err, errKernel) || !strings.Contains(err.Error(), stuck.Name()) || strings.Contains(err.Error(), other.Name()) {
		t.Errorf("%v, want which pod is left", err)
	}
	if left := h.State.Endpoints(); len(left) != 1 || left[0].ID != stuck.ID {
		t.Errorf("left %+v, want %s alone", left, stuck.Name())
	}
}

func TestTheLinkOfAnotherAttachmentReleasesNothing(t *testing.T) {
	h := newHarness(t)
	e := statetest.Remove(t, h.State, statetest.Ready(t, h.State, "one"))
	other := link.Wired{Link: e.Link}
	other.Key = endpoint.Key{ContainerID: "another", IfName: "eth0"}
	other.Addresses = e.Addresses.List()
	if (reaper{h.Controller}).linkGone(other); len(h.State.Endpoints()) != 1 {
		t.Error("the link of another container released the endpoint")
	}
	other.Key = e.Key
	if (reaper{h.Controller}).linkGone(other); len(h.State.Endpoints()) != 0 {
		t.Error("its own link did not release the endpoint")
	}
}
