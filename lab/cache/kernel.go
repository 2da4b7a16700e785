package cache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kernel is the artifact of a kernel in Debian's package.
const Kernel = "kernel"

// Kernel returns the directory of Debian's kernel for virtual machines (the "cloud" flavour),
// unpacked: vmlinuz is in boot, the modules are below lib/modules. The package is the one that
// linux-image-cloud-amd64 depends on, and is downloaded if it is missing (27 MB). want is the
// beginning of its version, such as "6.1.": that of another release of Debian is an error.
func (c *Cache) Kernel(ctx context.Context, want string) (string, error) {
	path, _, err := c.store.ensure(ctx, kernel(c.store, want).recipe(), nil)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", Kernel, err)
	}
	return path, nil
}

func kernel(s *store, want string) debian {
	const meta = "linux-image-cloud-amd64"
	return debian{
		store: s,
		name:  Kernel,
		packages: func(ctx context.Context, options []string) ([]string, error) {
			out, err := apt(ctx, s.dir, "apt-cache", options, "depends", meta)
			if err != nil {
				return nil, err
			}
			image, err := kernelImage(out, want)
			if err != nil {
				return nil, fmt.Errorf("apt-cache depends %s: %w", meta, err)
			}
			return []string{image}, nil
		},
		check: func(dir string) error {
			found, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-"+want+"*"))
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("the package has %d kernels %s* in /boot, want 1: %w", len(found), want, os.ErrNotExist)
			}
			return err
		},
	}
}

// kernelImage returns the package with the kernel from the dependencies of a meta package, as
// apt-cache depends prints them.
func kernelImage(depends, want string) (string, error) {
	for line := range strings.Lines(depends) {
		image, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		version, isImage := strings.CutPrefix(image, "linux-image-")
		if !ok || !isImage {
			continue
		}
		if !strings.HasPrefix(version, want) {
			return "", fmt.Errorf("this Debian has %s, want %s*: use the release that has it (6.1: Debian 12)", image, want)
		}
		return image, nil
	}
	return "", fmt.Errorf("it depends on no linux-image package: %q", depends)
}
