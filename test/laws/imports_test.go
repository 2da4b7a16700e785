package laws

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/trunkline/trunkline"

// pkg is a package as `go list -json` describes it.
type pkg struct {
	ImportPath   string
	Dir          string
	Doc          string
	Name         string
	Standard     bool
	Imports      []string
	Deps         []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// packages lists this module's packages.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Name,Standard,Imports,Deps,GoFiles,TestGoFiles,XTestGoFiles", module+"/...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages: too few for the check to be valid", len(all))
	}
	return all
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A law forbids imports to the packages below From, except those below Allow.
type law struct {
	From  string   // path inside the module
	Deny  []string // path prefixes; "*" is everything outside the standard library
	Allow []string
	Why   string
}

func laws() []law {
	return []law{
		{
			From: "internal/core", Deny: []string{"*"},
			Allow: []string{module + "/internal/core", module + "/internal/kernel/nftables", "github.com/gaissmai/bart", "k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/labels", "k8s.io/apimachinery/pkg/selection", "k8s.io/apimachinery/pkg/util/intstr", "k8s.io/apimachinery/pkg/types"},
			Why:   "core decides on arguments alone; a client in core makes a decision untestable",
		},
		{
			From: "internal/core", Deny: []string{
				"bufio", "context", "crypto/rand", "database", "embed", "io", "log", "math/rand", "net/http", "net/rpc", "os", "plugin", "runtime", "sync", "syscall",
			},
			Why: "core does no I/O, draws no random numbers, does not log and is never cancelled: it returns values and reasons",
		},
		{
			From: "internal/machinery", Deny: []string{module}, Allow: []string{module + "/internal/machinery", module + "/internal/core"},
			Why: "machinery is independent of any technology",
		},
		{
			From: "internal/kernel", Deny: []string{module}, Allow: []string{module + "/internal/kernel"},
			Why: "product, sim and lab share these libraries over kernel interfaces, so they decide nothing and know none of them",
		},
		{
			From: "internal/kernel/nftables", Deny: []string{"*", "context", "io", "log", "net/http", "os", "sync", "syscall"},
			Why: "core builds these values: the package that opens sockets is internal/kernel/nfnetlink",
		},
		{
			From: "internal/edge", Deny: []string{module + "/internal/control", module + "/internal/app", module + "/cmd"},
			Why: "imports point downwards only: cmd, app, control, edge and machinery, core",
		},
		{
			From: "internal/control", Deny: []string{module + "/internal/app", module + "/cmd"},
			Why: "imports point downwards only: app constructs the controllers and gives them what they work with",
		},
		{
			From: "api", Deny: []string{module}, Allow: []string{module + "/api"},
			Why: "other projects compile against the API types: they must not import the rest of this module",
		},
		{
			From: "internal", Deny: []string{module + "/sim", module + "/lab", module + "/test", module + "/bench"},
			Why: "the product is independent of the lab: the same binary runs on EC2",
		},
		{
			From: "cmd/trunkline", Deny: []string{module + "/sim", module + "/lab"},
			Why: "the product is independent of the lab: the same binary runs on EC2",
		},
		{
			From: "sim", Deny: []string{module}, Allow: []string{module + "/sim", module + "/internal/core/vpc", module + "/internal/kernel"},
			Why: "the embedded VPC shares types with the product, never decisions: a bug of one must not be repeated in the other",
		},
		{
			From: "lab", Deny: []string{module}, Allow: []string{module + "/lab", module + "/sim", module + "/internal/core/vpc", module + "/internal/kernel"},
			Why: "the lab runs the product as users do, from its images; it does not link it",
		},
		{
			From: "cmd/trunkline-lab", Deny: []string{module + "/internal"}, Allow: []string{module + "/internal/core/vpc", module + "/internal/kernel"},
			Why: "the lab runs the product as users do, from its images; it does not link it",
		},
	}
}

func below(path, prefix string) bool {
	return path == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
}

func (l law) forbids(path string) bool {
	for _, a := range l.Allow {
		if below(path, a) {
			return false
		}
	}
	for _, d := range l.Deny {
		if d == "*" {
			first, _, _ := strings.Cut(path, "/")
			if strings.Contains(first, ".") {
				return true
			}
		} else if below(path, d) {
			return true
		}
	}
	return false
}

func TestImportsFollowTheLaw(t *testing.T) {
	all := packages(t)
	for _, l := range laws() {
		for _, p := range all {
			if !below(p.ImportPath, module+"/"+l.From) {
				continue
			}
			for _, imp := range p.Imports {
				if l.forbids(imp) {
					t.Errorf("%s imports %s: %s", p.path(), imp, l.Why)
				}
			}
		}
	}
}

// edgeOf returns the folder of internal/edge that an import path is in; empty outside of it.
func edgeOf(path string) string {
	rest, ok := strings.CutPrefix(path, module+"/internal/edge/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// edgeMayImport reports whether a package may import another one, by the law of edges.
func edgeMayImport(importer, imported string) bool {
	from, to := edgeOf(importer), edgeOf(imported)
	return from == "" || to == "" || from == to
}

func TestEdgesDoNotImportOneAnother(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if !edgeMayImport(p.ImportPath, imp) {
				t.Errorf("%s imports %s: an edge handles one technology; app connects them", p.path(), imp)
			}
		}
	}
}

func TestAnEdgeThatImportsAnotherIsFound(t *testing.T) {
	const edge = module + "/internal/edge/"
	for _, c := range []struct {
		importer, imported string
		want               bool
	}{
		{edge + "link", edge + "nft", false},
		{edge + "cnirpc/cniserver", edge + "journal", false},
		{edge + "cnirpc/cniserver", edge + "cnirpc", true},
		{edge + "kube/kubetest", edge + "kube", true},
		{module + "/internal/control/cni", edge + "link", true},
		{edge + "link", module + "/internal/core/hostnet", true},
	} {
		if got := edgeMayImport(c.importer, c.imported); got != c.want {
			t.Errorf("%s importing %s: allowed = %v, want %v", c.importer, c.imported, got, c.want)
		}
	}
}

// pluginMayLink reports whether the plugin may depend on a package.
func pluginMayLink(dep string) bool {
	if slices.Contains([]string{"net", "net/http", "crypto/tls", "regexp"}, dep) {
		return false
	}
	first, _, _ := strings.Cut(dep, "/")
	ours := []string{module + "/internal/edge/cnirpc", module + "/internal/core/config/defaults", module + "/cmd/trunkline-cni"}
	return !strings.Contains(first, ".") || slices.ContainsFunc(ours, func(a string) bool { return below(dep, a) })
}

func TestPluginLinksFewPackages(t *testing.T) {
	for _, p := range packages(t) {
		if p.path() != "cmd/trunkline-cni" {
			continue
		}
		for _, dep := range p.Deps {
			if !pluginMayLink(dep) {
				t.Errorf("the plugin links %s: it starts once per pod, and every dependency is start-up time", dep)
			}
		}
		return
	}
	t.Fatal("package cmd/trunkline-cni not found: the check is not valid")
}

func TestAHeavyDependencyOfThePluginIsFound(t *testing.T) {
	for dep, want := range map[string]bool{
		"os": true, "net/netip": true, "encoding/json": true, module + "/internal/edge/cnirpc": true, module + "/internal/core/config/defaults": true,
		"net": false, "net/http": false, "regexp": false, "k8s.io/api/core/v1": false, "golang.org/x/sys/unix": false,
		module + "/internal/core/vpc": false, module + "/internal/core/config": false,
	} {
		if got := pluginMayLink(dep); got != want {
			t.Errorf("the plugin may link %s: %v, want %v", dep, got, want)
		}
	}
}

// The laws must be able to fail.
func TestLawsFindForbiddenImports(t *testing.T) {
	for _, c := range []struct {
		from, imp string
		want      bool
	}{
		{"internal/core", "k8s.io/client-go/kubernetes", true},
		{"internal/core", "k8s.io/apimachinery/pkg/labels", false},
		{"internal/core", module + "/internal/edge/ec2", true},
		{"internal/core", "log/slog", true},
		{"internal/core", "math/rand/v2", true},
		{"internal/core", "strings", false},
		{"internal/core", module + "/internal/kernel/nftables", false},
		{"internal/core", module + "/internal/kernel/nfnetlink", true},
		{"internal/core", module + "/internal/control/state", true},
		{"internal/edge", module + "/internal/app/agent", true},
		{"internal/edge", module + "/internal/control/state", true},
		{"internal/control", module + "/internal/app/agent", true},
		{"internal/control", module + "/internal/edge/link", false},
		{"internal/control", module + "/internal/machinery/table", false},
		{"internal/machinery", module + "/internal/control/state", true},
		{"internal/machinery", module + "/internal/edge/kube", true},
		{"internal/machinery", module + "/internal/kernel/nfnetlink", true},
		{"internal/kernel", module + "/internal/core/vpc", true},
		{"internal/kernel", module + "/internal/kernel/netns", false},
		{"internal/kernel", module + "/internal/kernel/nftables", false},
		{"internal/kernel/nftables", module + "/internal/kernel/nfnetlink", true},
		{"internal/kernel/nftables", "github.com/google/nftables", true},
		{"internal/kernel/nftables", "net/netip", false},
		{"api", module + "/internal/core/vpc", true},
		{"api", "k8s.io/apimachinery/pkg/apis/meta/v1", false},
		{"cmd/trunkline", module + "/sim/world", true},
		{"cmd/trunkline-lab", module + "/internal/app/cli", true},
		{"internal", module + "/sim/ec2", true},
		{"sim", module + "/internal/core/vpc", false},
		{"sim", module + "/internal/core/ipam", true},
		{"sim", module + "/internal/kernel/netns", false},
		{"lab", module + "/internal/kernel/netns", false},
		{"sim", module + "/internal/kernel/nfnetlink", false},
		{"lab", module + "/internal/app/agent", true},
	} {
		caught := false
		for _, l := range laws() {
			caught = caught || l.From == c.from && l.forbids(c.imp)
		}
		if caught != c.want {
			t.Errorf("%s importing %s: forbidden = %v, want %v", c.from, c.imp, caught, c.want)
		}
	}
}
