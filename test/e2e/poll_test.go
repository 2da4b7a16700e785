//go:build lab

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Polling is tested without a lab.
func TestPollSurvivesATransientErrorAndReportsTheLastOne(t *testing.T) {
	transient := func(t testing.TB) { t.Helper(); t.Fatal("kubectl get: exit status 1") }
	attempts := 0
	eventually(t, time.Minute, "the API server answers again", func(t testing.TB) error {
		if attempts++; attempts < 3 {
			transient(t)
		}
		return nil
	})
	short, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	// The deliberate breaks: a condition that never holds fails with its last error.
	for _, c := range []struct {
		name  string
		ctx   context.Context
		limit time.Duration
		then  func(testing.TB) // after a first attempt that returns 3 of 4
		want  string
	}{
		{"the poll ends", t.Context(), 700 * time.Millisecond, transient, "all are ready: not within 700ms: kubectl get: exit status 1"},
		{
			"the test ends during an attempt", short, time.Hour, func(t testing.TB) {
				t.Helper()
				<-t.Context().Done()
				t.Fatal("signal: killed")
			}, "all are ready: not within 1h0m0s: not yet: 3 of 4",
		},
	} {
		err := runAttempt(c.ctx, t, func(t testing.TB) error {
			first := true
			eventually(t, c.limit, "all are ready", func(t testing.TB) error {
				if !first {
					c.then(t)
				}
				first = false
				return notYet("%d of %d", 3, 4)
			})
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}
