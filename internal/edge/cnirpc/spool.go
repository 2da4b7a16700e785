package cnirpc

import (
	"errors"
	"fmt"
	"hash/fnv"
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
	req.Version, req.MinVersion = Version, MinVersion
	req.SpooledAt = now.UnixMilli()
	raw, err := EncodeLine(req)
	if err != nil {
		return fmt.Errorf("encode DEL: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create spool: %w", err)
	}
	temp, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone after the rename
	_, err = temp.Write(raw)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	if err := os.Rename(temp.Name(), filepath.Join(dir, spoolName(req))); err != nil {
		return fmt.Errorf("spool DEL: %w", err)
	}
	return syncDir(dir)
}

// spoolName depends on the attachment only and has at most 255 bytes.
func spoolName(req Request) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", req.ContainerID, req.IfName)
	clean := func(s string, n int) string {
		s = strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, s)
		return s[:min(len(s), n)]
	}
	return fmt.Sprintf("%s-%s-%016x%s", clean(req.ContainerID, 64), clean(req.IfName, 16), h.Sum64(), spoolSuffix)
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
	return syncDir(filepath.Dir(s.path))
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

func readSpooled(path string) (*Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := ReadLine(f, nil)
	if err != nil {
		return nil, err
	}
	req, err := DecodeRequest(raw)
	if err != nil {
		return nil, err
	}
	if req.Command != "DEL" || req.ContainerID == "" || req.IfName == "" {
		return nil, fmt.Errorf("invalid DEL: command %q, container %q, interface %q", req.Command, req.ContainerID, req.IfName)
	}
	return req, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
