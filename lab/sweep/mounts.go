package sweep

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountRounds bounds the search for mounts that appear while others are unmounted.
const mountRounds = 8

// unmountBelow unmounts all mounts at or below dir, deepest first. A busy mount is
// detached; the kernel removes it with its last user.
func unmountBelow(dir string) (unmounted []string, err error) {
	for range mountRounds {
		points, err := mountsBelow(dir)
		if err != nil || len(points) == 0 {
			return unmounted, err
		}
		for _, p := range points {
			err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return unmounted, fmt.Errorf("unmount %s: %w", p, err)
			}
			unmounted = append(unmounted, p)
		}
	}
	return unmounted, fmt.Errorf("mounts below %s reappear after they are unmounted", dir)
}

func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMountsBelow(f, dir)
}

// parseMountsBelow returns the mount points at or below dir, deepest first.
func parseMountsBelow(mounts io.Reader, dir string) ([]string, error) {
	below, err := mountinfo.GetMountsFromReader(mounts, mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var points []string
	for _, m := range slices.Backward(below) { // later mounts cover earlier ones
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
