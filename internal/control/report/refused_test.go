package report

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
)

// marking is a cluster that keeps the last condition NetworkUnavailable.
type marking struct {
	withPolicies
	unavailable     bool
	reason, message string
}

func (m *marking) SetNetworkUnavailable(_ context.Context, unavailable bool, reason, message string) error {
	m.unavailable, m.reason, m.message = unavailable, reason, message
	return errors.New("asked")
}

// Beside AWS's daemon the agent refuses every ADD: the Node must not say that it wires pods.
func TestTheNodesConditionSaysThatTheAgentRefusesToServe(t *testing.T) {
	for refused, want := range map[string]marking{
		"":             {reason: "TrunklineReady", message: "pods are wired by Trunkline"},
		"pod aws-node": {reason: "TrunklineRefuses", message: "pod aws-node"},
	} {
		m := &marking{}
		r := &Reporter{Deps: Deps{Cluster: m, Wires: Wires{Refuses: func() string { return refused }}}}
		if err := r.mark(t.Context()); refused == "" && (err != nil || m.reason != "") {
			t.Errorf("before the runtime has its configuration: %v, %s", err, m.reason)
		}
		r.ready.Store(true)
		if err := r.mark(t.Context()); err == nil || m.reason != want.reason || m.message != want.message || m.unavailable {
			t.Errorf("refused %q: %v, unavailable %v, %s: %s", refused, err, m.unavailable, m.reason, m.message)
		}
	}
}

// Policies that are created while the agent runs are reported within minutes, and others once an
// hour, which is as long as an event is kept.
func TestPoliciesThatAreCreatedLaterAreReportedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &withPolicies{}
		r := &Reporter{Deps: Deps{Log: slog.New(slog.DiscardHandler), Cluster: c, Events: c, Enforcement: off}}
		check := func(events int) {
			t.Helper()
			if _, err := r.findPolicies(t.Context(), true); err != nil || len(c.events) != events {
				t.Errorf("%v, events %q, want %d", err, c.events, events)
			}
			time.Sleep(policiesLook)
		}
		check(0)
		c.found = []string{"1 of NetworkPolicy"}
		check(1)
		check(1)
		c.found = []string{"2 of NetworkPolicy"}
		check(2)
		for range policiesEvery/policiesLook - 1 {
			check(2)
		}
		check(3)
	})
	if every := New(config.Config{}, Deps{}).Policies.Every; every != policiesLook || every > 10*time.Minute {
		t.Errorf("the policies are listed every %s", every)
	}
}
