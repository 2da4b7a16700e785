package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// writeFiles writes the files that the image brings, at each boot, and those of lab.yaml,
// which stay as they are if an earlier boot has left them on the disk.
func (c Config) writeFiles(root string) error {
	r, err := os.OpenRoot(root) // a link on the node's disk must not lead to the machine's files
	if err != nil {
		return err
	}
	defer r.Close()
	for name, text := range c.image().Files {
		if err := writeFile(r, name, text); err != nil {
			return err
		}
	}
	for name, text := range c.Files {
		name = filepath.Clean(name)[1:]
		if _, brought := c.image().Files[name]; !brought {
			switch _, err := r.Lstat(name); {
			case err == nil:
				continue
			case !errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("write /%s of node: %w", name, err)
			}
		}
		if err := writeFile(r, name, text); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file of the root, and its directories.
func writeFile(r *os.Root, name, text string) error {
	err := r.MkdirAll(path.Dir(name), 0o755)
	if err == nil {
		err = r.WriteFile(name, []byte(text), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write /%s of node: %w", name, err)
	}
	return nil
}
