package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root of the checkout.
const root = "../.."

// A section about other code is not a failure: the test is skipped and names it, and CI's last
// lines have that. A target without a section is one.
func TestTheReportReachesItsShareAndItsAnswersAreTrue(t *testing.T) {
	problems, err := CheckReport(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
	list, err := readReport(root)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := staleSections(root, list)
	if err != nil {
		t.Fatal(err)
	}
	stale = append(stale, unmeasured()...)
	if len(stale) > 0 && !t.Failed() {
		t.Skipf("%s: the sections %s are missing or about other code than this; run `make mutants` to update them", ReportFile, strings.Join(stale, ", "))
	}
}

func TestEveryPackageThatDecidesIsATarget(t *testing.T) {
	seen := 0
	for _, below := range []string{"internal/core", "internal/edge/journal", "internal/edge/ec2", "internal/edge/cnirpc", "sim/iam"} {
		err := filepath.WalkDir(filepath.Join(root, below), func(path string, d os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			folder, err := filepath.Rel(root, filepath.Dir(path))
			// What has constants or serves tests only is left out.
			if seen++; err == nil && !isTarget(folder) && folder != "internal/core/config/defaults" && folder != "internal/core/handover/handovertest" {
				t.Errorf("%s is not in Targets", folder)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 80 {
		t.Errorf("%d files found: the check is not valid", seen)
	}
}

func TestAReportOnOtherCodeIsFound(t *testing.T) {
	target := Targets()[0]
	code, err := target.code(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		list []section
		want bool
	}{
		{[]section{{folder: target.Folder, code: code}}, false},
		{[]section{{folder: target.Folder, code: "0123"}}, true},
		{nil, false},
	} {
		stale, err := staleSections(root, c.list)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(stale, target.Folder) != c.want {
			t.Errorf("%v: %q are about other code", c.list, stale)
		}
	}
}

func TestTheCodeOfATargetIsItsFilesAndNoOthers(t *testing.T) {
	dir, target := t.TempDir(), Target{"p", []string{"q"}}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("p/p.go", "package p")
	write("q/q.go", "package q")
	before := ""
	for _, c := range []struct {
		name, text string
		changes    bool
	}{
		{"p/p.go", "package p // changed", true},
		{"p/p_test.go", "package p", true},
		{"p/testdata/deep/golden", "x", true},
		{"q/q.go", "package q // changed", true},
		{"p/other/other.go", "package other", false},
		{"r/r.go", "package r", false},
		{"p/testdata/rapid/failed", "x", false}, // what rapid keeps of a property that failed
	} {
		if before == "" {
			before = code(t, dir, target)
		}
		write(c.name, c.text)
		after := code(t, dir, target)
		if (after != before) != c.changes {
			t.Errorf("%s written: the code changes: %v, want %v", c.name, after != before, c.changes)
		}
		before = after
	}
}

func code(t *testing.T, dir string, target Target) string {
	t.Helper()
	code, err := target.code(dir)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// full is a report with every target, in which everything is caught but one mutant.
func full() []section {
	var list []section
	for _, t := range Targets() {
		list = append(list, section{folder: t.Folder, code: "0123", all: 100, caught: 100})
	}
	list[0].caught, list[0].survivors = 99, []survivor{{"f: true: x > 0", Survived}}
	return list
}

func TestProblemsOfAReportAreFound(t *testing.T) {
	folder, other := Targets()[0].Folder, Targets()[1].Folder
	least := map[string]minimum{}
	for _, t := range Targets() {
		least[t.Folder] = minimum{share: 80, open: 2}
	}
	few := func(s *section, n int) { // n survivors of g
		for i := range n {
			s.survivors = append(s.survivors, survivor{fmt.Sprintf("g: drop: x++ #%d", i+1), Unreached})
		}
		s.caught -= n
	}
	for name, c := range map[string]struct {
		change func(list []section, of answers)
		want   string
	}{
		"as it should be": {func([]section, answers) {}, ""},
		"a share too small": {func(list []section, of answers) {
			few(&list[1], 21)
			of[other] = map[string]string{}
			for _, v := range list[1].survivors {
				of[other][v.name] = "accepted: it only saves time"
			}
		}, other + ": 79 of 100 mutants are caught (79.0 %), want 80.0 %"},
		"a share that is reached without equivalents": {func(list []section, of answers) {
			few(&list[1], 21)
			of[other] = map[string]string{}
			for _, v := range list[1].survivors {
				of[other][v.name] = "equivalent: x is not read again"
			}
		}, ""},
		"survivors without an answer": {func(list []section, _ answers) { few(&list[1], 3) }, "3 survivors have no answer"},
		"an answer to a mutant that is caught": {func(_ []section, of answers) {
			of[folder]["g: drop: x++"] = "equivalent: x is not read again"
		}, "g: drop: x++: it is caught, or is no mutant any more"},
		"an answer for a package without mutants": {func(_ []section, of answers) {
			of["internal/none"] = map[string]string{"f: true: a": "accepted: b"}
		}, "internal/none: f: true: a: it is caught"},
		"a missing survivor":         {func(list []section, _ answers) { list[1].caught-- }, "99 mutants are caught or listed, want 100"},
		"a target without a minimum": {func([]section, answers) { delete(least, other) }, other + " has no minimum: enter {100.0, 0}"},
	} {
		list, of := full(), answers{folder: {"f: true: x > 0": "accepted: it only saves time"}}
		least[other] = minimum{share: 80, open: 2}
		c.change(list, of)
		got := problems(list, of, least, nil)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want one that contains %q", name, got, c.want)
		}
	}
}

func TestATargetWithoutASectionIsAProblemUntilItsFirstOne(t *testing.T) {
	folder := Targets()[0].Folder
	least := map[string]minimum{}
	for _, t := range Targets() {
		least[t.Folder] = minimum{open: 1}
	}
	for _, c := range []struct {
		has        bool
		unmeasured []string
		want       string
	}{
		{true, nil, ""},
		{false, nil, folder + " has no section in test/reports/mutants.txt: run "},
		{false, []string{folder}, ""},
		{true, []string{folder}, folder + " has a section: remove it from unmeasured"},
	} {
		list := full()
		if !c.has {
			list = list[1:]
		}
		if got := strings.Join(problems(list, answers{}, least, c.unmeasured), ", "); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("it has one %v, unmeasured %q: %q, want %q", c.has, c.unmeasured, got, c.want)
		}
	}
}

func TestAReportIsReadAsItIsWritten(t *testing.T) {
	s := section{folder: "p", code: "0123", all: 10, caught: 8, survivors: []survivor{
		{`f: zero: fmt.Sprintf("a: %s", b)`, Survived}, {"g: false: err != nil #2", Unreached},
	}}
	text := preface() + "\n" + s.text(answers{"p": {"g: false: err != nil #2": "equivalent: it never fails"}})
	if !strings.Contains(text, "8 of 10 caught (80.0 %), 1 equivalent, 1 not answered\n") ||
		!strings.Contains(text, "g: false: err != nil #2: not reached\n\tequivalent: it never fails\n") {
		t.Error(text)
	}
	got := parseReport(text)
	if len(got) != 1 || got[0].folder != "p" || got[0].code != "0123" || got[0].all != 10 || got[0].caught != 8 || !slices.Equal(got[0].survivors, s.survivors) {
		t.Errorf("%+v\nis read from\n%s", got, text)
	}
}

func TestAnswersMayShareAReason(t *testing.T) {
	of, err := parseAnswers("# comment\n== p\nf: true: a\nf: true: b\n\taccepted: c\n\ng: drop: d\n\tequivalent: e\n== q\nf: true: a\n\taccepted: other\n")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[[2]string]string{
		{"p", "f: true: a"}: "accepted: c", {"p", "f: true: b"}: "accepted: c", {"p", "g: drop: d"}: "equivalent: e", {"q", "f: true: a"}: "accepted: other",
	} {
		if got := of[at[0]][at[1]]; got != want {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
	for text, want := range map[string]string{
		"f: true: a\n\taccepted: b":             "no package yet",
		"== p\nf: true: a":                      "has no reason",
		"== p\nf: true: a\n\tbecause":           `a reason begins with "equivalent: "`,
		"== p\nf: true: a\n\taccepted: b\ng: x": "has no reason",
	} {
		if _, err := parseAnswers(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that contains %q", text, err, want)
		}
	}
}

func TestASampleFailsBelowTheMinimumsOnly(t *testing.T) {
	least := map[string]minimum{"p": {share: 80}, "q": {share: 100}} // of q, the goal is enough
	drawn := func(folder string, run, caught int) Results {
		r := Results{Folder: folder, Outcomes: map[string]Outcome{}}
		for i := range run {
			r.Outcomes[fmt.Sprint(i)] = Survived
			if i < caught {
				r.Outcomes[fmt.Sprint(i)] = Caught
			}
		}
		return r
	}
	for _, c := range []struct {
		list  []Results
		fails bool
	}{
		{nil, true},
		{[]Results{drawn("p", 0, 0)}, true},
		{[]Results{drawn("p", 200, 160)}, false},
		{[]Results{drawn("p", 200, 145)}, false}, // by chance: the standard deviation is 5.7
		{[]Results{drawn("p", 200, 140)}, true},
		{[]Results{drawn("p", 200, 145), drawn("q", 200, 170)}, false},
		{[]Results{drawn("p", 200, 145), drawn("q", 200, 155)}, true},
	} {
		if err := checkSample(c.list, least); (err != nil) != c.fails {
			t.Errorf("%d targets: %v, want an error: %v", len(c.list), err, c.fails)
		}
	}
}
