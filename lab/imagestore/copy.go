package imagestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Copy makes a containerd root at to, which must not exist, out of the store in
// dir. What containerd writes once and never again, blobs and unpacked layers, is
// shared with the store by hard links where the file system can, for containers
// write to layers of their own above; all else is copied. It is there whole or
// not at all.
func Copy(dir, to string) (err error) {
	from, half := filepath.Join(dir, rootDir), to+".new"
	if err := os.RemoveAll(half); err != nil { // of one that was ended half-way
		return err
	}
	if err := copyTree(from, half); err != nil {
		return errors.Join(fmt.Errorf("copy image store: %w", err), os.RemoveAll(half))
	}
	return os.Rename(half, to)
}

func copyTree(from, to string) error {
	type made struct {
		path string
		info fs.FileInfo
	}
	var dirs []made
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			dirs = append(dirs, made{target, info})
			return os.Mkdir(target, 0o700)
		}
		return copyFile(path, target, info, immutable(rel))
	})
	if err != nil {
		return err
	}
	// Children first: what is put into a directory changes its time.
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := like(dirs[i].path, dirs[i].info); err != nil {
			return err
		}
	}
	return nil
}

// immutable reports whether containerd never writes again to a file of its root:
// a blob is renamed into place under its digest, a snapshot is complete when its
// image is imported.
func immutable(rel string) bool {
	parts := strings.Split(rel, string(filepath.Separator))
	if len(parts) < 3 {
		return false
	}
	return parts[0] == "io.containerd.content.v1.content" && parts[1] == "blobs" ||
		strings.HasPrefix(parts[0], "io.containerd.snapshotter.v1.") && parts[1] == "snapshots"
}

func copyFile(from, to string, info fs.FileInfo, share bool) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is %s: an image store has no such files", from, info.Mode().Type())
	case share:
		err := os.Link(from, to)
		if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	if err := copyBytes(from, to); err != nil {
		return err
	}
	return like(to, info)
}

func copyBytes(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// like gives path the owner, mode and time of another, whatever the umask.
func like(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := os.Chmod(path, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(path, info.ModTime(), info.ModTime())
}
