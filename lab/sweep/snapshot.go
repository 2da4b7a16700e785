package sweep

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/component"
)

// Snapshot is what of the machine a lab could change, as sorted lines by kind.
// Two of them tell what a lab left behind.
type Snapshot map[string][]string

// TakeSnapshot looks at the machine as it is: namespaces, links, routes, rules,
// nftables, mounts, cgroups, pinned BPF objects, settings, listeners, processes
// and the files of labs. What cannot be read is missing from both sides.
func TakeSnapshot() (Snapshot, error) {
	s := Snapshot{}
	s.files("namespace", netnsDir, 1)
	s.files("state", "/var/lib/trunkline-lab", 2)
	s.files("bpf", "/sys/fs/bpf", 3)
	s.files("run", "/run", 1)
	if err := s.network(); err != nil {
		return nil, err
	}
	if err := s.mounts(); err != nil {
		return nil, err
	}
	s.nftables()
	s.cgroups()
	s.sysctls()
	for _, f := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
		s.sockets(f)
	}
	s.processes()
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

// files lists names below dir, so many levels deep.
func (s Snapshot) files(kind, dir string, depth int) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // not there, or gone meanwhile
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return nil //nolint:nilerr // the root itself
		}
		s.add(kind, "%s", path)
		if d.IsDir() && strings.Count(rel, "/")+1 >= depth {
			return fs.SkipDir
		}
		return nil
	})
}

func (s Snapshot) network() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		s.add("link", "%s %s %s mtu %d", a.Name, l.Type(), a.Alias, a.MTU)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			s.add("route", "%s", r)
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			s.add("rule", "%s", r)
		}
	}
	return nil
}

// nftables asks the program, whose output is the one a person would check.
func (s Snapshot) nftables() {
	out, err := exec.Command("nft", "list", "tables").Output()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		s.add("nft", "%s", strings.TrimSpace(line))
	}
}

func (s Snapshot) mounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(before); ok && len(fields) > 4 {
			s.add("mount", "%s %s", unescape(fields[4]), after)
		}
	}
	return lines.Err()
}

func (s Snapshot) cgroups() {
	trees, err := node.Hierarchies()
	if err != nil {
		return
	}
	for _, h := range trees {
		s.files("cgroup", h.Mount, 1)
	}
}

func (s Snapshot) sysctls() {
	paths := slices.Collect(maps.Keys(wanted()))
	paths = append(paths, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/netfilter/nf_conntrack_max",
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/pid_max",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "kernel/hostname")
	for _, p := range paths {
		if v, err := thisMachine().read(p); err == nil {
			s.add("sysctl", "%s = %s", p, v)
		}
	}
}

// listening is the state of a listening socket in /proc/net/tcp; a bound UDP
// socket is in state 07.
const (
	listening = "0A"
	bound     = "07"
)

func (s Snapshot) sockets(table string) {
	b, err := os.ReadFile(filepath.Join(procDir, "net", table))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		switch {
		case table == "unix" && len(fields) > 7 && fields[3] == "00010000": // SO_ACCEPTCON
			s.add("listener", "unix %s", fields[7])
		case table != "unix" && len(fields) > 3 && (fields[3] == listening || fields[3] == bound):
			s.add("listener", "%s %s", table, fields[1])
		}
	}
}

// processes counts those of labs, by mark or by name: numbers differ from one moment to the next. One that
// has ended and waits for its parent to notice (it has no command line any more)
// holds nothing.
func (s Snapshot) processes() {
	entries, err := os.ReadDir(procDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		name, err := os.ReadFile(filepath.Join(procDir, e.Name(), "comm"))
		if err != nil {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(procDir, e.Name(), "environ")) // another user's is not readable: not ours
		if !strings.HasPrefix(string(name), "trunkline") && !bytes.Contains(environ, []byte(component.MarkName+"=")) {
			continue
		}
		if argv, err := os.ReadFile(filepath.Join(procDir, e.Name(), "cmdline")); err != nil || len(argv) == 0 {
			continue
		}
		s.add("process", "%s", strings.TrimSpace(string(name)))
	}
}
