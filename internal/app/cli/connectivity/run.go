package connectivity

import (
	"context"
	"fmt"
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
)

// Outcome is what became of one case.
type Outcome struct {
	Name    string `json:"name"`
	Asserts string `json:"asserts"`
	Status  Status `json:"status"`
	// Reason is why it failed or was skipped.
	Reason string  `json:"reason,omitempty"`
	Millis float64 `json:"millis"`
}

// Report is what became of a run.
type Report struct {
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
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

// Run sets up, runs the picked cases and the operation checks, and cleans up.
// The error says why there is no report; failed cases are in the report. An
// interrupted run is cleaned up and returns the context's error.
func Run(ctx context.Context, c Cluster, o Options, p Progress) (report Report, err error) {
	started := time.Now()
	p.Step(fmt.Sprintf("remove what an earlier run left in namespace %s", o.Namespace))
	if err := c.Remove(ctx, o.Namespace); err != nil {
		return report, err
	}
	defer func() {
		if o.Keep {
			p.Step("namespace " + o.Namespace + " is kept")
			return
		}
		p.Step("remove namespace " + o.Namespace)
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		if e := c.Remove(clean, o.Namespace); e != nil && err == nil {
			err = e
		}
	}()
	p.Step("create pods and services")
	setup, cancel := context.WithTimeout(ctx, o.SetupTimeout)
	defer cancel()
	e, err := prepare(setup, c, o)
	if err != nil {
		return report, fmt.Errorf("prepare the test: %w", err)
	}
	w := e.startWatch(ctx, started)
	p.Step("run")
	report = Report{Started: started}
	report.add(e.runAll(ctx, Picked(o), p))
	report.add(e.runAll(ctx, operations(w), p))
	report.Seconds = time.Since(started).Seconds()
	return report, ctx.Err()
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

// runAll runs cases, a few at a time, and returns their outcomes in order.
func (e *Env) runAll(ctx context.Context, cases []Case, p Progress) []Outcome {
	out := make([]Outcome, len(cases))
	var mu sync.Mutex // progress hears one at a time
	var g errgroup.Group
	g.SetLimit(max(1, e.Options.Concurrency))
	for i, c := range cases {
		g.Go(func() error {
			out[i] = e.run(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			p.Done(out[i])
			return nil
		})
	}
	_ = g.Wait() // outcomes hold the errors
	return out
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
		}
	}
	r.Cases = append(r.Cases, outcomes...)
}
