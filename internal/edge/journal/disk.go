package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// file is an open file.
type file interface {
	Write([]byte) (int, error)
	Sync() error
	Close() error
}

// disk is what the journal needs of the file system; tests inject faults into it.
type disk interface {
	// Append opens path for appending, truncated to size bytes.
	Append(path string, size int64) (file, error)
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncDir(dir string) error
}

type realDisk struct{}

func (realDisk) Append(path string, size int64) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (realDisk) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
}

func (realDisk) Rename(from, to string) error { return os.Rename(from, to) }

func (realDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// acquire takes the directory's lock. The kernel releases it when the process ends.
func acquire(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrLocked), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}
