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

// keptNewest is how many artifacts of a kind stay, those used last, whoever does
// not use them: checkouts that take turns do not build by turns.
const keptNewest = 3

// keptUnused is how long an artifact stays after its last use. Most are made in
// seconds and outdated by the next edit, Kubernetes in ten minutes and seldom.
func keptUnused(kind string) time.Duration {
	if kind == Kube {
		return 30 * 24 * time.Hour
	}
	return time.Hour
}

// artifactName is the name of an artifact's directory, KIND-KEY.
var artifactName = regexp.MustCompile(`^([a-z-]+)-[0-9a-f]{16}$`)

// Freed is what a Prune took away.
type Freed struct {
	Artifacts int
	Bytes     int64 // of the disk; files that others hold links to are not counted
}

// Prune drops artifacts that are none of the newest of their kind, were not used
// lately and that nobody uses: no process that lives got them from a Cache, and
// named does not hold of them. named is asked with the name of an artifact's
// directory; where it errs, nothing more is dropped. While another process builds
// or prunes there is nothing to do: whoever builds next will.
func (c *Cache) Prune(ctx context.Context, named func(artifact string) (bool, error)) (Freed, error) {
	return c.pruneAt(ctx, time.Now(), named)
}

func (c *Cache) pruneAt(ctx context.Context, now time.Time, named func(string) (bool, error)) (Freed, error) {
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
		bytes, dropped, err := c.drop(a, named)
		if err != nil {
			return freed, fmt.Errorf("drop %s: %w", a.path, err)
		}
		if dropped {
			c.log.Debug("dropped old artifact", "path", a.path, "used", a.used, "bytes", bytes)
			freed.Artifacts++
			freed.Bytes += bytes
		}
	}
	return freed, err
}

// resting is an artifact and when it was used last, which is its directory's time.
type resting struct {
	path string
	used time.Time
}

// old lists what is neither among the newest of its kind nor was used lately.
func (c *Cache) old(now time.Time) ([]resting, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "artifacts"))
	kinds := map[string][]resting{}
	for _, e := range entries {
		parts := artifactName.FindStringSubmatch(e.Name())
		if info, err := e.Info(); err == nil && parts != nil && e.IsDir() {
			at := resting{filepath.Join(c.dir, "artifacts", e.Name()), info.ModTime()}
			kinds[parts[1]] = append(kinds[parts[1]], at)
		}
	}
	var out []resting
	for kind, all := range kinds {
		slices.SortFunc(all, func(a, b resting) int { return b.used.Compare(a.used) })
		for _, a := range all[min(keptNewest, len(all)):] {
			if now.Sub(a.used) > keptUnused(kind) {
				out = append(out, a)
			}
		}
	}
	return out, err
}

// drop removes an artifact unless somebody uses it. The caller holds the build
// lock, so nobody makes it meanwhile. It is moved first: one that is in its place
// is whole, also when this process ends amid the removal.
func (c *Cache) drop(a resting, named func(string) (bool, error)) (bytes int64, dropped bool, err error) {
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
	// Only now: a lab is named by the time that whoever brings it up lets go.
	info, err := os.Stat(a.path)
	if err != nil || info.ModTime().After(a.used) { // used in between
		return 0, false, err
	}
	if is, err := named(filepath.Base(a.path)); is || err != nil {
		return 0, false, err
	}
	if bytes, err = size(a.path); err != nil {
		return 0, false, err
	}
	gone := filepath.Join(c.dir, "tmp", filepath.Base(a.path))
	if err := os.Rename(a.path, gone); err != nil {
		return 0, false, err
	}
	return bytes, true, os.RemoveAll(gone)
}

// size is what removing a tree gives back of the disk.
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

// use returns nil when the artifact at path is whole, and keeps it from being
// dropped until this process ends: by a lock on its directory, which goes with the
// process.
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

// claim locks the open directory fd, says whether it is the whole artifact at path,
// and notes the use.
func (c *Cache) claim(fd int, path string) error {
	if err := flock(fd, unix.LOCK_SH); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	var open, there unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &open), unix.Stat(path, &there)); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if open.Dev != there.Dev || open.Ino != there.Ino {
		return fmt.Errorf("%s was made again: %w", path, fs.ErrNotExist)
	}
	if err := c.verify(path); err != nil {
		return err
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // a cache that is another's is read all the same
	return nil
}

// openDir opens a directory for a lock that outlives every Go value: an os.File
// would be closed when nothing refers to it any more.
func openDir(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
