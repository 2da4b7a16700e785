package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// manifestName is a file written last: an artifact with it is complete.
const manifestName = "MANIFEST.json"

// manifest lists the files of an artifact.
type manifest struct {
	Name  string `json:"name"`
	Key   string `json:"key"`
	Files []file `json:"files"`
}

type file struct {
	Path string      `json:"path"`
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`
	// Written is the mtime of a file that may be changed through a hard link.
	Written time.Time `json:"written,omitzero"`
}

// ensure returns the path of an artifact, building it if it is missing. The artifact is
// in use by this process from then on.
func (c *Cache) ensure(ctx context.Context, r recipe, progress func(Progress)) (path, key string, err error) {
	if r.fixed != nil {
		if path, ok := r.fixed(); ok && c.use(path) == nil {
			j := &job{name: r.name, started: time.Now(), progress: progress}
			j.report(Progress{State: Ready})
			return path, keyOf(path, r.name), nil
		}
	}
	key, err = r.key(ctx)
	if err != nil {
		return "", "", err
	}
	path = c.place(r.name, key)
	j := &job{name: r.name, key: key, started: time.Now(), progress: progress}
	if c.use(path) == nil {
		if r.fixed != nil { // the key is unchanged: use it for another candidateAge
			now := time.Now()
			_ = os.Chtimes(filepath.Join(path, manifestName), now, now)
		}
		j.report(Progress{State: Ready})
		return path, key, nil
	}
	unlock, err := c.lock(ctx, "build", func() { j.report(Progress{State: Waiting}) })
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if c.use(path) == nil { // another process has built it in the meantime
		j.report(Progress{State: Ready})
		return path, key, nil
	}
	if err := c.makeInPlace(ctx, r, j, path); err != nil {
		return "", "", err
	}
	return path, key, c.use(path) // before another process can take the build lock and prune
}

// makeInPlace runs the recipe in a temporary directory and renames it. The caller holds
// the build lock, so everything else in tmp was left by killed processes.
func (c *Cache) makeInPlace(ctx context.Context, r recipe, j *job, path string) (err error) {
	if err := c.clearTemporary(); err != nil {
		return err
	}
	j.dir, err = os.MkdirTemp(filepath.Join(c.dir, "tmp"), r.name+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(j.dir)) }()
	if err := os.Chmod(j.dir, 0o755); err != nil {
		return err
	}
	j.report(Progress{State: Making})
	if err := r.make(ctx, j); err != nil {
		return err
	}
	if err := seal(j.dir, manifest{Name: r.name, Key: j.key}, r.linked); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil { // an incomplete one of the same key
		return err
	}
	if err := os.Rename(j.dir, path); err != nil {
		return err
	}
	c.log.Debug("artifact built", "artifact", r.name, "path", path, "elapsed", time.Since(j.started))
	j.report(Progress{State: Made})
	return nil
}

func (c *Cache) clearTemporary() error {
	tmp := filepath.Join(c.dir, "tmp")
	entries, err := os.ReadDir(tmp)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
	}
	return err
}

// seal writes the manifest of a filled directory.
func seal(dir string, m manifest, linked bool) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		f := file{Path: rel, Size: info.Size(), Mode: info.Mode()}
		if linked {
			f.Written = info.ModTime()
		}
		m.Files = append(m.Files, f)
		return err
	})
	if err != nil {
		return err
	}
	if len(m.Files) == 0 {
		return fmt.Errorf("the recipe of %s wrote no file", m.Name)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestName), append(text, '\n'), 0o644)
}

// verify compares an artifact with its manifest. It returns an error if the artifact is
// missing, has another key, or a file is missing, changed or of another size or mode.
func (c *Cache) verify(path string) error {
	text, err := os.ReadFile(filepath.Join(path, manifestName))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(path, manifestName), err)
	}
	if want := m.Name + "-" + m.Key; filepath.Base(path) != want {
		return fmt.Errorf("%s holds %s", path, want)
	}
	for _, f := range m.Files {
		info, err := os.Lstat(filepath.Join(path, f.Path))
		if err != nil {
			return err
		}
		if info.Size() != f.Size || info.Mode() != f.Mode {
			return fmt.Errorf("%s: %d bytes %s, want %d %s", f.Path, info.Size(), info.Mode(), f.Size, f.Mode)
		}
		if !f.Written.IsZero() && !info.ModTime().Equal(f.Written) {
			return fmt.Errorf("%s: written at %s, want %s", f.Path, info.ModTime(), f.Written)
		}
	}
	return nil
}

// errBusy is returned if another process holds a lock.
var errBusy = errors.New("another process has the lock")

// lock takes a named lock between processes and calls waiting every second while another
// process holds it. The kernel releases the lock when the process ends.
func (c *Cache) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (done bool, err error) {
		if unlock, err = c.tryLock(name); !errors.Is(err, errBusy) {
			return true, err
		}
		waiting()
		return false, nil
	})
	return unlock, err
}

// tryLock is lock without waiting: it returns errBusy instead.
func (c *Cache) tryLock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "locks", name), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

// flock locks an open file or directory without waiting.
func flock(fd, how int) error {
	err := unix.Flock(fd, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return errBusy
	}
	return err
}
