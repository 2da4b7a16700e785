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
)

// sources calls visit with every hand-written Go file of the module below dir
// that is not a test.
func sources(t *testing.T, dir string, visit func(path string, text []byte, f *ast.File, fset *token.FileSet)) {
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
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(d.Name(), "zz_generated") || rel == "deps_tmp.go" {
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
		t.Fatalf("no source below %s: the law would hold for nothing", dir)
	}
}

// numberedFields are the struct fields whose numbers other software on a node
// could collide with.
var numberedFields = regexp.MustCompile(`^(Priority|Mark|Mask|Table|RouteProtocol|LinkGroup|Zone|FwMark)$`)

// Where the numbers of a node live, and what may repeat them: the embedded VPC is
// another world with its own namespace.
const numbersFile = "internal/core/hostnet/numbers.go"

func TestNumbersLiveInOneList(t *testing.T) {
	distinctive := []string{"1535", "1536", "32765", "0x7a51", "0x80", `"169.254.1.1"`, `"trunkline:"`}
	for _, dir := range []string{"internal", "cmd"} {
		sources(t, dir, func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
			if path == numbersFile {
				return
			}
			report := func(lit *ast.BasicLit, field string) {
				t.Errorf("%s: %s%s is a number of the node: name it in %s", fset.Position(lit.Pos()), field, lit.Value, numbersFile)
			}
			product := strings.HasPrefix(path, "internal/edge") || strings.HasPrefix(path, "internal/app") || strings.HasPrefix(path, "internal/core/hostnet") || strings.HasPrefix(path, "internal/core/ruleset")
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if product && slices.Contains(distinctive, n.Value) {
						report(n, "")
					}
				case *ast.KeyValueExpr:
					key, ok := n.Key.(*ast.Ident)
					lit, isLit := n.Value.(*ast.BasicLit)
					if ok && isLit && lit.Kind == token.INT && lit.Value != "0" && numberedFields.MatchString(key.Name) {
						report(lit, key.Name+" = ")
					}
				case *ast.AssignStmt:
					for i, lhs := range n.Lhs {
						sel, ok := lhs.(*ast.SelectorExpr)
						if !ok || i >= len(n.Rhs) || !numberedFields.MatchString(sel.Sel.Name) {
							continue
						}
						if lit, ok := n.Rhs[i].(*ast.BasicLit); ok && lit.Kind == token.INT && lit.Value != "0" {
							report(lit, sel.Sel.Name+" = ")
						}
					}
				}
				return true
			})
		})
	}
}

func TestCoreHasNoClockAndNoGoroutine(t *testing.T) {
	sources(t, "internal/core", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in core: values in, values out", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "NewTicker"}, n.Sel.Name) {
					t.Errorf("%s: time.%s in core: the caller passes the time", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	})
}

func TestThereIsNoInitFunction(t *testing.T) {
	sources(t, ".", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init() runs before main can decide anything", fset.Position(fn.Pos()))
			}
		}
	})
}

// Names that say nothing about what a thing is.
var emptyNames = regexp.MustCompile(`(?i)(manager|helper|wrapper|util)`)

func TestPackageNamesAreNouns(t *testing.T) {
	for _, p := range packages(t) {
		last := filepath.Base(p.ImportPath)
		if emptyNames.MatchString(last) || slices.Contains([]string{"common", "base", "data", "info", "misc", "shared"}, last) {
			t.Errorf("%s: the folder's name does not say what is in it", p.room())
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		if len(p.Doc) < 40 {
			t.Errorf("%s: package comment %q: say what it decides or does, what it may touch, who calls it", p.room(), p.Doc)
		}
	}
}

func TestFilesStayReadable(t *testing.T) {
	const limit = 600 // the convention is 500; past it a file needs splitting
	sources(t, ".", func(path string, text []byte, _ *ast.File, _ *token.FileSet) {
		if n := bytes.Count(text, []byte("\n")); n > limit {
			t.Errorf("%s has %d lines, more than %d: one noun a file", path, n, limit)
		}
	})
}

func TestTheEnvironmentIsReadInOnePlace(t *testing.T) {
	// The product's settings come from core/config; only mains hand it the
	// environment. The SDKs read their own variables.
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

func TestNothingOfOneMachineIsInTheTree(t *testing.T) {
	forbidden := regexp.MustCompile(`/(root|home/[a-z]+|work)/(go|main|shared)\b|proxy\.golang\.org|deb\.debian\.org|registry\.npmjs\.org`)
	sources(t, ".", func(path string, text []byte, _ *ast.File, _ *token.FileSet) {
		if m := forbidden.Find(text); m != nil && !strings.HasPrefix(path, "test/laws") {
			t.Errorf("%s names %s: a path or host of one machine", path, m)
		}
	})
}
