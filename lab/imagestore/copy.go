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

// Copy creates a containerd root at to, which must not exist, from the store in dir. Blobs
// and unpacked layers, which containerd never changes, are hard-linked if the file system
// allows it; containers write to layers of their own. All other files are copied. After an
// error to does not exist.
func Copy(dir, to string) (err error) {
	from, tmp := filepath.Join(dir, rootDir), to+".new"
	if err := os.RemoveAll(tmp); err != nil { // of an interrupted copy
		return err
	}
	if err := copyTree(from, tmp); err != nil {
		return errors.Join(fmt.Errorf("copy image store: %w", err), os.RemoveAll(tmp))
	}
	return os.Rename(tmp, to)
}

func copyTree(from, to string) error {
	type dir struct {
		path string
		info fs.FileInfo
	}
	var dirs []dir
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
			dirs = append(dirs, dir{target, info})
			return os.Mkdir(target, 0o700)
		}
		return copyFile(path, target, info, immutable(rel))
	})
	if err != nil {
		return err
	}
	// After their content, which changes their times, and children first.
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := setAttributes(dirs[i].path, dirs[i].info); err != nil {
			return err
		}
	}
	return nil
}

// immutable reports whether containerd never changes a file of its root: a blob is renamed
// to its digest when it is complete, and a snapshot is complete when its image is imported.
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
		return fmt.Errorf("%s has type %s, which an image store must not contain", from, info.Mode().Type())
	case share:
		err := os.Link(from, to)
		if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	if err := copyBytes(from, to); err != nil {
		return err
	}
	return setAttributes(to, info)
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

// setAttributes sets the owner, mode and time of path to those of info.
func setAttributes(path string, info fs.FileInfo) error {
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
