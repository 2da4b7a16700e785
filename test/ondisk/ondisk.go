// Package ondisk reports whether a file was synced, by what the file system says of its
// extents: until a write is synced or written back, its blocks are not allocated (delayed
// allocation of ext4, XFS and Btrfs). Only tests call it. It reads; it makes one file of its
// own beside the one in question.
package ondisk

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"
)

// Check fails the test if the content of a new file is not on the disk yet. The test is skipped
// on a file system that allocates blocks at once, or that does not list them, such as tmpfs.
//
// A file that has replaced another one is not a proof: ext4 allocates the blocks at the rename.
func Check(t *testing.T, path string) {
	t.Helper()
	delayed, err := isDelayed(path)
	if err != nil {
		t.Skipf("the file system does not list the extents of files: %v", err)
	}
	if delayed {
		t.Errorf("%s was not synced: blocks of its content are not allocated", filepath.Base(path))
		return
	}
	for range 3 { // the kernel may write it back at once
		if showsDelay(t, path+".unsynced") {
			return
		}
	}
	t.Skip("the file system allocates the blocks of a write at once, so a sync is not seen")
}

// showsDelay reports whether a file that is written and not synced differs from a synced one.
func showsDelay(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path) //nolint:errcheck // the directory is the test's
	defer f.Close()
	if _, err := f.WriteString("not synced\n"); err != nil {
		t.Fatal(err)
	}
	delayed, err := isDelayed(path)
	return err == nil && delayed
}

// extent and extents are struct fiemap_extent and struct fiemap of linux/fiemap.h.
type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

type extents struct {
	start, length                  uint64
	flags, mapped, count, reserved uint32
	list                           [32]extent
}

const (
	fiemap        = 0xC020660B // FS_IOC_FIEMAP
	delayedExtent = 0x4        // FIEMAP_EXTENT_DELALLOC
)

// isDelayed reports whether an extent of the file has no blocks yet.
func isDelayed(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	m := extents{length: ^uint64(0)}
	m.count = uint32(len(m.list))
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&m))); errno != 0 {
		return false, os.NewSyscallError("ioctl FS_IOC_FIEMAP", errno)
	}
	for _, e := range m.list[:m.mapped] {
		if e.flags&delayedExtent != 0 {
			return true, nil
		}
	}
	return false, nil
}
