package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asUser as first argument makes the test binary a process that uses the artifact
// thing-KEY of a cache until its stdin is closed.
const asUser = "use-an-artifact"

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == asUser {
		if err := useArtifact(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func useArtifact(dir, key string) error {
	c, err := Open(dir, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	path, err := c.Derive(context.Background(), "thing", key, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o644)
	})
	if err != nil {
		return err
	}
	fmt.Println(path)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(path, "file"))
	if err == nil && string(text) != "whole" {
		err = fmt.Errorf("%s holds %q", path, text)
	}
	return err
}

// user is another process that uses an artifact.
type user struct {
	path   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *strings.Builder
}

func startUser(t *testing.T, c *Cache, key string) (user, error) {
	u := user{cmd: exec.CommandContext(t.Context(), os.Args[0], asUser, c.store.dir, key), stderr: &strings.Builder{}}
	u.cmd.Stderr = u.stderr
	stdin, inErr := u.cmd.StdinPipe()
	stdout, outErr := u.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, u.cmd.Start()); err != nil {
		return u, err
	}
	t.Cleanup(u.kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		u.kill()
		return u, fmt.Errorf("the process exited: %w; %s", err, u.stderr)
	}
	u.path, u.stdin = strings.TrimSuffix(line, "\n"), stdin
	return u, nil
}

func (u user) kill() {
	_ = u.cmd.Process.Kill()
	_ = u.cmd.Wait()
}

// end waits for the process, which reads the artifact once more and exits.
func (u user) end() error {
	if err := errors.Join(u.stdin.Close(), u.cmd.Wait()); err != nil {
		return fmt.Errorf("%w: %s", err, u.stderr)
	}
	return nil
}

// put writes an artifact that was last used ago and is not in use.
func put(t *testing.T, c *Cache, name string, number int, ago time.Duration) string {
	t.Helper()
	path := c.store.place(name, fmt.Sprintf("%016x", number))
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("whole"), 0o644); err != nil {
		t.Fatal(err)
	}
	key := keyOf(path, name)
	if err := seal(path, manifest{Name: name, Key: key}, false); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-ago)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	return path
}

// four writes one artifact more than Prune keeps of a kind, the most recently used first.
func four(t *testing.T, c *Cache, name string, ago time.Duration) (paths []string) {
	t.Helper()
	for i := range keptNewest + 1 {
		paths = append(paths, put(t, c, name, 0x10+i, ago+time.Duration(i)*time.Minute))
	}
	return paths
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func unused(string) (bool, error) { return false, nil }

func TestPruneKeepsTheNewestOfEachKindAndRecentlyUsedArtifacts(t *testing.T) {
	c := open(t)
	recent := four(t, c, Plugins, 0)
	var kept, removed []string
	for _, kind := range []string{Product, "image-store", "image-trunkline", Debian} {
		paths := four(t, c, kind, 2*time.Hour)
		kept, removed = append(kept, paths[:keptNewest]...), append(removed, paths[keptNewest:]...)
	}
	// Kubernetes, which takes ten minutes to build, is kept for longer.
	kube := four(t, c, Kube, keptUnused(Kube)-time.Hour)
	kept = append(append(kept, kube...), recent...)
	if keptUnused(Kube) < 7*24*time.Hour {
		t.Errorf("Kubernetes is kept for %s", keptUnused(Kube))
	}
	foreign := filepath.Join(c.store.dir, "artifacts", "not-an-artifact")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	kept = append(kept, foreign)

	freed, err := c.Prune(t.Context(), unused)
	if err != nil {
		t.Fatal(err)
	}
	if freed.Artifacts != len(removed) || freed.Bytes < int64(len(removed))*4096 {
		t.Errorf("freed %+v, want %d artifacts", freed, len(removed))
	}
	for _, path := range removed {
		if exists(path) {
			t.Errorf("%s was not removed", path)
		}
	}
	for _, path := range kept {
		if !exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
	if freed, err := c.Prune(t.Context(), unused); err != nil || freed != (Freed{}) {
		t.Errorf("second Prune: %+v, %v", freed, err)
	}
	if freed, err := c.store.prune(t.Context(), time.Now().Add(keptUnused(Kube)), unused); err != nil || freed.Artifacts != 2 {
		t.Errorf("when all are old: %+v, %v; want the fourth of two kinds", freed, err)
	}
}

func TestUsingAnArtifactMakesItTheNewest(t *testing.T) {
	c := open(t)
	paths := four(t, c, "store", 2*time.Hour)
	oldest := paths[keptNewest]
	if _, err := c.Derive(t.Context(), "store", keyOf(oldest, "store"), func(string) error { return errors.New("built again") }); err != nil {
		t.Fatal(err)
	}
	another, err := Open(c.store.dir, c.source, c.store.log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := another.Prune(t.Context(), unused); err != nil {
		t.Fatal(err)
	}
	if !exists(oldest) || exists(paths[keptNewest-1]) {
		t.Errorf("the artifact just used exists: %t; the oldest exists: %t", exists(oldest), exists(paths[keptNewest-1]))
	}
}

func TestAnArtifactInUseByAProcessIsKeptUntilTheProcessEnds(t *testing.T) {
	ends := map[string]func(user) error{
		"exits":  user.end,
		"killed": func(u user) error { u.kill(); return nil },
	}
	for name, end := range ends {
		for _, number := range []int{1, 2} { // the first exists already, the second is built by the process
			t.Run(fmt.Sprint(name, number), func(t *testing.T) {
				c := open(t)
				put(t, c, "thing", 1, 9*time.Hour)
				u, err := startUser(t, c, fmt.Sprintf("%016x", number))
				if err != nil {
					t.Fatal(err)
				}
				// With enough newer artifacts, a year later, only its use protects it.
				four(t, c, "thing", -time.Hour)
				old := time.Now().Add(-9 * time.Hour)
				nextYear := time.Now().Add(365 * 24 * time.Hour)
				for _, used := range []bool{true, false} {
					if err := os.Chtimes(u.path, old, old); err != nil {
						t.Fatal(err)
					}
					if _, err := c.store.prune(t.Context(), nextYear, unused); err != nil || exists(u.path) != used {
						t.Fatalf("%s exists: %t, used: %t; %v", u.path, exists(u.path), used, err)
					}
					if !used {
						break
					}
					if err := end(u); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func TestArtifactsInUseByALabAreKeptAndAnErrorKeepsAll(t *testing.T) {
	c := open(t)
	oldest := four(t, c, "store", 2*time.Hour)[keptNewest]
	failed := errors.New("a lab's record cannot be read")
	if _, err := c.Prune(t.Context(), func(string) (bool, error) { return false, failed }); !errors.Is(err, failed) || !exists(oldest) {
		t.Errorf("after an error it exists: %t, %v", exists(oldest), err)
	}
	inUse := func(artifact string) (bool, error) { return artifact == filepath.Base(oldest), nil }
	if freed, err := c.Prune(t.Context(), inUse); err != nil || freed.Artifacts != 0 || !exists(oldest) {
		t.Errorf("in use, it exists: %t, %+v, %v", exists(oldest), freed, err)
	}
}

func TestPruneDoesNothingDuringABuild(t *testing.T) {
	c := open(t)
	oldest := four(t, c, "store", 2*time.Hour)[keptNewest]
	unlock, err := c.store.lock(t.Context(), "build", func() {})
	if err != nil {
		t.Fatal(err)
	}
	if freed, err := c.Prune(t.Context(), unused); err != nil || freed != (Freed{}) || !exists(oldest) {
		t.Errorf("during a build: exists %t, %+v, %v", exists(oldest), freed, err)
	}
	unlock()
	if freed, err := c.Prune(t.Context(), unused); err != nil || freed.Artifacts != 1 || exists(oldest) {
		t.Errorf("after the build: exists %t, %+v, %v", exists(oldest), freed, err)
	}
}

func TestTheFilesOfAKilledPruneAreRemovedByTheNextPrune(t *testing.T) {
	c := open(t)
	if err := os.Rename(put(t, c, "store", 1, 0), filepath.Join(c.store.dir, "tmp", "store-0000000000000001")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prune(t.Context(), unused); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Between opening and locking an artifact, another process may remove it, and a third
// may build it again.
func TestALockOnARemovedArtifactIsRejected(t *testing.T) {
	c := open(t)
	path := put(t, c, "store", 1, 0)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := claim(fd, path); err != nil {
		t.Fatalf("at its path: %v", err)
	}
	if err := os.Rename(path, filepath.Join(c.store.dir, "tmp", "dropped")); err != nil {
		t.Fatal(err)
	}
	if err := claim(fd, path); err == nil {
		t.Error("a removed artifact was claimed")
	}
	put(t, c, "store", 1, 0)
	if err := claim(fd, path); err == nil {
		t.Error("an artifact that was built again was claimed by the directory it replaced")
	}
}

func TestConcurrentPrunesNeverRemoveAnArtifactInUse(t *testing.T) {
	c := open(t)
	nextYear := time.Now().Add(365 * 24 * time.Hour)
	done := make(chan struct{})
	var pruners, users sync.WaitGroup
	var mu sync.Mutex
	removed := 0
	for range 2 {
		another, err := Open(c.store.dir, c.source, c.store.log) // its own locks, as in another process
		if err != nil {
			t.Fatal(err)
		}
		pruners.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond) // builds need the lock too
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				freed, err := another.store.prune(t.Context(), nextYear, unused)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				removed += freed.Artifacts
				mu.Unlock()
			}
		})
	}
	for i := range 4 {
		users.Go(func() {
			for n := range 8 {
				u, err := startUser(t, c, fmt.Sprintf("%016x", (i+n)%7))
				if err == nil {
					err = u.end()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	close(done)
	pruners.Wait()
	if removed == 0 {
		t.Error("no artifact was removed")
	}
	if left := leftovers(t, c); len(left) > 7 || slices.ContainsFunc(left, func(l string) bool { return !strings.HasPrefix(l, "artifacts/thing-") }) {
		t.Errorf("left: %v", left)
	}
}
