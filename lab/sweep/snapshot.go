package sweep

import (
	"fmt"
	"maps"
	"slices"
)

// Snapshot is what of the machine a lab could change, as sorted lines by kind.
// Two of them tell what a lab left behind.
type Snapshot map[string][]string

// View says what a snapshot leaves out.
type View struct {
	// Cache is the lab's cache directory: what runs from there is a lab's.
	Cache string
	// Ignore lists more paths, with all below them, whose files may change: the
	// Go build's caches, say.
	Ignore []string
}

// TakeSnapshot looks at the machine as it is: namespaces, links, routes, rules,
// nftables, mounts, cgroups, BPF objects, settings, listeners, processes and
// files. What cannot be read is missing from both sides.
//
// Of processes it lists those of labs, and of what a process holds open (sockets,
// BPF objects) all but that of others' processes.
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

// Diff lists what after has and s has not ("+ kind: line") and the reverse
// ("- kind: line").
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

// without returns the lines of a that are not in b, each as often as it is there
// more often.
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
