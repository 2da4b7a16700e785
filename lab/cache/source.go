package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// module is the first line of a checkout's go.mod.
const module = "module github.com/trunkline/trunkline\n"

// ErrNoSource is returned if no checkout was found.
var ErrNoSource = errors.New("no checkout of Trunkline found")

// FindSource returns the root of the checkout that contains start: the closest parent
// with the project's go.mod. The lab builds its programs from source.
func FindSource(start string) (string, error) {
	dir, err := filepath.Abs(start)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.Contains("\n"+string(text), "\n"+module) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%w at %s or above: the lab builds its programs from source; run trunkline-lab inside a checkout or set --source DIR", ErrNoSource, dir)
		}
	}
}

// hashing computes a key from the inputs of an artifact.
type hashing struct {
	sum  hash.Hash
	root string
	err  error
}

func newHashing(root string) *hashing { return &hashing{sum: sha256.New(), root: root} }

// text adds words to the key, such as flags.
func (h *hashing) text(words ...string) *hashing {
	for _, w := range words {
		fmt.Fprintf(h.sum, "%d:%s\n", len(w), w)
	}
	return h
}

// files adds files and directories below the root, except Go tests, testdata and nested
// modules, which are not part of a build.
func (h *hashing) files(paths ...string) *hashing {
	for _, p := range paths {
		if h.err == nil {
			h.err = filepath.WalkDir(filepath.Join(h.root, p), h.visit)
		}
	}
	return h
}

func (h *hashing) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if d.IsDir() {
		if d.Name() == "testdata" {
			return fs.SkipDir
		}
		if _, nested := os.Stat(filepath.Join(path, "go.mod")); nested == nil && path != h.root {
			return fs.SkipDir
		}
		return nil
	}
	if !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go") {
		return nil
	}
	rel, err := filepath.Rel(h.root, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h.text(filepath.ToSlash(rel))
	content := sha256.New()
	if _, err := io.Copy(content, f); err != nil {
		return err
	}
	_, err = h.sum.Write(content.Sum(nil))
	return err
}

// key returns the hash, short enough for a file name and an image tag.
func (h *hashing) key() (string, error) {
	if h.err != nil {
		return "", h.err
	}
	return hex.EncodeToString(h.sum.Sum(nil))[:16], nil
}
