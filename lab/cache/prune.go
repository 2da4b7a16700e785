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

// Prune removes artifacts that are not among the newest of their kind, have not been used
// recently and are not in use. An artifact is in use if a running process got it from a
// Cache, or if inUse returns true for the name of its directory. An error of inUse ends
// Prune. While another process builds or prunes, Prune does nothing.
func (c *Cache) Prune(ctx context.Context, inUse func(artifact string) (bool, error)) (Freed, error) {
	return c.pruneAt(ctx, time.Now(), inUse)
}

func (c *Cache) pruneAt(ctx context.Context, now time.Time, inUse func(string) (bool, error)) (Freed, error) {
	unlock, err := c.tryLock("build")
	if errors.Is(err, errBusy) {
		return Freed{}, nil
	}
	if err != nil {
		return Freed{}, err
	}
	defer unlock()
	if err := c.clearTemporary(); err != nil {
		return Freed{}, err
	}
	old, err := c.old(now)
	freed := Freed{}
	for _, a := range old {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		bytes, removed, err := c.remove(a, inUse)
		if err != nil {
			return freed, fmt.Errorf("remove %s: %w", a.path, err)
		}
		if removed {
			c.log.Debug("old artifact removed", "path", a.path, "used", a.used, "bytes", bytes)
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
func (c *Cache) old(now time.Time) ([]candidate, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "artifacts"))
	kinds := map[string][]candidate{}
	for _, e := range entries {
		parts := artifactName.FindStringSubmatch(e.Name())
		if info, err := e.Info(); err == nil && parts != nil && e.IsDir() {
			at := candidate{filepath.Join(c.dir, "artifacts", e.Name()), info.ModTime()}
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
func (c *Cache) remove(a candidate, inUse func(string) (bool, error)) (bytes int64, removed bool, err error) {
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
	moved := filepath.Join(c.dir, "tmp", filepath.Base(a.path))
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

// use verifies the artifact at path and protects it from Prune until this process ends,
// by a lock on its directory.
func (c *Cache) use(path string) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	if err := c.claim(fd, path); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	c.mu.Lock()
	before, again := c.used[path]
	c.used[path] = fd
	c.mu.Unlock()
	if again {
		return unix.Close(before)
	}
	return nil
}

// claim locks the open directory fd, verifies that it is the artifact at path and that
// the artifact is complete, and records the use.
func (c *Cache) claim(fd int, path string) error {
	if err := flock(fd, unix.LOCK_SH); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	var open, current unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &open), unix.Stat(path, &current)); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if open.Dev != current.Dev || open.Ino != current.Ino {
		return fmt.Errorf("%s was replaced: %w", path, fs.ErrNotExist)
	}
	if err := c.verify(path); err != nil {
		return err
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // fails without effect in another user's cache
	return nil
}

// openDir opens a directory for a lock. It returns a descriptor because the garbage
// collector would close an os.File.
func openDir(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
