package laws

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// sources calls visit with every hand-written Go file of the module below dir
// that is not a test.
func sources(t *testing.T, dir string, visit func(path string, text []byte, f *ast.File, fset *token.FileSet)) {
	t.Helper()
	allSources(t, dir, func(path string, text []byte, f *ast.File, fset *token.FileSet) {
		if !strings.HasSuffix(path, "_test.go") {
			visit(path, text, f, fset)
		}
	})
}

// allSources is sources including the tests.
func allSources(t *testing.T, dir string, visit func(path string, text []byte, f *ast.File, fset *token.FileSet)) {
	t.Helper()
	base := root(t)
	seen := 0
	err := filepath.WalkDir(filepath.Join(base, dir), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(base, path)
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && rel != "." || rel == "tools" || rel == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasPrefix(d.Name(), "zz_generated") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		seen++
		visit(rel, text, f, fset)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Fatalf("no source below %s: the check is not valid", dir)
	}
}

// asks matches the functions of package net that query the machine.
var asks = regexp.MustCompile(`^(Dial|Listen|Lookup|Resolve|Interface|FileConn|FileListener|FilePacketConn)`)

func TestCoreHasNoClockAndNoGoroutine(t *testing.T) {
	sources(t, "internal/core", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in core: values in, values out", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "Sleep", "NewTimer", "NewTicker"}, n.Sel.Name) {
					t.Errorf("%s: time.%s in core: the caller passes the time", fset.Position(n.Pos()), n.Sel.Name)
				}
				if ok && x.Name == "net" && asks.MatchString(n.Sel.Name) {
					t.Errorf("%s: net.%s in core: it queries the machine; the caller passes the result", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	})
}

func TestNoInitFunctions(t *testing.T) {
	sources(t, ".", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init() runs before main can decide anything", fset.Position(fn.Pos()))
			}
		}
	})
}

// Names that do not describe the contents.
var emptyNames = regexp.MustCompile(`(?i)(manager|helper|wrapper|util)`)

func TestPackageNamesAreNouns(t *testing.T) {
	for _, p := range packages(t) {
		last := filepath.Base(p.ImportPath)
		if emptyNames.MatchString(last) || slices.Contains([]string{"common", "base", "data", "info", "misc", "shared"}, last) {
			t.Errorf("%s: the folder's name does not describe its contents", p.path())
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		if len(p.Doc) < 40 {
			t.Errorf("%s: package comment %q: describe what it decides or does, what it may touch, which packages call it", p.path(), p.Doc)
		}
	}
}

func TestEnvironmentIsReadOnlyByMain(t *testing.T) {
	// Settings come from core/config; only package main passes it the environment.
	// The SDKs read their own variables.
	sources(t, "internal", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && x.Name == "os" && slices.Contains([]string{"Getenv", "LookupEnv", "Environ"}, sel.Sel.Name) {
				t.Errorf("%s: os.%s: settings come from core/config", fset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	})
}

// Paths and hosts of one machine must not be in the tree: home directories and
// checkouts, scratch folders, registries.
var ofOneMachine = regexp.MustCompile(`(^|[\s"'=(:])/(root/[a-z]|home/[a-z]+/|work/|tmp/[a-z]+/)|proxy\.golang\.org|deb\.debian\.org|registry\.npmjs\.org`)

func TestTreeNamesNoPathOrHostOfOneMachine(t *testing.T) {
	base, seen := root(t), 0
	err := filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(base, path)
		if d.IsDir() {
			if rel == "bin" || rel == "test/laws" || rel == "test/reports" || strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci" {
				return filepath.SkipDir
			}
			return nil
		}
		if rel == ".git" {
			return nil // of a worktree: the path of its repository
		}
		text, err := os.ReadFile(path)
		if err != nil || !utf8.Valid(text) {
			return err
		}
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			if m := ofOneMachine.FindString(line); m != "" {
				t.Errorf("%s:%d names %s: a path or host of one machine", rel, i+1, m)
			}
		}
		return nil
	})
	if err != nil || seen < 100 {
		t.Fatalf("%d files read, %v: the check is not valid", seen, err)
	}
}

// Initial values of variables that are never changed: sentinels, compiled patterns,
// parsed constants.
var constant = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|regexp\.MustCompile|netip\.MustParse\w+|crc32\.MakeTable)\(`)

func TestPackagesHaveNoVariables(t *testing.T) {
	allowed := map[string]string{
		"version": "set by the linker, in package main",
		"seq":     "numbers the namespaces of the tests of one process",
	}
	sources(t, ".", func(path string, text []byte, f *ast.File, fset *token.FileSet) {
		for _, d := range f.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.VAR {
				continue
			}
			for _, spec := range decl.Specs {
				v := spec.(*ast.ValueSpec)
				embedded := decl.Doc != nil && strings.Contains(decl.Doc.List[len(decl.Doc.List)-1].Text, "//go:embed")
				if embedded || v.Names[0].Name == "_" || allowed[v.Names[0].Name] != "" {
					continue
				}
				for i, name := range v.Names {
					if i >= len(v.Values) || !constant.Match(text[fset.Position(v.Values[i].Pos()).Offset:]) {
						t.Errorf("%s: var %s: state must be a field of a value with an owner", fset.Position(name.Pos()), name.Name)
					}
				}
			}
		}
	})
}

func TestNoSourceSleeps(t *testing.T) {
	allSources(t, ".", func(path string, text []byte, f *ast.File, fset *token.FileSet) {
		if bytes.Contains(text, []byte(`"testing/synctest"`)) {
			return // in a bubble the clock is simulated
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep: wait for the condition itself", fset.Position(n.Pos()))
				}
			}
			return true
		})
	})
}

// Only tests carry the tag of a tier; programs are built without tags (ADR 0005), so
// that the same binary runs on EC2 and in the lab.
func TestProgramsCarryNoTierTag(t *testing.T) {
	sources(t, ".", func(path string, text []byte, f *ast.File, _ *token.FileSet) {
		for _, group := range f.Comments {
			for _, c := range group.List {
				if c.Pos() < f.Package && strings.HasPrefix(c.Text, "//go:build") && tierTag.MatchString(c.Text) {
					t.Errorf("%s: %s: only tests have tiers", path, c.Text)
				}
			}
		}
	})
}

var tierTag = regexp.MustCompile(`\b(netns|lab)\b`)
