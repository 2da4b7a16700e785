package laws

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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

// A sourceLaw holds for each Go file below a folder, tests excepted.
type sourceLaw struct {
	below string
	find  func(f *ast.File) []finding
	why   string
	// broken are declarations that break the law, once each; kept are some that do not.
	broken, kept []string
}

// Settings come from core/config; only package main passes it the environment. The SDKs
// read their own variables.
func sourceLaws() map[string]sourceLaw {
	return map[string]sourceLaw{
		"core has no clock, no goroutine and no sockets": {
			below: "internal/core", find: findEffects, why: "values in, values out: the caller passes the time and what it read",
			broken: []string{
				`func f() { go g() }`, `var _ = time.Now()`, `var _ = time.Since(t)`, `var _ = time.Until(t)`, `func f() { <-time.After(1) }`,
				`var f = time.Now`, `func f() { time.AfterFunc(1, g) }`, `func f() { time.Sleep(1) }`, `var _ = time.Tick(1)`,
				`var _ = time.NewTimer(1)`, `var _ = time.NewTicker(1)`, `func f() { net.Dial("tcp", a) }`, `func f() { net.LookupHost(a) }`,
				`func f() { net.Interfaces() }`, `func f() { net.InterfaceAddrs() }`, `func f() { net.Listen("tcp", a) }`,
			},
			kept: []string{`func f(now time.Time) time.Duration { return now.Sub(t) }`, `var _ = net.ParseIP(a)`, `func now() {}; func f() { now() }`},
		},
		"no init functions": {
			below: ".", find: findInit, why: "init() runs before main can decide anything",
			broken: []string{`func init() {}`},
			kept:   []string{`func (t T) init() {}`, `func initial() {}`},
		},
		"only main reads the environment": {
			below: "internal", find: findEnvironment, why: "settings come from core/config",
			broken: []string{`var a = os.Getenv("A")`, `func f() { os.LookupEnv("A") }`, `func f() { os.Environ() }`, `var f = os.Getenv`},
			kept:   []string{`func f(getenv func(string) string) { getenv("A") }`, `var a, _ = os.Hostname()`},
		},
		"packages have no variables": {
			below: ".", find: findVariables, why: "state must be a field of a value with an owner",
			broken: []string{
				`var a int`, `var a = 1`, `var a = map[string]int{}`, `var a = new(int)`, `var a = errors.Join(b, c)`,
				`var ( a = errors.New("a"); b = 2 )`, `var a, b = errors.New("a"), 2`, "// A comment.\nvar a = 1",
			},
			kept: []string{
				`var ErrA = errors.New("a")`, `var a = fmt.Errorf("a: %w", b)`, `var a = regexp.MustCompile("a")`, `var a = netip.MustParseAddr("1.2.3.4")`,
				`var _ Interface = T{}`, "//go:embed a\nvar a embed.FS", `func f() { var a int }`, `const a = 1`, `var version = "dev"`,
			},
		},
		"programs carry no tag of a tier": {
			below: ".", find: findTierTag, why: "only tests have tiers; the same binary runs on EC2 and in the lab (ADR 0005)",
			broken: []string{"//go:build netns", "//go:build linux && lab", "//go:build vm", "//go:build vmguest"},
			kept:   []string{"//go:build linux", "// go:build lab, in a comment", "//go:build labour"},
		},
	}
}

// selectors calls visit with each name that a package or a variable qualifies.
func selectors(f *ast.File, visit func(at token.Pos, of, name string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				visit(sel.Pos(), x.Name, sel.Sel.Name)
			}
		}
		return true
	})
}

// asks matches the functions of package net that query the machine.
var asks = regexp.MustCompile(`^(Dial|Listen|Lookup|Resolve|Interface|FileConn|FileListener|FilePacketConn)`)

func findEffects(f *ast.File) (found []finding) {
	ast.Inspect(f, func(n ast.Node) bool {
		if n, ok := n.(*ast.GoStmt); ok {
			found = append(found, finding{n.Pos(), "a goroutine"})
		}
		return true
	})
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "Sleep", "NewTimer", "NewTicker"}
	selectors(f, func(at token.Pos, of, name string) {
		if of == "time" && slices.Contains(clock, name) || of == "net" && asks.MatchString(name) {
			found = append(found, finding{at, of + "." + name})
		}
	})
	return found
}

func findInit(f *ast.File) (found []finding) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			found = append(found, finding{fn.Pos(), "init()"})
		}
	}
	return found
}

func findEnvironment(f *ast.File) (found []finding) {
	selectors(f, func(at token.Pos, of, name string) {
		if of == "os" && slices.Contains([]string{"Getenv", "LookupEnv", "Environ"}, name) {
			found = append(found, finding{at, "os." + name})
		}
	})
	return found
}

// constant matches initial values of variables that are never changed: sentinels, compiled
// patterns, parsed constants.
var constant = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|regexp\.MustCompile|netip\.MustParse\w+|crc32\.MakeTable)\(`)

func findVariables(f *ast.File) (found []finding) {
	allowed := map[string]string{
		"version": "set by the linker, in package main",
		"seq":     "numbers the namespaces of the tests of one process",
	}
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.VAR {
			continue
		}
		embedded := decl.Doc != nil && strings.Contains(decl.Doc.List[len(decl.Doc.List)-1].Text, "//go:embed")
		for _, spec := range decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				if embedded || name.Name == "_" || allowed[name.Name] != "" {
					continue
				}
				if i >= len(v.Values) || !constant.MatchString(types.ExprString(v.Values[i])) {
					found = append(found, finding{name.Pos(), "var " + name.Name})
				}
			}
		}
	}
	return found
}

var tierTag = regexp.MustCompile(`\b(netns|lab|vm|vmguest)\b`)

func findTierTag(f *ast.File) (found []finding) {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() < f.Package && strings.HasPrefix(c.Text, "//go:build") && tierTag.MatchString(c.Text) {
				found = append(found, finding{c.Pos(), c.Text})
			}
		}
	}
	return found
}

func TestSourcesFollowTheLaw(t *testing.T) {
	for name, l := range sourceLaws() {
		t.Run(name, func(t *testing.T) {
			sources(t, l.below, func(_ string, _ []byte, f *ast.File, fset *token.FileSet) {
				for _, found := range l.find(f) {
					t.Errorf("%s: %s: %s", fset.Position(found.at), found.what, l.why)
				}
			})
		})
	}
}

func TestASourceThatBreaksALawIsFound(t *testing.T) {
	for name, l := range sourceLaws() {
		t.Run(name, func(t *testing.T) {
			for want, samples := range [][]string{l.kept, l.broken} {
				if len(samples) == 0 {
					t.Errorf("no sample with %d findings: the law may never fail, or always", want)
				}
				for _, code := range samples {
					text := "package p\n" + code
					if strings.HasPrefix(code, "//go:build") {
						text = code + "\n\npackage p"
					}
					f, err := parser.ParseFile(token.NewFileSet(), "f.go", text, parser.ParseComments)
					if err != nil {
						t.Fatal(err)
					}
					if found := l.find(f); len(found) != want {
						t.Errorf("%s: found %v, want %d", code, found, want)
					}
				}
			}
		})
	}
}

// emptyName matches names that do not describe the contents.
var emptyName = regexp.MustCompile(`(?i)(manager|helper|wrapper|util)|^(common|base|data|info|misc|shared)$`)

// packageProblem says what is wrong with a package's name or comment, empty if nothing is.
func packageProblem(p pkg) string {
	switch {
	case emptyName.MatchString(filepath.Base(p.ImportPath)):
		return "the folder's name does not describe its contents"
	case len(p.GoFiles) > 0 && len(p.Doc) < 40: // others have tests only
		return fmt.Sprintf("package comment %q: describe what it decides or does, what it may touch, which packages call it", p.Doc)
	}
	return ""
}

func TestPackagesHaveNamesAndComments(t *testing.T) {
	for _, p := range packages(t) {
		if problem := packageProblem(p); problem != "" {
			t.Errorf("%s: %s", p.path(), problem)
		}
	}
}

func TestAPackageWithoutANameOrACommentIsFound(t *testing.T) {
	const doc = "Package p decides which address a pod gets."
	for want, all := range map[string][]pkg{
		"":     {{ImportPath: "m/ipam", Doc: doc, GoFiles: []string{"f.go"}}, {ImportPath: "m/tests"}, {ImportPath: "m/database", Doc: doc}},
		"name": {{ImportPath: "m/common", Doc: doc}, {ImportPath: "m/podutil", Doc: doc}, {ImportPath: "m/LinkManager", Doc: doc}, {ImportPath: "m/data", Doc: doc}},
		"comment": {
			{ImportPath: "m/ipam", GoFiles: []string{"f.go"}}, {ImportPath: "m/ipam", Doc: "Package ipam is ipam.", GoFiles: []string{"f.go"}},
		},
	} {
		for _, p := range all {
			if got := packageProblem(p); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("%s, %q: %q, want %q", p.ImportPath, p.Doc, got, want)
			}
		}
	}
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

func TestAPathOfOneMachineIsFound(t *testing.T) {
	for text, want := range map[string]bool{
		// Joined, so that no line of this file names such a path.
		"see /" + "work/x": true, `path = "/` + `root/go"`: true, "(/" + "home/me/x)": true, "cd /" + "tmp/abc/x": true,
		"https://proxy.golang.org": true, "deb.debian.org": true,
		"/tmp": false, "a/work/b": false, "/workload": false, "https://go.dev/x": false,
	} {
		if got := ofOneMachine.MatchString(text); got != want {
			t.Errorf("%s: found %v, want %v", text, got, want)
		}
	}
}
