package release

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLicencesAndNoticesAreCollected(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"LICENSE", "NOTICE.txt", "COPYING.md", "README.md", "licensed.go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	if err := texts(dir, "/licenses/m@v1", out); err != nil {
		t.Fatal(err)
	}
	want := []string{"/licenses/m@v1/COPYING.md", "/licenses/m@v1/LICENSE", "/licenses/m@v1/NOTICE.txt"}
	if got := slices.Sorted(maps.Keys(out)); !slices.Equal(got, want) || out[want[1]] != "of LICENSE" {
		t.Errorf("%q, want %q", out, want)
	}
	if err := texts(t.TempDir(), "/licenses/x", out); err == nil || !strings.Contains(err.Error(), "has no licence") {
		t.Error(err)
	}
}

// What is linked must be given on with its licence.
func TestAModuleWithoutKnownSourceIsRefused(t *testing.T) {
	o := Options{Source: "../../..", Go: "go"}
	if _, err := o.notices(t.Context(), map[string]string{"example.com/none@v1": "."}); err == nil || !strings.Contains(err.Error(), "the source of example.com/none@v1 is not known") {
		t.Error(err)
	}
}
