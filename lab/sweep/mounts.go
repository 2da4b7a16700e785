package sweep

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

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
func parseMountsBelow(mountinfo io.Reader, dir string) ([]string, error) {
	var points []string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		p := unescape(fields[4])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	// Later mounts lie on earlier ones.
	slices.Reverse(points)
	return points, lines.Err()
}

// unescape undoes the octal escapes of mountinfo: blank, tab, newline and
// backslash. See proc(5).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
