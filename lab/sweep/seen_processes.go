package sweep

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/component"
)

// holders tells of each thing that processes hold open ("socket:[7]", "prog 3")
// whether a lab's process does.
type holders map[string]bool

// byOthers reports whether processes hold it and none of them is a lab's.
func (h holders) byOthers(thing string) bool {
	ours, held := h[thing]
	return held && !ours
}

// thing is what a process may hold open, as a line of a snapshot.
type thing struct{ kind, line string }

// things are by what holders know them by.
type things map[string]thing

// holdings lists the processes of labs, and the listeners and BPF objects that are
// no other process's. Only what is there before and after the look at processes
// counts: the holder of anything else may have come or gone meanwhile.
func (s Snapshot) holdings(cache string) error {
	before, err := openThings()
	if err != nil {
		return err
	}
	by, err := s.processes(cache)
	if err != nil {
		return err
	}
	after, err := openThings()
	if err != nil {
		return err
	}
	for id, t := range after {
		if before[id] == t && !by.byOthers(id) {
			s.add(t.kind, "%s", t.line)
		}
	}
	return nil
}

func openThings() (things, error) {
	all := things{}
	all.sockets()
	return all, all.bpfObjects()
}

// processes lists those of labs by name and lab: numbers differ from one moment
// to the next. It returns what every process holds.
func (s Snapshot) processes(cache string) (holders, error) {
	entries, err := os.ReadDir(procDir)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	held := holders{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join(procDir, e.Name())
		lab := labOf(dir, cache)
		held.note(dir, lab != "")
		if lab == "" {
			continue
		}
		// One that has ended and waits for its parent to notice has no command line
		// any more, and holds nothing.
		if argv, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || len(argv) == 0 {
			continue
		}
		if name, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			s.add("process", "%s of %s", bytes.TrimSpace(name), lab)
		}
	}
	return held, nil
}

// labOf says to which lab a process belongs: by its mark, by the cgroup its node
// put it in, or by a program of the labs' cache. Empty is none, or gone.
func labOf(dir, cache string) string {
	environ, _ := os.ReadFile(filepath.Join(dir, "environ")) // another user's is not readable: not ours
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if name, ok := bytes.CutPrefix(entry, []byte(component.MarkName+"=")); ok {
			return "lab " + string(name)
		}
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	for line := range bytes.Lines(cgroups) {
		// hierarchy:controllers:/tl-<lab>/<node>/…
		if _, path, ok := strings.Cut(string(line), ":/"); ok {
			if name, ok := strings.CutPrefix(path, node.CgroupDir("")); ok {
				name, _, _ = strings.Cut(strings.TrimSpace(name), "/")
				return "lab " + name
			}
		}
	}
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && cache != "" && strings.HasPrefix(exe, cache+"/") {
		return "the labs' cache"
	}
	return ""
}

// bpfKind finds which BPF object a descriptor is; see /proc/<pid>/fdinfo.
var bpfKind = regexp.MustCompile(`^(prog|map|link)_id:\s*(\d+)`)

// note remembers what a process holds.
func (h holders) note(dir string, ours bool) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return // gone, or a kernel thread
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		switch {
		case err != nil:
		case strings.HasPrefix(target, "socket:["):
			h[target] = h[target] || ours
		case strings.HasPrefix(target, "anon_inode:bpf"):
			if object := bpfObject(filepath.Join(dir, "fdinfo", fd.Name())); object != "" {
				h[object] = h[object] || ours
			}
		}
	}
}

// bpfObject reads which object a descriptor is: "prog 7". A link's descriptor
// names its program too, after itself.
func bpfObject(fdinfo string) string {
	f, err := os.Open(fdinfo)
	if err != nil {
		return ""
	}
	defer f.Close()
	found := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if m := bpfKind.FindStringSubmatch(lines.Text()); m != nil && (found == "" || m[1] == "link") {
			found = m[1] + " " + m[2]
		}
	}
	return found
}
