package sweep

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/node"
)

// Leftovers returns what a lab left behind between two snapshots, and the changes that
// cannot be attributed to any lab. Changes of other labs are in neither. What is left of a
// lab is:
//
//   - what belongs to it: its namespaces, cgroups, mounts and state directory, processes
//     with its mark, and what these hold open;
//   - what has its name in its text;
//   - if neither snapshot has another lab: what names one of the labs' programs, also new
//     routes and rules, and sysctls that labs raise. Beside another lab these may be that
//     one's.
func (s Snapshot) Leftovers(after Snapshot, lab string) (left, unknown []Change) {
	alone := !s.hasOther(lab) && !after.hasOther(lab)
	named := regexp.MustCompile(`(^|[^a-z0-9-])(tl-)?` + regexp.QuoteMeta(lab) + `($|[^a-z0-9])`)
	for _, c := range s.Diff(after) {
		switch {
		case c.Lab != "" && c.Lab != lab:
		case c.Lab == lab && !c.Removed,
			c.Lab == "" && !c.Removed && named.MatchString(c.Text),
			c.Lab == "" && !c.Removed && alone && c.ofSomeLab():
			left = append(left, c)
		case c.Lab == "":
			unknown = append(unknown, c)
		}
	}
	return left, unknown
}

// hasOther reports whether there is another lab than this one.
func (s Snapshot) hasOther(lab string) bool {
	for e := range s {
		if e.Lab != "" && e.Lab != lab {
			return true
		}
	}
	return false
}

// programs matches names of the programs of a lab and of what they create.
var programs = regexp.MustCompile(`trunkline|kube|k8s|etcd|containerd|runc|\bctr\b|cni|coredns|/netns|\btl-|workload|\beni[0-9a-f]`)

// ofTests matches the temporary files of Go's tests and of the project's tools. Another
// checkout may run them at any time, and no lab writes there.
var ofTests = regexp.MustCompile(`^/tmp/(Test|Fuzz|Benchmark|go-build|trunkline-(mutants|image)-|tl-(bench-|[cd])\d)`)

// ofSomeLab reports whether an entry without a known lab is one that labs create.
func (e Entry) ofSomeLab() bool {
	switch e.Kind {
	case "file":
		return !ofTests.MatchString(e.Text) && programs.MatchString(e.Text)
	case "route", "rule": // have no name; a lab adds none to the machine's own
		return true
	case "sysctl":
		name, _, _ := strings.Cut(e.Text, " ")
		_, raised := wanted()[name]
		return raised
	}
	return programs.MatchString(e.Text) || strings.Contains(e.Text, enablesControllers)
}

// labOfNamespace returns the lab in the name of a namespace: "a-b" in tl-a-b-node1.
// Members have no dash in their names.
func labOfNamespace(name string) string {
	rest, ours := strings.CutPrefix(name, "tl-")
	end := strings.LastIndexByte(rest, '-')
	if !ours || end <= 0 || end == len(rest)-1 {
		return ""
	}
	return rest[:end]
}

// labOfCgroup returns the lab in the path of a cgroup below its tree's root:
// /tl-<lab>/<node>/….
func labOfCgroup(path string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	lab, ours := strings.CutPrefix(top, node.CgroupDir(""))
	if !ours {
		return ""
	}
	return lab
}

// labOfPath returns the lab of a namespace's name, or of a path in a state directory.
func (v View) labOfPath(path string) string {
	if filepath.Dir(path) == netns.Dir {
		return labOfNamespace(filepath.Base(path))
	}
	if rest, below := strings.CutPrefix(path, v.StateRoot+"/"); below && v.StateRoot != "" {
		lab, _, _ := strings.Cut(rest, "/")
		if lab != recordFile && lab != lockFile && !strings.HasPrefix(lab, recordFile) {
			return lab
		}
	}
	return ""
}
