package policy

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// The watch of the node's pods, which has none here, may be behind what an ADD has read.
func TestPodsOfADDsInFlightAreKeptAndThoseOfFailedOnesForgotten(t *testing.T) {
	s := statetest.Open(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		of := &cluster{known: true, synced: true}
		c := New(Deps{
			Log: slog.New(slog.DiscardHandler), State: s, Objects: of, Pods: of, Events: of, Links: noLinks{}, Registry: prometheus.NewRegistry(), Report: func() {},
		})
		if err := c.Admit(t.Context(), kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "a"}}); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {4 * time.Minute, 1}, {2 * time.Minute, 0}} {
			time.Sleep(step.after)
			if _, err := c.pass(t.Context(), true); err != nil || len(c.admitted) != step.want {
				t.Errorf("%v later: %d pods, %v; want %d", step.after, len(c.admitted), err, step.want)
			}
		}
	})
}
