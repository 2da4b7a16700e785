package report

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestChainsThatAWSsDaemonLeftInIptablesLegacyAreAWarningWithTheirRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := newWithFilters(t)
		c.found = nil
		observe := func() []string {
			t.Helper()
			if _, err := r.findLeft(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			return r.status().Warnings
		}
		if warnings := observe(); len(warnings)+len(c.events) > 0 {
			t.Errorf("without chains: %q, %q", warnings, c.events)
		}
		c.legacy, c.why = []string{"AWS-SNAT-CHAIN-0 in table nat"}, errors.New("the lock is held\n"+strings.Repeat("x", 2000))
		warnings := observe()
		if len(warnings) != 1 || len(c.events) != 1 || !strings.HasPrefix(c.events[0], "LegacyRulesLeft: ") {
			t.Fatalf("warnings %q, events %q", warnings, c.events)
		}
		for _, text := range []string{warnings[0], c.events[0]} {
			for _, part := range []string{"AWS-SNAT-CHAIN-0 in table nat", "the lock is held; xxx", "`iptables-legacy-save | grep AWS-`", "| iptables-legacy-restore`"} {
				if !strings.Contains(text, part) {
					t.Errorf("%q does not name %q", text, part)
				}
			}
			if len(text) > 1000 { // the API server refuses a message of more than 1,024
				t.Errorf("%d bytes: %q", len(text), text)
			}
		}
		if observe(); len(c.events) != 1 {
			t.Errorf("events repeated at once: %q", c.events)
		}
		time.Sleep(policiesEvery)
		if observe(); len(c.events) != 2 {
			t.Errorf("events after an hour: %q", c.events)
		}
		c.legacy = nil // the operator has removed them
		if warnings := observe(); len(warnings) > 0 || len(c.events) != 2 {
			t.Errorf("after the removal: %q, %q", warnings, c.events)
		}
	})
}

func TestAnErrorOfOneSearchDoesNotHideTheOther(t *testing.T) {
	c, r := newWithFilters(t)
	c.err = errors.New("no buffer space")
	c.legacy = []string{"AWS-SNAT-CHAIN-0 in table nat"}
	if _, err := r.findLeft(t.Context(), true); !errors.Is(err, c.err) || len(c.events) != 1 {
		t.Errorf("%v, want %v; events %q", err, c.err, c.events)
	}
}
