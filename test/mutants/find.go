package mutants

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// finder collects the mutants of a package.
type finder struct {
	*source
	file     string
	function string
	// final are the statements that must stay for the function to end in a return.
	final map[ast.Stmt]bool
	// alone are the only statements of branches, loops and cases: a mutant of what is
	// around them has the effect of leaving them out.
	alone map[ast.Stmt]bool
	seen  map[Name]int
	list  []*mutant
}

// find returns the mutants of a package, in the order of the source.
func find(s *source) []*mutant {
	f := &finder{source: s, seen: map[Name]int{}}
	for _, f.file = range slices.Sorted(maps.Keys(s.files)) {
		if ast.IsGenerated(s.files[f.file]) {
			continue
		}
		for _, d := range s.files[f.file].Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				f.function = functionName(fn)
				f.final, f.alone = finalStatements(fn.Body), aloneStatements(fn.Body)
				ast.PreorderStack(fn.Body, []ast.Node{fn}, f.visit)
			}
		}
	}
	return f.list
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t, pointer := fn.Recv.List[0].Type, ""
	if star, ok := t.(*ast.StarExpr); ok {
		t, pointer = star.X, "*"
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	return fmt.Sprintf("(%s%s).%s", pointer, types.ExprString(t), fn.Name.Name)
}

// visit adds the mutants of one node; false leaves out what is below it.
func (f *finder) visit(n ast.Node, stack []ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		if f.makesMessage(n) {
			return false
		}
	case *ast.FuncLit:
		maps.Copy(f.final, finalStatements(n.Body))
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.SwitchStmt:
		f.cases(n)
	case *ast.ReturnStmt:
		f.results(n, stack)
	case *ast.AssignStmt:
		for _, value := range n.Rhs {
			f.negated(value)
		}
	case *ast.CompositeLit:
		f.fields(n)
	case *ast.SliceExpr:
		f.bound(n.Low)
		f.bound(n.High)
	}
	if s, ok := n.(ast.Stmt); ok && f.droppable(s, stack[len(stack)-1]) {
		f.add(Drop, s, wrap("if !mutantOn(%d) { ", " }"))
	}
	return true
}

// wrapping is text before and after a range; %d is the number of the mutant.
type wrapping struct{ before, after string }

func wrap(before, after string) wrapping { return wrapping{before, after} }

// add adds a mutant of a node. Operators that are replaced have edits of their own.
func (f *finder) add(kind Kind, n ast.Node, w wrapping, more ...edit) {
	start, end := f.offset(n.Pos()), f.offset(n.End())
	name := Name{Function: f.function, Kind: kind, Text: oneLine(f.texts[f.file][start:end])}
	f.seen[name]++
	at := name
	at.Ordinal = f.seen[name]
	m := &mutant{name: at, id: len(f.list) + 1, file: f.file}
	m.edits = append([]edit{{start: start, end: end, before: m.numbered(w.before), after: m.numbered(w.after)}}, more...)
	f.list = append(f.list, m)
}

// numbered is a text of a wrapping for this mutant.
func (m *mutant) numbered(text string) string {
	return strings.ReplaceAll(text, "%d", strconv.Itoa(m.id))
}

func (f *finder) offset(pos token.Pos) int { return f.fset.Position(pos).Offset }

// called returns the function or method that a call calls, nil if it is another value.
func (f *finder) called(call *ast.CallExpr) types.Object {
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return f.info.Uses[fun]
	case *ast.SelectorExpr:
		return f.info.Uses[fun.Sel]
	}
	return nil
}

func packageOf(o types.Object) string {
	if o == nil || o.Pkg() == nil {
		return ""
	}
	return o.Pkg().Path()
}

// makesMessage reports whether a call makes a text or an error, or logs: the words of
// messages are not what these tests are for.
func (f *finder) makesMessage(call *ast.CallExpr) bool {
	return slices.Contains([]string{"fmt", "errors", "log/slog"}, packageOf(f.called(call)))
}

// typeText is the type as the file at hand can write it.
func (f *finder) typeText(t types.Type) (string, bool) {
	known := true
	text := types.TypeString(t, func(p *types.Package) string {
		if p == f.pkg {
			return ""
		}
		for _, spec := range f.files[f.file].Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err != nil || path != p.Path() {
				continue
			}
			if spec.Name != nil {
				return spec.Name.Name
			}
			return p.Name()
		}
		known = false
		return ""
	})
	return text, known
}
