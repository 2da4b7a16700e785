package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// systemTrust is the list of certificate authorities of the node's image, which is
// Debian's: that of curl, of programs in Go and of most others.
const systemTrust = "/etc/ssl/certs/ca-certificates.crt"

// trustLists returns the lists of authorities in the node's image. Debian's awscli has its
// own, like AWS's.
func trustLists() []string {
	return []string{systemTrust, "/usr/lib/python3/dist-packages/awscli/botocore/cacert.pem"}
}

// trustMounts returns the mounts of the node's own lists over those of the image.
func (c Config) trustMounts() []mount {
	if len(c.Authorities) == 0 {
		return nil
	}
	var out []mount
	for _, list := range trustLists() {
		out = append(out, mount{source: c.dir().trust(list), target: list, flags: readOnly, existing: true})
	}
	return out
}

// writeTrust writes the node's lists of authorities: those of the image, which are the
// machine's, with the node's own at the end. The machine's lists do not change.
func (c Config) writeTrust() error {
	if len(c.Authorities) == 0 {
		return nil
	}
	for _, list := range trustLists() {
		image, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) && list == systemTrust {
			return fmt.Errorf("node %s has no list of certificate authorities to extend: install the Debian package ca-certificates: %w", c.Name, err)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(image) > 0 && !bytes.HasSuffix(image, []byte("\n")) {
			image = append(image, '\n')
		}
		path := c.dir().trust(list)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, slices.Concat(image, c.Authorities), 0o644); err != nil {
			return err
		}
	}
	return nil
}
