// Package atomicfile replaces a file so that readers, and a start after a crash,
// find either the old content or the new, whole. It writes a temporary file beside
// the target, syncs it, and renames it.
//
// google/renameio does the work. This package fixes what its options leave open:
// the temporary file lies beside the target and never in $TMPDIR, the mode is the
// given one also where a file with another mode exists, and what a killed process
// left can be found again.
//
// The product, the embedded VPC and the lab call it. The journal and the plugin's
// spool do not, because their durability is a protocol of its own: see
// docs/deps.md.
package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// Write replaces the file at path in an existing directory. mode is applied whatever
// the umask and the mode of an earlier file. The content is on the disk when Write
// returns; after a power loss the name may still be the old file's, because the
// directory is not synced.
func Write(path string, content []byte, mode fs.FileMode) error {
	return WriteFrom(path, bytes.NewReader(content), mode)
}

// WriteFrom is Write for content that is read until its end. If from fails, the
// file at path stays as it was.
func WriteFrom(path string, from io.Reader, mode fs.FileMode) (err error) {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }() // nothing to do once renamed
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// RemoveLeftovers deletes the temporary files of writes to path by processes that
// were killed. The caller ensures that no write to path is in flight. An absent
// directory is a success.
func RemoveLeftovers(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if isLeftover(e.Name(), filepath.Base(path)) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	return err
}

// isLeftover reports whether name is one that renameio gives to a temporary file
// for base: a dot, base, and a random decimal number.
func isLeftover(name, base string) bool {
	number, ok := strings.CutPrefix(name, "."+base)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
