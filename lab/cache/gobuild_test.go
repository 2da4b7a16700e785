package cache

import (
	"os"
	"strings"
	"testing"
)

// The version that a shipped reference plugin prints decides whether it replaces a node's.
func TestTheReferencePluginsPrintTheReleaseThatIsPinned(t *testing.T) {
	mod, err := os.ReadFile("../../deploy/plugins/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/containernetworking/plugins " + referenceVersion + " "; !strings.Contains(string(mod), want) {
		t.Errorf("deploy/plugins/go.mod does not require %s: set referenceVersion to what it requires", want)
	}
}

func TestTheProductsKeyCoversItsReferencePlugins(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{"cmd/trunkline", "cmd/trunkline-cni", "internal", "api", "deploy/plugins"} {
		if err := os.MkdirAll(dir+"/"+at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	keys := map[string]bool{}
	for _, version := range []string{"v1.9.1", "v1.9.2"} {
		for _, at := range []string{"go.mod", "go.sum", "deploy/plugins/go.mod", "deploy/plugins/go.sum"} {
			if err := os.WriteFile(dir+"/"+at, []byte("pinned "+at), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/deploy/plugins/go.mod", []byte(version), 0o644); err != nil {
			t.Fatal(err)
		}
		key, err := productRecipe(toolchain{source: dir}).key(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = true
	}
	if len(keys) != 2 {
		t.Errorf("keys %v: another release of the plugins must be another image", keys)
	}
}
