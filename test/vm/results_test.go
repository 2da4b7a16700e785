package vm

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/vm/guest"
)

// describe lists tests with their results, children below their parents.
func describe(list []*outcome, depth string) (out []string) {
	for _, o := range list {
		text := strings.TrimSpace(strings.Join(o.output, ""))
		out = append(out, strings.TrimRight(depth+o.name+": "+o.action+" "+text, " "))
		out = append(out, describe(o.children, depth+"  ")...)
	}
	return out
}

func TestResultsAreThoseOfTheProgramsOutput(t *testing.T) {
	const output = "\x16=== RUN   TestA\n\x16=== RUN   TestA/of/slashes\n    a_test.go:7: said\n" +
		"\x16=== NAME  TestA\n    \x16--- PASS: TestA/of/slashes (0.10s)\n\x16--- PASS: TestA (0.10s)\n" +
		"\x16=== RUN   TestB\n    b_test.go:3: why\n\x16--- SKIP: TestB (0.00s)\n" +
		"\x16=== RUN   TestC\npanic: boom\n"
	r, err := readResults(t.Context(), strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TestA: pass", "  of/slashes: pass a_test.go:7: said", "TestB: skip b_test.go:3: why", "TestC:  panic: boom"}
	got := describe(r.tests, "")
	if !slices.Equal(got, want) || r.ran != 4 {
		t.Errorf("%d tests:\n%s\nwant\n%s", r.ran, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The serial port delivers bytes in parts of any length.
func TestThePortFindsTheResultInAnyPartsOfTheOutput(t *testing.T) {
	const output = "one\ntwo"
	text := output + guest.Result{Code: 3}.Line()
	for size := 1; size <= len(text); size++ {
		var b bytes.Buffer
		p := &port{to: &b}
		for part := range slices.Chunk([]byte(text), size) {
			if _, err := p.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		p.flush()
		if p.result == nil || p.result.Code != 3 || b.String() != output {
			t.Errorf("in parts of %d bytes: %+v, %q", size, p.result, b.String())
		}
	}
}
