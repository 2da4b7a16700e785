package mutants

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Target is a package that has mutants.
type Target struct {
	Folder string
	Also   []string // packages with tests that are about it too, run after its own
}

// Targets lists what decides, and what writes to disk, to EC2 and to the plugin's socket.
func Targets() []Target {
	return []Target{
		{"internal/core/cloud", []string{"internal/edge/ec2"}},
		{"internal/core/cniconf", nil},
		{"internal/core/config", nil},
		{"internal/core/drift", nil},
		{"internal/core/endpoint", []string{"internal/control/state"}},
		{"internal/core/grouprules", nil},
		{"internal/core/groupmode", nil},
		{"internal/core/handover", []string{"internal/control/handover"}},
		{"internal/core/hostnet", []string{"internal/control/network"}},
		{"internal/core/ipam", []string{"internal/edge/ec2", "internal/control/pool"}},
		{"internal/core/leak", nil},
		{"internal/core/podcidr", []string{"internal/control/podcidr"}},
		{"internal/core/podeni", nil},
		{"internal/core/podadmission", nil},
		{"internal/core/policy", nil},
		{"internal/core/ruleset", []string{"internal/control/network"}},
		{"internal/core/securitygroup", nil},
		{"internal/core/stale", nil},
		{"internal/core/trunk", nil},
		{"internal/core/vpc", []string{"internal/core/hostnet", "internal/core/ipam", "internal/edge/ec2"}},
		{"internal/edge/cnirpc", []string{"internal/edge/cnirpc/cniserver"}},
		{"internal/edge/cnirpc/cniserver", nil},
		{"internal/edge/ec2", nil},
		{"internal/edge/journal", nil},
		{"sim/iam", []string{"sim/ec2", "sim/sts"}},
		{"sim/iam/sigv4", nil},
	}
}

// short reports whether the tests of a folder run with -short against mutants. Those of
// core/policy repeat the same checks with ten times the seeds and pods otherwise: a survivor
// would take them a minute.
func short(folder string) bool { return folder == "internal/core/policy" }

// code identifies what a target's results depend on by a hash of its content: the package,
// its tests and the others that are run for it.
func (t Target) code(root string) (string, error) {
	sum := sha256.New()
	for _, folder := range append([]string{t.Folder}, t.Also...) {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if d.IsDir() {
				if d.Name() == "rapid" || filepath.ToSlash(rel) != folder && d.Name() != "testdata" && !strings.Contains(rel, "testdata") {
					return filepath.SkipDir // another package
				}
				return nil
			}
			raw, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(rel), len(raw), raw)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%.8x", sum.Sum(nil)), nil
}

// SelectTargets returns those below a folder; all of them for an empty one.
func SelectTargets(folder string) []Target {
	return slices.DeleteFunc(Targets(), func(t Target) bool {
		return folder != "" && t.Folder != strings.TrimSuffix(folder, "/") && !strings.HasPrefix(t.Folder, strings.TrimSuffix(folder, "/")+"/")
	})
}
