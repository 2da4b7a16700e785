package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// snapshotter is "overlayfs" where the disk can carry one, which a disk that is
// an overlay itself cannot, else "native", which copies. It must run in a mount
// namespace of its own.
func (c Config) snapshotter() string {
	dir := c.disk("overlay-probe")
	defer func() { _ = os.RemoveAll(dir) }() // what stays goes with the disk
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return "native"
		}
	}
	merged := filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return "native"
	}
	_ = unix.Unmount(merged, unix.MNT_DETACH)
	return "overlayfs"
}
