package laws

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// glossaryProblems checks the table of the glossary: a term and a meaning on each
// line, in alphabetical order, without duplicates.
func glossaryProblems(document string) (problems []string, terms int) {
	last := ""
	for line := range strings.Lines(document) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || strings.TrimSpace(cells[1]) == "term" || strings.HasPrefix(cells[1], "---") {
			continue
		}
		term, meaning := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		terms++
		switch key := strings.ToLower(term); {
		case term == "" || meaning == "" || len(cells) != 4:
			problems = append(problems, term+": want one term and one meaning")
		case key == last:
			problems = append(problems, term+": is there twice")
		case key < last:
			problems = append(problems, term+": is not in alphabetical order")
		default:
			last = key
		}
	}
	return problems, terms
}

func TestGlossaryIsAlphabeticalAndLinked(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	problems, terms := glossaryProblems(read("docs/glossary.md"))
	if len(problems) > 0 || terms < 50 {
		t.Errorf("docs/glossary.md has %d terms: %q", terms, problems)
	}
	for name, link := range map[string]string{"README.md": "(docs/glossary.md)", "docs/map.md": "(glossary.md)"} {
		if !strings.Contains(read(name), link) {
			t.Errorf("%s does not link to the glossary: want %s", name, link)
		}
	}
}

func TestGlossaryProblemsAreFound(t *testing.T) {
	for rows, want := range map[string]int{
		"| ADD | adds |\n| branch | an ENI |\n": 0,
		"| branch | an ENI |\n| ADD | adds |\n": 1,
		"| ADD | adds |\n| add | again |\n":     1,
		"| ADD | |\n":                           1,
		"| ADD | a | b |\n":                     1,
	} {
		if got, _ := glossaryProblems("| term | meaning |\n|---|---|\n" + rows); len(got) != want {
			t.Errorf("%s: %q, want %d", rows, got, want)
		}
	}
}
