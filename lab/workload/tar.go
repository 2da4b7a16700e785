package workload

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tarCall is a command line of tar, as used by `kubectl cp`.
type tarCall struct {
	create, extract bool
	dir             string
	paths           []string
}

// parseTar parses the form without dashes (cf - PATH) and the one with dashes. The archive
// is always the standard stream.
func parseTar(args []string) (c tarCall, err error) {
	c.dir = "."
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--no-same-permissions" || a == "--no-same-owner":
		case a == "-C" && i+1 < len(args):
			i++
			c.dir = args[i]
		case i == 0 || strings.HasPrefix(a, "-") && len(a) > 1 && !c.create && !c.extract:
			if i, err = c.operation(args, i); err != nil {
				return c, err
			}
		case strings.HasPrefix(a, "-"):
			return c, usagef("unknown option %q", a)
		default:
			c.paths = append(c.paths, a)
		}
	}
	if c.create == c.extract {
		return c, usagef("exactly one of c and x is required: tar cf - PATH… or tar xf - [-C DIR]")
	}
	return c, nil
}

// operation parses the letters in args[i], and the archive after them if they include f.
// It returns the index of the last argument it parsed.
func (c *tarCall) operation(args []string, i int) (last int, err error) {
	wantsFile, err := c.letters(strings.TrimPrefix(args[i], "-"))
	if err != nil || !wantsFile {
		return i, err
	}
	i++
	if i >= len(args) || args[i] != "-" {
		return i, usagef("the archive must be - (the standard stream)")
	}
	return i, nil
}

func (c *tarCall) letters(s string) (wantsFile bool, err error) {
	for _, l := range s {
		switch l {
		case 'c':
			c.create = true
		case 'x':
			c.extract = true
		case 'f':
			wantsFile = true
		case 'm', 'p', 'h':
		default:
			return false, usagef("unknown letter %q", l)
		}
	}
	return wantsFile, nil
}

func tarApplet(_ context.Context, args []string, p Process) (bool, error) {
	c, err := parseTar(args)
	if err != nil {
		return false, err
	}
	if c.create {
		return true, c.pack(p.Stdout)
	}
	return true, c.unpack(p.Stdin)
}

// pack writes all paths, directories recursively.
func (c tarCall) pack(w io.Writer) error {
	if len(c.paths) == 0 {
		return usagef("no path to pack")
	}
	out := tar.NewWriter(w)
	for _, path := range c.paths {
		from := path
		if !filepath.IsAbs(path) {
			from = filepath.Join(c.dir, path)
		}
		err := filepath.WalkDir(from, func(at string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return packOne(out, at, strings.TrimLeft(path+strings.TrimPrefix(at, from), "/"), d)
		})
		if err != nil {
			return err
		}
	}
	return out.Close()
}

func packOne(out *tar.Writer, at, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(at); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return nil // a socket, which tar skips
	}
	header.Name = name
	if d.IsDir() {
		header.Name += "/"
	}
	if err := out.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(out, f, header.Size)
	return err
}

// unpack extracts the archive below the directory, and only there.
func (c tarCall) unpack(r io.Reader) error {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(r)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // read the padding, so that the writer gets no EPIPE
			return err
		}
		if err != nil {
			return err
		}
		if err := unpackOne(root, header, in); err != nil {
			return fmt.Errorf("unpack %s: %w", header.Name, err)
		}
	}
}

func unpackOne(root *os.Root, header *tar.Header, in io.Reader) error {
	name := filepath.Clean(strings.TrimLeft(header.Name, "/"))
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(header.Mode).Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("kind %q is neither file, directory nor link", header.Typeflag)
}
