package guest

import (
	"strings"
	"testing"
)

func TestAResultIsReadAfterWhateverOutput(t *testing.T) {
	for _, before := range []string{"", "PASS", "ünïcode\x00\x16=== "} {
		for _, want := range []Result{{}, {Code: 1}, {Code: -1, Problem: "load x.ko: invalid argument"}} {
			output, got, ok := CutResult(before + want.Line())
			if !ok || output != before || got != want {
				t.Errorf("%q: %q, %+v, %v", before+want.Line(), output, got, ok)
			}
		}
	}
	for _, line := range []string{"PASS\n", "", mark, mark + " x\n", "vm result: 0\n"} {
		if output, _, ok := CutResult(line); ok || output != line {
			t.Errorf("%q is read as a result", line)
		}
	}
}

func TestAProblemOfSeveralLinesIsOneLine(t *testing.T) {
	line := Result{Code: -1, Problem: "one\ntwo"}.Line()
	if _, got, ok := CutResult(line); !ok || strings.Count(line, "\n") != 1 || got.Problem != "one; two" {
		t.Errorf("%q: %+v, %v", line, got, ok)
	}
}

func FuzzCutResult(f *testing.F) {
	f.Add("PASS" + Result{Code: 1, Problem: "p"}.Line())
	f.Fuzz(func(t *testing.T, line string) {
		if output, _, ok := CutResult(line); !ok && output != line {
			t.Errorf("%q became %q", line, output)
		}
	})
}
