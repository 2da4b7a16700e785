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

// roots are where a program of the lab could leave a file on the machine. The
// first is for what somebody makes beside them.
func roots() []string {
	return []string{"/", "/etc", "/opt", "/root", "/run", "/tmp", "/usr/local", "/var", "/sys/fs/bpf"}
}

// restless are the files that the machine itself writes at any time: logs, the
// state of its own services, and what package managers and compilers keep.
func restless() *regexp.Regexp {
	return regexp.MustCompile(`^/(run/(systemd|udev|user|log|utmp|lock)|` +
		`var/log/(journal|apt|(sys|kern|auth|daemon|cron|user|messages|debug|dpkg|wtmp|btmp|lastlog)[^/]*)|` +
		`var/(lib|cache)/apt|var/lib/(systemd|dhcp|chrony|logrotate)|var/spool/(cron|rsyslog)|` +
		`tmp/go-(build|link-|test-script)[^/]*|etc/resolv\.conf)(/|$)`)
}

// machineFiles lists what is on the machine's own file systems: a directory by its
// name and mode, a file by its size and the time it was written too.
func (s Snapshot) machineFiles(v View) {
	skip := restless()
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
	for _, root := range roots() {
		_ = filepath.WalkDir(root, s.visit(root, ignored)) // what cannot be read is left out
	}
}

func (s Snapshot) visit(root string, ignored func(string) bool) fs.WalkDirFunc {
	var device uint64
	return func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // not there, or gone meanwhile
		}
		if ignored(path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		if path == root {
			device = st.Dev
			return nil
		}
		s.add(kindOf(path), "%s", described(path, d, st))
		switch {
		case !d.IsDir():
			return nil
		case root == "/" || st.Dev != device: // another file system: its mount is listed
			return fs.SkipDir
		case filepath.Dir(path) == labsDir: // a lab's directory says enough
			return fs.SkipDir
		}
		return nil
	}
}

func described(path string, d fs.DirEntry, st unix.Stat_t) string {
	switch d.Type() {
	case 0:
		return fmt.Sprintf("%s %#o, %d bytes of %d.%09d", path, st.Mode&0o7777, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
	case fs.ModeSymlink:
		to, _ := os.Readlink(path) // it may be gone: then to nowhere
		return path + " -> " + to
	default:
		return fmt.Sprintf("%s %s", path, fs.FileMode(st.Mode&0o777)|d.Type())
	}
}

// labsDir holds a directory for each lab.
const labsDir = "/var/lib/trunkline-lab"

// kindOf names what a file stands for where the kernel or a lab gives it a
// meaning.
func kindOf(path string) string {
	for _, special := range [][2]string{{netns.Dir, "namespace"}, {"/sys/fs/bpf", "bpf"}, {labsDir, "state"}} {
		if strings.HasPrefix(path, special[0]+"/") || path == special[0] {
			return special[1]
		}
	}
	return "file"
}

func (s Snapshot) mounts() error {
	mounts, err := mountinfo.GetMounts(nil)
	for _, m := range mounts {
		s.add("mount", "%s %s %s %s", m.Mountpoint, m.FSType, m.Source, m.VFSOptions)
	}
	return err
}

// cgroups lists the directories at the top of every tree, and below those of labs
// their nodes': what is below another's is the other's.
func (s Snapshot) cgroups() {
	trees, err := node.Hierarchies()
	if err != nil {
		return
	}
	for _, h := range trees {
		if passes, err := os.ReadFile(filepath.Join(h.Mount, passed)); err == nil {
			s.add("cgroup", "%s passes down %s", h.Mount, strings.TrimSpace(string(passes)))
		}
		_ = filepath.WalkDir(h.Mount, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir // gone meanwhile
			}
			if !d.IsDir() || path == h.Mount {
				return nil
			}
			s.add("cgroup", "%s", path)
			if filepath.Dir(path) == h.Mount && strings.HasPrefix(d.Name(), node.CgroupDir("")) {
				return nil
			}
			return fs.SkipDir
		})
	}
}

// unsteady are settings that are counters, differ at each look, or belong to a
// link and go with it.
func unsteady() *regexp.Regexp {
	return regexp.MustCompile(`^(fs/(dentry-state|file-nr|inode-(nr|state)|aio-nr|quota/.*|binfmt_misc/.*)|` +
		`kernel/(ns_last_pid|random/.*|pty/nr|tainted|perf_event_max_sample_rate|usermodehelper/.*)|` +
		`net/netfilter/nf_conntrack_count|net/nf_conntrack_count|net/ipv[46]/(conf|neigh)/.*|` +
		`net/mpls/.*|sunrpc/.*|vm/(stat_refresh|compact_memory|drop_caches))$`)
}

// sysctls lists every setting there is, of links those that are for all of them.
func (s Snapshot) sysctls() {
	skip := unsteady()
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
			s.add("sysctl", "%s = %s", rel, strings.Join(strings.Fields(v), " "))
		}
		return nil
	})
}
