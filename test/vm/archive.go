package vm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// archive collects the files of a guest, by path, and writes them as a cpio archive in the
// format "newc"; see kernel, Documentation/driver-api/early-userspace/buffer-format.rst.
type archive struct {
	entries map[string]entry
}

type entry struct {
	mode    uint32 // with the type, as in stat(2)
	content []byte // of a file; the target of a symbolic link
	from    string // the file with the content, instead
	major   uint32 // of a device
	minor   uint32
}

func newArchive() *archive { return &archive{entries: map[string]entry{}} }

// add adds an entry and the directories above it. A later one replaces an earlier one.
func (a *archive) add(at string, e entry) {
	at = strings.TrimPrefix(path.Clean("/"+at), "/")
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		if _, ok := a.entries[dir]; !ok {
			a.entries[dir] = entry{mode: unix.S_IFDIR | 0o755}
		}
	}
	a.entries[at] = e
}

func (a *archive) directory(at string) { a.add(at, entry{mode: unix.S_IFDIR | 0o755}) }

func (a *archive) text(at string, content []byte) {
	a.add(at, entry{mode: unix.S_IFREG | 0o644, content: content})
}

func (a *archive) symlink(at, target string) {
	a.add(at, entry{mode: unix.S_IFLNK | 0o777, content: []byte(target)})
}

func (a *archive) device(at string, major, minor uint32) {
	a.add(at, entry{mode: unix.S_IFCHR | 0o600, major: major, minor: minor})
}

// tree adds a file of the machine, or a directory with all that is in it. A symbolic link at
// its top is followed.
func (a *archive) tree(at, from string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		to, permissions := path.Join(at, filepath.ToSlash(rel)), uint32(info.Mode().Perm())
		switch {
		case d.IsDir():
			a.add(to, entry{mode: unix.S_IFDIR | permissions})
		case d.Type().IsRegular():
			a.add(to, entry{mode: unix.S_IFREG | permissions, from: p})
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			a.symlink(to, target)
		default:
			return fmt.Errorf("%s is no file, directory or symbolic link", p)
		}
		return nil
	})
}

// write writes the archive. Directories precede what is in them.
func (a *archive) write(w io.Writer) error {
	c := counter{w: w}
	for n, name := range slices.Sorted(maps.Keys(a.entries)) {
		e := a.entries[name]
		if e.from != "" {
			var err error
			if e.content, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		if err := c.entry(uint32(n+1), name, e); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return c.entry(0, "TRAILER!!!", entry{})
}

// counter writes entries, each aligned to four bytes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) entry(inode uint32, name string, e entry) error {
	const links, none = 1, 0
	fields := []uint32{inode, e.mode, none, none, links, none, uint32(len(e.content)), none, none, e.major, e.minor, uint32(len(name) + 1), none}
	header := "070701"
	for _, f := range fields {
		header += fmt.Sprintf("%08X", f)
	}
	return errors.Join(c.padded([]byte(header+name+"\x00")), c.padded(e.content))
}

func (c *counter) padded(b []byte) error {
	for _, part := range [][]byte{b, make([]byte, -(c.n+int64(len(b)))&3)} {
		n, err := c.w.Write(part)
		c.n += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}
