package laws

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Upper bounds of what one reader can keep track of.
const (
	maxMethods = 25  // of a type, or of an interface
	maxFields  = 15  // of a struct, without configuration
	maxLines   = 500 // of a file
)

// size is how large a type is.
type size struct{ methods, fields int }

func (s size) String() string { return fmt.Sprintf("%d methods, %d fields", s.methods, s.fields) }

func (s size) within(bound size) bool {
	return s.methods <= bound.methods && s.fields <= bound.fields
}

func lawfulSize() size { return size{maxMethods, maxFields} }

// configurationName matches types that hold configuration: they have a field for
// each setting.
var configurationName = regexp.MustCompile(`(Config|Options|^options)$`)

// sizes measures types by package folder and name. A method counts once, also when
// files for several systems declare it. A field does not count if it is
// configuration, by the name of its type or of its struct, or if it has a tag: then
// it is a flag, a file's key or a message's element, and flag set, file or wire
// format decide how many there are.
type sizes struct {
	methods map[string]map[string]bool
	fields  map[string]int
}

func newSizes() sizes {
	return sizes{methods: map[string]map[string]bool{}, fields: map[string]int{}}
}

// add measures one file of a package folder.
func (s sizes) add(folder string, f *ast.File) {
	named := func(name string) string {
		at := folder + "." + name
		if s.methods[at] == nil {
			s.methods[at] = map[string]bool{}
		}
		return at
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				s.methods[named(typeName(d.Recv.List[0].Type))][d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					s.addType(named(t.Name.Name), t)
				}
			}
		}
	}
}

func (s sizes) addType(at string, t *ast.TypeSpec) {
	switch shape := t.Type.(type) {
	case *ast.StructType:
		if !configurationName.MatchString(t.Name.Name) {
			s.fields[at] = countFields(shape)
		}
	case *ast.InterfaceType:
		for _, m := range shape.Methods.List {
			for _, name := range m.Names {
				s.methods[at][name.Name] = true
			}
		}
	}
}

func countFields(t *ast.StructType) (n int) {
	for _, f := range t.Fields.List {
		if f.Tag == nil && !configurationName.MatchString(typeName(f.Type)) {
			n += max(len(f.Names), 1) // an embedded type is one field
		}
	}
	return n
}

// typeName is the name of a named type or of a pointer to one, without its package
// and type parameters; empty for other types.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ParenExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// of returns each type with its size.
func (s sizes) of() map[string]size {
	all := map[string]size{}
	for at, methods := range s.methods {
		all[at] = size{len(methods), s.fields[at]}
	}
	return all
}

// judge compares types with the bounds; it returns one sentence per violation.
func judge(types map[string]size) (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if got := types[name]; !got.within(lawfulSize()) {
			problems = append(problems, fmt.Sprintf(
				"%s has %s; the bounds are %d and %d: split it by responsibility, because a reader must know every field and method to change one safely",
				name, got, maxMethods, maxFields))
		}
	}
	return problems
}

func TestTypesAreSmallEnoughToRead(t *testing.T) {
	measured := newSizes()
	allSources(t, ".", func(path string, _ []byte, f *ast.File, _ *token.FileSet) {
		folder := filepath.ToSlash(filepath.Dir(path))
		if strings.HasSuffix(f.Name.Name, "_test") {
			folder += "_test" // a package of its own
		}
		measured.add(folder, f)
	})
	types := measured.of()
	if len(types) < 300 {
		t.Fatalf("%d types found: the law would hold for little", len(types))
	}
	for _, problem := range judge(types) {
		t.Error(problem)
	}
}

// The law must be able to fail, in every way it can.
func TestALargeTypeIsCaught(t *testing.T) {
	for name, c := range map[string]struct {
		size size
		want string
	}{
		"both bounds reached": {size{maxMethods, maxFields}, ""},
		"too many methods":    {size{maxMethods + 1, 3}, "a.T has 26 methods, 3 fields; the bounds are 25 and 15"},
		"too many fields":     {size{0, maxFields + 1}, "a.T has 0 methods, 16 fields"},
	} {
		problems := judge(map[string]size{"a.T": c.size})
		if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0], c.want)) {
			t.Errorf("%s: %q, want one that contains %q", name, problems, c.want)
		}
	}
}

func TestMethodsAndFieldsAreCountedHoweverTheyAreWritten(t *testing.T) {
	for code, want := range map[string]size{
		`type T struct{ a, b int; C }`:                                      {0, 3},
		`type T struct{ a int; cfg Config; o *config.Config }`:              {0, 1},
		"type T struct{ A int `json:\"a\"`; b int }":                        {0, 1},
		`type T[K any] struct{ a K }; func (T[K]) f() {}`:                   {1, 1},
		`type T[K, V any] struct{ a K }; func (t *T[K, V]) f() {}`:          {1, 1},
		`type T struct{}; func (T) f() {}; func (t *T) g() {}; func h() {}`: {2, 0},
		`type T interface{ f(); g() int; fmt.Stringer }`:                    {2, 0},
		`type T func(); func (T) f() {}`:                                    {1, 0},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\n"+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		measured := newSizes()
		measured.add("p", f)
		measured.add("p", f) // the same methods, for another system
		if got := measured.of()["p.T"]; got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\ntype PoolConfig struct{ a, b int }", 0)
	if err != nil {
		t.Fatal(err)
	}
	measured := newSizes()
	measured.add("p", f)
	if got := measured.of()["p.PoolConfig"]; got != (size{}) {
		t.Errorf("fields of configuration count: %s", got)
	}
}

func TestFilesAreShortEnoughToRead(t *testing.T) {
	allSources(t, ".", func(path string, text []byte, _ *ast.File, _ *token.FileSet) {
		if problem := tooLong(path, text); problem != "" {
			t.Error(problem)
		}
	})
}

// tooLong says what is wrong with a file's length, empty if nothing is.
func tooLong(path string, text []byte) string {
	if n := bytes.Count(text, []byte("\n")); n > maxLines {
		return fmt.Sprintf("%s has %d lines; the bound is %d: split it by sub-noun, because a file is read from top to bottom", path, n, maxLines)
	}
	return ""
}

func TestALongFileIsCaught(t *testing.T) {
	if got := tooLong("a.go", bytes.Repeat([]byte("\n"), maxLines)); got != "" {
		t.Errorf("%d lines: %s", maxLines, got)
	}
	if got := tooLong("a.go", bytes.Repeat([]byte("\n"), maxLines+1)); !strings.Contains(got, "a.go has 501 lines") {
		t.Errorf("%d lines: %q", maxLines+1, got)
	}
}
