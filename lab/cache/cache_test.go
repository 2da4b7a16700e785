package cache

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func open(t *testing.T) *Cache {
	t.Helper()
	c, err := Open(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// writing returns a recipe that writes one file and counts its runs.
func writing(runs *atomic.Int32, text string) recipe {
	return recipe{
		name: "thing",
		key:  func(context.Context) (string, error) { return "0123", nil },
		make: func(_ context.Context, j *job) error {
			runs.Add(1)
			return os.WriteFile(filepath.Join(j.dir, "file"), []byte(text), 0o755)
		},
	}
}

func leftovers(t *testing.T, c *Cache) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"tmp", "artifacts"} {
		entries, err := os.ReadDir(filepath.Join(c.store.dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, dir+"/"+e.Name())
		}
	}
	return out
}

func TestConcurrentCallersBuildAnArtifactOnce(t *testing.T) {
	c := open(t)
	var runs atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, _, err := c.store.ensure(t.Context(), writing(&runs, "x"), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(text) != "x" {
				t.Errorf("read %q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Errorf("built %d times, want once", runs.Load())
	}
}

func TestAChangedArtifactIsBuiltAgain(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"a truncated file":      func(p string) error { return os.Truncate(filepath.Join(p, "file"), 0) },
		"a missing file":        func(p string) error { return os.Remove(filepath.Join(p, "file")) },
		"a file not executable": func(p string) error { return os.Chmod(filepath.Join(p, "file"), 0o644) },
		"no manifest":           func(p string) error { return os.Remove(filepath.Join(p, manifestName)) },
		"manifest of another artifact": func(p string) error {
			return os.WriteFile(filepath.Join(p, manifestName), []byte(`{"name":"thing","key":"other"}`), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			var runs atomic.Int32
			path, _, err := c.store.ensure(t.Context(), writing(&runs, "whole"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.store.ensure(t.Context(), writing(&runs, "whole"), nil); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(text) != "whole" {
				t.Errorf("after the second build: %q, %v", text, err)
			}
			if runs.Load() != 2 {
				t.Errorf("built %d times, want 2", runs.Load())
			}
		})
	}
}

// A node may hold hard links to files of an image store. A write of the node, even one
// that keeps the size, must not reach the next lab.
func TestADerivedArtifactChangedThroughAHardLinkIsBuiltAgain(t *testing.T) {
	c := open(t)
	derive := func() string {
		t.Helper()
		dir, err := c.Derive(t.Context(), "store", "0123456789abcdef", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "layer"), []byte("whole"), 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "layer")
	}
	held := filepath.Join(t.TempDir(), "layer")
	if err := os.Link(derive(), held); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(held, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("wrong"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chtimes(held, time.Time{}, time.Now().Add(time.Second)), f.Close()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(derive()); err != nil || string(text) != "whole" {
		t.Errorf("the next lab gets %q, %v", text, err)
	}
}

func TestAFailedOrInterruptedRecipeLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		make func(context.CancelFunc) error
		want error
	}{
		"failed":      {func(context.CancelFunc) error { return boom }, boom},
		"interrupted": {func(cancel context.CancelFunc) error { cancel(); return nil }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			ctx, cancel := context.WithCancel(t.Context())
			r := writing(new(atomic.Int32), "half")
			write := r.make
			r.make = func(ctx context.Context, j *job) error {
				return errors.Join(write(ctx, j), tc.make(cancel))
			}
			if _, _, err := c.store.ensure(ctx, r, nil); !errors.Is(err, tc.want) {
				t.Errorf("ensure = %v, want %v", err, tc.want)
			}
			if left := leftovers(t, c); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestTheFilesOfAKilledBuildAreClearedByTheNextBuild(t *testing.T) {
	c := open(t)
	if err := os.MkdirAll(filepath.Join(c.store.dir, "tmp", "kube-1234", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.store.ensure(t.Context(), writing(new(atomic.Int32), "x"), nil); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, c); !slices.Equal(left, []string{"artifacts/thing-0123"}) {
		t.Errorf("left behind: %v", left)
	}
}

func TestARecipeThatWritesNothingIsAnError(t *testing.T) {
	c := open(t)
	_, err := c.Derive(t.Context(), "empty", "1", func(string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "wrote no file") {
		t.Errorf("Derive = %v", err)
	}
}

func TestWaitingForAnotherBuildIsReportedAndEndsWithTheContext(t *testing.T) {
	c := open(t)
	unlock, err := c.store.lock(t.Context(), "build", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var reported []State
	_, _, err = c.store.ensure(ctx, writing(new(atomic.Int32), "x"), func(p Progress) {
		reported = append(reported, p.State)
		cancel()
	})
	if !errors.Is(err, context.Canceled) || !slices.Equal(reported, []State{Waiting}) {
		t.Errorf("ensure = %v, reported states %v", err, reported)
	}
}

func TestTheKeyDependsOnlyOnTheInputsOfTheBuild(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key := func() string {
		t.Helper()
		k, err := newHashing(root).text("go1.26").files("go.mod", "internal").key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write("go.mod", "module x\n")
	write("internal/a.go", "package a")
	first := key()

	write("internal/a_test.go", "package a")
	write("internal/testdata/golden", "x")
	write("internal/nested/go.mod", "module y")
	write("other/b.go", "package b")
	if key() != first {
		t.Error("a test, test data, a nested module or another folder changed the key")
	}
	write("internal/a.go", "package a // changed")
	second := key()
	if second == first {
		t.Error("a changed source did not change the key")
	}
	write("internal/b.go", "package a")
	if key() == second {
		t.Error("a new source did not change the key")
	}
	if _, err := newHashing(root).files("absent").key(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing input: %v", err)
	}
}

func TestFindSourceSearchesUpwardAndItsErrorNamesTheFlag(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := FindSource(deep); !errors.Is(err, ErrNoSource) || !strings.Contains(err.Error(), "--source") {
		t.Errorf("FindSource = %v", err)
	}
	nested := "module github.com/trunkline/trunkline/lab/kube\n"
	if err := os.WriteFile(filepath.Join(deep, "go.mod"), []byte(nested), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("// c\n"+module+"\ngo 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := FindSource(deep); err != nil || got != root {
		t.Errorf("FindSource = %s, %v, want %s", got, err, root)
	}
}

func TestBuildOutputCountsPackagesAndKeepsMessages(t *testing.T) {
	var o buildOutput
	for _, chunk := range []string{"k8s.io/api/core", "/v1\nruntime\ngo: downloading x v1\n# example.com/p\np/x.go:3:2: undefined: y\n"} {
		if _, err := o.Write([]byte(chunk)); err != nil {
			t.Fatal(err)
		}
	}
	if o.compiled != 2 {
		t.Errorf("counted %d packages, want 2", o.compiled)
	}
	if got := o.messages(); !strings.Contains(got, "undefined: y") || strings.Contains(got, "runtime") {
		t.Errorf("messages = %q", got)
	}
}

// An apt-get that finds packages only after an update into Dir::State::Lists.
const aptWithoutLists = `#!/bin/sh
lists=
for a in "$@"; do case "$a" in Dir::State::Lists=*) lists=${a#*=};; esac; done
case "$*" in *update) mkdir -p "$lists" && touch "$lists/fetched"; exit;; esac
test -n "$lists" && test -e "$lists/fetched" || { echo 'E: No packages found' >&2; exit 100; }
echo "'http://mirror/runc.deb' runc.deb 7 SHA256:77"
`

func TestPackagesAreFoundOnAMachineWithoutPackageLists(t *testing.T) {
	c, bin := open(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(aptWithoutLists), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	key, err := containerRuntime(c.store).key(t.Context())
	if err != nil || key == "" {
		t.Errorf("key %q, %v", key, err)
	}
}

func TestAnOldGoIsRejectedWithItsVersion(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\necho go1.19.8\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	c := open(t)
	if _, err := findToolchain(t.Context(), c.source); !errors.Is(err, ErrOldGo) || !strings.Contains(err.Error(), "go is go1.19.8: ") {
		t.Errorf("findToolchain = %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := findToolchain(t.Context(), c.source); !errors.Is(err, ErrNoGo) {
		t.Errorf("without a go command: %v", err)
	}
}

// The real compiler and cache, with a small module instead of the checkout.
func TestGoBuildWritesABinaryWithItsVersionOrReturnsTheCompilersMessages(t *testing.T) {
	c := open(t)
	tool, err := findToolchain(t.Context(), c.source)
	if err != nil {
		t.Fatal(err)
	}
	src := "package main\n\nvar version string\n\nfunc main() { println(version) }\n"
	for path, text := range map[string]string{"go.mod": "module tiny\n\ngo 1.26\n", "main.go": src} {
		if err := os.WriteFile(filepath.Join(c.source, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	j := &job{dir: t.TempDir(), name: "tiny", started: time.Now()}
	b := goBuild{dir: ".", packages: []string{"."}, out: "tiny", ldflags: []string{"-X main.version=dev-77"}}
	if err := tool.build(t.Context(), j, b); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(filepath.Join(j.dir, "tiny"))
	if err != nil || !strings.Contains(string(binary), "dev-77") {
		t.Errorf("the binary lacks its version (%v)", err)
	}
	if err := librariesPresent(filepath.Join(j.dir, "tiny")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(c.source, "main.go"), []byte("package main\n\nfunc main() { y() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tool.build(t.Context(), j, b); err == nil || !strings.Contains(err.Error(), "undefined: y") {
		t.Errorf("build = %v, want the compiler's messages", err)
	}
}
