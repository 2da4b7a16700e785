package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// snapshotter returns "overlayfs" if the disk's file system supports overlays, which one
// that is itself an overlay does not, and otherwise "native", which copies layers. It must
// run in the node's own mount namespace.
func (c Config) snapshotter() string {
	dir := c.disk("overlay-probe")
	defer func() { _ = os.RemoveAll(dir) }() // leftovers are removed with the disk
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
