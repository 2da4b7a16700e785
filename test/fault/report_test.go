package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/suite"
)

// Sections of the report, in its order.
func sections() []string { return []string{"calls", "disk", "kernel", "recovery"} }

// report is the file with the results of a full run.
const report = "test/reports/fault.txt"

// covered are the folders with the code that a report is about. Tests of other
// packages are not part of it.
func covered() []string {
	return []string{
		"api", "cmd/trunkline-cni", "deploy/iam", "internal/app/agent", "internal/control", "internal/core", "internal/edge", "internal/kernel",
		"internal/machinery",
		"lab/workload", "sim", "test/fault", "test/node",
	}
}

// root of the checkout.
const root = "../.."

// code identifies the covered code by a hash of its content.
func code() (string, error) { return suite.Code(covered(), "test/fault", nil, ".go", ".json") }

// A section begins with "== name: code <code>, …" and has a line per point.
const sectionHead = "== "

func readSections() (map[string]string, error) {
	raw, err := os.ReadFile(filepath.Join(root, report))
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, part := range strings.Split("\n"+string(raw), "\n"+sectionHead)[1:] {
		name, rest, _ := strings.Cut(part, ": ")
		found[name] = strings.TrimSpace(rest)
	}
	return found, nil
}

// writeSection replaces a section of the report, and leaves the others.
func writeSection[T fmt.Stringer](name, head string, visited []T) error {
	lines := make([]string, len(visited))
	for i, o := range visited {
		lines[i] = o.String()
	}
	of, err := code()
	if err != nil {
		return err
	}
	found, err := readSections()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if found == nil {
		found = map[string]string{}
	}
	found[name] = fmt.Sprintf("code %s, %s\n%s", of, head, strings.Join(lines, "\n"))
	text := "Points at which the agent was killed, by section; written by `make suites`. The code is\nthat of the folders the suite covers (test/fault/report_test.go), by its content.\n"
	for _, section := range sections() {
		if body, ok := found[section]; ok {
			text += "\n" + sectionHead + section + ": " + body + "\n"
		}
	}
	path := filepath.Join(root, report)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// stale returns the sections that are about other code than this.
func stale(found map[string]string, of string) (list []string) {
	for _, name := range sections() {
		if !strings.HasPrefix(found[name], "code "+of+",") {
			list = append(list, name)
		}
	}
	return list
}

// A report about other code is not a failure; the test is skipped with a message.
func TestReportHasNoFailureAndMatchesTheCode(t *testing.T) {
	found, err := readSections()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for name, body := range found {
		if lines := strings.Count(body, ": ok;"); lines < 20 || strings.Contains(body, "FAILED") {
			t.Errorf("%s, section %s: %d points are ok, want at least 20 and no failure", report, name, lines)
		}
	}
	if missing := callsWithoutPoint(t, found["calls"]); len(missing) > 0 {
		t.Errorf("%s, section calls: the agent was not killed at %q", report, missing)
	}
	of, err := code()
	if err != nil {
		t.Fatal(err)
	}
	if list := stale(found, of); len(list) > 0 {
		t.Skipf("%s: the sections %s are missing or about other code than this (%s); run `make suites` to update them", report, strings.Join(list, ", "), of)
	}
}

// callsWithoutPoint lists the calls to EC2 that the agent has a right to and that no point
// of a section is ok for, before and after their effect.
func callsWithoutPoint(t *testing.T, section string) (missing []string) {
	raw, err := os.ReadFile(filepath.Join(root, "deploy/iam/node-policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct{ Action json.RawMessage }
	}
	if err := json.Unmarshal(raw, &policy); err != nil {
		t.Fatal(err)
	}
	var granted []string // not the keys of conditions
	for _, s := range policy.Statement {
		granted = append(granted, regexp.MustCompile(`ec2:[A-Z][A-Za-z]+`).FindAllString(string(s.Action), -1)...)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(granted))) {
		action := strings.TrimPrefix(name, "ec2:")
		if action == "CreateTags" {
			continue // a part of CreateNetworkInterface
		}
		for _, when := range []string{"before", "after"} {
			if !strings.Contains(section, fmt.Sprintf("%s 1, %s its effect: ok;", action, when)) {
				missing = append(missing, action+", "+when+" its effect")
			}
		}
	}
	return missing
}

func TestACallWithoutAPointIsFound(t *testing.T) {
	found, err := readSections()
	if err != nil {
		t.Fatal(err)
	}
	const one = "DetachNetworkInterface 1, after its effect: ok;"
	if got := callsWithoutPoint(t, strings.ReplaceAll(found["calls"], one, "")); !slices.Equal(got, []string{"DetachNetworkInterface, after its effect"}) {
		t.Errorf("without %q: %q", one, got)
	}
}

func TestReportOfOtherCodeIsFound(t *testing.T) {
	found := map[string]string{}
	for _, name := range sections() {
		found[name] = "code 0123, 40 of 40"
	}
	if list := stale(found, "0123"); len(list) > 0 {
		t.Errorf("%v are reported as about other code", list)
	}
	found["disk"] = "code 4567, 40 of 40"
	delete(found, "kernel")
	if list := stale(found, "0123"); !slices.Equal(list, []string{"disk", "kernel"}) {
		t.Errorf("%v are reported as about other code, want disk and kernel", list)
	}
}
