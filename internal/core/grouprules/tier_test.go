package grouprules_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The policies of groups pass what they allow to network policies, past all others of their tier: no
// other source may make policies of it. See docs/adr/0035-security-groups-without-trunks.md.
func TestNoOtherPolicyIsOfTheTierOfGroups(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir("../../", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "policy.Admin") || strings.Contains(string(text), "Tier: Admin") {
			found[filepath.Base(filepath.Dir(path))] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || !found["grouprules"] {
		t.Errorf("packages with policies of the tier: %v, want grouprules alone", found)
	}
}
