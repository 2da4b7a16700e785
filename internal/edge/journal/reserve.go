package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// reserve is a file of allocated blocks beside the log. When the disk is full the journal
// gives it up, so that the removals of attachments can still be written: a DEL that fails
// would keep its pod from ending.
type reserve struct {
	path string
	size int64       // bytes; 0: there is none
	used atomic.Bool // it is given up, or could not be made
}

// isFull reports whether an error means that the file system, or a quota, has no space left.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// fill makes the file, or completes it. It is not an error that the disk has no space for
// it: the reserve counts as used then.
func (r *reserve) fill() error {
	if r.size == 0 {
		return nil
	}
	err := allocate(r.path, r.size)
	r.used.Store(err != nil)
	if err != nil {
		// A part of it would take the space that the log may need.
		err = errors.Join(err, ignoringAbsence(os.Remove(r.path)))
	}
	if isFull(err) {
		return nil
	}
	return err
}

// giveUp returns the blocks to the file system; false if there is nothing to give up.
func (r *reserve) giveUp() bool {
	if r.size == 0 || r.used.Swap(true) {
		return false
	}
	return os.Remove(r.path) == nil
}

// allocate makes a file of size bytes that has all its blocks. Source: fallocate(2); a file
// system that has no such operation gets zeros. It is not synced: what a crash loses of it is
// allocated at the next Open.
func allocate(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make the journal's reserve: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("make the journal's reserve: %w", err)
		}
	}()
	for {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, size), 0)
	}
	return err
}

func ignoringAbsence(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func newReserve(dir string, size int64) *reserve {
	return &reserve{path: filepath.Join(dir, reserveName), size: size}
}
