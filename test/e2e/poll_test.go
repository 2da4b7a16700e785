//go:build lab

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A poll needs no lab to be looked at.
func TestAPollOutlivesAHiccupAndTellsTheLastReason(t *testing.T) {
	hiccup := func(t testing.TB) { t.Helper(); t.Fatal("kubectl get: exit status 1") }
	looks := 0
	eventually(t, time.Minute, "the API server answers again", func(t testing.TB) error {
		if looks++; looks < 3 {
			hiccup(t)
		}
		return nil
	})
	short, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	// The deliberate breaks: what never holds fails, and says why.
	for _, c := range []struct {
		name  string
		ctx   context.Context
		limit time.Duration
		then  func(testing.TB) // after a first look that says 3 of 4
		want  string
	}{
		{"the poll ends", t.Context(), 700 * time.Millisecond, hiccup, "all are ready: not within 700ms: kubectl get: exit status 1"},
		{
			"the test ends in a look", short, time.Hour, func(t testing.TB) {
				t.Helper()
				<-t.Context().Done()
				t.Fatal("signal: killed")
			}, "all are ready: not within 1h0m0s: not yet: 3 of 4",
		},
	} {
		err := look(c.ctx, t, func(t testing.TB) error {
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
