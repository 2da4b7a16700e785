package testns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveCgroup removes a cgroup with those below it; the kernel owns the files in it. It
// fails while a process is inside. Removing the absent is success.
func RemoveCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, RemoveCgroup(filepath.Join(dir, e.Name())))
		}
	}
	if rmdir := unix.Rmdir(dir); !errors.Is(rmdir, unix.ENOENT) {
		err = errors.Join(err, rmdir)
	}
	return err
}

// removeStaleCgroups removes the cgroups of labs of test processes that have ended, in
// every cgroup tree.
func removeStaleCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/tl-t*", "/sys/fs/cgroup/*/tl-t*"} {
		dirs, _ := filepath.Glob(pattern) // the pattern is valid
		for _, dir := range dirs {
			if o, ok := ownerOf(filepath.Base(dir)); ok && o.ended() {
				_ = RemoveCgroup(dir)
			}
		}
	}
}
