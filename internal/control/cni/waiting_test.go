package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// full is a harness of a node with two addresses, which two endpoints hold.
func full(t *testing.T) (h *harness, holders []endpoint.Endpoint) {
	t.Helper()
	h = newHarness(t)
	return h, []endpoint.Endpoint{statetest.Ready(t, h.State, "one"), statetest.Ready(t, h.State, "two")}
}

// free ends an endpoint and has the ADDs that wait try again.
func (h *harness) free(t *testing.T, e endpoint.Endpoint) {
	t.Helper()
	statetest.Update(t, h.State, func(tx *state.Tx) error {
		h.Backend.Free(tx, e, NeverWired, time.Now())
		tx.Delete(e.ID)
		return nil
	})
	h.Wake()
}

// begin sends the ADD of a container in the background.
func (h *harness) begin(t *testing.T, ctx context.Context, container, args string) <-chan *cnirpc.Error {
	t.Helper()
	req := request("ADD", "")
	req.ContainerID, req.Args = container, args
	answered := make(chan *cnirpc.Error, 1)
	netns := selfNetns(t)
	go func() {
		_, failure := h.answered(ctx, req, netns)
		answered <- failure
	}()
	return answered
}

// untilWaiting returns once the rows of the table "waiting" are those of the containers.
func (h *harness) untilWaiting(t *testing.T, containers ...string) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		changed := h.Owned.Waiting.Watch(h.State.DB.Snapshot(), table.Query[state.Waiting]{})
		var have []string
		for _, w := range h.State.Waiting() {
			have = append(have, w.Key.ContainerID)
		}
		if slices.Equal(have, containers) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the ADDs of %q wait, want those of %q", have, containers)
		}
	}
}

func TestAnADDThatWaitsIsInTheTableUntilItHasAnAddress(t *testing.T) {
	h, holders := full(t)
	before := time.Now()
	answered := h.begin(t, t.Context(), "c1", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=known")
	h.untilWaiting(t, "c1")
	row := h.State.Waiting()[0]
	if row.Pod != (endpoint.Pod{Namespace: "default", Name: "known", UID: "u1"}) || row.Key.IfName != "eth0" || row.Since.Before(before) || row.Since.After(time.Now()) {
		t.Errorf("row %+v", row)
	}
	h.free(t, holders[0])
	if failure := <-answered; failure != nil {
		t.Fatal(failure)
	}
	h.untilWaiting(t)
}

// Each ADD needs an address of its own, so those that have not tried yet are demand too.
func TestEachADDBehindOneThatWaitsIsInTheTable(t *testing.T) {
	h, holders := full(t)
	answers := map[string]<-chan *cnirpc.Error{}
	for i := range 3 {
		name := fmt.Sprint("c", i)
		answers[name] = h.begin(t, t.Context(), name, "")
		h.untilWaiting(t, []string{"c0", "c1", "c2"}[:i+1]...)
	}
	h.free(t, holders[0])
	if failure := <-answers["c0"]; failure != nil {
		t.Error(failure)
	}
	h.untilWaiting(t, "c1", "c2")
	h.free(t, holders[1])
	if failure := <-answers["c1"]; failure != nil {
		t.Error(failure)
	}
	h.untilWaiting(t, "c2")
}

func TestAnADDThatGivesUpLeavesTheTable(t *testing.T) {
	for name, end := range map[string]func(h *harness, cancel context.CancelCauseFunc){
		"its plugin went away": func(_ *harness, cancel context.CancelCauseFunc) { cancel(cniserver.ErrPluginGone) },
		"its time is over":     func(_ *harness, cancel context.CancelCauseFunc) { cancel(context.DeadlineExceeded) },
		"its DEL came": func(h *harness, _ context.CancelCauseFunc) {
			_, _ = h.answered(context.Background(), request("DEL", "known"), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := full(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			answered, next := h.begin(t, ctx, "c1", ""), (<-chan *cnirpc.Error)(nil)
			h.untilWaiting(t, "c1")
			next = h.begin(t, t.Context(), "c2", "")
			h.untilWaiting(t, "c1", "c2")
			end(h, cancel)
			if failure := <-answered; failure == nil {
				t.Error("the ADD succeeded without an address")
			}
			h.untilWaiting(t, "c2")
			select {
			case failure := <-next:
				t.Errorf("the next ADD was answered: %v", failure)
			default:
			}
		})
	}
}

// Another reader of the tables sees an ADD that waits, or its address, and never both.
func TestTheTransactionThatAssignsAnAddressEndsTheWait(t *testing.T) {
	h, holders := full(t)
	a := addOf("known", "u1").on(h)
	if err := a.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.wait(time.Now())
	h.untilWaiting(t, "c1")
	h.free(t, holders[0])
	refused := errors.New("refused by the test")
	for _, end := range []error{refused, nil} {
		_, err := h.State.Update(func(tx *state.Tx) error {
			if err := a.assign(tx); err != nil {
				return err
			}
			for row := range h.Owned.Waiting.All(tx.Txn()) {
				t.Errorf("%+v waits in the transaction that assigned its address", row)
			}
			return end
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
		want := []string{"c1"}
		if end == nil {
			want = nil
		}
		h.untilWaiting(t, want...)
	}
}

// It is served in its turn, and gets the address that its endpoint has.
func TestARepeatedADDIsNoDemand(t *testing.T) {
	h, holders := full(t)
	a := addOf("one", "").on(h)
	a.e.Key = holders[0].Key
	if a.wait(time.Now()); len(h.State.Waiting()) > 0 {
		t.Errorf("%+v wait, although the endpoint has an address", h.State.Waiting())
	}
}

func TestAnADDThatGetsItsAddressAtOnceDoesNotWriteTheTable(t *testing.T) {
	h := newHarness(t)
	changes := h.Owned.Waiting.Track()
	defer changes.Close()
	changes.Next(h.State.DB.Snapshot())
	var group sync.WaitGroup
	for _, name := range []string{"c1", "c2"} { // the second one may arrive during the first one's try
		group.Go(func() {
			if failure := <-h.begin(t, t.Context(), name, ""); failure != nil {
				t.Error(failure)
			}
		})
	}
	group.Wait()
	if written := changes.Next(h.State.DB.Snapshot()); len(written) > 0 {
		t.Errorf("changes %+v of the ADDs that wait, although none did", written)
	}
}

// counted is a backend that notes which ADDs wait when the planner is called for them.
type counted struct {
	Backend
	waiting func() int
	tries   chan struct{}
	saw     []int // ADDs in the table, at each call of Demanded
}

func (c *counted) Renewed(endpoint.Pod) { c.tries <- struct{}{} } // before each try

func (c *counted) Demanded() { c.saw = append(c.saw, c.waiting()) }

// The plan that an ADD causes has it as demand, until it gives up. A further try that finds
// no address changes nothing that the planner reads; as each plan wakes the first ADD,
// planning for each try would never end.
func TestThePlannerIsCalledOnceForAnADDThatWaits(t *testing.T) {
	h, _ := full(t)
	c := &counted{Backend: h.Backend, tries: make(chan struct{}, 1), waiting: func() int { return len(h.State.Waiting()) }}
	h.Backend = c
	ctx, cancel := context.WithCancelCause(t.Context())
	answered := h.begin(t, ctx, "c1", "")
	h.untilWaiting(t, "c1")
	for range 3 {
		<-c.tries
		h.Wake()
	}
	<-c.tries
	cancel(cniserver.ErrPluginGone)
	<-answered
	if !slices.Equal(c.saw, []int{1, 0}) {
		t.Errorf("ADDs in the table at each call of Demanded: %v, want one while it waits and one after it gave up", c.saw)
	}
}
