package suite

import "testing"

func TestAWrongSectionIsFound(t *testing.T) {
	r := Report{Sections: map[string]int{"verdicts": 1000}}
	for text, want := range map[string]string{
		"code 0123, 1000 verdicts, seed 7\nfine": "",
		"code 0123, 99 verdicts":                 "it has 99, want at least 1000",
		"1000 verdicts":                          "it has no code and no number",
		"":                                       "it has no code and no number",
	} {
		if _, wrong := r.wrong("verdicts", text); wrong != want {
			t.Errorf("%q: %q, want %q", text, wrong, want)
		}
	}
}

func TestSectionsAreReadAsTheyAreWritten(t *testing.T) {
	got := parse("head\n\n== a: code 01, 5 verdicts\nline\n\n== b c: code 02, 6 kills\n")
	if len(got) != 2 || got["a"] != "code 01, 5 verdicts\nline" || got["b c"] != "code 02, 6 kills" {
		t.Errorf("%q", got)
	}
}

// A report is about the tests of its suites that its patterns name, and about no test of other folders.
func TestTheCodeOfAReportHasTheTestsThatItNames(t *testing.T) {
	now := func(folders []string, own string, tests ...string) string {
		t.Helper()
		of, err := Code(folders, own, tests, ".go")
		if err != nil {
			t.Fatal(err)
		}
		return of
	}
	folders := []string{"test/suite"}
	all, none := now(folders, "test/suite"), now(folders, "")
	if named := now(folders, "test/suite", "suite_*.go"); named != all {
		t.Errorf("with the pattern of its only test: %s, want %s", named, all)
	}
	if other := now(folders, "test/suite", "other_test.go"); other != none || none == all {
		t.Errorf("with a pattern of none: %s, want %s; with all: %s", other, none, all)
	}
}
