// Package suite has the reports that `make suites` writes to test/reports: which code a report is
// about, when it is out of date, and what a complete one has. The packages of test with long
// suites use it. It touches only these files.
package suite

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is that of the checkout, from the folder of a test: modules of their own are below it.
func root() string {
	at := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(at, "test", "suite", "suite.go")); err == nil {
			return at
		}
		at = filepath.Join("..", at)
	}
	return "."
}

// IsFull reports whether suites run in full, as `make suites` has them.
func IsFull() bool {
	value, _ := os.LookupEnv("TRUNKLINE_SUITES")
	return value == "full"
}

// Report is a file of test/reports with sections, one for each suite.
type Report struct {
	Name string // of the file
	Head string // what the suites are
	// Covered are the folders with the code that the report is about. Tests of other folders than
	// that of the suites are not part of it.
	Covered []string
	Suites  string // the folder of the suites
	// Tests are the tests of Suites that the report is about, as patterns of file names; none: all.
	Tests []string
	// Ran is the code that ran, by Now when the suite began; empty: that of the time of writing.
	Ran string
	// Sections are those of a complete report, each with the least number of what it counts.
	Sections map[string]int
}

// Now identifies the code that the report is about, as it is now.
func (r Report) Now() (string, error) {
	return Code(append(slices.Clone(r.Covered), r.Suites), r.Suites, r.Tests, ".go", ".mod", ".c", ".h")
}

// Code identifies the files of folders that have one of the extensions by a hash of their content.
// Tests are left out, but those of the folder own with names that match one of the patterns tests, without
// patterns all of them.
func Code(folders []string, own string, tests []string, extensions ...string) (string, error) {
	covers := func(folder, name string) bool {
		if !strings.HasSuffix(name, "_test.go") {
			return true
		}
		return folder == own && (len(tests) == 0 || slices.ContainsFunc(tests, func(pattern string) bool {
			matched, _ := filepath.Match(pattern, name)
			return matched
		}))
	}
	sum := sha256.New()
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root(), folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !covers(folder, d.Name()) || !slices.Contains(extensions, filepath.Ext(path)) {
				return err
			}
			raw, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(path), len(raw), raw)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%.12x", sum.Sum(nil)), nil
}

func (r Report) path() string { return filepath.Join(root(), "test", "reports", r.Name) }

// A section begins with "== name: code <code>, <head>" and ends with the next one.
const sectionHead = "\n== "

// Write replaces a section of the report. head has the count of what was tried first.
func (r Report) Write(section string, head fmt.Stringer, body string) error {
	of, err := r.Ran, error(nil)
	if of == "" {
		of, err = r.Now()
	}
	if err != nil {
		return err
	}
	sections, err := r.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sections[section] = fmt.Sprintf("code %s, %s\n%s", of, head, body)
	var b strings.Builder
	fmt.Fprintf(&b, "%s Written by `make suites`; the code is that of the folders %s, by its content.\n", r.Head, strings.Join(append(slices.Clone(r.Covered), r.Suites), ", "))
	for _, name := range r.names() {
		if text, written := sections[name]; written {
			fmt.Fprintf(&b, "%s%s: %s\n", sectionHead, name, strings.TrimSpace(text))
		}
	}
	if err := os.MkdirAll(filepath.Dir(r.path()), 0o755); err != nil {
		return err
	}
	return os.WriteFile(r.path(), []byte(b.String()), 0o644)
}

func (r Report) names() (names []string) {
	for name := range r.Sections {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// read returns the sections by their names.
func (r Report) read() (map[string]string, error) {
	sections := map[string]string{}
	raw, err := os.ReadFile(r.path())
	if err != nil {
		return sections, err
	}
	return parse(string(raw)), nil
}

func parse(text string) map[string]string {
	sections := map[string]string{}
	for _, part := range strings.Split(text, sectionHead)[1:] {
		name, rest, _ := strings.Cut(part, ": ")
		sections[name] = strings.TrimSpace(rest)
	}
	return sections
}

// Counted is a number of what was tried, and what more the head of a section says.
type Counted struct {
	Number int
	Of     string // such as "verdicts"
	Seed   uint64 // 0 if none was drawn
}

func (c Counted) String() string {
	if c.Seed == 0 {
		return fmt.Sprintf("%d %s", c.Number, c.Of)
	}
	return fmt.Sprintf("%d %s, seed %d", c.Number, c.Of, c.Seed)
}

var sectionCode = regexp.MustCompile(`^code ([0-9a-f]+), ([0-9]+) `)

// wrong says what a section lacks; of is the code that it is about.
func (r Report) wrong(section, text string) (of, wrong string) {
	head := sectionCode.FindStringSubmatch(text)
	if head == nil {
		return "", "it has no code and no number"
	}
	if n, err := strconv.Atoi(head[2]); err != nil || n < r.Sections[section] {
		return head[1], fmt.Sprintf("it has %s, want at least %d", head[2], r.Sections[section])
	}
	return head[1], ""
}

// Check fails the test if a section of the report is wrong. A section that is missing or about other
// code skips a subtest with its name.
func (r Report) Check(t *testing.T) {
	t.Helper()
	of, err := r.Now()
	if err != nil {
		t.Fatal(err)
	}
	sections, err := r.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, name := range r.names() {
		t.Run(name, func(t *testing.T) {
			text, written := sections[name]
			if !written {
				t.Skipf("%s has no section %q; run `make suites` to write it", r.Name, name)
			}
			reported, wrong := r.wrong(name, text)
			if wrong != "" {
				t.Errorf("%s, section %q: %s", r.Name, name, wrong)
			}
			if reported != of {
				t.Skipf("%s, section %q, is about other code than this (%s); run `make suites` to update it", r.Name, name, of)
			}
		})
	}
}
