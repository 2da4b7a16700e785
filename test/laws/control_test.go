package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const control = module + "/internal/control/"

// controllerMayImport reports whether one package of internal/control may import another.
// Controllers meet in the tables of control/state. A backend implements the interface that
// control/cni declares, so it imports the types of that interface, and nothing else of it.
func controllerMayImport(importer, imported string) bool {
	switch imported {
	case importer, "state":
		return true
	case "cni":
		return importer == "pool" || importer == "podcidr" || importer == "branch"
	}
	return false
}

// controllerOf returns the folder of internal/control that an import path is in; empty
// outside of it.
func controllerOf(path string) string {
	rest, ok := strings.CutPrefix(path, control)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func TestControllersDoNotImportOneAnother(t *testing.T) {
	found := 0
	for _, p := range packages(t) {
		importer := controllerOf(p.ImportPath)
		if importer == "" {
			continue
		}
		found++
		for _, path := range p.Imports {
			if imported := controllerOf(path); imported != "" && !controllerMayImport(importer, imported) {
				t.Errorf("%s imports %s: controllers meet in the tables of control/state, so that each can be read, tested and replaced alone", p.path(), path)
			}
		}
	}
	if found < 2 {
		t.Fatalf("%d packages below internal/control: the check is not valid", found)
	}
	for _, c := range []struct {
		importer, imported string
		want               bool
	}{
		{"cni", "state", true},
		{"pool", "cni", true},
		{"podcidr", "cni", true},
		{"branch", "cni", true},
		{"network", "cni", false},
		{"cni", "pool", false},
		{"state", "cni", false},
		{"pool", "podcidr", false},
	} {
		if got := controllerMayImport(c.importer, c.imported); got != c.want {
			t.Errorf("control/%s importing control/%s: allowed = %v, want %v", c.importer, c.imported, got, c.want)
		}
	}
}

// parsed returns the files of a package, without its tests.
func (p pkg) parsed(t *testing.T) (files []*ast.File) {
	t.Helper()
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// behaviour returns the names of a package's exported functions and variables.
func behaviour(files []*ast.File) (names []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.IsExported() {
					names = append(names, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						for _, name := range v.Names {
							names = append(names, name.Name)
						}
					}
				}
			}
		}
	}
	return names
}

// selected returns the names that a file takes from a package imported by path.
func selected(f *ast.File, path string) (names []string) {
	local := ""
	for _, i := range f.Imports {
		if i.Path.Value == strconv.Quote(path) {
			local = path[strings.LastIndex(path, "/")+1:]
			if i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && local != "" {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
				names = append(names, s.Sel.Name)
			}
		}
		return true
	})
	return names
}

// controllerNamed returns the package internal/control/NAME.
func controllerNamed(t *testing.T, all []pkg, name string) pkg {
	t.Helper()
	of := slices.IndexFunc(all, func(p pkg) bool { return p.ImportPath == control+name })
	if of < 0 {
		t.Fatalf("package internal/control/%s not found: the check is not valid", name)
	}
	return all[of]
}

func TestBackendsTakeOnlyTypesFromTheController(t *testing.T) {
	all := packages(t)
	denied := behaviour(controllerNamed(t, all, "cni").parsed(t))
	if !slices.Contains(denied, "New") {
		t.Errorf("exported functions of control/cni: %q; want New among them", denied)
	}
	for _, p := range all {
		if importer := controllerOf(p.ImportPath); importer == "" || importer == "cni" || !slices.Contains(p.Imports, control+"cni") {
			continue
		}
		for _, f := range p.parsed(t) {
			for _, name := range selected(f, control+"cni") {
				if slices.Contains(denied, name) {
					t.Errorf("%s uses cni.%s: a backend implements the interface of control/cni and calls nothing of it", p.path(), name)
				}
			}
		}
	}
	sample := "package pool\nimport \"" + control + "cni\"\nfunc f(cni.Grant) { cni.New(nil) }"
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", sample, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := selected(f, control+"cni"); !slices.Equal(got, []string{"Grant", "New"}) {
		t.Errorf("names that the sample takes: %q, want Grant and New", got)
	}
}

// tableNames returns the names of the tables in the files of a package: those of its
// table.Schema values.
func tableNames(files []*ast.File) (names []string) {
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			value, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			generic, ok := value.Type.(*ast.IndexExpr)
			if !ok {
				return true
			}
			if s, ok := generic.X.(*ast.SelectorExpr); !ok || s.Sel.Name != "Schema" {
				return true
			}
			for _, e := range value.Elts {
				field, _ := e.(*ast.KeyValueExpr)
				if field == nil {
					continue
				}
				key, _ := field.Key.(*ast.Ident)
				if name, ok := field.Value.(*ast.BasicLit); ok && key != nil && key.Name == "Name" {
					names = append(names, strings.Trim(name.Value, `"`))
				}
			}
			return true
		})
	}
	return names
}

var (
	readsTables  = regexp.MustCompile(`\breads?\b`)
	writesTables = regexp.MustCompile(`\bwrit(es?|ten)\b`)
	drivesEdges  = regexp.MustCompile(`\b(drives?|touches)\b`)
	allOrNone    = regexp.MustCompile(`\b(no|every) table\b`)
)

// tablesOf returns the tables that a method of state.Store reads.
func tablesOf(method string) []string {
	return map[string][]string{
		"Endpoint": {"endpoints"}, "Endpoints": {"endpoints"}, "EndpointsOf": {"endpoints"}, "EndpointsIn": {"endpoints"},
		"View": {"interfaces", "addresses"}, "CoolDowns": {"cooling"}, "Device": {"devices"}, "Devices": {"devices"},
		"Drift": {"drift"}, "Node": {"node"}, "Pool": {"pool"}, "Waiting": {"waiting"},
	}[method]
}

// tablesRead returns the tables that files read by methods of a field State.
func tablesRead(files []*ast.File) (names []string) {
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := s.X.(*ast.SelectorExpr); ok && of.Sel.Name == "State" {
					names = append(names, tablesOf(s.Sel.Name)...)
				}
			}
			return true
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// commentFaults returns what is wrong with the package comment of a controller: what it
// omits of its tables and edges, of which it must name those in read and in edges. It may
// name edges that it is given as interfaces.
func commentFaults(comment string, tables, read, edges []string) (wrong []string) {
	if !readsTables.MatchString(comment) {
		wrong = append(wrong, "does not say which tables it reads")
	}
	if !writesTables.MatchString(comment) {
		wrong = append(wrong, "does not say which tables it writes")
	}
	named := func(name string) bool { return regexp.MustCompile(`\b` + name + `\b`).MatchString(comment) }
	if !allOrNone.MatchString(comment) && !slices.ContainsFunc(tables, named) {
		wrong = append(wrong, "names no table, of "+strings.Join(tables, ", "))
	}
	for _, name := range read {
		if !named(name) && !strings.Contains(comment, "every table") {
			wrong = append(wrong, "does not name the table "+name+", which it reads")
		}
	}
	if !drivesEdges.MatchString(comment) {
		wrong = append(wrong, "does not say which edges it drives")
	}
	for _, edge := range edges {
		if !regexp.MustCompile(`\bedge/` + edge + `\b`).MatchString(comment) {
			wrong = append(wrong, "does not say what it uses edge/"+edge+" for")
		}
	}
	return wrong
}

// edges returns the edges that a package imports.
func (p pkg) edges() (list []string) {
	for _, path := range p.Imports {
		if name, ok := strings.CutPrefix(path, module+"/internal/edge/"); ok {
			name, _, _ = strings.Cut(name, "/")
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

func TestAControllersCommentNamesItsTablesAndEdges(t *testing.T) {
	all := packages(t)
	tables := tableNames(controllerNamed(t, all, "state").parsed(t))
	if !slices.Contains(tables, "endpoints") {
		t.Fatalf("tables of control/state: %q; want endpoints among them", tables)
	}
	for _, p := range all {
		if controllerOf(p.ImportPath) == "" || strings.Contains(strings.TrimPrefix(p.ImportPath, control), "/") {
			continue // fakes for tests are below the package that they are of
		}
		comment := ""
		for _, f := range p.parsed(t) {
			comment += f.Doc.Text()
		}
		for _, wrong := range commentFaults(comment, tables, tablesRead(p.parsed(t)), p.edges()) {
			t.Errorf("%s: the package comment %s: controllers meet in tables, so a reader starts with who writes which", p.path(), wrong)
		}
	}
}

func TestACommentWithoutTablesOrEdgesFailsTheLaw(t *testing.T) {
	tables, edges := []string{"endpoints", "addresses"}, []string{"link"}
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\nfunc f() { c.State.Endpoint(key); c.State.Update(nil); tx.Endpoints() }", 0)
	if err != nil {
		t.Fatal(err)
	}
	read := tablesRead([]*ast.File{f})
	for comment, want := range map[string]int{
		"It reads endpoints, writes no table and drives edge/link.":                 0,
		"It reads endpoints and writes addresses. It drives edge/link.":             0,
		"It reads endpoints and drives edge/link.":                                  1,
		"It writes endpoints and drives edge/link.":                                 1,
		"It reads and writes state and drives edge/link.":                           2,
		"It reads and writes endpoints, by edge/link.":                              1,
		"It reads and writes endpoints and drives the links.":                       1,
		"It reads every table and writes none. It drives edge/kube and edge/link.":  0,
		"It reads and writes endpoints and drives edge/linker.":                     1,
		"It reads and writes addresses by the endpoint, and drives edge/link.":      1,
		"Package cni answers the plugin's calls: ADD, DEL, CHECK, STATUS and GC.\n": 6,
	} {
		if got := commentFaults(comment, tables, read, edges); len(got) != want {
			t.Errorf("%q: faults %q, want %d", comment, got, want)
		}
	}
}

// handlesTaken returns the methods by which files take write handles from the store. Those
// are the methods of that name and of no argument, as state.Store has them.
func handlesTaken(files []*ast.File, methods []string) (taken []string) {
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 0 {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(methods, s.Sel.Name) {
					taken = append(taken, s.Sel.Name)
				}
			}
			return true
		})
	}
	return taken
}

// handleMethods returns the methods of the store that return write handles: each has the
// name of its result, such as BackendTables.
func handleMethods(files []*ast.File) (names []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Type.Results != nil && len(m.Type.Results.List) == 1 &&
				strings.HasSuffix(m.Name.Name, "Tables") && typeName(m.Type.Results.List[0].Type) == m.Name.Name {
				names = append(names, m.Name.Name)
			}
		}
	}
	return names
}

func TestOnlyTheAgentHandsOutWriteHandles(t *testing.T) {
	all := packages(t)
	methods := handleMethods(controllerNamed(t, all, "state").parsed(t))
	found := false
	for _, p := range all {
		for _, name := range handlesTaken(p.parsed(t), methods) {
			if found = true; p.ImportPath != module+"/internal/app/agent" {
				t.Errorf("%s calls %s: app/agent passes each controller the write handles of its own tables, so that a table has one writer", p.path(), name)
			}
		}
	}
	if !found {
		t.Errorf("no package takes a write handle by one of %q: the check is not valid", methods)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\nfunc f(s *state.Store) state.XTables { return s.XTables() }", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := handlesTaken([]*ast.File{f}, []string{"XTables"}); !slices.Equal(got, []string{"XTables"}) {
		t.Errorf("handles that the sample takes: %q, want XTables", got)
	}
}
