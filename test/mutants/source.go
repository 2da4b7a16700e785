package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is a package of the module with its types.
type source struct {
	path     string // of the package
	dir      string
	name     string
	fset     *token.FileSet
	texts    map[string][]byte // by file name
	files    map[string]*ast.File
	info     *types.Info
	pkg      *types.Package
	importer types.Importer
}

// listedPackage is a package as `go list -json` describes it.
type listedPackage struct {
	ImportPath, Dir, Name, Export string
	GoFiles                       []string
	Standard, DepOnly             bool
}

// load reads a package, given by its folder in the checkout.
func load(ctx context.Context, root, folder string) (*source, error) {
	arguments := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Name,GoFiles,Export,Standard,DepOnly", "./" + folder}, switchImports()...)
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list ./%s: %w", folder, err)
	}
	exports := map[string]string{}
	var listed, found listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		listed = listedPackage{}
		if err := dec.Decode(&listed); err != nil {
			return nil, fmt.Errorf("list ./%s: %w", folder, err)
		}
		exports[listed.ImportPath] = listed.Export
		if !listed.DepOnly && !listed.Standard {
			found = listed
		}
	}
	s := &source{
		path: found.ImportPath, dir: found.Dir, name: found.Name,
		fset: token.NewFileSet(), texts: map[string][]byte{},
	}
	s.importer = importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, name := range found.GoFiles {
		if s.texts[name], err = os.ReadFile(filepath.Join(s.dir, name)); err != nil {
			return nil, err
		}
	}
	var problems []types.Error
	s.files, s.pkg, s.info, problems, err = s.check(s.texts)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	if err != nil {
		return nil, fmt.Errorf("check ./%s: %w", folder, err)
	}
	return s, nil
}

// check parses the files of the package, in a version of it, and checks their types.
func (s *source) check(texts map[string][]byte) (map[string]*ast.File, *types.Package, *types.Info, []types.Error, error) {
	files, list := map[string]*ast.File{}, []*ast.File{}
	for name, text := range texts {
		f, err := parser.ParseFile(s.fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		files[name], list = f, append(list, f)
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	var problems []types.Error
	conf := types.Config{Importer: s.importer, Error: func(err error) {
		var problem types.Error
		if errors.As(err, &problem) {
			problems = append(problems, problem)
		}
	}}
	pkg, _ := conf.Check(s.path, s.fset, list, info) // the errors are in problems
	return files, pkg, info, problems, nil
}
