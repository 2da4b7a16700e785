package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// An owned is a call or an import that one package makes for all.
type owned struct {
	What   string            // "unix.Setns", or an import path
	Except map[string]string // path prefixes that use it too, each with its reason
	Why    string
}

const (
	atomicWhy = "internal/kernel/atomicfile replaces files whole, synced, with the given mode and findable leftovers"
	netnsWhy  = "internal/kernel/netns moves threads between namespaces, and ends those that cannot return"
)

func ownedCalls() []owned {
	return []owned{
		{What: "os.CreateTemp", Why: atomicWhy, Except: map[string]string{
			"internal/edge/cnirpc/spool.go": "the plugin links the standard library and CNI's packages only",
		}},
		{What: "os.Rename", Why: atomicWhy, Except: map[string]string{
			"internal/edge/cnirpc/spool.go": "the plugin links the standard library and CNI's packages only",
			"internal/edge/journal/disk.go": "the journal syncs its directory too, and tests make each step fail",
			"lab/cache/prune.go":            "it moves a directory",
			"lab/cache/store.go":            "it moves a directory",
			"lab/imagestore/copy.go":        "it moves a directory",
		}},
		{What: "github.com/google/renameio/v2", Why: atomicWhy, Except: map[string]string{
			"internal/kernel/atomicfile/": "the owner",
		}},
		{What: "unix.Setns", Why: netnsWhy},
		{What: "unix.Unshare", Why: netnsWhy, Except: map[string]string{
			"lab/node/init.go":               "it makes a cgroup namespace for a thread that executes",
			"internal/kernel/netns/named.go": "it makes a mount namespace for a thread that ends",
		}},
		{What: "github.com/vishvananda/netns", Why: netnsWhy, Except: map[string]string{
			"internal/kernel/netns/": "the owner",
		}},
	}
}

// uses returns where a file makes the call or the import.
func (o owned) uses(f *ast.File) (at []token.Pos) {
	pkg, name, _ := strings.Cut(o.What, ".")
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if path, err := strconv.Unquote(n.Path.Value); err == nil && path == o.What {
				at = append(at, n.Pos())
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == pkg && n.Sel.Name == name {
				at = append(at, n.Pos())
			}
		}
		return true
	})
	return at
}

// exception returns the prefix that excepts the file at path, if any.
func (o owned) exception(path string) string {
	for prefix := range o.Except {
		if strings.HasPrefix(path, prefix) {
			return prefix
		}
	}
	return ""
}

func TestOnePackageDoesItForAll(t *testing.T) {
	for _, o := range ownedCalls() {
		var used []string
		sources(t, ".", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
			for _, pos := range o.uses(f) {
				except := o.exception(path)
				if except == "" {
					t.Errorf("%s: %s: %s", fset.Position(pos), o.What, o.Why)
				}
				used = append(used, except)
			}
		})
		for prefix := range o.Except {
			if !slices.Contains(used, prefix) {
				t.Errorf("%s does not use %s any more: remove the exception", prefix, o.What)
			}
		}
	}
}

func TestAnOwnedCallIsCaught(t *testing.T) {
	const source = `package p

import "github.com/vishvananda/netns"

func f() { _ = netns.Set; _ = unix.Setns(1, 2); rename := os.Rename; _ = rename }
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range ownedCalls() {
		want := map[string]int{"github.com/vishvananda/netns": 1, "unix.Setns": 1, "os.Rename": 1}[o.What]
		if got := len(o.uses(f)); got != want {
			t.Errorf("%s is used %d times, want %d", o.What, got, want)
		}
		if o.exception("lab/cli/p.go") != "" {
			t.Errorf("%s is excepted everywhere", o.What)
		}
	}
}
