package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// event is one line of test2json; see `go doc test2json`.
type event struct {
	Action  string
	Test    string
	Output  string
	Elapsed float64 // seconds; test2json has it with -t
}

// results are those of the tests of one program, in the order in which they began.
type results struct {
	tests  []*outcome // without parents
	byName map[string]*outcome
	ran    int
	output []string // that belongs to no test
}

// outcome is the result of one test.
type outcome struct {
	name     string // below its parent
	action   string // pass, fail or skip; empty for one that did not end
	elapsed  float64
	output   []string
	children []*outcome
}

// readResults reads the output of a test program with -test.v=test2json.
func readResults(ctx context.Context, output io.Reader) (*results, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t")
	cmd.Stdin = output
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	events, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool test2json: %w: %s", err, &stderr)
	}
	r := &results{byName: map[string]*outcome{}}
	for dec := json.NewDecoder(bytes.NewReader(events)); dec.More(); {
		var e event
		if err := dec.Decode(&e); err != nil {
			return nil, err
		}
		r.add(e)
	}
	return r, nil
}

func (r *results) add(e event) {
	if e.Test == "" {
		if e.Output != "" {
			r.output = append(r.output, e.Output)
		}
		return
	}
	o := r.byName[e.Test]
	if o == nil {
		o = r.begin(e.Test)
	}
	switch e.Action {
	case "output":
		if text := strings.TrimLeft(e.Output, " "); !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- ") {
			o.output = append(o.output, e.Output)
		}
	case "pass", "fail", "skip":
		o.action, o.elapsed = e.Action, e.Elapsed
	}
}

// begin adds a test below the closest parent: the longest name that is a prefix.
func (r *results) begin(name string) *outcome {
	o := &outcome{name: name}
	r.byName[name] = o
	r.ran++
	for n := strings.LastIndexByte(name, '/'); n > 0; n = strings.LastIndexByte(name[:n], '/') {
		if parent := r.byName[name[:n]]; parent != nil {
			o.name = name[n+1:]
			parent.children = append(parent.children, o)
			return o
		}
	}
	r.tests = append(r.tests, o)
	return o
}

// report runs a subtest for each test, and returns whether one failed.
func (r *results) report(t *testing.T) (failed bool) {
	for _, o := range r.tests {
		failed = !t.Run(o.name, o.report) || failed
	}
	return failed
}

func (o *outcome) report(t *testing.T) {
	for _, c := range o.children {
		t.Run(c.name, c.report)
	}
	text := strings.TrimSpace(strings.Join(o.output, ""))
	switch o.action {
	case "pass":
		t.Logf("passed in the guest in %.2f s\n%s", o.elapsed, text)
	case "skip":
		t.Skip(text)
	case "fail":
		t.Errorf("failed in the guest\n%s", text)
	default:
		t.Errorf("did not end in the guest\n%s", text)
	}
}

func (r *results) outside() string { return strings.Join(r.output, "") }
