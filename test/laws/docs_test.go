package laws

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fenced = regexp.MustCompile("(?s)```.*?```")
	quoted = regexp.MustCompile("`([\\w./-]+)`(?: \\(((?:\\w+\\.go(?:, )?)+)\\))?")
	linked = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	member = regexp.MustCompile(`(\.[A-Z]\w*)+$`) // of a package
)

// planned are packages that docs/map.md says to add.
func planned() []string {
	return []string{"internal/core/policy", "internal/control/trunk", "core/trunk", "internal/control/NAME"}
}

// missingPaths returns the files and packages that a document in a folder names and that
// do not exist. A path in quotes is checked if it begins with a folder of the project, or
// of internal, where the documents leave that name out.
func missingPaths(base, folder, document string) (missing []string) {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(base, name))
		return err == nil
	}
	found := func(name string) bool { return exists(name) || exists(path.Join("internal", name)) }
	text := fenced.ReplaceAllString(document, "")
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		name := strings.TrimSuffix(m[1], "/")
		first, _, deep := strings.Cut(name, "/")
		if !deep || first == "" || first == "bin" || !found(first) || slices.Contains(planned(), name) {
			continue
		}
		if !found(name) && !found(member.ReplaceAllString(name, "")) {
			missing = append(missing, name)
		}
		for _, file := range strings.Split(m[2], ", ") {
			if file != "" && !found(path.Join(name, file)) {
				missing = append(missing, path.Join(name, file))
			}
		}
	}
	for _, m := range linked.FindAllStringSubmatch(text, -1) {
		if !exists(path.Join(folder, m[1])) {
			missing = append(missing, m[1])
		}
	}
	return missing
}

func TestDocumentsNameWhatExists(t *testing.T) {
	base := root(t)
	eachText(t, func(name string, source []byte) {
		if filepath.Ext(name) == ".md" {
			for _, m := range missingPaths(base, path.Dir(name), string(source)) {
				t.Errorf("%s names %s, which does not exist", name, m)
			}
		}
	})
	for _, name := range planned() {
		if _, err := os.Stat(filepath.Join(base, name)); err == nil {
			t.Errorf("%s exists: remove it from the planned packages", name)
		}
	}
	for sample, want := range map[string]int{
		"`core/ipam`, `internal/core/ipam/ledger.go`, [map](map.md#x)":     0,
		"`control/cni` (add.go, del.go), `control/cni.Backend`":            0,
		"`default/life`, `/var/lib/trunkline`, [a](https://example.com/a)": 0,
		"`core/none`": 1, "`core/none.Plan`": 1, "`core/ipam/none.go`": 1,
		"`control/cni` (add.go, none.go)": 1, "[map](none.md)": 1,
	} {
		if got := missingPaths(base, "docs", sample); len(got) != want {
			t.Errorf("%s: missing %q, want %d", sample, got, want)
		}
	}
}
