package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// smallDisk is a quickDisk that is full while the journal's reserve is there. Its faults are
// those of a write, or of a sync.
type smallDisk struct {
	quickDisk
	dir    string
	full   bool
	atSync bool
}

func (d *smallDisk) left() error {
	if _, err := os.Stat(filepath.Join(d.dir, reserveName)); d.full && err == nil {
		return fmt.Errorf("write: %w", syscall.ENOSPC)
	}
	return nil
}

func (d *smallDisk) Append(path string, size int64) (file, error) {
	f, err := d.quickDisk.Append(path, size)
	return smallFile{f, d}, err
}

func (d *smallDisk) Create(path string) (file, error) {
	f, err := d.quickDisk.Create(path)
	return smallFile{f, d}, err
}

type smallFile struct {
	file
	d *smallDisk
}

func (f smallFile) Write(p []byte) (int, error) {
	if err := f.d.left(); err != nil && !f.d.atSync {
		n, _ := f.file.Write(p[:len(p)/2])
		return n, err
	}
	return f.file.Write(p)
}

func (f smallFile) Sync() error {
	if err := f.d.left(); err != nil && f.d.atSync {
		return err
	}
	return f.file.Sync()
}

func TestAFullDiskTakesRecordsWhileThereIsAReserve(t *testing.T) {
	for _, atSync := range []bool{false, true} {
		t.Run(fmt.Sprintf("found at the sync %v", atSync), func(t *testing.T) {
			dir := t.TempDir()
			d := &smallDisk{dir: dir, atSync: atSync}
			j, _ := open(t, dir, Options{disk: d, Reserve: 1 << 16})
			if err := j.Append(t.Context(), put(t, "a", 1)); err != nil || j.Full() {
				t.Fatalf("%v, full %v", err, j.Full())
			}
			d.full = true
			if err := j.Append(t.Context(), put(t, "b", 2)); err != nil {
				t.Fatalf("a full disk: %v", err)
			}
			if !j.Full() {
				t.Error("the journal does not report that its reserve is in use")
			}
			if err := j.Append(t.Context(), Forget("a")); err != nil {
				t.Fatalf("with the space of the reserve: %v", err)
			}
			_ = j.Close()
			again, values := open(t, dir, Options{Reserve: 1 << 16})
			if len(values) != 1 || values["b"] != "2" || again.Found.Damage != nil {
				t.Errorf("records %v, %+v", values, again.Found)
			}
			if info, err := os.Stat(filepath.Join(dir, reserveName)); err != nil || info.Size() != 1<<16 || again.Full() {
				t.Errorf("the reserve was not made again: %v, full %v", err, again.Full())
			}
		})
	}
}

// Without a reserve, and once it is given up, a full disk is an error.
func TestAReserveIsGivenUpOnce(t *testing.T) {
	r := newReserve(t.TempDir(), 1<<12)
	if r.giveUp() {
		t.Error("given up although it was never made")
	}
	if err := r.fill(); err != nil || r.used.Load() {
		t.Fatalf("%v, used %v", err, r.used.Load())
	}
	if !r.giveUp() || r.giveUp() {
		t.Error("it is not given up exactly once")
	}
	if none := newReserve(t.TempDir(), 0); none.fill() != nil || none.giveUp() || none.used.Load() {
		t.Error("no reserve was given up, or is in use")
	}
}

func TestOnlyAFullDiskOrQuotaNeedsTheReserve(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EROFS: false, syscall.EIO: false, errors.New("no space"): false, nil: false,
	} {
		if isFull(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// The reserve would not help, and its time may come.
func TestAFailedSyncOfADiskWithSpaceKeepsTheReserve(t *testing.T) {
	d := &faultyDisk{}
	j, _ := open(t, t.TempDir(), Options{disk: d, Reserve: 1 << 12})
	for _, before := range []int64{1, 2} { // the write fails, the sync fails
		d.failAt.Store(d.ops.Load() + before)
		if err := j.Append(t.Context(), put(t, "a", 1)); !errors.Is(err, errDisk) || j.Full() {
			t.Errorf("%v, full %v", err, j.Full())
		}
		d.failAt.Store(0)
		if err := j.Append(t.Context(), put(t, "a", 2)); err != nil { // repairs the file
			t.Fatal(err)
		}
	}
}
