package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir holds the names of namespaces.
const Dir = "/run/netns"

// Path is where the namespace of a name is found.
func Path(name string) string { return filepath.Join(Dir, name) }

// Make makes a named namespace, unless the name exists.
func Make(name string) error {
	if _, err := os.Stat(Path(name)); err == nil {
		return nil
	}
	err := onOwnThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return h.Close()
	})
	if err != nil {
		return fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return nil
}

// Delete removes a namespace's name and all of its mounts; the kernel frees the
// namespace when its last user is gone. Deleting the absent is success.
func Delete(name string) error {
	err := netns.DeleteNamed(name)
	if errors.Is(err, unix.EINVAL) { // not mounted: its maker ended between the file and the mount
		err = os.Remove(Path(name))
	}
	if errors.Is(err, unix.EBUSY) {
		err = removeMounted(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// removeMounted removes a name that has mounts which no path reaches: a mount of Dir on
// itself, as `ip netns add` makes it, hides the namespaces that were mounted before.
//
// unlink(2) of a mount point fails with EBUSY only in a mount namespace that has the mount;
// otherwise it succeeds, and the kernel detaches the mounts of the file in all mount
// namespaces (Linux 3.18, "vfs: Lazily remove mounts on unlinked files and directories").
// So the name is removed from a mount namespace without mounts, and the mounts of other
// names stay as they are.
func removeMounted(name string) error {
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return onEndingThread(func() error { return removeElsewhere(dir, name) })
}

// onEndingThread runs fn on a thread that ends with it, for what cannot be undone. It is
// never the main thread: /proc/self shows the namespaces of that one to the process.
func onEndingThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			done <- onEndingThread(fn) // on another thread, because this goroutine holds the main one
			runtime.UnlockOSThread()
			return
		}
		done <- fn()
	}()
	return <-done
}

// removeElsewhere moves the calling thread into an empty mount namespace, and removes a
// name there.
func removeElsewhere(dir *os.File, name string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("empty mount namespace: %w", err)
	}
	return unix.Unlinkat(int(dir.Fd()), name, 0)
}

// Share makes Dir a shared mount, as `ip netns add` does, so that a namespace that is
// unmounted in one mount namespace is unmounted in all that received its mount. It does
// not change a shared Dir. Without it, the next `ip netns add` mounts Dir on itself, over
// the namespaces that exist by then.
//
// As iproute2 (ip/ipnetns.c; Debian bug 949235), it locks Dir meanwhile: concurrent mounts
// of Dir on itself would stack, each with a copy of all mounts below.
func Share() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer dir.Close() // unlocks
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", Dir, err)
	}
	err = unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount point
		if err := unix.Mount(Dir, Dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", Dir, err)
		}
		err = unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", Dir, err)
	}
	return nil
}
