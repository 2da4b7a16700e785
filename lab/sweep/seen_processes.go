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

	"github.com/trunkline/trunkline/lab/node/component"
)

// holder is a process that keeps something open.
type holder struct {
	lab  string // it belongs to; empty if that is not known
	ofUs bool   // it belongs to a lab
}

// holders are indexed by what they keep open ("socket:[7]", "prog 3"). Of several, it is
// one that belongs to a lab.
type holders map[string]holder

// thing is a line of a snapshot for something that a process may hold open.
type thing struct{ kind, line string }

// things are indexed by the keys of holders.
type things map[string]thing

// holdings lists the processes of labs, and the listeners and BPF objects that are not
// held only by other processes. It ignores things that did not exist both before and
// after the processes were listed, because their holders may be unknown.
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
		if h, held := by[id]; before[id] == t && (h.ofUs || !held) {
			s.add(t.kind, h.lab, "%s", t.line)
		}
	}
	return nil
}

func openThings() (things, error) {
	all := things{}
	all.sockets()
	return all, all.bpfObjects()
}

// processes lists the processes of labs by name and lab, without PIDs, which differ
// between snapshots. It returns what all processes hold.
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
		by := labOf(dir, cache)
		held.note(dir, by)
		if !by.ofUs {
			continue
		}
		// A zombie has no command line and holds nothing.
		if argv, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || len(argv) == 0 {
			continue
		}
		if name, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			s.add("process", by.lab, "%s of %s", bytes.TrimSpace(name), by)
		}
	}
	return held, nil
}

func (h holder) String() string {
	if h.lab == "" {
		return "the labs' cache"
	}
	return "lab " + h.lab
}

// labOf returns the lab of a process, found by its mark, by its node's cgroup, or by a
// program in the labs' cache.
func labOf(dir, cache string) holder {
	environ, _ := os.ReadFile(filepath.Join(dir, "environ")) // unreadable for another user's process
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if name, ok := bytes.CutPrefix(entry, []byte(component.MarkName+"=")); ok {
			return holder{string(name), true}
		}
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	for line := range bytes.Lines(cgroups) {
		// hierarchy:controllers:path
		if fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3); len(fields) == 3 {
			if lab := labOfCgroup(fields[2]); lab != "" {
				return holder{lab, true}
			}
		}
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	return holder{ofUs: err == nil && cache != "" && strings.HasPrefix(exe, cache+"/")}
}

// bpfKind matches the BPF object of a descriptor in /proc/<pid>/fdinfo.
var bpfKind = regexp.MustCompile(`^(prog|map|link)_id:\s*(\d+)`)

// note records what a process holds.
func (h holders) note(dir string, by holder) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return // exited, or a kernel thread
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		switch {
		case err != nil:
		case strings.HasPrefix(target, "socket:["):
			h.keep(target, by)
		case strings.HasPrefix(target, "anon_inode:bpf"):
			if object := bpfObject(filepath.Join(dir, "fdinfo", fd.Name())); object != "" {
				h.keep(object, by)
			}
		}
	}
}

func (h holders) keep(thing string, by holder) {
	if !h[thing].ofUs {
		h[thing] = by
	}
}

// bpfObject returns the object of a descriptor, such as "prog 7". The fdinfo of a link
// also contains its program.
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
