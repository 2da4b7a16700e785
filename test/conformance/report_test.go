package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/suite"
)

// report is the file with the result of a full run, and root the checkout.
const (
	report = "test/reports/policy-differential.txt"
	root   = "../.."
)

// covered are the folders with the code that the report is about.
func covered() []string { return []string{"internal/core/policy", "test/conformance"} }

// code identifies the covered code by a hash of its content.
func code() (string, error) { return suite.Code(covered(), "", nil, ".go", ".mod") }

// writeReport writes a result to the report.
func writeReport(seed uint64, r Result) error {
	of, err := code()
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `Verdicts of Trunkline (internal/core/policy) and of cyclonus v0.5.6 on random clusters with
random policies of networking.k8s.io/v1; written by `+"`make suites`"+`. The code is that of the
folders the comparison covers (test/conformance/report_test.go), by its content.

code %s, seed %d
%s
Classes of differences, with the text that decides and who follows it:
`, of, seed, r)
	for _, c := range Classes() {
		fmt.Fprintf(&b, "\n%s: %s is right.\n  %s\n", c.Name, c.Right, c.Text)
	}
	path := filepath.Join(root, report)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// These match the lines of the report that the test below reads.
var (
	reportedCode     = regexp.MustCompile(`(?m)^code ([0-9a-f]+), seed [0-9]+$`)
	reportedVerdicts = regexp.MustCompile(`(?m)^([0-9]+) verdicts in `)
)

// checkReport says what is wrong with a report, and of which code it is.
func checkReport(text string) (of, wrong string) {
	const least = 1_000_000
	head, count := reportedCode.FindStringSubmatch(text), reportedVerdicts.FindStringSubmatch(text)
	if head == nil || count == nil {
		return "", "it has no code, no seed or no number of verdicts"
	}
	if n, err := strconv.Atoi(count[1]); err != nil || n < least {
		return head[1], fmt.Sprintf("it has %s verdicts, want at least %d", count[1], least)
	}
	if strings.Contains(text, "\n  "+unclassified+": ") {
		return head[1], "it has differences of no class"
	}
	return head[1], ""
}

// A report about other code is not a failure; the test is skipped with a message.
func TestReportHasNoFailureAndMatchesTheCode(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, report))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	reported, wrong := checkReport(string(raw))
	if err == nil && wrong != "" {
		t.Errorf("%s: %s", report, wrong)
	}
	of, err := code()
	if err != nil {
		t.Fatal(err)
	}
	if reported != of {
		t.Skipf("%s is missing or about other code than this (%s); run `make suites` to update it", report, of)
	}
}

func TestAWrongReportIsFound(t *testing.T) {
	const good = "code 0123, seed 7\n1000000 verdicts in 4000 clusters\n"
	for text, want := range map[string]string{
		good:                 "",
		good + "  none: 1\n": "it has differences of no class",
		"code 0123, seed 7\n99 verdicts in 1 clusters\n": "it has 99 verdicts, want at least 1000000",
		"": "it has no code, no seed or no number of verdicts",
	} {
		if _, wrong := checkReport(text); wrong != want {
			t.Errorf("%q: %q, want %q", text, wrong, want)
		}
	}
}

// kernelReport is about the kernel's verdicts.
func kernelReport() suite.Report {
	return suite.Report{
		Name:     "policy-kernel.txt",
		Head:     "Verdicts of the compiled programs by BPF_PROG_TEST_RUN, of internal/core/policy's Evaluate and, without\ntiers, of cyclonus v0.5.6, on random clusters with random policies.",
		Covered:  []string{"bpf", "internal/core/policy", "internal/control/policy", "internal/edge/bpf", "test/testrun"},
		Suites:   "test/conformance",
		Sections: map[string]int{"network policies": 1_000_000, "network policies past the limits": 200_000, "tiers": 500_000, "tiers past the limits": 100_000},
	}
}

func TestTheReportOfTheKernelHasNoFailureAndMatchesTheCode(t *testing.T) { kernelReport().Check(t) }
