package sweep

import (
	"fmt"
	"maps"
	"slices"
)

// Snapshot is the state of the machine that a lab could change, as sorted lines by kind.
// The difference of two snapshots is what a lab left behind.
type Snapshot map[string][]string

// View configures what a snapshot leaves out.
type View struct {
	// Cache is the lab's cache directory. A program from there belongs to a lab.
	Cache string
	// Ignore lists further paths that may change with all files below, such as Go's
	// build cache.
	Ignore []string
}

// TakeSnapshot reads the state of the machine: namespaces, links, routes, rules,
// nftables, mounts, cgroups, BPF objects, settings, listeners, processes and files. State
// that cannot be read is left out.
//
// It lists only processes of labs, and leaves out sockets and BPF objects that only other
// processes hold open.
func TakeSnapshot(v View) (Snapshot, error) {
	s := Snapshot{}
	if err := s.holdings(v.Cache); err != nil {
		return nil, err
	}
	s.machineFiles(v)
	if err := s.network(); err != nil {
		return nil, err
	}
	if err := s.mounts(); err != nil {
		return nil, err
	}
	s.nftables()
	s.cgroups()
	s.sysctls()
	for kind := range s {
		slices.Sort(s[kind])
	}
	return s, nil
}

// Diff returns the lines of after that are not in s ("+ kind: line") and those of s that
// are not in after ("- kind: line").
func (s Snapshot) Diff(after Snapshot) []string {
	var out []string
	kinds := slices.Sorted(maps.Keys(after))
	for kind := range s {
		if _, ok := after[kind]; !ok {
			kinds = append(kinds, kind)
		}
	}
	for _, kind := range kinds {
		for _, line := range without(after[kind], s[kind]) {
			out = append(out, "+ "+kind+": "+line)
		}
		for _, line := range without(s[kind], after[kind]) {
			out = append(out, "- "+kind+": "+line)
		}
	}
	return out
}

// without returns the multiset difference of a and b.
func without(a, b []string) []string {
	count := map[string]int{}
	for _, line := range b {
		count[line]++
	}
	var out []string
	for _, line := range a {
		if count[line]--; count[line] < 0 {
			out = append(out, line)
		}
	}
	return out
}

func (s Snapshot) add(kind, format string, args ...any) {
	s[kind] = append(s[kind], fmt.Sprintf(format, args...))
}
