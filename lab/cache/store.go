package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// store is a directory of artifacts. An artifact at its place is complete. One process at
// a time changes the store, under the build lock.
type store struct {
	dir    string // absolute
	log    *slog.Logger
	claims claims
}

// openStore returns the store in dir, which it creates if it does not exist.
func openStore(dir string, log *slog.Logger) (*store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"artifacts", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	return &store{dir: dir, log: log, claims: claims{held: map[string]int{}}}, nil
}

// place returns the path of an artifact.
func (s *store) place(name, key string) string {
	return filepath.Join(s.dir, "artifacts", name+"-"+key)
}

// keyOf returns the key of the artifact at a path.
func keyOf(path, name string) string {
	return strings.TrimPrefix(filepath.Base(path), name+"-")
}

// newest returns the newest artifact of a name that is at most age old.
func (s *store) newest(name string, age time.Duration) (path string, ok bool) {
	candidates, err := filepath.Glob(filepath.Join(s.dir, "artifacts", name+"-*"))
	if err != nil {
		return "", false
	}
	var youngest time.Time
	for _, at := range candidates {
		info, err := os.Stat(filepath.Join(at, manifestName))
		if err != nil || time.Since(info.ModTime()) > age || !info.ModTime().After(youngest) {
			continue
		}
		youngest, path = info.ModTime(), at
	}
	return path, path != ""
}

// ensure returns the path of an artifact, building it if it is missing. The artifact is
// in use by this process from then on.
func (s *store) ensure(ctx context.Context, r recipe, progress func(Progress)) (path, key string, err error) {
	if r.fixed != nil {
		if path, ok := r.fixed(); ok && s.claims.take(path) == nil {
			j := &job{name: r.name, started: time.Now(), progress: progress}
			j.report(Progress{State: Ready})
			return path, keyOf(path, r.name), nil
		}
	}
	key, err = r.key(ctx)
	if err != nil {
		return "", "", err
	}
	path = s.place(r.name, key)
	j := &job{name: r.name, key: key, started: time.Now(), progress: progress}
	if s.claims.take(path) == nil {
		if r.fixed != nil { // the key is unchanged: use it for another candidateAge
			now := time.Now()
			_ = os.Chtimes(filepath.Join(path, manifestName), now, now)
		}
		j.report(Progress{State: Ready})
		return path, key, nil
	}
	unlock, err := s.lock(ctx, "build", func() { j.report(Progress{State: Waiting}) })
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if s.claims.take(path) == nil { // another process has built it in the meantime
		j.report(Progress{State: Ready})
		return path, key, nil
	}
	if err := s.makeInPlace(ctx, r, j, path); err != nil {
		return "", "", err
	}
	return path, key, s.claims.take(path) // before another process can take the build lock and prune
}

// makeInPlace runs the recipe in a temporary directory and renames it. The caller holds
// the build lock, so everything else in tmp was left by killed processes.
func (s *store) makeInPlace(ctx context.Context, r recipe, j *job, path string) (err error) {
	if err := s.clearTemporary(); err != nil {
		return err
	}
	j.dir, err = s.temporary(r.name + "-")
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
	s.log.Debug("artifact built", "artifact", r.name, "path", path, "elapsed", time.Since(j.started))
	j.report(Progress{State: Made})
	return nil
}

// temporary creates a directory, which the next build removes if this process does not.
func (s *store) temporary(prefix string) (string, error) {
	return os.MkdirTemp(filepath.Join(s.dir, "tmp"), prefix)
}

func (s *store) clearTemporary() error {
	tmp := filepath.Join(s.dir, "tmp")
	entries, err := os.ReadDir(tmp)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
	}
	return err
}

// errBusy is returned if another process holds a lock.
var errBusy = errors.New("another process has the lock")

// lock takes a named lock between processes and calls waiting every second while another
// process holds it. The kernel releases the lock when the process ends.
func (s *store) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (done bool, err error) {
		if unlock, err = s.tryLock(name); !errors.Is(err, errBusy) {
			return true, err
		}
		waiting()
		return false, nil
	})
	return unlock, err
}

// tryLock is lock without waiting: it returns errBusy instead.
func (s *store) tryLock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "locks", name), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
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
