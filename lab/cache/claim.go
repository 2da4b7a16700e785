package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// claims are the locks by which this process protects the artifacts that it uses from
// being pruned by any process. The kernel releases them when this process ends.
type claims struct {
	mu   sync.Mutex
	held map[string]int // open descriptors of locked artifacts, by path; guarded by mu
}

// take verifies the artifact at path and protects it until this process ends.
func (c *claims) take(path string) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	if err := claim(fd, path); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	c.mu.Lock()
	before, again := c.held[path]
	c.held[path] = fd
	c.mu.Unlock()
	if again {
		return unix.Close(before)
	}
	return nil
}

// claim locks the open directory fd, verifies that it is the artifact at path and that
// the artifact is complete, and records the use.
func claim(fd int, path string) error {
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
	if err := verify(path); err != nil {
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
