package laws

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reflectMethod is how the linker marks a function that calls reflect's Method, or
// MethodByName with a name that is not constant.
const reflectMethod = " <ReflectMethod>"

// TestTheAgentLinksOnlyMethodsThatItCalls keeps the agent small. If a function that is
// linked looks methods up at run time, the linker keeps every exported method of every
// type that is converted to an interface, the typed clients of client-go among them: half
// of the program again, in the memory of every node.
func TestTheAgentLinksOnlyMethodsThatItCalls(t *testing.T) {
	dump := dependencies(t, root(t), "./cmd/trunkline")
	if n := strings.Count(dump, " -> "); n < 10000 {
		t.Fatalf("the linker printed %d dependencies: too few for the check to be valid", n)
	}
	if found := methodLookups(dump); len(found) > 0 {
		t.Errorf("trunkline looks methods up at run time, so the linker keeps all of them (docs/performance.md, \"Memory\"):\n%s\n"+
			"do without this package or function; known causes are text/template, html/template, cobra's Set…Template, and kong",
			strings.Join(found, "\n"))
	}
}

// dependencies returns the linker's graph of a program, one line per edge. The go command
// stores the graph in its cache, with package main as the key, and would print it whenever
// it finds a program of that package up to date. So main is compiled with a flag of its own,
// which changes the key and nothing else.
func dependencies(t *testing.T, dir, program string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-m=0", "-ldflags=-dumpdep", "-o", filepath.Join(t.TempDir(), "program"), program)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%.2000s", cmd, err, out)
	}
	return string(out)
}

// methodLookups returns the functions that look methods up at run time, each with one
// that refers to it. Those that may be linked only because others look methods up, such as
// methods of a type, come last.
func methodLookups(dump string) []string {
	causes, consequences := map[string]string{}, map[string]string{}
	for line := range strings.Lines(dump) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), " -> ")
		name, marked := strings.CutSuffix(to, reflectMethod)
		switch {
		case !marked:
		case strings.HasPrefix(from, "type:") || strings.HasPrefix(name, "reflect."):
			consequences[name] = name + ", by " + from
		default:
			causes[name] = name + ", by " + from
		}
	}
	return append(slices.Sorted(maps.Values(causes)), slices.Sorted(maps.Values(consequences))...)
}

func TestALookupOfMethodsIsFound(t *testing.T) {
	const calls = `package main

import (
	"os"
	"reflect"
)

func main() { reflect.ValueOf(os.Stdout).MethodByName(%s).Call(nil) }
`
	for name, want := range map[string]string{`"Close"`: "", `os.Args[1]`: "main.main, by"} {
		dir := t.TempDir()
		for file, text := range map[string]string{"go.mod": "module lookup\n\ngo 1.26\n", "main.go": fmt.Sprintf(calls, name)} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found := methodLookups(dependencies(t, dir, "."))
		if got := strings.Join(found, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("a method named by %s: found %q, want %q", name, got, want)
		}
	}
}
