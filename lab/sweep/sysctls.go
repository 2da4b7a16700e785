package sweep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// machine holds the directories of the settings, of the named network namespaces and of
// the version 2 cgroups.
type machine struct{ dir, names, cgroups string }

func thisMachine() machine {
	return machine{dir: "/proc/sys", names: netns.Dir, cgroups: "/sys/fs/cgroup"}
}

// controlFile is the file of a version 2 cgroup with the controllers that are enabled for
// its children. It does not exist at the root on machines with version 1 cgroups.
const controlFile = "cgroup.subtree_control"

const (
	recordFile = "machine.json" // in the root of all labs: old values by path
	// absent is recorded for the directory of named namespaces if labs created it.
	absent   = "absent"
	lockFile = "machine.lock"
)

// wanted returns the minimum values of machine-wide settings for several nodes on one
// kernel. All namespaces share the neighbour tables; each container runtime and kubelet
// uses inotify instances.
func wanted() map[string]int {
	return map[string]int{
		"net/ipv4/neigh/default/gc_thresh1": 4096,
		"net/ipv4/neigh/default/gc_thresh2": 8192,
		"net/ipv4/neigh/default/gc_thresh3": 16384,
		"net/ipv6/neigh/default/gc_thresh1": 4096,
		"net/ipv6/neigh/default/gc_thresh2": 8192,
		"net/ipv6/neigh/default/gc_thresh3": 16384,
		"fs/inotify/max_user_instances":     1024,
		"fs/inotify/max_user_watches":       524288,
	}
}

// RaiseSysctls raises settings that are lower than the lab needs, and records their old
// values. It also records the enabled cgroup controllers and whether the directory of
// named namespaces exists. root is the directory of all labs. A setting that cannot be
// raised is logged.
func RaiseSysctls(root string, log *slog.Logger) error {
	return thisMachine().raise(root, log)
}

func (m machine) raise(root string, log *slog.Logger) error {
	return withRecord(root, func(old map[string]string) error {
		if _, err := os.Stat(m.names); errors.Is(err, fs.ErrNotExist) {
			old[m.names] = absent
			if err := writeRecord(root, old); err != nil {
				return err
			}
		}
		// Nodes enable all controllers.
		cgroups := filepath.Join(m.cgroups, controlFile)
		_, known := old[cgroups]
		if enabled, err := os.ReadFile(cgroups); err == nil && !known {
			old[cgroups] = strings.TrimSpace(string(enabled))
			if err := writeRecord(root, old); err != nil {
				return err
			}
		}
		want := wanted()
		// In descending order, because each threshold must not be below the previous one.
		for _, path := range slices.Backward(slices.Sorted(maps.Keys(want))) {
			have, err := m.read(path)
			if err != nil {
				log.Debug("setting does not exist", "sysctl", path, "err", err)
				continue
			}
			if n, err := strconv.Atoi(have); err != nil || n >= want[path] {
				continue
			}
			if _, ok := old[path]; !ok {
				old[path] = have
				// Recorded before the change, so that the old value is not lost in a
				// crash.
				if err := writeRecord(root, old); err != nil {
					return err
				}
			}
			if err := m.write(path, strconv.Itoa(want[path])); err != nil {
				log.Warn("cannot raise setting; many pods may exhaust it", "sysctl", path, "value", have, "want", want[path], "err", err)
			}
		}
		return nil
	})
}

// restoreWhenLast restores the machine's settings and removes root if no lab is left below
// root.
func (m machine) restoreWhenLast(root string) (restored []string, err error) {
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = withRecord(root, func(old map[string]string) error {
		left, err := labsIn(root)
		if err != nil || len(left) > 0 {
			return err
		}
		if restored, err = m.restore(old); err != nil {
			return err // the record is kept for the next attempt
		}
		if err := atomicfile.RemoveLeftovers(filepath.Join(root, recordFile)); err != nil {
			return err
		}
		for _, name := range []string{recordFile, lockFile} {
			if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		// Not empty if another lab has started in the meantime.
		if err := os.Remove(root); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	return restored, err
}

// raisedFurther reports whether another program has set a setting above the labs' value.
func raisedFurther(path, now string) bool {
	n, err := strconv.Atoi(now)
	want, known := wanted()[path]
	return err == nil && known && n > want
}

// restore writes the old values and returns the restored settings. It continues after an
// error, and skips settings that are unchanged or that another program has raised since.
func (m machine) restore(old map[string]string) (restored []string, err error) {
	for _, path := range slices.Sorted(maps.Keys(old)) { // thresholds in ascending order
		if old[path] == absent {
			removeNames(path)
			continue
		}
		if filepath.Base(path) == controlFile {
			restored = append(restored, disableControllers(path, old[path])...)
			continue
		}
		if now, readErr := m.read(path); readErr == nil && (now == old[path] || raisedFurther(path, now)) {
			continue
		}
		if writeErr := m.write(path, old[path]); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("restore %s to %s: %w", path, old[path], writeErr))
			continue
		}
		restored = append(restored, path)
	}
	return restored, err
}

// removeNames removes the directory of named namespaces, and the mount of it on itself that
// netns.Share made. Unless the directory is empty, other programs use it, and both stay.
func removeNames(dir string) {
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return
	}
	var own, parent unix.Stat_t
	if unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &parent) == nil && own.Dev == parent.Dev {
		_ = unix.Unmount(dir, 0) // fails if it is no mount point, or in use
	}
	_ = os.Remove(dir)
}

// disableControllers disables the controllers that are not in old, and returns them. The
// kernel refuses to disable a controller that child cgroups use.
func disableControllers(path, old string) (disabled []string) {
	now, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for name := range strings.FieldsSeq(string(now)) {
		if slices.Contains(strings.Fields(old), name) {
			continue
		}
		if os.WriteFile(path, []byte("-"+name), 0o644) == nil {
			disabled = append(disabled, path+" "+name)
		}
	}
	return disabled
}

func labsIn(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var labs []string
	for _, e := range entries {
		if e.IsDir() {
			labs = append(labs, e.Name())
		}
	}
	return labs, nil
}

// withRecord calls fn with the recorded old values, under the lock of all labs.
func withRecord(root string, fn func(old map[string]string) error) error {
	lock, err := lockRoot(root)
	if err != nil {
		return err
	}
	defer lock.Close()
	old := map[string]string{}
	b, err := os.ReadFile(filepath.Join(root, recordFile))
	if err == nil {
		err = json.Unmarshal(b, &old)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the record of the machine's settings: %w", err)
	}
	return fn(old)
}

// lockRoot takes the lock of all labs. Since the last lab removes the lock file, lockRoot
// retries if the locked file is not the one at the path.
func lockRoot(root string) (*os.File, error) {
	path := filepath.Join(root, lockFile)
	for {
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the root was removed in the meantime
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), lock.Close())
		}
		held, heldErr := lock.Stat()
		now, nowErr := os.Stat(path)
		if heldErr == nil && nowErr == nil && os.SameFile(held, now) {
			return lock, nil
		}
		if err := lock.Close(); err != nil {
			return nil, err
		}
	}
}

func writeRecord(root string, old map[string]string) error {
	b, err := json.MarshalIndent(old, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(root, recordFile), b, 0o600)
}

func (m machine) read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(m.dir, path))
	return strings.TrimSpace(string(b)), err
}

func (m machine) write(path, value string) error {
	return os.WriteFile(filepath.Join(m.dir, path), []byte(value), 0o644)
}
