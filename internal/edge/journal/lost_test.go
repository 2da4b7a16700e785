package journal

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// lossyDisk is a quickDisk with syncs that can fail. As on Linux, the pages of a failed
// sync are clean afterwards: later syncs succeed and do not write them, so reads show
// their content until a power failure. Source: https://lwn.net/Articles/752063/.
type lossyDisk struct {
	quickDisk

	mu      sync.Mutex
	failing bool
	files   map[string]*lossyFile // by path
}

func (d *lossyDisk) fail(failing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = failing
}

func (d *lossyDisk) at(path string, f file, size int64) file {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string]*lossyFile{}
	}
	d.files[path] = &lossyFile{file: f, d: d, size: size, synced: size}
	return d.files[path]
}

func (d *lossyDisk) Append(path string, size int64) (file, error) {
	f, err := d.quickDisk.Append(path, size)
	return d.at(path, f, size), err
}

func (d *lossyDisk) Create(path string) (file, error) {
	f, err := d.quickDisk.Create(path)
	return d.at(path, f, 0), err
}

func (d *lossyDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[to] = d.files[from]
	return d.quickDisk.Rename(from, to)
}

// powerFailure returns a directory with what was on the disk: zeros in place of lost pages.
func (d *lossyDisk) powerFailure(t *testing.T, dir string) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	path, next := filepath.Join(dir, logName), t.TempDir()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	of := d.files[path]
	for _, lost := range of.lost {
		clear(content[lost[0]:lost[1]])
	}
	if err := os.WriteFile(filepath.Join(next, logName), content[:of.synced], 0o600); err != nil {
		t.Fatal(err)
	}
	return next
}

type lossyFile struct {
	file
	d            *lossyDisk
	size, synced int64
	lost         [][2]int64
}

func (f *lossyFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	n, err := f.file.Write(p)
	f.size += int64(n)
	return n, err
}

func (f *lossyFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	from := f.synced
	f.synced = f.size
	if f.d.failing {
		f.lost = append(f.lost, [2]int64{from, f.size})
		return errors.New("input/output error")
	}
	return nil
}

// The journal holds the lost pages only in memory: a later successful sync does not write
// them.
func TestAPowerFailureAfterAFailedSyncLosesNoRecordThatWasAcknowledgedLater(t *testing.T) {
	dir, d := t.TempDir(), &lossyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	if err := j.Append(t.Context(), put(t, "before", 1)); err != nil {
		t.Fatal(err)
	}
	if err := j.EnqueueForBoot(put(t, "late", 1)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.fail(true)
	if err := j.Append(t.Context(), put(t, "refused", 1)); err == nil {
		t.Fatal("acknowledged by a disk that fails")
	}
	d.fail(false)
	if err := j.Append(t.Context(), put(t, "after", 1)); err != nil {
		t.Fatal(err)
	}
	again, values := open(t, d.powerFailure(t, dir), Options{})
	if again.Found.Damage != nil || values["before"] != "1" || values["late"] != "1" || values["after"] != "1" {
		t.Errorf("after a power failure: %v, damage %v; want before, late and after", values, again.Found.Damage)
	}
}

// The log ends in a torn line, and is rewritten before the next record. Each operation of that
// may fail, and the next succeed.
func TestARepairThatFailsAtOneOperationIsRepeated(t *testing.T) {
	for at := range int64(7) { // create, write, sync, rename, sync of the directory; write and sync of the record
		dir, d := t.TempDir(), &faultyDisk{once: true}
		j, _ := open(t, dir, Options{disk: d})
		if err := j.Append(t.Context(), put(t, "before", 1)); err != nil {
			t.Fatal(err)
		}
		d.failAt.Store(d.ops.Load() + 1)
		if err := j.Append(t.Context(), put(t, "torn", 1)); err == nil {
			t.Fatal("acknowledged a record that was not written")
		}
		d.failAt.Store(d.ops.Load() + at + 1)
		if err := j.Append(t.Context(), put(t, "refused", 1)); err == nil {
			t.Errorf("operation %d failed, and the record was acknowledged", at)
		}
		if got := afterAKill(t, dir); got["before"] != "1" || got["torn"] != "" {
			t.Errorf("operation %d failed; after a kill: %v", at, got)
		}
		d.failAt.Store(0)
		left := stat(t, filepath.Join(dir, logName))
		if err := j.Append(t.Context(), put(t, "after", 1)); err != nil {
			t.Fatal(err)
		}
		if os.SameFile(left, stat(t, filepath.Join(dir, logName))) {
			t.Errorf("operation %d failed, and the log was not rewritten afterwards", at)
		}
		if got := afterAKill(t, dir); got["before"] != "1" || got["after"] != "1" {
			t.Errorf("operation %d failed; after the next record and a kill: %v", at, got)
		}
		if err := j.Close(); err != nil || d.open.Load() != 0 {
			t.Errorf("operation %d failed; after the close: %v, %d files are open", at, err, d.open.Load())
		}
	}
}
