package laws

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sleeping returns the functions that may sleep on the machine's clock, each with the
// reason. One that does not sleep any more fails the test.
func sleeping() map[string]string {
	const realProcess = "it starts a process, which has the machine's clock"
	return map[string]string{
		"internal/edge/cnirpc/client.go Call":                                           "the plugin has one thread of work and no context: its deadline bounds the pause",
		"test/isolate/isolate.go makeCgroups":                                           "no event says that the kernel has reaped a process",
		"internal/control/report/serve_test.go TestTablesAreServedToRootOnly":           "no event says that a server listens",
		"internal/app/controller/stuck_test.go Interfaces":                              "an EC2 that responds late, to a controller that listens on a real port",
		"sim/ec2/latency_test.go Write":                                                 "it runs in a bubble; an interface hides its callers",
		"cmd/trunkline-cni/plugin_test.go TestSTATUSWaitsForAnAgentThatIsBeingReplaced": realProcess,
		"cmd/trunkline-cni/process_test.go TestDELIsSpooledWhenItsWaitIsOver":           realProcess,
		"cmd/trunkline-cni/process_test.go TestWaitBeginsWhenTheConfigurationIsRead":    realProcess,
	}
}

// use is one place at which a function is named, or at which it sleeps.
type use struct {
	at     token.Position
	file   string
	in     string // the function around it; empty at package level
	bubble bool   // inside an argument of synctest.Test
}

// clockUses are the sleeps of one package folder, and where each name is used in it.
type clockUses struct {
	bubbles []string // functions that call one of their arguments in a bubble
	sleeps  []use
	names   map[string][]use
}

// addBubbles notes the functions of a file that pass a parameter on to a bubble, as
// func inBubble(t *testing.T, test func()) { synctest.Test(t, func(*testing.T) { test() }) }
// does. It precedes add.
func (c *clockUses) addBubbles(f *ast.File) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		var params []string
		for _, p := range fn.Type.Params.List {
			if _, isFunc := p.Type.(*ast.FuncType); isFunc {
				for _, name := range p.Names {
					params = append(params, name.Name)
				}
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && calls(call, "synctest", "Test") {
				ast.Inspect(call, func(n ast.Node) bool {
					if name, ok := n.(*ast.Ident); ok && slices.Contains(params, name.Name) {
						c.bubbles = append(c.bubbles, fn.Name.Name)
					}
					return true
				})
			}
			return true
		})
	}
}

// add reads a file of the folder.
func (c *clockUses) add(path string, f *ast.File, fset *token.FileSet) {
	if c.names == nil {
		c.names = map[string][]use{}
	}
	for _, d := range f.Decls {
		in := ""
		if fn, ok := d.(*ast.FuncDecl); ok {
			in = fn.Name.Name
		}
		var around []ast.Node
		ast.Inspect(d, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			here := use{fset.Position(n.Pos()), path, in, c.inBubble(around)}
			if name, ok := n.(*ast.Ident); ok && !declares(around, name) {
				c.names[name.Name] = append(c.names[name.Name], here)
			}
			if isSleep(n, around) {
				c.sleeps = append(c.sleeps, here)
			}
			around = append(around, n)
			return true
		})
	}
}

// declares reports whether a name is that of the function around it.
func declares(around []ast.Node, name *ast.Ident) bool {
	fn, ok := around[0].(*ast.FuncDecl)
	return ok && len(around) == 1 && fn.Name == name
}

// inBubble reports whether one of the nodes is a call of synctest.Test, or of a function
// that calls its argument there.
func (c *clockUses) inBubble(around []ast.Node) bool {
	return slices.ContainsFunc(around, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		name, ok := call.Fun.(*ast.Ident)
		return calls(n, "synctest", "Test") || ok && slices.Contains(c.bubbles, name.Name)
	})
}

// calls reports whether n is a call of a function of a package.
func calls(n ast.Node, of, name string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == of
}

// isSleep reports whether n waits for the clock and for nothing else: time.Sleep, or a
// receive from time.After that is not a case of a select.
func isSleep(n ast.Node, around []ast.Node) bool {
	if calls(n, "time", "Sleep") {
		return true
	}
	receive, ok := n.(*ast.UnaryExpr)
	if !ok || receive.Op != token.ARROW || !calls(receive.X, "time", "After") {
		return false
	}
	return !slices.ContainsFunc(around, func(n ast.Node) bool {
		of, ok := n.(*ast.CommClause)
		return ok && of.Comm != nil && of.Comm.Pos() <= receive.Pos() && receive.End() <= of.Comm.End()
	})
}

// simulated reports whether the clock is simulated at u: in a bubble, or in a function of a
// test that is named only where it is.
func (c *clockUses) simulated(u use, seen ...string) bool {
	switch {
	case u.bubble:
		return true
	case u.in == "" || !strings.HasSuffix(u.file, "_test.go") || len(c.names[u.in]) == 0:
		return false
	case slices.Contains(seen, u.in):
		return true
	}
	return !slices.ContainsFunc(c.names[u.in], func(named use) bool { return !c.simulated(named, append(seen, u.in)...) })
}

func TestNothingSleepsOnTheMachinesClock(t *testing.T) {
	folders := map[string]*clockUses{}
	allSources(t, ".", func(path string, _ []byte, f *ast.File, _ *token.FileSet) {
		folder := filepath.Dir(path)
		if folders[folder] == nil {
			folders[folder] = &clockUses{}
		}
		folders[folder].addBubbles(f)
	})
	allSources(t, ".", func(path string, _ []byte, f *ast.File, fset *token.FileSet) {
		folders[filepath.Dir(path)].add(path, f, fset)
	})
	var used []string
	bubbles := 0
	for _, c := range folders {
		for _, u := range c.sleeps {
			except := filepath.ToSlash(u.file) + " " + u.in
			switch {
			case c.simulated(u):
				bubbles++
			case sleeping()[except] != "":
				used = append(used, except)
			default:
				t.Errorf("%s: %s sleeps: wait for the condition itself, or use testing/synctest", u.at, u.in)
			}
		}
	}
	if bubbles == 0 {
		t.Error("no test sleeps in a bubble: the check is not valid")
	}
	for except := range sleeping() {
		if !slices.Contains(used, except) {
			t.Errorf("%s does not sleep any more: remove the exception", except)
		}
	}
}

func TestASleepIsFoundWhereverItIs(t *testing.T) {
	for code, want := range map[string]int{
		`func TestX(t *testing.T) { time.Sleep(1) }`:                                                                                                     1,
		`func TestX(t *testing.T) { <-time.After(1) }`:                                                                                                   1,
		`func TestX(t *testing.T) { at := <-time.After(1); _ = at }`:                                                                                     1,
		`func TestX(t *testing.T) { select { case <-time.After(1): case <-done: } }`:                                                                     0,
		`func TestX(t *testing.T) { select { case <-done: <-time.After(1) } }`:                                                                           1,
		`func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); <-time.After(1) }) }`:                                           0,
		`func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) {}); time.Sleep(1) }`:                                                              1,
		`func pass() { time.Sleep(1) }; func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { pass() }) }`:                                      0,
		`func pass() { time.Sleep(1) }; func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { pass() }); pass() }`:                              1,
		`func pass() { time.Sleep(1) }; func twice() { pass(); pass() }; func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { twice() }) }`:    0,
		`func pass() { time.Sleep(1) }; func twice() { pass(); pass() }; func TestX(t *testing.T) { twice() }`:                                           1,
		`func run(t *testing.T, f func()) { synctest.Test(t, func(*testing.T) { f() }) }; func TestX(t *testing.T) { run(t, func() { time.Sleep(1) }) }`: 0,
		`func run(t *testing.T, f func()) { f() }; func TestX(t *testing.T) { run(t, func() { time.Sleep(1) }) }`:                                        1,
		`func (w *world) pass() { time.Sleep(1) }; func TestX(t *testing.T) { w.pass() }`:                                                                1,
		`func pass() { time.Sleep(1) }`: 1,
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x_test.go", "package x\n"+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		var c clockUses
		c.addBubbles(f)
		c.add("x_test.go", f, fset)
		found := 0
		for _, u := range c.sleeps {
			if !c.simulated(u) {
				found++
			}
		}
		if found != want {
			t.Errorf("%s: %d sleeps found, want %d", code, found, want)
		}
	}
}
