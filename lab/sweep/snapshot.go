package sweep

import (
	"cmp"
	"fmt"
	"slices"
)

// Entry is one thing of the machine that a lab could leave behind.
type Entry struct {
	Kind string // "link", "mount" and so on
	// Lab is the lab it belongs to; empty if that is not known.
	Lab  string
	Text string
}

// Snapshot is the state of the machine that a lab could change: how often each entry
// exists.
type Snapshot map[Entry]int

// View configures what a snapshot leaves out, and where labs are.
type View struct {
	// Cache is the lab's cache directory. A program from there belongs to a lab.
	Cache string
	// StateRoot is the directory of the labs' state directories.
	StateRoot string
	// Ignore lists further paths that may change with all files below, such as Go's
	// build cache.
	Ignore []string
}

// TakeSnapshot reads the state of the machine: namespaces, links, routes, rules,
// nftables, mounts, cgroups, BPF objects, settings, listeners, processes and files. State
// that cannot be read is left out.
//
// It lists only processes of labs, and leaves out sockets and BPF objects that only other
// processes hold open. It also leaves out the mount of the directory of named namespaces
// on itself: it stays, as after `ip netns add`.
func TakeSnapshot(v View) (Snapshot, error) {
	s := Snapshot{}
	if err := s.holdings(v.Cache); err != nil {
		return nil, err
	}
	s.machineFiles(v)
	if err := s.network(); err != nil {
		return nil, err
	}
	if err := s.mounts(v); err != nil {
		return nil, err
	}
	s.nftables()
	s.cgroups()
	s.sysctls()
	return s, nil
}

// Change is an entry that one of two snapshots has more often.
type Change struct {
	Entry
	Removed bool
}

func (c Change) String() string {
	sign := "+ "
	if c.Removed {
		sign = "- "
	}
	return sign + c.Kind + ": " + c.Text
}

// Diff returns the changes from s to after, sorted by kind.
func (s Snapshot) Diff(after Snapshot) []Change {
	var out []Change
	for e, n := range after {
		out = append(out, slices.Repeat([]Change{{e, false}}, max(0, n-s[e]))...)
	}
	for e, n := range s {
		out = append(out, slices.Repeat([]Change{{e, true}}, max(0, n-after[e]))...)
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.String(), b.String()))
	})
	return out
}

// add adds an entry of a lab; lab is empty if it is not known.
func (s Snapshot) add(kind, lab, format string, args ...any) {
	s[Entry{kind, lab, fmt.Sprintf(format, args...)}]++
}
