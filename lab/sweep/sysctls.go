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

// machine is where settings are read and written, where namespaces have their
// names, and where cgroups of version 2 begin.
type machine struct{ dir, names, cgroups string }

func thisMachine() machine {
	return machine{dir: "/proc/sys", names: netns.Dir, cgroups: "/sys/fs/cgroup"}
}

// passed is the file of a version 2 cgroup with the controllers it passes down. A
// machine whose only cgroups are of version 2 has one for all; others have none.
const passed = "cgroup.subtree_control"

const (
	recordFile = "machine.json" // in the root of all labs: old values by path
	// absent is recorded of a directory that labs made for all namespaces' names.
	absent   = "absent"
	lockFile = "machine.lock"
)

// wanted are settings of the whole machine that several nodes on one kernel need
// higher. The neighbour tables are one for all namespaces; each container's
// runtime and each kubelet takes inotify instances.
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

// RaiseSysctls raises what is lower than the lab needs and records what it was,
// the lack of a directory for the names of namespaces and the controllers of the
// machine's cgroups included. root is the directory of all labs. A setting the machine does not have, or
// does not let us write, is left with a warning.
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
		// Nodes have it pass down all there are.
		cgroups := filepath.Join(m.cgroups, passed)
		_, known := old[cgroups]
		if passes, err := os.ReadFile(cgroups); err == nil && !known {
			old[cgroups] = strings.TrimSpace(string(passes))
			if err := writeRecord(root, old); err != nil {
				return err
			}
		}
		want := wanted()
		// From the top: a threshold below the one under it makes no sense.
		for _, path := range slices.Backward(slices.Sorted(maps.Keys(want))) {
			have, err := m.read(path)
			if err != nil {
				log.Debug("setting not there", "sysctl", path, "err", err)
				continue
			}
			if n, err := strconv.Atoi(have); err != nil || n >= want[path] {
				continue
			}
			if _, ok := old[path]; !ok {
				old[path] = have
				// On disk before the change: a crash in between restores a
				// value that is already there.
				if err := writeRecord(root, old); err != nil {
					return err
				}
			}
			if err := m.write(path, strconv.Itoa(want[path])); err != nil {
				log.Warn("setting stays low; many pods may exhaust it", "sysctl", path, "value", have, "want", want[path], "err", err)
			}
		}
		return nil
	})
}

// restoreWhenLast puts the machine's settings back when no lab is left below
// root, and removes root then.
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
			return err // and the record stays, for another try
		}
		if err := atomicfile.RemoveLeftovers(filepath.Join(root, recordFile)); err != nil {
			return err
		}
		for _, name := range []string{recordFile, lockFile} {
			if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		// Another lab may have begun meanwhile: then it is not empty and stays.
		if err := os.Remove(root); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	return restored, err
}

// raisedFurther reports whether somebody else has given a setting more than labs
// do: it is theirs now.
func raisedFurther(path, now string) bool {
	n, err := strconv.Atoi(now)
	ours, known := wanted()[path]
	return err == nil && known && n > ours
}

// restore writes the old values and returns what it changed. One that cannot be
// written does not keep the others; one that was never raised, or that somebody
// else has raised since, needs no writing.
func (m machine) restore(old map[string]string) (restored []string, err error) {
	for _, path := range slices.Sorted(maps.Keys(old)) { // thresholds from below
		if old[path] == absent {
			_ = os.Remove(path) // of others by now, unless it is empty
			continue
		}
		if filepath.Base(path) == passed {
			restored = append(restored, takeBack(path, old[path])...)
			continue
		}
		if now, readErr := m.read(path); readErr == nil && (now == old[path] || raisedFurther(path, now)) {
			continue
		}
		if writeErr := m.write(path, old[path]); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("put %s back to %s: %w", path, old[path], writeErr))
			continue
		}
		restored = append(restored, path)
	}
	return restored, err
}

// takeBack has a cgroup pass down no more than it did, and returns what it took
// away. The kernel keeps a controller that somebody's cgroups use by now.
func takeBack(path, old string) (gone []string) {
	now, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for name := range strings.FieldsSeq(string(now)) {
		if slices.Contains(strings.Fields(old), name) {
			continue
		}
		if os.WriteFile(path, []byte("-"+name), 0o644) == nil {
			gone = append(gone, path+" "+name)
		}
	}
	return gone
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

// withRecord calls fn with the recorded old values, alone on the machine.
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

// lockRoot takes the lock of all labs. The last lab out removes its file: who waited
// for that one holds nothing, and takes the next.
func lockRoot(root string) (*os.File, error) {
	path := filepath.Join(root, lockFile)
	for {
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the root went in between
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
