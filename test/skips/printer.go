package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json`, as `go doc test2json` describes it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// test names a test; without a name it is its package.
type test struct{ pkg, name string }

// printer prints events as go test prints the tests.
type printer struct {
	out     io.Writer
	verbose bool
	output  map[test][]string // of tests that have not ended
	skipped []string          // lines of the list
	err     error             // of the first failed write
}

func (p *printer) print(text ...string) {
	for _, t := range text {
		if _, err := io.WriteString(p.out, t); err != nil && p.err == nil {
			p.err = err
		}
	}
}

// line handles a line of the output. What is no event is printed.
func (p *printer) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		p.print(line)
		return
	}
	of := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		p.print(e.Output)
	case "output":
		if p.verbose {
			p.print(e.Output)
		}
		p.output[of] = append(p.output[of], e.Output)
	case "pass", "fail", "skip":
		p.end(of, e.Action)
	}
}

// end handles the end of a test or of a package. A package is skipped if it has no tests,
// which go test prints.
func (p *printer) end(of test, action string) {
	output := p.output[of]
	delete(p.output, of)
	switch {
	case action == "skip" && of.name != "":
		p.skipped = append(p.skipped, fmt.Sprintf("%s %s: %s\n", of.pkg, of.name, reason(output)))
	case p.verbose:
	case of.name == "":
		p.print(ofPackage(output, action)...)
	case action == "fail":
		p.print(ofFailure(output)...)
	}
	if action == "fail" && of.name == "" {
		p.unfinished(of.pkg)
	}
}

// unfinished prints the output of tests that never ended, because of a panic, a timeout or
// a kill: those of a package, or all if it is empty.
func (p *printer) unfinished(pkg string) {
	byName := func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) }
	for _, of := range slices.SortedFunc(maps.Keys(p.output), byName) {
		if pkg != "" && of.pkg != pkg {
			continue
		}
		if !p.verbose {
			p.print(withoutMarks(p.output[of])...)
		}
		delete(p.output, of)
	}
}

// withoutMarks leaves out the lines of -v, such as "=== RUN   TestX".
func withoutMarks(output []string) (rest []string) {
	for _, line := range output {
		if !strings.HasPrefix(strings.TrimLeft(line, " "), "=== ") {
			rest = append(rest, line)
		}
	}
	return rest
}

// ofFailure returns what go test prints of a failed test: its result comes first.
func ofFailure(output []string) []string {
	rest := withoutMarks(output)
	isResult := func(line string) bool { return strings.HasPrefix(strings.TrimLeft(line, " "), "--- FAIL: ") }
	if n := slices.IndexFunc(rest, isResult); n > 0 {
		rest = slices.Concat(rest[n:n+1], rest[:n], rest[n+1:])
	}
	return rest
}

// ofPackage returns the lines of a package that go test prints: without the PASS before ok.
func ofPackage(output []string, action string) (rest []string) {
	for _, line := range withoutMarks(output) {
		if action != "pass" || line != "PASS\n" {
			rest = append(rest, line)
		}
	}
	return rest
}

// reason returns what a skipped test printed, as one line: its messages.
func reason(output []string) string {
	var text []string
	for _, line := range withoutMarks(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- SKIP: ") {
			text = append(text, line)
		}
	}
	if len(text) == 0 {
		return "no reason given"
	}
	return strings.Join(text, " ")
}
