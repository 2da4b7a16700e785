package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newModule makes a module with a package for each way a test can end.
func newModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module m\n\ngo 1.26\n",
		"pass/p_test.go":    "package pass\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Log(\"a message\") }",
		"fail/f_test.go":    "package fail\nimport \"testing\"\nfunc TestB(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"it fails\") }) }",
		"panics/p_test.go":  "package panics\nimport \"testing\"\nfunc TestC(t *testing.T) { t.Log(\"a message before\"); panic(\"it panics\") }",
		"broken/b_test.go":  "package broken\nimport \"testing\"\nfunc TestD(t *testing.T) { unknown() }",
		"untested/u.go":     "package untested\n",
		"skipped/s_test.go": "package skipped\nimport \"testing\"\nfunc TestE(t *testing.T) { t.Skip(\"not root:\\nrun as root\") }\nfunc TestF(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.SkipNow() }); t.Run(\"other\", func(*testing.T) {}) }",
		"skipped/t_test.go": "package skipped\nimport \"testing\"\nfunc TestG(t *testing.T) { t.Log(\"searched\"); t.Skip(\"nothing found\") }",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// goTest returns the output of go test in a module; its tests fail.
func goTest(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("%v passed:\n%s", cmd, out)
	}
	return string(out)
}

// varying matches what differs from run to run.
var varying = regexp.MustCompile(`\d+\.\d+s\b|\(cached\)|0x[0-9a-f]+\??|goroutine \d+`)

// linesOf returns the lines of an output without what varies, by package: packages are
// printed as they end.
func linesOf(output string) map[string]int {
	lines := map[string]int{}
	for line := range strings.Lines(varying.ReplaceAllString(output, "-")) {
		if line = strings.TrimSpace(line); line != "" && line != "FAIL" {
			lines[line]++
		}
	}
	return lines
}

const listed = `m/skipped TestE: s_test.go:3: not root: run as root
m/skipped TestF/sub: no reason given
m/skipped TestG: t_test.go:3: searched t_test.go:3: nothing found
`

func TestTheOutputIsThatOfGoTestWithTheSkippedTests(t *testing.T) {
	dir := newModule(t)
	file := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(file, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"-v"}} {
		var out strings.Builder
		in := goTest(t, dir, append([]string{"-json"}, append(args, "./...")...)...)
		if err := run(strings.NewReader(in), &out, args != nil, file); err != nil {
			t.Fatal(err)
		}
		printed, list, _ := strings.Cut(out.String(), "\nskipped tests: 3\n")
		if list != listed {
			t.Errorf("%v: listed %q, want %q", args, list, listed)
		}
		if diff := cmp.Diff(linesOf(goTest(t, dir, append(args, "./...")...)), linesOf(printed)); diff != "" {
			t.Errorf("%v: not the output of go test (-want +got):\n%s", args, diff)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "earlier\n"+listed+listed {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestAnOutputWithoutAnEndLosesNothing(t *testing.T) {
	var out strings.Builder
	in := `{"Action":"start","Package":"m/p"}
{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"output","Package":"m/p","Test":"TestA","Output":"    a_test.go:1: it hangs\n"}
warning: no event
`
	if err := run(strings.NewReader(in), &out, false, ""); err != nil {
		t.Fatal(err)
	}
	if want := "warning: no event\n    a_test.go:1: it hangs\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// tiers runs test/tiers with a make that does what script says of its target $2.
func tiers(t *testing.T, script string, targets ...string) (exit int, lines []string) {
	t.Helper()
	// A shell cannot trap an interrupt that is ignored at its start, as in a run in the
	// background. What Go handles is not ignored by the programs that it starts.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	fake := filepath.Join(t.TempDir(), "make")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../tiers", targets...)
	cmd.Env = append(os.Environ(), "MAKE="+fake)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), strings.Split(strings.TrimRight(string(out), "\n"), "\n")
}

func TestTheLastLinesOfAllTiersNameEachSkippedTest(t *testing.T) {
	const script = `case "$2" in
one) echo "m/a TestA: not root" >>"$TRUNKLINE_SKIPS"; echo "m/a TestB: 100% %s" >>"$TRUNKLINE_SKIPS" ;;
three) echo "m/c TestC: no awscli" >>"$TRUNKLINE_SKIPS"; exit 7 ;;
esac`
	exit, lines := tiers(t, script, "one", "two", "three", "four")
	want := []string{"one: skipped m/a TestA: not root", "one: skipped m/a TestB: 100% %s", "three: skipped m/c TestC: no awscli"}
	if exit != 7 || len(lines) < 8 || cmp.Diff(want, lines[len(lines)-3:]) != "" {
		t.Errorf("exit %d, want 7; lines:\n%s\nwant as the last ones:\n%s", exit, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	exit, lines = tiers(t, "true", "one")
	if last := lines[len(lines)-1]; exit != 0 || last != "no test was skipped" {
		t.Errorf("exit %d, last line %q, want that no test was skipped", exit, last)
	}
}

// A tier that fails hides no failure of another, unless CI would end the run before the table,
// or an interrupt is to end it.
func TestTheTableHasTheResultOfEachTier(t *testing.T) {
	const fails = `[ "$2" != two ] || exit 7; [ "$2" != three ] || exit 8`
	for name, c := range map[string]struct {
		script, lastStart string
		exit              int
		want              []string
	}{
		"all pass":                {"true", "0", 0, []string{"one passed", "two passed", "three passed", "four passed"}},
		"some fail":               {fails, "", 7, []string{"one passed", "two failed (7)", "three failed (8)", "four passed"}},
		"one fails late":          {fails, "0", 7, []string{"one passed", "two failed (7)", "three not run: a target had failed, and 0 minutes had passed", "four not run: a target had failed, and 0 minutes had passed"}},
		"interrupted":             {`[ "$2" != two ] || { kill -INT "$PPID"; exit 130; }`, "", 130, []string{"one passed", "two failed (130)", "three not run: interrupted", "four not run: interrupted"}},
		"interrupted at its last": {`[ "$2" != four ] || kill -INT "$PPID"`, "", 130, []string{"one passed", "two passed", "three passed", "four passed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LAST_START", c.lastStart)
			exit, lines := tiers(t, c.script, "one", "two", "three", "four")
			var got []string
			for _, line := range lines[max(0, len(lines)-5) : len(lines)-1] {
				target, rest, _ := strings.Cut(line, " ")
				_, result, _ := strings.Cut(strings.TrimLeft(rest, " 0123456789m"), "  ") // after the time
				got = append(got, target+" "+result)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || exit != c.exit {
				t.Errorf("exit %d, want %d; results (-want +got):\n%s", exit, c.exit, diff)
			}
		})
	}
}

// A tier that ends the lab of another program fails the run, although its own tests pass.
func TestALabThatIsGoneAfterTheTiersFailsTheRun(t *testing.T) {
	gone := fmt.Sprintf("tiers: lab gone, process %d ran before and does not any more", os.Getpid())
	for script, want := range map[string]struct {
		exit int
		last string
	}{
		"true":                       {0, "no test was skipped"},
		`rmdir "$LABS/gone"`:         {1, gone},
		`rmdir "$LABS/gone"; exit 7`: {7, gone},
	} {
		t.Run(script, func(t *testing.T) {
			labs := t.TempDir()
			t.Setenv("LABS", labs)
			holdLab(t, filepath.Join(labs, "kept"))
			holdLab(t, filepath.Join(labs, "gone"))
			exit, lines := tiers(t, script, "one")
			if last := lines[len(lines)-1]; exit != want.exit || last != want.last {
				t.Errorf("exit %d, want %d; last line %q, want %q", exit, want.exit, last, want.last)
			}
		})
	}
}

// holdLab makes the state directory of a lab and holds its lock, as the lab's daemon does.
func holdLab(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// Every target that runs tests prints them by this program, so that none hides a skip.
func TestEveryTargetListsItsSkippedTests(t *testing.T) {
	var runs []string
	for _, file := range []string{"../../Makefile", "../race"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		joined := strings.ReplaceAll(string(text), "|\n", "| ")
		for n, line := range strings.Split(joined, "\n") {
			if strings.Contains(line, "$(TEST) -") || strings.Contains(line, "$(GO) test ") && !strings.HasPrefix(line, "TEST ") || strings.Contains(line, `"$go" test `) {
				runs = append(runs, line)
				if !strings.Contains(line, "| $(PRINT)") && !strings.Contains(line, "go\" run ./test/skips") {
					t.Errorf("%s:%d: %s: its skipped tests are not listed", file, n+1, strings.TrimSpace(line))
				}
			}
		}
	}
	if len(runs) < 8 {
		t.Errorf("%d runs of go test found: the check is not valid\n%s", len(runs), strings.Join(runs, "\n"))
	}
}
