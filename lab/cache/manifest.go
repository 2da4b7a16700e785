package cache

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// manifestName is a file written last: an artifact with it is complete.
const manifestName = "MANIFEST.json"

// manifest lists the files of an artifact.
type manifest struct {
	Name  string `json:"name"`
	Key   string `json:"key"`
	Files []file `json:"files"`
}

type file struct {
	Path string      `json:"path"`
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`
	// Written is the mtime of a file that may be changed through a hard link.
	Written time.Time `json:"written,omitzero"`
}

// seal writes the manifest of a filled directory.
func seal(dir string, m manifest, linked bool) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		f := file{Path: rel, Size: info.Size(), Mode: info.Mode()}
		if linked {
			f.Written = info.ModTime()
		}
		m.Files = append(m.Files, f)
		return err
	})
	if err != nil {
		return err
	}
	if len(m.Files) == 0 {
		return fmt.Errorf("the recipe of %s wrote no file", m.Name)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestName), append(text, '\n'), 0o644)
}

// verify compares an artifact with its manifest. It returns an error if the artifact is
// missing, has another key, or a file is missing, changed or of another size or mode.
func verify(path string) error {
	text, err := os.ReadFile(filepath.Join(path, manifestName))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(path, manifestName), err)
	}
	if want := m.Name + "-" + m.Key; filepath.Base(path) != want {
		return fmt.Errorf("%s holds %s", path, want)
	}
	for _, f := range m.Files {
		info, err := os.Lstat(filepath.Join(path, f.Path))
		if err != nil {
			return err
		}
		if info.Size() != f.Size || info.Mode() != f.Mode {
			return fmt.Errorf("%s: %d bytes %s, want %d %s", f.Path, info.Size(), info.Mode(), f.Size, f.Mode)
		}
		if !f.Written.IsZero() && !info.ModTime().Equal(f.Written) {
			return fmt.Errorf("%s: written at %s, want %s", f.Path, info.ModTime(), f.Written)
		}
	}
	return nil
}
