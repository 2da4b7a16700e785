package laws

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tokens are the parts of a module's path or of a cell of the table.
var tokens = regexp.MustCompile(`[A-Za-z0-9._-]+`)

// version matches the part of a path that names a major version.
var version = regexp.MustCompile(`^v[0-9]+$`)

// named reports whether a cell such as "vishvananda/netlink, netns" names a module.
func named(cell, path string) bool {
	parts := tokens.FindAllString(strings.TrimPrefix(path, "github.com/"), -1)
	parts = slices.DeleteFunc(parts, version.MatchString)
	if parts[0] == "aws" { // one SDK of many modules
		parts = parts[:2]
	}
	have := tokens.FindAllString(cell, -1)
	return !slices.ContainsFunc(parts, func(p string) bool { return !slices.Contains(have, p) })
}

// required returns the modules that go.mod requires directly.
func required(mod string) (paths []string) {
	for line := range strings.Lines(mod) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && strings.HasPrefix(line, "\t") && !strings.Contains(line, "// indirect") {
			paths = append(paths, fields[0])
		}
	}
	return paths
}

func TestEveryDependencyHasALine(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var cells []string
	for line := range strings.Lines(read("docs/deps.md")) {
		if cell := strings.Split(line, "|"); len(cell) > 2 {
			cells = append(cells, cell[1])
		}
	}
	paths := required(read("go.mod"))
	if len(paths) < 20 {
		t.Fatalf("go.mod requires %v: too few for the check to be valid", paths)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(cells, func(cell string) bool { return named(cell, path) }) {
			t.Errorf("%s has no line in docs/deps.md: why, licence, exit", path)
		}
	}
}

func TestDependencyWithoutALineIsFound(t *testing.T) {
	for path, want := range map[string]bool{
		"k8s.io/api": true, "k8s.io/klog/v2": false, "k8s.io/streaming": false, "github.com/owner/api": false,
	} {
		if got := named("k8s.io/client-go, api, apimachinery", path); got != want {
			t.Errorf("%s is named in the table: %v, want %v", path, got, want)
		}
	}
	if got := required("module m\n\nrequire (\n\ta.b/c v1.0.0\n\ta.b/d v1.0.0 // indirect\n)\n"); !slices.Equal(got, []string{"a.b/c"}) {
		t.Errorf("required modules are %v", got)
	}
}

// nested returns those of the required modules that are nested in this one, such as lab/kube, or
// that only a nested one may require.
func nested(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		return !below(p, module) && !below(p, "github.com/mattfenwick/cyclonus") && !below(p, "k8s.io/kubernetes")
	})
}

func TestTheProductRequiresNoNestedModule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if found := nested(required(strings.ReplaceAll(string(text), "// indirect", ""))); len(found) > 0 {
		t.Errorf("go.mod requires %v: the dependencies of nested modules must not reach the product", found)
	}
	sample := []string{"k8s.io/api", module + "/test/conformance", "github.com/mattfenwick/cyclonus"}
	if got := nested(sample); !slices.Equal(got, sample[1:]) {
		t.Errorf("of %v these are nested: %v", sample, got)
	}
}
