package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Status of a case.
type Status string

// Statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	// Aborted: the run ended before the case did.
	Aborted Status = "aborted"
)

// Outcome is the result of one case.
type Outcome struct {
	Name    string `json:"name"`
	Asserts string `json:"asserts"`
	Status  Status `json:"status"`
	// Reason is why the case failed, was skipped or was aborted.
	Reason string  `json:"reason,omitempty"`
	Millis float64 `json:"millis"`
}

// Report is the result of a run.
type Report struct {
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
	Aborted int       `json:"aborted"`
	Seconds float64   `json:"seconds"`
	Started time.Time `json:"started"`
	Cases   []Outcome `json:"cases"`
}

// Progress is notified during a run, never concurrently.
type Progress interface {
	// Step is called before each step of the set-up and the clean-up.
	Step(what string)
	// Done is called after each case.
	Done(o Outcome)
}

// removeTime bounds the clean-up, also that of an interrupted run.
const removeTime = 3 * time.Minute

// Tested reports whether any selected case ran. The operation checks, which are part of
// every run, do not count.
func (r Report) Tested() bool {
	return slices.ContainsFunc(r.Cases, func(o Outcome) bool {
		return !strings.HasPrefix(o.Name, operationGroup) && (o.Status == Passed || o.Status == Failed)
	})
}

// Succeeded reports whether the run finished, tested something, and no case failed.
func (r Report) Succeeded() bool { return r.Failed == 0 && r.Aborted == 0 && r.Tested() }

// Unrun returns the report of a run in which no selected case ran, with the reason.
func Unrun(o Options, why string) Report {
	r := Report{Started: time.Now()}
	r.add(aborted(Selected(o), nil, why))
	return r
}

// Run sets up, runs the selected cases and the operation checks, and cleans up. Failed
// cases are in the report and are no error. An error is why the run did not finish, with
// the remaining cases in the report as aborted, or why the clean-up failed. An
// interrupted run is cleaned up too and returns the context's error.
func Run(ctx context.Context, c Cluster, o Options, p Progress) (Report, error) {
	r := Report{Started: time.Now()}
	outcomes, err := perform(ctx, c, o, p)
	r.add(outcomes)
	switch {
	case ctx.Err() != nil:
		r.add(aborted(Selected(o), outcomes, "the run was stopped: "+context.Cause(ctx).Error()))
	case err != nil:
		r.add(aborted(Selected(o), outcomes, err.Error()))
	}
	r.Seconds = time.Since(r.Started).Seconds()
	return r, err
}

// aborted returns an outcome for each case that has none.
func aborted(cases []Case, have []Outcome, why string) (list []Outcome) {
	for _, c := range cases {
		if !slices.ContainsFunc(have, func(o Outcome) bool { return o.Name == c.Name }) {
			list = append(list, Outcome{Name: c.Name, Asserts: c.Asserts, Status: Aborted, Reason: why})
		}
	}
	return list
}

// perform is Run without the report.
func perform(ctx context.Context, c Cluster, o Options, p Progress) (outcomes []Outcome, err error) {
	started := time.Now()
	p.Step("claim namespace " + o.Namespace)
	claimed, err := c.Claim(ctx, o.Namespace, p.Step)
	if ctx.Err() != nil { // interrupted meanwhile
		err = ctx.Err()
	}
	if !claimed {
		return nil, err
	}
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	holding, release := context.WithCancel(context.WithoutCancel(ctx)) // until the clean-up is done
	var hold sync.WaitGroup
	hold.Go(func() {
		if err := c.Hold(holding, o.Namespace); err != nil {
			lose(err)
		}
	})
	defer func() {
		if cause := context.Cause(ctx); errors.Is(cause, ErrTaken) {
			err = cause
		}
		err = errors.Join(err, cleanUp(ctx, c, o, p))
		release()
		hold.Wait()
	}()
	if err != nil {
		return nil, err
	}
	p.Step("create pods and services")
	setup, cancel := context.WithTimeout(ctx, o.SetupTimeout)
	defer cancel()
	e, err := prepare(setup, c, o)
	if err != nil {
		return nil, fmt.Errorf("prepare the test: %w", err)
	}
	drops := watchDrops(ctx, e.namespace, e.Host)
	p.Step("run")
	rest := Selected(o)
	for _, s := range []stage{{}, {PodGroups, "create pods with security groups", e.prepareGroups}, {Policies, "create pods with policies", e.preparePolicies}} {
		var cases []Case
		cases, rest = split(rest, s.need)
		more, err := e.runStage(ctx, s, cases, p)
		if outcomes = append(outcomes, more...); err != nil {
			return outcomes, err
		}
	}
	return append(outcomes, e.runAll(ctx, operations(started, drops), p)...), ctx.Err()
}

// stage is a part of the run. Its pods exist only from then on.
type stage struct {
	need    Need // of its cases; empty: of none of the other stages
	step    string
	prepare func(ctx context.Context) error
}

// split returns the cases of a stage apart from the others. Those without the need of a stage are
// the first one's.
func split(cases []Case, need Need) (of, rest []Case) {
	for _, c := range cases {
		first := !slices.Contains(c.Needs, Policies) && !slices.Contains(c.Needs, PodGroups)
		if need == "" && first || slices.Contains(c.Needs, need) {
			of = append(of, c)
		} else {
			rest = append(rest, c)
		}
	}
	return of, rest
}

// runStage runs the cases of a stage. Their pods exist only then, so that the cases before run in a
// cluster without policies if it has none of its own.
func (e *Env) runStage(ctx context.Context, s stage, cases []Case, p Progress) ([]Outcome, error) {
	if len(cases) == 0 || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, unmet := e.unmet[s.need]; !unmet && s.prepare != nil {
		p.Step(s.step)
		setup, cancel := context.WithTimeout(ctx, e.Options.SetupTimeout)
		defer cancel()
		if err := s.prepare(setup); err != nil {
			return nil, err
		}
	}
	return e.runAll(ctx, cases, p), nil
}

// cleanUp deletes the namespace, also after ctx ended.
func cleanUp(ctx context.Context, c Cluster, o Options, p Progress) error {
	if o.Keep {
		p.Step("namespace " + o.Namespace + " is kept")
		return nil
	}
	p.Step("remove namespace " + o.Namespace)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	err := c.Remove(clean, o.Namespace)
	if err != nil {
		err = fmt.Errorf("namespace %s could not be removed: %w", o.Namespace, err)
		p.Step(err.Error())
	}
	return err
}

// Selected returns the cases that o's filter selects.
func Selected(o Options) []Case {
	var out []Case
	for _, c := range Cases(o.MTU) {
		if o.Selects(c) {
			out = append(out, c)
		}
	}
	return out
}

// runAll runs cases, Concurrency at a time, and returns their outcomes in order. A case
// that ends after ctx has no outcome: its result says nothing about the network.
func (e *Env) runAll(ctx context.Context, cases []Case, p Progress) []Outcome {
	out := make([]Outcome, len(cases))
	var mu sync.Mutex // serialises calls of p
	var g errgroup.Group
	g.SetLimit(max(1, e.Options.Concurrency))
	for i, c := range cases {
		g.Go(func() error {
			o := e.run(ctx, c)
			if ctx.Err() != nil {
				return nil
			}
			out[i] = o
			mu.Lock()
			defer mu.Unlock()
			p.Done(o)
			return nil
		})
	}
	_ = g.Wait() // errors are in the outcomes
	return slices.DeleteFunc(out, func(o Outcome) bool { return o.Status == "" })
}

func (e *Env) run(ctx context.Context, c Case) Outcome {
	o := Outcome{Name: c.Name, Asserts: c.Asserts, Status: Passed}
	if why, missing := e.unmet.first(c.Needs); missing {
		o.Status, o.Reason = Skipped, why
		return o
	}
	start := time.Now()
	err := c.Run(ctx, e)
	o.Millis = float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		o.Status, o.Reason = Failed, err.Error()
	}
	return o
}

func (r *Report) add(outcomes []Outcome) {
	for _, o := range outcomes {
		switch o.Status {
		case Passed:
			r.Passed++
		case Failed:
			r.Failed++
		case Skipped:
			r.Skipped++
		case Aborted:
			r.Aborted++
		}
	}
	r.Cases = append(r.Cases, outcomes...)
}
