package imagestore

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAStoresKeyDependsOnItsImagesAndContainerd(t *testing.T) {
	base := Recipe{Containerd: "/c/bin", Runtime: "debian-1", Archives: []string{"/c/image-a-1/image.tar", "/c/image-b-1/image.tar"}}
	key := func(change func(*Recipe)) string {
		t.Helper()
		r := base
		r.Archives = slices.Clone(base.Archives)
		change(&r)
		k, err := r.key()
		if err != nil || len(k) != 16 {
			t.Fatalf("key %q, %v", k, err)
		}
		return k
	}
	same := key(func(*Recipe) {})
	for name, change := range map[string]func(*Recipe){
		"another containerd": func(r *Recipe) { r.Runtime = "debian-2" },
		"another image":      func(r *Recipe) { r.Archives[1] = "/c/image-b-2/image.tar" },
		"one image less":     func(r *Recipe) { r.Archives = r.Archives[:1] },
		"no images":          func(r *Recipe) { r.Archives = nil },
	} {
		if key(change) == same {
			t.Errorf("%s: the same key", name)
		}
	}
	if moved := key(func(r *Recipe) {
		r.Containerd = "/elsewhere/bin"
		r.Archives = []string{"/elsewhere/image-a-1/image.tar", "/elsewhere/image-b-1/image.tar"}
	}); moved != same {
		t.Error("the key depends on the path of the cache")
	}
}

const (
	blob     = "io.containerd.content.v1.content/blobs/sha256/aa"
	layer    = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin/app"
	link     = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin/sh"
	tmp      = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/tmp"
	metadata = "io.containerd.metadata.v1.bolt/meta.db"
	names    = "io.containerd.snapshotter.v1.overlayfs/metadata.db"
)

// sample creates a store as containerd does.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(path string) string { return filepath.Join(dir, rootDir, path) }
	for path, mode := range map[string]fs.FileMode{blob: 0o444, layer: 0o755, metadata: 0o644, names: 0o600} {
		if err := os.MkdirAll(filepath.Dir(at(path)), 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(path), []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/app", at(link)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at(tmp), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at(tmp), 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listing returns the path, mode, time, owner and content of every file below root.
func listing(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		st := info.Sys().(*syscall.Stat_t)
		content := ""
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(b)
		case info.Mode()&fs.ModeSymlink != 0:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
			out.WriteString(rel + " -> " + content + "\n") // without its time, which Copy does not set
			return nil
		}
		fmt.Fprintln(&out, rel, info.Mode(), info.ModTime(), st.Uid, st.Gid, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestACopyEqualsItsStoreAlsoUnderAStrictUmask(t *testing.T) {
	dir, to := sample(t), filepath.Join(t.TempDir(), "containerd")
	old := unix.Umask(0o077)
	err := Copy(dir, to)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if want, got := listing(t, filepath.Join(dir, rootDir)), listing(t, to); want != got {
		t.Errorf("the copy is\n%s\nwant\n%s", got, want)
	}
}

func TestACopySharesOnlyImmutableFiles(t *testing.T) {
	dir, to := sample(t), filepath.Join(t.TempDir(), "containerd")
	if err := Copy(dir, to); err != nil {
		t.Fatal(err)
	}
	for path, shared := range map[string]bool{blob: true, layer: true, metadata: false, names: false} {
		same := inode(t, filepath.Join(dir, rootDir, path)) == inode(t, filepath.Join(to, path))
		if same != shared {
			t.Errorf("%s: shared is %t, want %t", path, same, shared)
		}
	}
}

func TestChangesInACopyAffectNeitherTheStoreNorAnotherCopy(t *testing.T) {
	dir := sample(t)
	one, other := filepath.Join(t.TempDir(), "containerd"), filepath.Join(t.TempDir(), "containerd")
	for _, to := range []string{one, other} {
		if err := Copy(dir, to); err != nil {
			t.Fatal(err)
		}
	}
	before := listing(t, filepath.Join(dir, rootDir))
	for _, path := range []string{metadata, names} {
		if err := os.WriteFile(filepath.Join(one, path), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(one, blob)); err != nil { // as containerd's garbage collection
		t.Fatal(err)
	}
	if err := os.RemoveAll(one); err != nil { // as down
		t.Fatal(err)
	}
	if after := listing(t, filepath.Join(dir, rootDir)); after != before {
		t.Errorf("the store is\n%s\nwas\n%s", after, before)
	}
	if got := listing(t, other); got != before {
		t.Errorf("the other copy is\n%s\nwant\n%s", got, before)
	}
}

func TestAFailedCopyLeavesNothingBehind(t *testing.T) {
	dir, parent := sample(t), t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, rootDir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Copy(dir, filepath.Join(parent, "containerd")); err == nil || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("a store with a pipe in it: %v", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestImagesAreParsedFromTheOutputOfCtr(t *testing.T) {
	got := ParseList(`REF           TYPE                       DIGEST       SIZE     PLATFORMS   LABELS
x.dev/a:1     application/vnd.docker+json sha256:01 1.4 MiB  linux/amd64 -
x.dev/a:dev   application/vnd.docker+json sha256:01 1.4 MiB  linux/amd64 -
x.dev/b:dev   application/vnd.docker+json sha256:02 52.5 MiB linux/amd64 io.cri-containerd.image=managed
`)
	want := Images{"x.dev/a:1": "sha256:01", "x.dev/a:dev": "sha256:01", "x.dev/b:dev": "sha256:02"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	if refs := []string{"x.dev/a:1", "x.dev/a:dev", "x.dev/b:dev"}; !got.Holds(want, refs) {
		t.Errorf("%v does not hold %v", got, refs)
	}
	for name, tc := range map[string]struct{ have, want Images }{
		"an image is missing":        {Images{"x.dev/b:dev": "sha256:02"}, want},
		"a tag has another digest":   {Images{"x.dev/a:1": "sha256:01", "x.dev/a:dev": "sha256:09"}, want},
		"the store does not have it": {got, Images{}},
	} {
		if tc.have.Holds(tc.want, []string{"x.dev/a:1", "x.dev/a:dev"}) {
			t.Errorf("%s: Holds is true", name)
		}
	}
}
