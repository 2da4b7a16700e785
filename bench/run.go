// Package bench measures Trunkline against the reference plugins in the same run, the calls
// of EC2 that a node makes, security groups for pods, and the lab with a hundred pods. Compare the ratios: both sides
// share the machine and its load.
//
// bench/cmd runs it and prints the results; `make bench` runs bench/cmd. It needs root and
// creates its own namespaces and, for the figures of the lab, a lab named "bench".
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Options say what to measure.
type Options struct {
	Rounds int       // of each plugin, interleaved
	Only   string    // beds of this name, or of names that begin with it; empty: all
	Short  bool      // leave out what needs the lab, and the calls of EC2, which take minutes
	Source string    // root of the checkout, with binaries in bin/
	Log    io.Writer // progress
}

// Bed measures some of the figures.
type Bed struct {
	Name    string
	long    bool // left out by Short
	measure func(*run, Options) []Result
}

func (b Bed) String() string { return b.Name }

// Beds are all, in the order in which they run.
func Beds() []Bed {
	return []Bed{
		{"plugins", false, plugins},
		{"amid", false, amid},
		{"policy-paths", false, policyPaths},
		{"policy-off", false, policyOff},
		{"policy-lookup", false, policyLookup},
		{"policy-changes", false, policyChanges},
		{"policy-add", false, policyAdds},
		{"policy-memory", true, policyMemory},
		{"sgp-path", false, sgpPath},
		{"sgp-restart", true, sgpRestart},
		{"sgp-ready", true, sgpReady},
		{"ec2", true, ec2Calls},
		{"sgp-pods", true, sgpPods},
		{"lab", true, lab},
	}
}

// Run measures. With an error it returns the results measured before.
func Run(ctx context.Context, o Options) ([]Result, error) {
	selected := slices.DeleteFunc(Beds(), func(b Bed) bool { return !strings.HasPrefix(b.Name, o.Only) || o.Short && b.long })
	if len(selected) == 0 {
		return nil, fmt.Errorf("no figures are called %q: choose one of %v, or the beginning of several", o.Only, Beds())
	}
	var results []Result
	for _, bed := range selected {
		more, err := supervise(ctx, o.Log, func(r *run) []Result { return bed.measure(r, o) })
		results = append(results, more...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// run implements node.T outside `go test`. Fatal and Fatalf end the goroutine of supervise.
type run struct {
	ctx     context.Context
	log     io.Writer
	undo    []func()
	problem error
}

// supervise measures in a goroutine that Fatal may end, and runs its clean-ups.
func supervise(ctx context.Context, log io.Writer, measure func(*run) []Result) (results []Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{ctx: ctx, log: log}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanUp()
		results = measure(r)
	}()
	<-done
	return results, r.problem
}

func (r *run) cleanUp() {
	for _, fn := range slices.Backward(r.undo) {
		fn()
	}
}

func (r *run) Context() context.Context { return r.ctx }
func (r *run) Helper()                  {}
func (r *run) Failed() bool             { return r.problem != nil }
func (r *run) Cleanup(fn func())        { r.undo = append(r.undo, fn) }

func (r *run) Logf(format string, args ...any) { fmt.Fprintf(r.log, format+"\n", args...) }

func (r *run) Errorf(format string, args ...any) {
	r.problem = errors.Join(r.problem, fmt.Errorf(format, args...))
}

func (r *run) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *run) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// until waits until something is so, which it checks again and again.
func (r *run) until(what string, done func() bool) { r.within(5*time.Minute, what, done) }

// within is until with a limit.
func (r *run) within(d time.Duration, what string, done func() bool) {
	tick, limit := time.NewTicker(20*time.Millisecond), time.After(d)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			r.Fatalf("not in %s: %s", d, what)
		case <-r.ctx.Done():
			r.Fatal(r.ctx.Err())
		}
	}
}

// wait waits for a time.
func (r *run) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
		r.Fatal(r.ctx.Err())
	}
}

func (r *run) TempDir() string {
	dir, err := os.MkdirTemp("", "tl-bench-*")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			r.Errorf("%w", err)
		}
	})
	return dir
}
