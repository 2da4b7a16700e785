package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/imagestore"
)

// disk is the directory that survives reboots, as the root volume of an instance does. Its
// paths are those of the node.
type disk string

// diskDirs returns the directories that are on the node's disk. A network plugin installs
// itself into opt and etc/cni.
func (c Config) diskDirs() []string {
	image := c.image()
	list := slices.DeleteFunc([]string{"var", "root", "opt", "etc/cni"}, func(dir string) bool { return slices.Contains(image.Tmpfs, dir) })
	return append(list, image.Disk...)
}

func (d disk) path(inside string) string { return filepath.Join(string(d), inside) }

// mkdir creates a directory of the disk with mode 0755, also under a stricter umask.
func (d disk) mkdir(dir string) error {
	at := string(d)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		at = filepath.Join(at, name)
		err := os.Mkdir(at, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err = errors.Join(err, os.Chmod(at, 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// installPlugins copies the plugins of the node's image, the directory from, to the disk.
// It does not replace existing files, which an earlier boot or a network's installer wrote.
// It copies rather than links, because programs in a node may overwrite them. Without
// plugins the directory is empty.
func (d disk) installPlugins(from string) error {
	if err := d.mkdir(cniBinDir); err != nil {
		return err
	}
	if from == "" {
		return nil
	}
	plugins, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, p := range plugins {
		st, err := p.Info()
		if err != nil {
			return err
		}
		to := d.path(filepath.Join(cniBinDir, p.Name()))
		if _, err := os.Stat(to); err == nil || st.Mode().Perm()&0o111 == 0 {
			continue // exists, or is not executable
		}
		b, err := os.ReadFile(filepath.Join(from, p.Name()))
		if err != nil {
			return err
		}
		if err := atomicfile.Write(to, b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// installImages copies an image store, if there is one, to a new disk. After an error the
// node can boot without images, which are then imported.
func (d disk) installImages(store string) error {
	root := d.path(containerdRoot)
	if _, err := os.Lstat(root); err == nil || store == "" {
		return nil
	}
	if err := d.mkdir(filepath.Dir(containerdRoot)); err != nil {
		return err
	}
	return imagestore.Copy(store, root)
}

// snapshotter returns "overlayfs" if the disk's file system supports overlays, which one
// that is itself an overlay does not, and otherwise "native", which copies layers. It must
// run in the node's own mount namespace.
func (d disk) snapshotter() string {
	dir := d.path("overlay-probe")
	defer func() { _ = os.RemoveAll(dir) }() // leftovers are removed with the disk
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return "native"
		}
	}
	merged := filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return "native"
	}
	_ = unix.Unmount(merged, unix.MNT_DETACH)
	return "overlayfs"
}
