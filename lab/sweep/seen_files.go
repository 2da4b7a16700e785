package sweep

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/node"
)

// roots are the directories in which a program of the lab could leave a file. Of the
// first, only the entries are listed.
func roots() []string {
	return []string{"/", "/etc", "/opt", "/root", "/run", "/tmp", "/usr/local", "/var", "/sys/fs/bpf"}
}

// volatileFiles matches the files that the machine itself may write at any time: logs,
// the state of its services, and files of package managers and compilers.
func volatileFiles() *regexp.Regexp {
	return regexp.MustCompile(`^/(run/(systemd|udev|user|log|utmp|lock)|` +
		`var/log/(journal|apt|(sys|kern|auth|daemon|cron|user|messages|debug|dpkg|wtmp|btmp|lastlog)[^/]*)|` +
		`var/(lib|cache)/apt|var/lib/(systemd|dhcp|chrony|logrotate)|var/spool/(cron|rsyslog)|` +
		`tmp/go-(build|link-|test-script)[^/]*|etc/resolv\.conf)(/|$)`)
}

// machineFiles lists the files on the machine's file systems: a directory with its mode,
// a regular file also with its size and mtime.
func (s Snapshot) machineFiles(v View) {
	skip := volatileFiles()
	ignored := func(path string) bool {
		if skip.MatchString(path) {
			return true
		}
		for _, dir := range append(v.Ignore, v.Cache) {
			if dir != "" && (path == dir || strings.HasPrefix(path, dir+"/")) {
				return true
			}
		}
		return false
	}
	for _, root := range append(roots(), v.StateRoot) {
		_ = filepath.WalkDir(root, s.visit(v, root, ignored)) // unreadable files are left out
	}
}

func (s Snapshot) visit(v View, root string, ignored func(string) bool) fs.WalkDirFunc {
	var device uint64
	return func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // missing, or removed in the meantime
		}
		if ignored(path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil //nolint:nilerr // removed in the meantime
		}
		if path == root {
			device = st.Dev
			return nil
		}
		s.add(v.kindOf(path), v.labOfPath(path), "%s", described(path, d, st))
		switch {
		case !d.IsDir():
			return nil
		case root == "/" || st.Dev != device || path == v.StateRoot: // the mount of another file system is listed; labs are their own root
			return fs.SkipDir
		case filepath.Dir(path) == v.StateRoot: // a lab's directory is listed, not its content
			return fs.SkipDir
		case isCheckout(path): // its user and git change files in it, a lab does not
			return fs.SkipDir
		}
		return nil
	}
}

// isCheckout reports whether a directory is one of git, where .git is a directory, or a file
// in a further worktree.
func isCheckout(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return err == nil
}

func described(path string, d fs.DirEntry, st unix.Stat_t) string {
	switch d.Type() {
	case 0:
		return fmt.Sprintf("%s %#o, %d bytes of %d.%09d", path, st.Mode&0o7777, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
	case fs.ModeSymlink:
		to, _ := os.Readlink(path) // empty if it was removed in the meantime
		return path + " -> " + to
	default:
		return fmt.Sprintf("%s %s", path, fs.FileMode(st.Mode&0o777)|d.Type())
	}
}

// kindOf returns the kind of a file: one of the kernel's or a lab's in their directories,
// otherwise "file".
func (v View) kindOf(path string) string {
	for _, special := range [][2]string{{netns.Dir, "namespace"}, {"/sys/fs/bpf", "bpf"}, {v.StateRoot, "state"}} {
		if special[0] != "" && (strings.HasPrefix(path, special[0]+"/") || path == special[0]) {
			return special[1]
		}
	}
	return "file"
}

func (s Snapshot) mounts(v View) error {
	mounts, err := mountinfo.GetMounts(nil)
	for _, m := range mounts {
		if m.Mountpoint != netns.Dir {
			s.add("mount", v.labOfPath(m.Mountpoint), "%s %s %s %s", m.Mountpoint, m.FSType, m.Source, m.VFSOptions)
		}
	}
	return err
}

// enablesControllers is in the line about the controllers of a tree, which labs enable.
const enablesControllers = " enables controllers "

// cgroups lists the top directories of all hierarchies and, below those of labs, the
// nodes' directories.
func (s Snapshot) cgroups() {
	trees, err := node.Hierarchies()
	if err != nil {
		return
	}
	for _, h := range trees {
		if enabled, err := os.ReadFile(filepath.Join(h.Mount, controlFile)); err == nil {
			s.add("cgroup", "", "%s"+enablesControllers+"%s", h.Mount, strings.TrimSpace(string(enabled)))
		}
		_ = filepath.WalkDir(h.Mount, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir // removed in the meantime
			}
			if !d.IsDir() || path == h.Mount {
				return nil
			}
			s.add("cgroup", labOfCgroup(strings.TrimPrefix(path, h.Mount)), "%s", path)
			if filepath.Dir(path) == h.Mount && strings.HasPrefix(d.Name(), node.CgroupDir("")) {
				return nil
			}
			return fs.SkipDir
		})
	}
}

// volatileSysctls matches settings that are counters, differ at each read, or belong to
// one link.
func volatileSysctls() *regexp.Regexp {
	return regexp.MustCompile(`^(fs/(dentry-state|file-nr|inode-(nr|state)|aio-nr|quota/.*|binfmt_misc/.*)|` +
		`kernel/(ns_last_pid|random/.*|pty/nr|tainted|perf_event_max_sample_rate|usermodehelper/.*)|` +
		`net/netfilter/nf_conntrack_count|net/nf_conntrack_count|net/ipv[46]/(conf|neigh)/.*|` +
		`net/mpls/.*|sunrpc/.*|vm/(stat_refresh|compact_memory|drop_caches))$`)
}

// sysctls lists all settings; of the settings of links, only those for all links.
func (s Snapshot) sysctls() {
	skip := volatileSysctls()
	m := thisMachine()
	_ = filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if d.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(m.dir, path)
		if err != nil {
			return err
		}
		shared := strings.Contains(rel, "/all/") || strings.Contains(rel, "/default/")
		if skip.MatchString(rel) && !shared {
			return nil
		}
		if v, err := m.read(rel); err == nil {
			s.add("sysctl", "", "%s = %s", rel, strings.Join(strings.Fields(v), " "))
		}
		return nil
	})
}
