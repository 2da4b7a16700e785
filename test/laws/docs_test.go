package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fenced     = regexp.MustCompile("(?s)```.*?```")
	quoted     = regexp.MustCompile("`([\\w./-]+)`(?: \\(((?:\\w+\\.go(?:, )?)+)\\))?")
	linked     = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	item       = regexp.MustCompile("^`([\\w./]+)`:")
	member     = regexp.MustCompile(`(\.[A-Z]\w*)+$`) // of a package
	identifier = regexp.MustCompile("`([A-Za-z]\\w*)`")
)

// planned are packages that docs/map.md says to add.
func planned() []string {
	return []string{"internal/control/NAME"}
}

// missingPaths returns the files and packages that a document in a folder names and that
// do not exist. A path in quotes is checked if it begins with a folder of the project, or
// of internal, where the documents leave that name out.
func missingPaths(base, folder, document string) (missing []string) {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(base, name))
		return err == nil
	}
	found := func(name string) bool { return exists(name) || exists(path.Join("internal", name)) }
	text := fenced.ReplaceAllString(document, "")
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		name := strings.TrimSuffix(m[1], "/")
		first, _, deep := strings.Cut(name, "/")
		if !deep || first == "" || first == "bin" || !found(first) || slices.Contains(planned(), name) {
			continue
		}
		if !found(name) && !found(member.ReplaceAllString(name, "")) {
			missing = append(missing, name)
		}
		for _, file := range strings.Split(m[2], ", ") {
			if file != "" && !found(path.Join(name, file)) {
				missing = append(missing, path.Join(name, file))
			}
		}
	}
	for _, m := range linked.FindAllStringSubmatch(text, -1) {
		if !exists(path.Join(folder, m[1])) {
			missing = append(missing, m[1])
		}
	}
	return missing
}

func TestDocumentsNameWhatExists(t *testing.T) {
	base := root(t)
	eachText(t, func(name string, source []byte) {
		if filepath.Ext(name) == ".md" {
			for _, m := range missingPaths(base, path.Dir(name), string(source)) {
				t.Errorf("%s names %s, which does not exist", name, m)
			}
		}
	})
	for _, name := range planned() {
		if _, err := os.Stat(filepath.Join(base, name)); err == nil {
			t.Errorf("%s exists: remove it from the planned packages", name)
		}
	}
	for sample, want := range map[string]int{
		"`core/ipam`, `internal/core/ipam/ledger.go`, [map](map.md#x)":     0,
		"`control/cni` (add.go, del.go), `control/cni.Backend`":            0,
		"`default/life`, `/var/lib/trunkline`, [a](https://example.com/a)": 0,
		"`core/none`": 1, "`core/none.Plan`": 1, "`core/ipam/none.go`": 1,
		"`control/cni` (add.go, none.go)": 1, "[map](none.md)": 1,
	} {
		if got := missingPaths(base, "docs", sample); len(got) != want {
			t.Errorf("%s: missing %q, want %d", sample, got, want)
		}
	}
}

// declared returns the functions and methods of a file.
func declared(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			names = append(names, d.Name.Name)
		}
	}
	return names
}

// unknownNames returns the identifiers in quotes of a text that are not known.
func unknownNames(text string, known []string) (unknown []string) {
	for _, m := range identifier.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		if !slices.Contains(known, m[1]) {
			unknown = append(unknown, m[1])
		}
	}
	return unknown
}

func TestANameThatNoFileHasIsFound(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\ntype T int\nfunc Plan() {}\nfunc (T) Diff() {}", 0)
	if err != nil {
		t.Fatal(err)
	}
	known := declared(f)
	for text, want := range map[string][]string{
		"`Plan` and `Diff`, of `core/ipam`":            nil,
		"`Plans` of `T`":                               {"Plans", "T"},
		"```\n`none`\n```\n`10.0.0.7`, none, `Plan()`": nil,
	} {
		if got := unknownNames(text, known); !slices.Equal(got, want) {
			t.Errorf("%s: %q are not known, want %q", text, got, want)
		}
	}
}

// A reader follows one ADD by the files that docs/life-of-a-pod.md lists.
func TestTheFilesOfAnADDHaveWhatTheDocumentNames(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root(t), "docs/life-of-a-pod.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed [][2]string // a file, and what is said about it
	for _, part := range regexp.MustCompile(`\n\d+\. `).Split(string(source), -1)[1:] {
		part, _, _ = strings.Cut(part, "\n\n")
		if m := item.FindStringSubmatch(part); m != nil {
			listed = append(listed, [2]string{m[1], part})
		}
	}
	if len(listed) < 5 || len(listed) > 8 {
		t.Fatalf("%d files are listed, want 5 to 8", len(listed))
	}
	functions := map[string][]string{}
	sources(t, "internal", func(name string, _ []byte, f *ast.File, _ *token.FileSet) { functions[name] = declared(f) })
	var all []string
	for _, m := range listed {
		for _, name := range unknownNames(m[1], functions[m[0]]) {
			t.Errorf("%s does not declare %s", m[0], name)
		}
		for _, name := range identifier.FindAllStringSubmatch(m[1], -1) {
			all = append(all, name[1])
		}
	}
	// From the request to the answer.
	for _, name := range []string{"Handle", "add", "Update", "Assign", "Attach", "Wire", "Put", "Up", "result", "answer"} {
		if !slices.Contains(all, name) {
			t.Errorf("the list does not name %s: %q", name, all)
		}
	}
}

var wordOf = regexp.MustCompile(`[A-Za-z]\w*`)

// The guides name functions to change or to copy, folders, and words of messages.
func TestTheGuidesNameIdentifiersThatExist(t *testing.T) {
	known := map[string]bool{}
	allSources(t, ".", func(file string, _ []byte, f *ast.File, _ *token.FileSet) {
		for _, folder := range strings.Split(path.Dir(filepath.ToSlash(file)), "/") {
			known[folder] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				known[n.Name] = true
			case *ast.BasicLit:
				for _, word := range wordOf.FindAllString(n.Value, -1) {
					known[word] = true
				}
			}
			return true
		})
	})
	for _, name := range []string{"CONTRIBUTING.md", "docs/map.md", "docs/life-of-a-pod.md"} {
		source, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, unknown := range unknownNames(string(source), slices.Collect(maps.Keys(known))) {
			t.Errorf("%s names %s, which no Go file has", name, unknown)
		}
	}
}
