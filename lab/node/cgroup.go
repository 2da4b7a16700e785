package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroupRoot is the mount point of cgroups, on the machine and in nodes.
const cgroupRoot = "/sys/fs/cgroup"

// Hierarchy is one mounted cgroup tree of the machine.
type Hierarchy struct {
	Mount   string // mount point on the machine
	Options string // mount options, such as "cpu" or "name=systemd"; empty for version 2
	V2      bool
}

// Name returns the directory of the mount point below /sys/fs/cgroup; empty is
// /sys/fs/cgroup itself.
func (h Hierarchy) Name() string {
	rel, err := filepath.Rel(cgroupRoot, h.Mount)
	if err != nil || rel == "." || strings.HasPrefix(rel, "..") {
		return ""
	}
	return rel
}

// Hierarchies returns the machine's cgroup trees below /sys/fs/cgroup.
func Hierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseHierarchies(f)
}

func parseHierarchies(mounts io.Reader) ([]Hierarchy, error) {
	trees, err := mountinfo.GetMountsFromReader(mounts, mountinfo.PrefixFilter(cgroupRoot))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var out []Hierarchy
	for _, m := range trees {
		switch m.FSType {
		case "cgroup2":
			out = append(out, Hierarchy{Mount: m.Mountpoint, V2: true})
		case "cgroup":
			out = append(out, Hierarchy{Mount: m.Mountpoint, Options: controllers(m.VFSOptions)})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no cgroup tree is mounted below " + cgroupRoot)
	}
	return out, nil
}

// controllers returns those of a superblock's options that identify the tree.
func controllers(options string) string {
	var keep []string
	for o := range strings.SplitSeq(options, ",") {
		switch name, _, _ := strings.Cut(o, "="); name {
		case "rw", "ro", "relatime", "seclabel", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods", "release_agent":
		default:
			keep = append(keep, o)
		}
	}
	return strings.Join(keep, ",")
}

// onlyV2 reports whether the machine has no version 1 tree.
func onlyV2(trees []Hierarchy) bool {
	return !slices.ContainsFunc(trees, func(h Hierarchy) bool { return !h.V2 })
}

// CgroupDir returns the name of a lab's directory in every tree. Each node has a
// directory in it.
func CgroupDir(lab string) string { return "tl-" + lab }

// cgroups are a node's directories, one in each of the machine's trees.
type cgroups struct {
	trees     []Hierarchy
	lab, node string
}

// dir returns the node's directory in a tree.
func (g cgroups) dir(h Hierarchy) string {
	return filepath.Join(h.Mount, CgroupDir(g.lab), g.node)
}

// create creates the node's directory in every tree. A new cpuset accepts no processes
// until the CPUs and memory nodes of its parent are copied into it.
func (g cgroups) create() error {
	for _, h := range g.trees {
		dir := g.dir(h)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup %s: %w", dir, err)
		}
		for _, d := range []string{filepath.Dir(dir), dir} {
			if err := prepareCgroup(h, d); err != nil {
				return fmt.Errorf("prepare cgroup %s: %w", d, err)
			}
		}
	}
	return nil
}

func prepareCgroup(h Hierarchy, dir string) error {
	if h.V2 {
		// Enables nothing on a hybrid machine: its version 2 tree has no controllers.
		return enableControllers(filepath.Dir(dir))
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not the cpuset tree
		}
		if err != nil {
			return err
		}
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), parent, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers enables all controllers of a version 2 cgroup for its children.
func enableControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var on []string
	for name := range strings.FieldsSeq(string(have)) {
		on = append(on, "+"+name)
	}
	if len(on) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(on, " ")), 0o644)
}

// join moves a process into the node's directory of every tree.
func (g cgroups) join(pid int) error {
	for _, h := range g.trees {
		procs := filepath.Join(g.dir(h), "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("move node %s into %s: %w", g.node, g.dir(h), err)
		}
	}
	return nil
}

// remove deletes the node's directories with all cgroups below them. They must have no
// processes. Deleting the absent is success.
func (g cgroups) remove() error {
	var errs []error
	for _, h := range g.trees {
		dir := g.dir(h)
		errs = append(errs, RemoveCgroup(dir))
		// The lab's directory; succeeds only after its last node.
		_ = unix.Rmdir(filepath.Dir(dir))
	}
	return errors.Join(errs...)
}

// RemoveCgroup deletes a cgroup with all cgroups below it, children first.
func RemoveCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := RemoveCgroup(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	// rmdir(2) without deleting files first: the kernel owns them.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
