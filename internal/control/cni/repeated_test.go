package cni

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
)

// The runtime gives up an ADD that waits for an address, or sends it again beside it: the ADDs
// of one attachment are one demand, take one address and have one answer.
func TestARepeatedADDIsServedWithTheFirst(t *testing.T) {
	for _, gone := range []bool{false, true} {
		h, holders := full(t)
		ctx, leave := context.WithCancelCause(t.Context())
		defer leave(nil)
		first := h.begin(t, ctx, "c1", "")
		h.untilWaiting(t, "c1")
		second := h.begin(t, t.Context(), "c1", "")
		if gone {
			leave(cniserver.ErrPluginGone)
			if failure := <-first; failure == nil {
				t.Error("the ADD of a plugin that is gone succeeded")
			}
		}
		h.untilWaiting(t, "c1")
		h.free(t, holders[0])
		if !gone {
			if failure := <-first; failure != nil {
				t.Error(failure)
			}
		}
		if failure := <-second; failure != nil {
			t.Error(failure)
		}
		h.untilWaiting(t)
		if e, ok := h.ofCall(); !ok || e.Addresses != holders[0].Addresses || len(h.State.Endpoints()) != 2 {
			t.Errorf("the endpoints are %+v, want one with %+v", h.State.Endpoints(), holders[0].Addresses)
		}
	}
}

// The agent was restarted between an ADD and its repetition, and in the midst of the first one.
func TestAnADDIsRepeatedAfterARestart(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		h := newHarness(t)
		dir := filepath.Dir(h.SpoolDirs[0])
		answer, failure := h.call(t, request("ADD", "known"))
		if failure != nil {
			t.Fatal(failure)
		}
		before, _ := h.ofCall()
		if interrupted {
			statetest.Update(t, h.State, func(tx *state.Tx) error { before.Stage = endpoint.Wiring; return tx.Put(before) })
		}
		if err := h.State.Close(); err != nil {
			t.Fatal(err)
		}
		h.State = statetest.Open(t, filepath.Join(dir, "journal"))
		h.Owned, h.Backend, h.Log = h.State.CNITables(), ledger{state: h.State}, slog.New(slog.DiscardHandler)
		h.wires.done = nil
		repeated, failure := h.call(t, request("ADD", "known"))
		if failure != nil || string(repeated) != string(answer) {
			t.Errorf("%s, %v; the first answer was %s", repeated, failure, answer)
		}
		if e, _ := h.ofCall(); e.Link != before.Link || e.ID != before.ID || len(h.State.Endpoints()) != 1 || slices.Contains(h.wires.done, "unwire") {
			t.Errorf("%+v after steps %v, before %+v", h.State.Endpoints(), h.wires.done, before)
		}
	}
}
