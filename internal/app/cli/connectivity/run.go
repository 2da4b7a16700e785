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
	// Aborted is a case that the run ended before.
	Aborted Status = "aborted"
)

// Outcome is what became of one case.
type Outcome struct {
	Name    string `json:"name"`
	Asserts string `json:"asserts"`
	Status  Status `json:"status"`
	// Reason is why it failed, was skipped or did not run.
	Reason string  `json:"reason,omitempty"`
	Millis float64 `json:"millis"`
}

// Report is what became of a run.
type Report struct {
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
	Aborted int       `json:"aborted"`
	Seconds float64   `json:"seconds"`
	Started time.Time `json:"started"`
	Cases   []Outcome `json:"cases"`
}

// Progress hears of a run while it goes. Calls come one at a time.
type Progress interface {
	// Step is one step of the set-up or the end.
	Step(what string)
	// Done is called after each case.
	Done(o Outcome)
}

// removeTime bounds the clean-up, which an interrupted run gets too.
const removeTime = 90 * time.Second

// Tested reports whether any picked case ran: the operation checks alone, which
// every run ends with, say little.
func (r Report) Tested() bool {
	return slices.ContainsFunc(r.Cases, func(o Outcome) bool {
		return !strings.HasPrefix(o.Name, operationGroup) && (o.Status == Passed || o.Status == Failed)
	})
}

// Green reports whether the run came to its end, tested something, and found
// nothing wrong.
func (r Report) Green() bool { return r.Failed == 0 && r.Aborted == 0 && r.Tested() }

// Unrun is the report of a run that came to nothing: no picked case ran, and why.
func Unrun(o Options, why string) Report {
	r := Report{Started: time.Now()}
	r.add(aborted(Picked(o), nil, why))
	return r
}

// Run sets up, runs the picked cases and the operation checks, and cleans up.
// Failed cases are in the report; an error says why the run did not come to its
// end, or what is left of it in the cluster, and the cases that it kept from
// running are in the report as aborted. An interrupted run is cleaned up too and
// returns the context's error.
func Run(ctx context.Context, c Cluster, o Options, p Progress) (Report, error) {
	r := Report{Started: time.Now()}
	outcomes, err := perform(ctx, c, o, p)
	r.add(outcomes)
	switch {
	case ctx.Err() != nil:
		r.add(aborted(Picked(o), outcomes, "the run was stopped: "+context.Cause(ctx).Error()))
	case err != nil:
		r.add(aborted(Picked(o), outcomes, err.Error()))
	}
	r.Seconds = time.Since(r.Started).Seconds()
	return r, err
}

// aborted are the outcomes of cases that have none.
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
	mine, err := c.Claim(ctx, o.Namespace, p.Step)
	if ctx.Err() != nil { // interrupted in the midst of it
		err = ctx.Err()
	}
	if !mine {
		return nil, err
	}
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	claimed, letGo := context.WithCancel(context.WithoutCancel(ctx)) // until it is cleaned up
	var hold sync.WaitGroup
	hold.Go(func() {
		if err := c.Hold(claimed, o.Namespace); err != nil {
			lose(err)
		}
	})
	defer func() {
		if cause := context.Cause(ctx); errors.Is(cause, ErrTaken) {
			err = cause
		}
		err = errors.Join(err, cleanUp(ctx, c, o, p))
		letGo()
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
	w := e.startWatch(ctx, started)
	p.Step("run")
	outcomes = e.runAll(ctx, Picked(o), p)
	return append(outcomes, e.runAll(ctx, operations(w), p)...), ctx.Err()
}

// cleanUp removes the namespace, also after ctx ended.
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
		err = fmt.Errorf("namespace %s is left: %w", o.Namespace, err)
		p.Step(err.Error())
	}
	return err
}

// Picked are the cases that o's filter lets run.
func Picked(o Options) []Case {
	var out []Case
	for _, c := range Cases(o.MTU) {
		if o.Picks(c) {
			out = append(out, c)
		}
	}
	return out
}

// runAll runs cases, a few at a time, and returns their outcomes in order. Once ctx
// has ended, what becomes of a case says nothing about the network: it has no
// outcome.
func (e *Env) runAll(ctx context.Context, cases []Case, p Progress) []Outcome {
	out := make([]Outcome, len(cases))
	var mu sync.Mutex // progress hears one at a time
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
	_ = g.Wait() // outcomes hold the errors
	return slices.DeleteFunc(out, func(o Outcome) bool { return o.Status == "" })
}

func (e *Env) run(ctx context.Context, c Case) Outcome {
	o := Outcome{Name: c.Name, Asserts: c.Asserts, Status: Passed}
	if why, missing := e.missing(c.Needs); missing {
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
