package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// run runs the named loops of an agent for a while of the test's own clock.
func run(t *testing.T, a *Agent, d time.Duration, during func(), names ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	done := make(chan error)
	all := a.loops()
	for _, name := range names {
		go func() { done <- all[name].Run(ctx) }()
	}
	during()
	for range names {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestWhatTheKernelKeepsRefusingIsTriedEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withExecutor(t, &lossy{broken: func() bool { return false }})
		last, longest := time.Now(), time.Duration(0)
		a.kernel.Work = func(context.Context, bool) (time.Time, error) {
			longest = max(longest, time.Since(last))
			last = time.Now()
			return time.Time{}, errors.New("device or resource busy")
		}
		run(t, a, 10*time.Minute, func() {}, "kernel")
		if longest > 5*time.Second {
			t.Errorf("%s between two passes: a rule that was flushed meanwhile is not repaired within seconds", longest)
		}
	})
}

// deaf is a cluster that takes a report and never answers.
type deaf struct{ Cluster }

func (deaf) Pods() []kube.Pod                   { return nil }
func (deaf) Node() (kube.Node, bool)            { return kube.Node{}, false }
func (deaf) Freeze() (trunkline.Freeze, string) { return trunkline.FreezeNone, "" }
func (d deaf) WriteNetwork(ctx context.Context, _ trunkline.NodeNetworkStatus) error {
	return d.SetNetworkUnavailable(ctx, false, "", "")
}

func (deaf) SetNetworkUnavailable(ctx context.Context, _ bool, _, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTheConflistIsKeptThoughTheAPIServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withExecutor(t, &lossy{broken: func() bool { return false }})
		a.cfg.CNIConfDir, a.cluster, a.serving = t.TempDir(), deaf{}, true
		a.report.Work = a.reportOnce
		path := filepath.Join(a.cfg.CNIConfDir, conflistName)
		run(t, a, time.Minute, func() {
			for range 3 {
				time.Sleep(10 * time.Second) // on the test's own clock
				if err := os.Remove(path); err != nil {
					t.Errorf("the conflist is not there: %v", err)
				}
			}
		}, "report", "conflist")
	})
}

func TestServingBeginsWithTheFirstAddress(t *testing.T) {
	a := withExecutor(t, &lossy{broken: func() bool { return false }})
	a.cfg.StateDir, a.cluster, a.addressed = t.TempDir(), deaf{}, make(chan struct{})
	full := a.state
	for _, s := range []*state.Store{journaled(t, a.cfg), full, full} {
		a.state = s
		if _, err := a.planOnce(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.addressed:
			if s != full {
				t.Error("calls are served without an address")
			}
		default:
			if s == full {
				t.Error("there is an address, and calls are not served")
			}
		}
	}
}
