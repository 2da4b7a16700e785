package spec

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// writable returns the directories of a node that files can be in. The others are the
// machine's, the kernel's or empty at each boot.
func writable() []string { return []string{"/etc/", "/opt/", "/root/", "/var/"} }

// nodeFiles reports paths that a node cannot have a file at.
func nodeFiles(p *problems, field string, files map[string]string) {
	for _, at := range slices.Sorted(maps.Keys(files)) {
		below := func(dir string) bool { return strings.HasPrefix(at, dir) }
		if path.Clean(at) != at || !slices.ContainsFunc(writable(), below) {
			p.add(field, at, "must be the path of a file below one of %s", strings.Join(writable(), " "))
		}
	}
}
