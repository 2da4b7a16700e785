package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keptNewest is the number of most recently used artifacts of a kind that are always
// kept, so that alternating between checkouts does not build each time.
const keptNewest = 3

// keptUnused is how long an artifact is kept after its last use. Most are built in
// seconds and outdated by the next edit; Kubernetes takes ten minutes and rarely changes.
func keptUnused(kind string) time.Duration {
	if kind == Kube {
		return 30 * 24 * time.Hour
	}
	return time.Hour
}

// artifactName matches the name of an artifact's directory, KIND-KEY.
var artifactName = regexp.MustCompile(`^([a-z-]+)-[0-9a-f]{16}$`)

// Freed is the result of Prune.
type Freed struct {
	Artifacts int
	Bytes     int64 // of disk space; files with further hard links are not counted
}

// prune is Cache.Prune at a given time.
func (s *store) prune(ctx context.Context, now time.Time, inUse func(string) (bool, error)) (Freed, error) {
	unlock, err := s.tryLock("build")
	if errors.Is(err, errBusy) {
		return Freed{}, nil
	}
	if err != nil {
		return Freed{}, err
	}
	defer unlock()
	if err := s.clearTemporary(); err != nil {
		return Freed{}, err
	}
	old, err := s.old(now)
	freed := Freed{}
	for _, a := range old {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		bytes, removed, err := s.remove(a, inUse)
		if err != nil {
			return freed, fmt.Errorf("remove %s: %w", a.path, err)
		}
		if removed {
			s.log.Debug("old artifact removed", "path", a.path, "used", a.used, "bytes", bytes)
			freed.Artifacts++
			freed.Bytes += bytes
		}
	}
	return freed, err
}

// candidate is an artifact and the time of its last use, the directory's mtime.
type candidate struct {
	path string
	used time.Time
}

// old lists the artifacts that are neither among the newest of their kind nor recently
// used.
func (s *store) old(now time.Time) ([]candidate, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "artifacts"))
	kinds := map[string][]candidate{}
	for _, e := range entries {
		parts := artifactName.FindStringSubmatch(e.Name())
		if info, err := e.Info(); err == nil && parts != nil && e.IsDir() {
			at := candidate{filepath.Join(s.dir, "artifacts", e.Name()), info.ModTime()}
			kinds[parts[1]] = append(kinds[parts[1]], at)
		}
	}
	var out []candidate
	for kind, all := range kinds {
		slices.SortFunc(all, func(a, b candidate) int { return b.used.Compare(a.used) })
		for _, a := range all[min(keptNewest, len(all)):] {
			if now.Sub(a.used) > keptUnused(kind) {
				out = append(out, a)
			}
		}
	}
	return out, err
}

// remove removes an artifact unless it is in use. The caller holds the build lock, so
// no process builds it at the same time. The artifact is moved first, so that every
// artifact at its path is complete, also if this process ends during the removal.
func (s *store) remove(a candidate, inUse func(string) (bool, error)) (bytes int64, removed bool, err error) {
	fd, err := openDir(a.path)
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	if err := flock(fd, unix.LOCK_EX); errors.Is(err, errBusy) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, err
	}
	// After locking: the process that starts a lab holds the lock until the lab's
	// record, which inUse reads, is written.
	info, err := os.Stat(a.path)
	if err != nil || info.ModTime().After(a.used) { // used since it was listed
		return 0, false, err
	}
	if used, err := inUse(filepath.Base(a.path)); used || err != nil {
		return 0, false, err
	}
	if bytes, err = size(a.path); err != nil {
		return 0, false, err
	}
	moved := filepath.Join(s.dir, "tmp", filepath.Base(a.path))
	if err := os.Rename(a.path, moved); err != nil {
		return 0, false, err
	}
	return bytes, true, os.RemoveAll(moved)
}

// size returns the disk space that removing a tree frees.
func size(root string) (bytes int64, err error) {
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 1 {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes, err
}
