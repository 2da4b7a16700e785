//go:build lab

package imagestore_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/imagestore"
	"github.com/trunkline/trunkline/lab/node/testparts"
)

var flags = testparts.Register()

func TestAnInterruptedCreationOfAStoreLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	c, err := cache.Open(dir, t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	// An archive that can be opened but blocks reads.
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := unix.Mkfifo(archive, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(archive, os.O_WRONLY, 0) // blocks until a reader opens it
		cancel()
		opened <- errors.Join(err, f.Close())
	}()
	r := imagestore.Recipe{Containerd: flags.Find(t).Containerd, Runtime: "test", Archives: []string{archive}}
	if _, err := r.Make(ctx, c); !errors.Is(err, context.Canceled) {
		t.Fatalf("made: %v", err)
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"tmp", "artifacts"} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) > 0 {
			t.Errorf("%s holds %v, %v", sub, left, err)
		}
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if at, _ := os.Readlink(link); strings.HasPrefix(at, dir) { // a process may end meanwhile
			t.Errorf("process %s still runs in %s", link, at)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("a mount is left: %s, %v", mounts, err)
	}
}

func TestALayersRootIsReadableByAllUsersAlsoUnderAStrictUmask(t *testing.T) {
	c, err := cache.Open(t.TempDir(), t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := (image.Recipe{Dirs: []string{"/a/tmp"}}).Write(archive, "trunkline.dev/test:1"); err != nil {
		t.Fatal(err)
	}
	r := imagestore.Recipe{Containerd: flags.Find(t).Containerd, Runtime: "test", Archives: []string{archive}}
	old := unix.Umask(0o077)
	dir, err := r.Make(t.Context(), c)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs")
	for path, want := range map[string]os.FileMode{
		"": os.ModeDir | 0o755, "a": os.ModeDir | 0o755, "a/tmp": os.ModeDir | os.ModeSticky | 0o777,
	} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("/%s is %s, want %s", path, info.Mode(), want)
		}
	}
}
