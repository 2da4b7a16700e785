// Package bench measures Trunkline against the reference plugins in the same run, the calls
// of EC2 that a node makes, and the lab with a hundred pods. Compare the ratios: both sides
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
)

// Options say what to measure.
type Options struct {
	Rounds int       // of each plugin, interleaved
	Short  bool      // leave out what needs the lab, and the calls of EC2, which take minutes
	Source string    // root of the checkout, with binaries in bin/
	Log    io.Writer // progress
}

// Run measures. With an error it returns the results measured before.
func Run(ctx context.Context, o Options) ([]Result, error) {
	beds := []func(*run, Options) []Result{plugins, amid}
	if !o.Short {
		beds = append(beds, ec2Calls, lab)
	}
	var results []Result
	for _, bed := range beds {
		more, err := supervise(ctx, o.Log, func(r *run) []Result { return bed(r, o) })
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
