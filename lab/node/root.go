package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one step of building the root: source on target, relative to the new
// root.
type mount struct {
	source, target string
	fstype         string // empty binds source
	flags          uintptr
	data           string
	optional       bool // skipped if the source does not exist
	existing       bool // skipped if the target does not exist
}

const (
	readOnly = unix.MS_RDONLY
	secure   = unix.MS_NOSUID | unix.MS_NODEV
)

// rootFS is a node's root file system, which PID 1 builds before it changes root.
type rootFS struct {
	config Config
	trees  []Hierarchy // of the machine
}

// mounts returns the mounts of the root on top of an empty tmpfs: the machine's programs,
// read-only, and the node's own files.
func (r rootFS) mounts() []mount {
	var list []mount
	if r.config.image().ReadOnly { // the rest of the root is sealed
		list = append(list, mount{source: "tmpfs", target: "etc", fstype: "tmpfs", flags: secure, data: "mode=0755"})
	}
	list = append(list, []mount{
		{source: "/usr", target: "usr", flags: readOnly},
		{source: "/etc/alternatives", target: "etc/alternatives", flags: readOnly, optional: true},
		{source: "/etc/ssl", target: "etc/ssl", flags: readOnly, optional: true},
		{source: "/etc/ca-certificates", target: "etc/ca-certificates", flags: readOnly, optional: true},
		{source: "/etc/iproute2", target: "etc/iproute2", flags: readOnly, optional: true},

		{source: "proc", target: "proc", fstype: "proc", flags: secure | unix.MS_NOEXEC},
		{source: "sysfs", target: "sys", fstype: "sysfs", flags: secure | unix.MS_NOEXEC},
		{source: "bpf", target: "sys/fs/bpf", fstype: "bpf", flags: secure | unix.MS_NOEXEC, data: "mode=0700"},

		{source: "tmpfs", target: "run", fstype: "tmpfs", flags: secure, data: "mode=0755"},
		{source: "tmpfs", target: "tmp", fstype: "tmpfs", flags: secure, data: "mode=1777"},
		{source: "tmpfs", target: "dev", fstype: "tmpfs", flags: unix.MS_NOSUID, data: "mode=0755"},
		{source: "devpts", target: "dev/pts", fstype: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "newinstance,ptmxmode=0666,mode=0620,gid=5"},
		{source: "tmpfs", target: "dev/shm", fstype: "tmpfs", flags: secure, data: "mode=1777"},
		{source: "mqueue", target: "dev/mqueue", fstype: "mqueue", flags: secure | unix.MS_NOEXEC, optional: true},
	}...)
	for _, dev := range []string{"null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse", "net/tun"} {
		list = append(list, mount{source: "/dev/" + dev, target: "dev/" + dev, optional: true})
	}
	// The disk, which survives reboots.
	dir := r.config.dir()
	for _, name := range r.config.diskDirs() {
		list = append(list, mount{source: dir.disk().path(name), target: name})
	}
	list = append(list, r.config.imageMounts()...)
	list = append(list,
		mount{source: dir.logs(), target: logDir},
		mount{source: dir.keys(), target: keysDir, flags: readOnly},
	)
	for name, source := range r.config.Parts.programs() {
		list = append(list, mount{source: source, target: filepath.Join(binDir, name), flags: readOnly})
	}
	if plugins := r.config.Parts.AWSPlugins; plugins != "" {
		list = append(list, mount{source: plugins, target: awsDir, flags: readOnly})
	}
	for path := range machineSysctls() {
		list = append(list, mount{source: filepath.Join(dir.boot(), sysctlFile(path)), target: path, existing: true})
	}
	list = append(list, r.config.trustMounts()...)
	return append(list, cgroupMounts(r.config.Cgroup, r.trees)...)
}

// programs returns the paths of the programs on the machine by their names in the node.
func (p Parts) programs() map[string]string {
	return map[string]string{
		"trunkline-kube":          p.Kube,
		"trunkline-lab":           p.Lab,
		"containerd":              filepath.Join(p.Containerd, "containerd"),
		"containerd-shim-runc-v2": filepath.Join(p.Containerd, "containerd-shim-runc-v2"),
		"ctr":                     filepath.Join(p.Containerd, "ctr"),
		"runc":                    p.Runc,
	}
}

// cgroupMounts returns the cgroup mounts. The node sees only its own subtrees, because in
// its cgroup namespace the root of a new mount is the node's directory.
func cgroupMounts(view CgroupView, trees []Hierarchy) []mount {
	const flags = secure | unix.MS_NOEXEC
	if view == CgroupV2 {
		return []mount{{source: "cgroup2", target: cgroupRoot, fstype: "cgroup2", flags: flags}}
	}
	list := []mount{{source: "tmpfs", target: cgroupRoot, fstype: "tmpfs", flags: flags, data: "mode=0755"}}
	for _, h := range trees {
		m := mount{source: "cgroup", target: filepath.Join(cgroupRoot, h.Name()), fstype: "cgroup", flags: flags, data: h.Options}
		if h.V2 {
			m.source, m.fstype = "cgroup2", "cgroup2"
		}
		list = append(list, m)
	}
	return list
}

// machineSysctls returns the global sysctls that the kubelet sets, with the values it
// wants, and the boot ID. A file of the node is mounted over each, so that the kubelet
// changes nothing on the machine.
func machineSysctls() map[string]string {
	return map[string]string{
		"proc/sys/vm/overcommit_memory":      "1\n",
		"proc/sys/vm/panic_on_oom":           "0\n",
		"proc/sys/kernel/panic":              "10\n",
		"proc/sys/kernel/panic_on_oops":      "1\n",
		"proc/sys/kernel/keys/root_maxkeys":  "1000000\n",
		"proc/sys/kernel/keys/root_maxbytes": "25000000\n",
		"proc/sys/kernel/random/boot_id":     "", // written at each boot
	}
}

func sysctlFile(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "proc/sys/"), "/", ".")
}

// build mounts the root at its place in the state directory, and makes it this process's
// root. It must run in a new mount namespace.
func (r rootFS) build() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root := r.config.dir().root()
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount root of node: %w", err)
	}
	if err := mergedUsr(root); err != nil {
		return err
	}
	for _, m := range r.mounts() {
		if err := m.apply(root); err != nil {
			return err
		}
	}
	if err := r.writeEtc(root); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	return r.config.seal()
}

func (m mount) apply(root string) error {
	target := filepath.Join(root, m.target)
	if m.fstype != "" {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
		err := unix.Mount(m.source, target, m.fstype, m.flags, m.data)
		if err != nil && !m.optional {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
		return nil
	}
	err := m.bind(target)
	if errors.Is(err, fs.ErrNotExist) && m.optional {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bind %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

func (m mount) bind(target string) error {
	if _, err := os.Lstat(target); m.existing && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	st, err := os.Stat(m.source)
	if err != nil {
		return err
	}
	if err := mountPoint(target, st.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(m.source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if m.flags == 0 {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|m.flags, "")
}

// mountPoint creates the target of a bind mount if it does not exist.
func mountPoint(target string, dir bool) error {
	if dir {
		return os.MkdirAll(target, 0o755)
	}
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// mergedUsr creates /bin, /sbin and /lib* as on the machine: either links into /usr or
// bind-mounted directories.
func mergedUsr(root string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		source, target := "/"+name, filepath.Join(root, name)
		st, err := os.Lstat(source)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			if err := (mount{source: source, target: name, flags: readOnly}).apply(root); err != nil {
				return err
			}
			continue
		}
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		if err := os.Symlink(to, target); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the root of the mount namespace and unmounts the old one. The new root
// is shared, as under systemd, for pods with bidirectional mount propagation; such mounts
// do not leave the node.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// pivot_root(".", ".") stacks the old root on the new; see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot into %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts inside the node: %w", err)
	}
	return nil
}
