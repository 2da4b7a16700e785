// Package isolate runs a test as on a machine of its own, so that a test of what is one
// for the whole machine (named namespaces, the directory of labs, cgroups, raised sysctls)
// neither meets nor changes that of the machine it runs on.
//
// The test's process is started again as PID 1 of a new PID namespace, with its own mount,
// network, IPC and host-name namespaces, and there:
//
//   - /run and /var/lib are empty file systems, /proc shows its own processes;
//   - each cgroup tree is a new directory of the machine's tree;
//   - the sysctls that a lab raises are files of its own; loopback is up.
//
// Other files are the machine's, and BPF objects are the kernel's. Only tests import it;
// they need root and carry the build tag "netns".
package isolate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// argument begins the last argument of a process that Run has started, which is no flag.
const argument = "isolated-in-cgroup="

// isolated returns the name of the directory in every cgroup tree, in such a process.
func isolated() (cgroup string, yes bool) {
	return strings.CutPrefix(os.Args[len(os.Args)-1], argument)
}

const (
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupWait bounds the wait for the last process to leave its cgroups.
	cgroupWait = 30 * time.Second
)

// sysctls returns the sysctls that labs raise, with the values of a machine on which none
// has raised them: a lab may run on this one. Source: kernel, Documentation/networking/
// ip-sysctl.rst (gc_thresh), fs/notify/inotify/inotify_user.c.
func sysctls() map[string]string {
	out := map[string]string{"fs/inotify/max_user_instances": "128", "fs/inotify/max_user_watches": "8192"}
	for _, family := range []string{"ipv4", "ipv6"} {
		for n, value := range []string{"128", "512", "1024"} {
			out[fmt.Sprintf("net/%s/neigh/default/gc_thresh%d", family, n+1)] = value
		}
	}
	return out
}

// Run runs fn as the body of the top-level test t, on a machine of its own.
func Run(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	if strings.Contains(t.Name(), "/") {
		t.Fatalf("%s: only a top-level test can be isolated", t.Name())
	}
	if cgroup, yes := isolated(); yes {
		if err := setUp(cgroup); err != nil {
			t.Fatalf("set up a machine of its own: %v", err)
		}
		fn(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("a machine of its own needs root: run `make test-netns` as root")
	}
	cgroup := "tl-" + testns.Lab()
	makeCgroups(t, cgroup)
	runtime.LockOSThread() // the parent-death signal is sent when the thread ends that started the process
	defer runtime.UnlockOSThread()
	args := []string{"-test.run=^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	cmd := exec.Command("/proc/self/exe", append(args, argument+cgroup)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	t.Logf("on a machine of its own:\n%s", out)
	if err != nil {
		t.Errorf("it failed: %v", err)
	}
}

// makeCgroups makes a directory in every cgroup tree, and removes it after the test.
func makeCgroups(t *testing.T, name string) {
	t.Helper()
	trees, err := cgroupTrees()
	if err != nil {
		t.Fatal(err)
	}
	for _, tree := range trees {
		dir := filepath.Join(tree, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), copyCPUs(tree, dir)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			deadline := time.Now().Add(cgroupWait)
			err := testns.RemoveCgroup(dir)
			for ; err != nil && time.Now().Before(deadline); err = testns.RemoveCgroup(dir) {
				<-time.After(10 * time.Millisecond) // until the kernel has reaped the last process
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// copyCPUs copies the CPUs and memory nodes of a version 1 cpuset to a new one, which
// accepts no process without; see cpuset(7).
func copyCPUs(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another tree
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cgroupTrees returns the mount points of the cgroup trees.
func cgroupTrees() (trees []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	for _, m := range mounts {
		if m.Mountpoint == cgroupRoot || strings.HasPrefix(m.Mountpoint, cgroupRoot+"/") {
			trees = append(trees, m.Mountpoint)
		}
	}
	return trees, err
}

// setUp builds the machine's own parts, in the new namespaces.
func setUp(cgroup string) error {
	if os.Getpid() != 1 {
		return errors.New("not PID 1 of a PID namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unmountBelow(dir); err != nil {
			return fmt.Errorf("unmount the machine's %s: %w", dir, err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if err := ownCgroups(tree, filepath.Join(tree, cgroup)); err != nil {
			return fmt.Errorf("mount cgroups at %s: %w", tree, err)
		}
	}
	for name, value := range sysctls() {
		if err := ownSysctl(name, value); err != nil {
			return fmt.Errorf("sysctl %s: %w", name, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// ownCgroups replaces the mount of a cgroup tree by one of the directory in it.
func ownCgroups(tree, dir string) error {
	const aside = "/run/isolate-cgroup"
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount(dir, aside, "", unix.MS_BIND, ""),
		unix.Unmount(tree, unix.MNT_DETACH),
		unix.Mount(aside, tree, "", unix.MS_BIND, ""),
		unix.Unmount(aside, 0),
	)
}

// unmountBelow unmounts the machine's mounts at and below a directory.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	return errors.Join(err, unmount(dir, mounts))
}

// unmount unmounts the mounts at and below a directory, and returns an error if any is left.
// That one of the list cannot be unmounted is none: it may have ended since. Another test
// removes the name of a namespace, and the kernel detaches the mounts of a removed file in all
// mount namespaces.
func unmount(dir string, mounts []*mountinfo.Info) (problems error) {
	for _, m := range slices.Backward(mounts) { // later mounts cover earlier ones
		problems = errors.Join(problems, unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("%d mounts are left, such as %s: %w", len(left), left[0].Mountpoint, cmp.Or(problems, errors.New("not unmounted")))
}

// ownSysctl mounts a file with a value over a sysctl, if the sysctl exists.
func ownSysctl(name, value string) error {
	at := filepath.Join("/proc/sys", name)
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	own := filepath.Join("/run/isolate", name)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(own, []byte(value+"\n"), 0o644); err != nil {
		return err
	}
	return unix.Mount(own, at, "", unix.MS_BIND, "")
}
