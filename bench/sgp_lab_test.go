//go:build lab

package bench

import (
	"testing"
	"time"
)

// A sample of the benchmark. It checks the branch of each pod at EC2 itself.
func TestPodsAreMeasuredUntilTheyAreReady(t *testing.T) {
	size := readySize{pods: 10, nodes: 2, rate: 20, warm: 5, pause: time.Second, jitter: time.Second}
	results, err := supervise(t.Context(), t.Output(), func(r *run) []Result { return ready(r, Options{Source: ".."}, size) })
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4 {
		t.Fatalf("%+v", results)
	}
	for _, r := range results {
		if r.Value <= 0 || r.Baseline == nil || *r.Baseline <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestARestartOfASmallClusterIsMeasured(t *testing.T) {
	results, err := supervise(t.Context(), t.Output(), func(r *run) []Result {
		return restart(r, Options{Source: ".."}, fleetSize{nodes: 20, branches: 700, watched: time.Second})
	})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, r := range results {
		names += r.Name + " "
	}
	if names != "sgp.restart2600.calls sgp.restart2600.s " || results[0].Value != 0 || results[1].Value <= 0 {
		t.Errorf("%+v", results)
	}
}
