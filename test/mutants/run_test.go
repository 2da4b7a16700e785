package mutants

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// small is a module with one package; its tests miss some of what it does.
func small() map[string]string {
	return map[string]string{
		"go.mod": "module example.org/small\n\ngo 1.26\n",
		"p/p.go": `package p

import "errors"

type Row struct{ Name string; Count int }

func Clamp(n, limit int) int {
	if n > limit && limit > 0 {
		return limit
	}
	return n
}

func Check(s string) error {
	if s == "" {
		return errors.New("empty")
	}
	return nil
}

func (r *Row) Add(n int) bool {
	r.Count += n
	r.Name = name(r.Count)
	return r.Count < 10
}

func name(n int) string {
	switch n {
	case 1:
		return "one"
	case 2:
		return "two"
	default:
		return "many"
	}
}
`,
		"p/p_test.go": `package p

import (
	"os"
	"testing"
)

func TestClamp(t *testing.T) {
	if Clamp(5, 3) != 3 || Clamp(2, 3) != 2 {
		t.Error("not clamped")
	}
}

func TestCheck(t *testing.T) {
	if raw, err := os.ReadFile("testdata/golden"); err != nil || string(raw) != "x" {
		t.Fatal(err)
	}
	if err := os.WriteFile("written", nil, 0o600); err != nil { // as a mutant may
		t.Fatal(err)
	}
	Check("")
}

func TestAdd(t *testing.T) {
	r := Row{Name: "x"}
	if !r.Add(1) || r.Name != "one" {
		t.Error(r)
	}
}
`,
		"p/testdata/golden": "x",
		"q/q_test.go": `package q

import (
	"testing"

	"example.org/small/p"
)

func TestCheckOfAnotherPackage(t *testing.T) {
	if p.Check("x") != nil {
		t.Error("refused")
	}
}
`,
	}
}

func checkout(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func outcomes(t *testing.T, dir string, target Target) map[string]Outcome {
	t.Helper()
	var log strings.Builder
	r, err := Run(t.Context(), Options{Root: dir, Log: &log, Jobs: 2}, target)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	return r.Outcomes
}

func TestEachChangeIsJudgedByTheTestsThatItMakesADifferenceIn(t *testing.T) {
	files := small()
	dir := checkout(t, files)
	want := map[string]Outcome{
		"Clamp: true: n > limit && limit > 0":      Caught,
		"Clamp: false: n > limit && limit > 0":     Caught,
		"Clamp: true: n > limit":                   Caught,
		"Clamp: true: limit > 0":                   Unreached, // it always is
		"Clamp: bound: n > limit":                  Unreached, // never equal
		"Clamp: bound: limit > 0":                  Unreached,
		`Check: true: s == ""`:                     Caught, // by the other package
		`Check: false: s == ""`:                    Survived,
		`Check: no-error: errors.New("empty")`:     Survived,
		"(*Row).Add: drop: r.Count += n":           Caught,
		"(*Row).Add: drop: r.Name = name(r.Count)": Caught,
		"(*Row).Add: negate: r.Count < 10":         Caught,
		"(*Row).Add: bound: r.Count < 10":          Unreached,
		"name: case: 1":                            Caught,
		"name: case: 2":                            Unreached,
	}
	got := outcomes(t, dir, Target{"p", []string{"q"}})
	for name, outcome := range want {
		if got[name] != outcome {
			t.Errorf("%s: %q, want %q", name, got[name], outcome)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%s: %s: not expected", name, got[name])
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "p/written")); err == nil {
		t.Error("the tests ran in the checkout")
	}
	for name, text := range files {
		if now, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(now) != text {
			t.Errorf("%s was edited: %v", name, err)
		}
	}
}

func TestAnInterruptedRunContinuesUnlessTheCodeChanged(t *testing.T) {
	dir := checkout(t, small())
	target := Target{"p", nil}
	first := outcomes(t, dir, target)
	// A result that only the file has shows what was read from it, and not run again.
	path := filepath.Join(dir, keptFolder, "p.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	lines[1] = strings.Replace(lines[1], `"outcome":"`, `"outcome":"kept, `, 1)
	half := strings.Join(lines[:4], "") + lines[4][:10] // killed while it wrote a line
	if err := os.WriteFile(path, []byte(half), 0o644); err != nil {
		t.Fatal(err)
	}
	keptOnes := func(all map[string]Outcome) (n int) {
		for _, o := range all {
			if strings.HasPrefix(string(o), "kept, ") {
				n++
			}
		}
		return n
	}
	second := outcomes(t, dir, target)
	if keptOnes(second) != 1 || len(second) != len(first) {
		t.Errorf("%d results, %d of them kept; want %d and 1: %v", len(second), keptOnes(second), len(first), second)
	}
	if err := os.WriteFile(filepath.Join(dir, "p/more_test.go"), []byte("package p\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if third := outcomes(t, dir, target); !maps.Equal(third, first) {
		t.Errorf("with another test: %v, want all run again: %v", third, first)
	}
}

func TestATestThatFailsWithoutAMutantIsAnError(t *testing.T) {
	files := small()
	files["p/p_test.go"] = strings.Replace(files["p/p_test.go"], "Clamp(5, 3) != 3", "Clamp(5, 3) != 4", 1)
	_, err := Run(t.Context(), Options{Root: checkout(t, files), Log: &strings.Builder{}}, Target{"p", nil})
	if err == nil || !strings.Contains(err.Error(), "TestClamp of p fails without a mutant") {
		t.Errorf("%v, want an error that names the test", err)
	}
}

func TestTestsThatDoNotEndAreEnded(t *testing.T) {
	b := &binary{path: "/bin/sh", dir: t.TempDir()}
	// The child has the output, too: it must be ended for the run to end.
	if r := b.run(t.Context(), 50*time.Millisecond, nil, "-c", "sleep 600; true"); !r.timedOut || r.err == nil {
		t.Errorf("%+v, want a time-out", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := b.run(ctx, time.Minute, nil, "-c", "sleep 600"); r.timedOut || r.err == nil {
		t.Errorf("%+v, want an error that is no time-out", r)
	}
}

func TestQuickTestsRunFirstAndTogether(t *testing.T) {
	reaches := map[int]bool{7: true}
	tests := []*test{
		{name: "slow", time: 3 * time.Second, reaches: reaches},
		{name: "a", time: quick, reaches: reaches},
		{name: "elsewhere", time: time.Millisecond, reaches: map[int]bool{8: true}},
		{name: "slower", time: 9 * time.Second, reaches: reaches},
		{name: "b", time: time.Millisecond, reaches: reaches},
	}
	var got []string
	for _, batch := range batches(tests, 7) {
		got = append(got, only(batch))
	}
	if want := []string{"-test.run=^(b|a)$", "-test.run=^(slow)$", "-test.run=^(slower)$"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := batches(tests, 9); len(got) != 0 {
		t.Errorf("%d runs of a mutant that no test reaches", len(got))
	}
}
