package cnirpc

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files of the spool are named "<container>-<interface>-<hash>.del". Other files are not
// ours.
const (
	spoolSuffix = ".del"
	badSuffix   = ".bad"
	tempPrefix  = ".tmp-" // being written
)

// Spool writes a DEL that no agent answered into dir, which it creates if missing. The
// write is atomic, and synced to disk when Spool returns. A DEL of the same attachment
// replaces an earlier one.
func Spool(dir string, req Request, now time.Time) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create spool: %w", err)
	}
	return spoolInto(dir, req, now, (*os.File).Sync)
}

// VolatileSpool is the directory of the DELs that could not be written to the first spool,
// because its disk is full or read-only: beside the agent's socket, which is below /run, a
// file system in memory. It is as good as a disk: a reboot empties it, and ends the links
// that its DELs remove.
func VolatileSpool(socket string) string { return filepath.Join(filepath.Dir(socket), "spool") }

// SpoolVolatile is Spool into the VolatileSpool of a socket. It fails if the socket's
// directory is missing: then no agent has run since the machine booted.
func SpoolVolatile(socket string, req Request, now time.Time) error {
	dir := VolatileSpool(socket)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create spool: %w", err)
	}
	return spoolInto(dir, req, now, (*os.File).Sync)
}

// spoolInto is Spool for an existing directory, with the function that syncs the file and
// then its directory.
func spoolInto(dir string, req Request, now time.Time, sync func(*os.File) error) error {
	req.Version, req.MinVersion = Version, MinVersion
	req.SpooledAt = now.UnixMilli()
	raw, err := EncodeRequest(&req)
	if err != nil {
		return fmt.Errorf("encode DEL: %w", err)
	}
	temp, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone after the rename
	_, err = temp.Write(raw)
	if err == nil {
		err = sync(temp)
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	if err := os.Rename(temp.Name(), filepath.Join(dir, spoolName(req.ContainerID, req.IfName))); err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	return syncDir(dir, sync)
}

// spoolName depends on the attachment only and has at most 255 bytes.
func spoolName(containerID, ifName string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", containerID, ifName)
	clean := func(s string, n int) string {
		s = strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, s)
		return s[:min(len(s), n)]
	}
	return fmt.Sprintf("%s-%s-%016x%s", clean(containerID, 64), clean(ifName, 16), h.Sum64(), spoolSuffix)
}

// Spooled is a DEL read from the spool.
type Spooled struct {
	Request Request
	path    string
}

// Remove deletes the DEL from the spool. Call it when the DEL's effect is durable. Removing
// it twice is not an error.
func (s Spooled) Remove() error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove spooled DEL: %w", err)
	}
	return syncDir(filepath.Dir(s.path), (*os.File).Sync)
}

// Pending reports whether the spool still has a DEL of the attachment: this one, or a later
// one that replaced it.
func (s Spooled) Pending() (bool, error) {
	_, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find spooled DEL: %w", err)
	}
	return true, nil
}

// FindSpooled returns the DEL of one attachment in dir; ok is false if there is none. An
// invalid file is none: ReadSpool sets it aside. Without a DEL it costs one system call.
func FindSpooled(dir, containerID, ifName string) (s Spooled, ok bool, err error) {
	path := filepath.Join(dir, spoolName(containerID, ifName))
	req, err := readSpooled(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errInvalidDEL) {
		return Spooled{}, false, nil
	}
	if err != nil {
		return Spooled{}, false, fmt.Errorf("read spooled DEL: %w", err)
	}
	return Spooled{Request: *req, path: path}, req.ContainerID == containerID && req.IfName == ifName, nil
}

// ReadSpool returns the DELs in dir in the order of their file names. It renames an invalid
// file to "….bad" and reports it in the joined error, together with the valid DELs. A
// missing directory is an empty spool.
func ReadSpool(dir string) ([]Spooled, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read spool: %w", err)
	}
	var out []Spooled
	var problems error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), spoolSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		req, err := readSpooled(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // an ADD of the attachment has executed it meanwhile
		}
		if err != nil && !errors.Is(err, errInvalidDEL) {
			problems = errors.Join(problems, fmt.Errorf("spooled DEL %s: %w", e.Name(), err))
			continue
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("spooled DEL %s: %w (set aside as %s%s)", e.Name(), err, e.Name(), badSuffix), os.Rename(path, path+badSuffix))
			continue
		}
		out = append(out, Spooled{Request: *req, path: path})
	}
	return out, problems
}

// SweepSpool deletes temporary files last modified before a time: plugins left them that
// were killed while they wrote. A missing directory is an empty spool.
func SweepSpool(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep spool: %w", err)
	}
	var problems error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), tempPrefix) || !info.ModTime().Before(before) {
			continue // after an error: the file was renamed meanwhile
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = errors.Join(problems, fmt.Errorf("sweep spool: %w", err))
		}
	}
	return problems
}

// errInvalidDEL: a file of the spool holds no valid DEL.
var errInvalidDEL = errors.New("not a valid DEL")

// readSpooled reads one file. The error wraps errInvalidDEL if its content is at fault.
func readSpooled(path string) (*Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := ReadLine(f, nil)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrTooLong) {
		return nil, fmt.Errorf("%w: %w", errInvalidDEL, err)
	}
	if err != nil {
		return nil, err
	}
	req, err := DecodeRequest(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidDEL, err)
	}
	if req.Command != "DEL" || req.ContainerID == "" || req.IfName == "" {
		return nil, fmt.Errorf("%w: command %q, container %q, interface %q", errInvalidDEL, req.Command, req.ContainerID, req.IfName)
	}
	return req, nil
}

func syncDir(dir string, sync func(*os.File) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(sync(d), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
