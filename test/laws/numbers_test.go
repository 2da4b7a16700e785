package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The file with the numbers of a node. The embedded VPC is in a namespace of its own
// and has numbers of its own.
const numbersFile = "internal/core/hostnet/numbers.go"

// numberedFields are struct fields with numbers that may collide with those of other
// software on a node; kernelFields are so in packages that call the kernel.
var (
	numberedFields = regexp.MustCompile(`^(Priority|Mark|Mask|Table|RouteProtocol|LinkGroup|Zone|FwMark|Fwmark)$`)
	kernelFields   = regexp.MustCompile(`^(Protocol|Group|Metric)$`)
)

// everyday values are common in other code too, so they count only in a numbered
// field.
func everyday() []string {
	return []string{"0", "1", "4", "5", "10", "20", "90", "95", "100", "150", "254", "512", "1024", `"trunkline"`}
}

// distinctive returns the other values of the list, as literals.
func distinctive(list *ast.File) (literals []string) {
	ast.Inspect(list, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && !slices.Contains(everyday(), lit.Value) {
			literals = append(literals, lit.Value)
		}
		return true
	})
	return literals
}

// finding is a node's number outside the list.
type finding struct {
	at   token.Pos
	what string
}

// numbersIn finds them in a file, given the constants of its package.
func numbersIn(f *ast.File, path string, known []string, constants map[string]bool) (found []finding) {
	numbered := func(field string) bool {
		kernel := strings.HasPrefix(path, "internal/edge/link/") || strings.HasPrefix(path, "internal/edge/nft/")
		return numberedFields.MatchString(field) || kernel && kernelFields.MatchString(field)
	}
	product := strings.HasPrefix(path, "internal/edge/") || strings.HasPrefix(path, "internal/app/") || strings.HasPrefix(path, "internal/core/hostnet/") || strings.HasPrefix(path, "internal/core/ruleset/")
	set := func(field string, value ast.Expr) {
		if at := literalIn(value, constants); numbered(field) && at.IsValid() {
			found = append(found, finding{at, "a literal for " + field})
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if product && slices.Contains(known, n.Value) {
				found = append(found, finding{n.Pos(), n.Value})
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				set(key.Name, n.Value)
			}
		case *ast.AssignStmt:
			for i, lhs := range n.Lhs {
				if sel, ok := lhs.(*ast.SelectorExpr); ok && i < len(n.Rhs) {
					set(sel.Sel.Name, n.Rhs[i])
				}
			}
		}
		return true
	})
	return found
}

// literalIn finds a number in an expression, or a constant of the package that stands
// for one. The result of a function call is not a literal, except that of a
// conversion.
func literalIn(e ast.Expr, constants map[string]bool) (at token.Pos) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.INT && n.Value != "0" {
				at = n.Pos()
			}
		case *ast.Ident:
			if constants[n.Name] {
				at = n.Pos()
			}
		case *ast.SelectorExpr, *ast.IndexExpr, *ast.CompositeLit, *ast.FuncLit:
			return false
		case *ast.CallExpr:
			name, ok := n.Fun.(*ast.Ident)
			return ok && conversion.MatchString(name.Name)
		}
		return !at.IsValid()
	})
	return at
}

var conversion = regexp.MustCompile(`^(new|u?int(8|16|32|64)?)$`)

// numbersOf collects the constants of a file that are defined by a literal.
func numbersOf(f *ast.File, into map[string]bool) {
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, spec := range decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				if i < len(v.Values) && literalIn(v.Values[i], nil).IsValid() {
					into[name.Name] = true
				}
			}
		}
	}
}

func TestNumbersAreInOneList(t *testing.T) {
	list, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), numbersFile), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := distinctive(list)
	if len(known) < 8 {
		t.Fatalf("%s has the numbers %v: too few for the check to be valid", numbersFile, known)
	}
	for _, dir := range []string{"internal", "cmd"} {
		constants := map[string]map[string]bool{}
		sources(t, dir, func(path string, _ []byte, f *ast.File, _ *token.FileSet) {
			at := filepath.Dir(path)
			if constants[at] == nil {
				constants[at] = map[string]bool{}
			}
			if path != numbersFile {
				numbersOf(f, constants[at])
			}
		})
		sources(t, dir, func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
			if path == numbersFile {
				return
			}
			for _, n := range numbersIn(f, path, known, constants[filepath.Dir(path)]) {
				t.Errorf("%s: %s is a number of the node: name it in %s", fset.Position(n.at), n.what, numbersFile)
			}
		})
	}
}

// The check must find every way to write a number.
func TestNumbersOutsideTheListAreFound(t *testing.T) {
	for code, want := range map[string]int{
		`var r = rule{Priority: 512}`:                                             1,
		`var r = rule{Priority: 500 + 12}`:                                        1,
		`var r = chain{Priority: -150}`:                                           1,
		`var r = chain{Priority: new(int32(-150))}`:                               1,
		`const prio = 512; var r = rule{Priority: prio}`:                          1,
		`func f(r rule) { r.Table = 7 }`:                                          1,
		`func f(r route) { r.Protocol = unix.RTPROT_STATIC }`:                     0,
		`func f(r route) { r.Protocol = 17 }`:                                     1,
		`func f(l link) { l.Group = uint32(99) }`:                                 1,
		`var mark = 0x80`:                                                         1,
		`var gateway = "169.254.1.1"`:                                             1,
		`var r = rule{Priority: hostnet.RuleToPod, Table: number(a[unix.RTA_X])}`: 0,
		`var r = rule{Priority: 0, Mask: net.CIDRMask(32, 32)}`:                   0,
		`var r = route{Table: hostnet.ENI{Device: 1}.Table()}`:                    0,
		`var buffer = make([]byte, 512)`:                                          0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		constants := map[string]bool{}
		numbersOf(f, constants)
		if got := numbersIn(f, "internal/edge/link/x.go", []string{"0x80", `"169.254.1.1"`}, constants); len(got) != want {
			t.Errorf("%s: %d found, want %d", code, len(got), want)
		}
	}
}
