package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strconv"
	"testing"
)

// ec2Client is the SDK package with a Client of some 700 operations.
const ec2Client = "github.com/aws/aws-sdk-go-v2/service/ec2"

// wholeClients finds where a file passes on the whole client: it may only be an
// argument of newClient, which binds the operations that are used and keeps nothing
// else of it.
func wholeClients(f *ast.File) (found []token.Pos) {
	name := importName(f, ec2Client)
	if name == "" {
		return nil
	}
	allowed := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Name.Name == "newClient" {
				found = append(found, boundOnly(n, allowed)...)
			}
		case *ast.CallExpr:
			if fun, ok := n.Fun.(*ast.Ident); ok && fun.Name == "newClient" {
				for _, arg := range n.Args {
					if made, ok := arg.(*ast.CallExpr); ok {
						allowed[made.Fun] = true
					}
				}
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			whole := n.Sel.Name == "Client" || n.Sel.Name == "New" || n.Sel.Name == "NewFromConfig"
			if ok && x.Name == name && whole && !allowed[n] {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// boundOnly allows the parameter of newClient, and finds uses of it other than
// binding one operation.
func boundOnly(f *ast.FuncDecl, allowed map[ast.Node]bool) (found []token.Pos) {
	params := map[string]bool{}
	for _, p := range f.Type.Params.List {
		if star, ok := p.Type.(*ast.StarExpr); ok {
			allowed[star.X] = true
		}
		for _, n := range p.Names {
			params[n.Name] = true
		}
	}
	bound := map[ast.Node]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			bound[n.X] = true
		case *ast.Ident:
			if params[n.Name] && !bound[n] {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// importName returns the name under which a file imports a package, empty if it does
// not.
func importName(f *ast.File, of string) string {
	for _, i := range f.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil && p == of {
			if i.Name != nil {
				return i.Name.Name
			}
			return path.Base(of)
		}
	}
	return ""
}

// Through an interface the linker keeps each of the client's operations, because the
// command line finds methods by reflection: 29 MB of the program, and as much of an
// agent's memory (docs/performance.md).
func TestWholeEC2ClientIsNotUsedThroughAnInterface(t *testing.T) {
	for _, dir := range []string{"internal", "cmd"} {
		sources(t, dir, func(_ string, _ []byte, f *ast.File, fset *token.FileSet) {
			for _, pos := range wholeClients(f) {
				t.Errorf("%s: the whole EC2 client is used: pass it to newClient, and use the client it returns", fset.Position(pos))
			}
		})
	}
}

func TestUseOfTheWholeClientIsFound(t *testing.T) {
	for text, want := range map[string]int{
		`var _ API = sdk.NewFromConfig(cfg)`:                                      1,
		`type c struct { api *sdk.Client }`:                                       1,
		`func f(cfg C) API { return newClient(sdk.NewFromConfig(cfg)) }`:          0,
		`func newClient(c *sdk.Client) API { return client{one: c.CreateVpc} }`:   0,
		`func newClient(c *sdk.Client) API { return c }`:                          1,
		`func newClient(c *sdk.Client) API { return client{all: c, one: c.One} }`: 1,
		`func f(in *sdk.CreateVpcInput) {}`:                                       0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p\nimport sdk \""+ec2Client+"\"\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := wholeClients(f); len(got) != want {
			t.Errorf("%s: found %d, want %d", text, len(got), want)
		}
	}
}
