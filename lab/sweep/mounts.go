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

// mountRounds bounds the search for mounts that appear while others go.
const mountRounds = 8

// unmountBelow takes away every mount at or below dir, deepest first, until
// there is none. A busy one is detached: it goes with its last user.
func unmountBelow(dir string) (gone []string, err error) {
	for range mountRounds {
		points, err := mountsBelow(dir)
		if err != nil || len(points) == 0 {
			return gone, err
		}
		for _, p := range points {
			err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return gone, fmt.Errorf("unmount %s: %w", p, err)
			}
			gone = append(gone, p)
		}
	}
	return gone, fmt.Errorf("mounts below %s come back as they are taken away", dir)
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
	for _, m := range slices.Backward(below) { // later mounts lie on earlier ones
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
