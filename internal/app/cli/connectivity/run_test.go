package connectivity_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

// failedCases records the failed cases that Progress is notified of.
type failedCases struct {
	silent
	names []string
}

func (f *failedCases) Done(o connectivity.Outcome) {
	if o.Status == connectivity.Failed {
		f.names = append(f.names, o.Name)
	}
}

func TestAnInterruptedRunIsCleanedUpAndReportsNoFailedCase(t *testing.T) {
	for name, when := range map[string]func(m *model, stop func()){
		"before it starts":    func(_ *model, stop func()) { stop() },
		"during the claim":    func(m *model, stop func()) { m.atClaim = stop },
		"during the set-up":   func(m *model, stop func()) { m.atExec = stop },
		"while its cases run": func(m *model, stop func()) { m.atExec = after(60, stop) },
	} {
		t.Run(name, func(t *testing.T) {
			m, p := newModel(noFault), &failedCases{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			when(m, cancel)
			r, err := connectivity.Run(ctx, m, options(), p)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want the interruption", err)
			}
			if len(m.pods) != 0 || m.removed != m.claimed {
				t.Errorf("claimed %d times, removed %d times, %d pods left", m.claimed, m.removed, len(m.pods))
			}
			if r.Failed > 0 || len(p.names) > 0 {
				t.Errorf("%d cases failed, and progress was notified of %v, but only the run was interrupted", r.Failed, p.names)
			}
			if want := len(connectivity.Cases(9001)); r.Aborted == 0 || len(r.Cases) < want || r.Succeeded() {
				t.Errorf("%d cases of %d in the report, %d aborted, succeeded %v", len(r.Cases), want, r.Aborted, r.Succeeded())
			}
		})
	}
}

// after returns a function that calls do from its nth call on.
func after(n int64, do func()) func() {
	var calls atomic.Int64
	return func() {
		if calls.Add(1) >= n {
			do()
		}
	}
}

func TestANamespaceThatCannotBeRemovedIsReported(t *testing.T) {
	m := newModel(noFault)
	stuck := &stuckModel{model: m}
	r, err := connectivity.Run(t.Context(), stuck, options(), silent{})
	if err == nil || !strings.Contains(err.Error(), "namespace trunkline-test could not be removed: ") {
		t.Errorf("error %v, want that the namespace could not be removed", err)
	}
	if r.Failed > 0 || r.Aborted > 0 || r.Passed == 0 {
		t.Errorf("%d passed, %d failed, %d aborted: the failed removal must not change the cases' results", r.Passed, r.Failed, r.Aborted)
	}
}

// stuckModel is a cluster in which removals fail.
type stuckModel struct{ *model }

func (*stuckModel) Remove(context.Context, string) error { return errors.New("a pod is not deleted") }

func TestARunThatCannotClaimItsNamespaceRemovesNothing(t *testing.T) {
	m := newModel(noFault)
	m.busy = connectivity.ErrBusy
	r, err := connectivity.Run(t.Context(), m, options(), silent{})
	if !errors.Is(err, connectivity.ErrBusy) || m.removed > 0 || r.Aborted == 0 || r.Succeeded() {
		t.Errorf("%v, removed %d times, %d aborted, succeeded %v", err, m.removed, r.Aborted, r.Succeeded())
	}
}

// losingModel is a cluster in which the run loses its namespace while cases run.
type losingModel struct {
	*model
	execs atomic.Int64
}

func (m *losingModel) Exec(ctx context.Context, namespace, pod string, argv []string) (connectivity.Output, error) {
	n := m.execs.Add(1)
	if n == 60 {
		m.lost <- fmt.Errorf("%w: another run claimed it", connectivity.ErrTaken)
	}
	if n >= 60 {
		<-ctx.Done()
		return connectivity.Output{}, ctx.Err()
	}
	return m.model.Exec(ctx, namespace, pod, argv)
}

func TestARunThatLosesItsNamespaceStopsAndSaysWhy(t *testing.T) {
	m, p := &losingModel{model: newModel(noFault)}, &failedCases{}
	m.lost = make(chan error)
	o := options()
	o.CaseTimeout = time.Minute
	r, err := connectivity.Run(t.Context(), m, o, p)
	if !errors.Is(err, connectivity.ErrTaken) || r.Aborted == 0 || r.Succeeded() || r.Failed > 0 || len(p.names) > 0 {
		t.Errorf("%v, %d aborted, succeeded %v, %d failed, progress was notified of %v", err, r.Aborted, r.Succeeded(), r.Failed, p.names)
	}
	if last := r.Cases[len(r.Cases)-1].Reason; !strings.Contains(last, "another run claimed it") {
		t.Errorf("the reason of the last case is %q", last)
	}
}

func TestARunThatTestedNothingDidNotSucceed(t *testing.T) {
	m := newModel(noFault)
	o := options()
	o.Filter, o.Outside = regexp.MustCompile("^outside/"), ""
	if r := run(t, m, o); r.Skipped != 2 || r.Failed > 0 || r.Tested() || r.Succeeded() {
		t.Errorf("all selected cases were skipped: %d skipped, %d failed, tested %v, succeeded %v", r.Skipped, r.Failed, r.Tested(), r.Succeeded())
	}
	m.nodes = nil
	r, err := connectivity.Run(t.Context(), m, options(), silent{})
	if err == nil || r.Aborted != len(connectivity.Cases(9001)) || r.Succeeded() {
		t.Errorf("without a node: %v, %d aborted, succeeded %v", err, r.Aborted, r.Succeeded())
	}
	if !strings.Contains(r.Cases[0].Reason, "no node is ready") {
		t.Errorf("the reason of the first case is %q", r.Cases[0].Reason)
	}
	if r := connectivity.Unrun(options(), "killed"); r.Succeeded() || r.Aborted == 0 || r.Cases[0].Reason != "killed" {
		t.Errorf("before anything ran: succeeded %v, %+v", r.Succeeded(), r.Cases[0])
	}
}
