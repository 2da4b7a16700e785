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

// asUser as first argument makes the test binary another process that uses the
// artifact thing-KEY of a cache until its stdin ends.
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
	path  string
	cmd   *exec.Cmd
	stdin io.Closer
	said  *strings.Builder
}

func startUser(t *testing.T, c *Cache, key string) (user, error) {
	u := user{cmd: exec.CommandContext(t.Context(), os.Args[0], asUser, c.dir, key), said: &strings.Builder{}}
	u.cmd.Stderr = u.said
	stdin, inErr := u.cmd.StdinPipe()
	stdout, outErr := u.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, u.cmd.Start()); err != nil {
		return u, err
	}
	t.Cleanup(u.kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		u.kill()
		return u, fmt.Errorf("the user ended: %w; %s", err, u.said)
	}
	u.path, u.stdin = strings.TrimSuffix(line, "\n"), stdin
	return u, nil
}

func (u user) kill() {
	_ = u.cmd.Process.Kill()
	_ = u.cmd.Wait()
}

// end lets the user read what it uses once more.
func (u user) end() error {
	if err := errors.Join(u.stdin.Close(), u.cmd.Wait()); err != nil {
		return fmt.Errorf("%w: %s", err, u.said)
	}
	return nil
}

// put lays an artifact down that was used so long ago, by nobody who lives.
func put(t *testing.T, c *Cache, name string, number int, ago time.Duration) string {
	t.Helper()
	path := c.place(name, fmt.Sprintf("%016x", number))
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

// four are one more than stay of a kind, the last used longest ago.
func four(t *testing.T, c *Cache, name string, ago time.Duration) (paths []string) {
	t.Helper()
	for i := range keptNewest + 1 {
		paths = append(paths, put(t, c, name, 0x10+i, ago+time.Duration(i)*time.Minute))
	}
	return paths
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func nobody(string) (bool, error) { return false, nil }

func TestPruningKeepsTheNewestOfEachKindAndWhatWasUsedLately(t *testing.T) {
	c := open(t)
	lately := four(t, c, Plugins, 0)
	var stay, leave []string
	for _, kind := range []string{Product, "image-store", "image-trunkline", Debian} {
		paths := four(t, c, kind, 2*time.Hour)
		stay, leave = append(stay, paths[:keptNewest]...), append(leave, paths[keptNewest:]...)
	}
	// What takes ten minutes to make stays for longer than what takes ten seconds.
	kube := four(t, c, Kube, keptUnused(Kube)-time.Hour)
	stay = append(append(stay, kube...), lately...)
	if keptUnused(Kube) < 7*24*time.Hour {
		t.Errorf("Kubernetes stays for %s", keptUnused(Kube))
	}
	foreign := filepath.Join(c.dir, "artifacts", "somebody-s-notes")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	stay = append(stay, foreign)

	freed, err := c.Prune(t.Context(), nobody)
	if err != nil {
		t.Fatal(err)
	}
	if freed.Artifacts != len(leave) || freed.Bytes < int64(len(leave))*4096 {
		t.Errorf("freed %+v, want %d artifacts", freed, len(leave))
	}
	for _, path := range leave {
		if there(path) {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range stay {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if freed, err := c.Prune(t.Context(), nobody); err != nil || freed != (Freed{}) {
		t.Errorf("again: %+v, %v", freed, err)
	}
	if freed, err := c.pruneAt(t.Context(), time.Now().Add(keptUnused(Kube)), nobody); err != nil || freed.Artifacts != 2 {
		t.Errorf("when all is old: %+v, %v; want the fourth of two kinds", freed, err)
	}
}

func TestUsingAnArtifactMakesItTheNewest(t *testing.T) {
	c := open(t)
	paths := four(t, c, "store", 2*time.Hour)
	oldest := paths[keptNewest]
	if _, err := c.Derive(t.Context(), "store", keyOf(oldest, "store"), func(string) error { return errors.New("made anew") }); err != nil {
		t.Fatal(err)
	}
	another, err := Open(c.dir, c.source, c.log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := another.Prune(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	if !there(oldest) || there(paths[keptNewest-1]) {
		t.Errorf("used just now and there: %t; then the oldest and there: %t", there(oldest), there(paths[keptNewest-1]))
	}
}

func TestWhatAnotherProcessUsesStaysUntilItEndsHoweverItEnds(t *testing.T) {
	ends := map[string]func(user) error{
		"in order": user.end,
		"killed":   func(u user) error { u.kill(); return nil },
	}
	for name, end := range ends {
		for _, number := range []int{1, 2} { // the first is there already, the second is the user's own make
			t.Run(fmt.Sprint(name, number), func(t *testing.T) {
				c := open(t)
				put(t, c, "thing", 1, 9*time.Hour)
				u, err := startUser(t, c, fmt.Sprintf("%016x", number))
				if err != nil {
					t.Fatal(err)
				}
				// Enough that are newer, in a year: only its user keeps it.
				four(t, c, "thing", -time.Hour)
				old := time.Now().Add(-9 * time.Hour)
				nextYear := time.Now().Add(365 * 24 * time.Hour)
				for _, used := range []bool{true, false} {
					if err := os.Chtimes(u.path, old, old); err != nil {
						t.Fatal(err)
					}
					if _, err := c.pruneAt(t.Context(), nextYear, nobody); err != nil || there(u.path) != used {
						t.Fatalf("%s is there: %t, used: %t; %v", u.path, there(u.path), used, err)
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

func TestWhatALabNamesStaysAndADoubtKeepsEverything(t *testing.T) {
	c := open(t)
	oldest := four(t, c, "store", 2*time.Hour)[keptNewest]
	doubt := errors.New("a lab's record cannot be read")
	if _, err := c.Prune(t.Context(), func(string) (bool, error) { return false, doubt }); !errors.Is(err, doubt) || !there(oldest) {
		t.Errorf("in doubt it is there: %t, %v", there(oldest), err)
	}
	named := func(artifact string) (bool, error) { return artifact == filepath.Base(oldest), nil }
	if freed, err := c.Prune(t.Context(), named); err != nil || freed.Artifacts != 0 || !there(oldest) {
		t.Errorf("named it is there: %t, %+v, %v", there(oldest), freed, err)
	}
}

func TestPruningWaitsForNoBuild(t *testing.T) {
	c := open(t)
	oldest := four(t, c, "store", 2*time.Hour)[keptNewest]
	unlock, err := c.lock(t.Context(), "build", func() {})
	if err != nil {
		t.Fatal(err)
	}
	if freed, err := c.Prune(t.Context(), nobody); err != nil || freed != (Freed{}) || !there(oldest) {
		t.Errorf("beside a build: there %t, %+v, %v", there(oldest), freed, err)
	}
	unlock()
	if freed, err := c.Prune(t.Context(), nobody); err != nil || freed.Artifacts != 1 || there(oldest) {
		t.Errorf("after it: there %t, %+v, %v", there(oldest), freed, err)
	}
}

func TestWhatAKilledPruneLeftGoesWithTheNext(t *testing.T) {
	c := open(t)
	if err := os.Rename(put(t, c, "store", 1, 0), filepath.Join(c.dir, "tmp", "store-0000000000000001")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prune(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Whoever opens an artifact may be overtaken by one that drops it and one that
// makes it again before it has the lock.
func TestALockOnWhatWasDroppedMeanwhileIsNone(t *testing.T) {
	c := open(t)
	path := put(t, c, "store", 1, 0)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := c.claim(fd, path); err != nil {
		t.Fatalf("in its place: %v", err)
	}
	if err := os.Rename(path, filepath.Join(c.dir, "tmp", "dropped")); err != nil {
		t.Fatal(err)
	}
	if err := c.claim(fd, path); err == nil {
		t.Error("claimed what is gone")
	}
	put(t, c, "store", 1, 0)
	if err := c.claim(fd, path); err == nil {
		t.Error("claimed what was made again by what it was before")
	}
}

func TestUsersAreNeverRobbedByPrunesSideBySide(t *testing.T) {
	c := open(t)
	nextYear := time.Now().Add(365 * 24 * time.Hour)
	done := make(chan struct{})
	var pruners, users sync.WaitGroup
	var mu sync.Mutex
	dropped := 0
	for range 2 {
		another, err := Open(c.dir, c.source, c.log) // locks of its own, as another process
		if err != nil {
			t.Fatal(err)
		}
		pruners.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond) // whoever makes needs the lock too
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				freed, err := another.pruneAt(t.Context(), nextYear, nobody)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				dropped += freed.Artifacts
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
	if dropped == 0 {
		t.Error("nothing was dropped meanwhile")
	}
	if left := leftovers(t, c); len(left) > 7 || slices.ContainsFunc(left, func(l string) bool { return !strings.HasPrefix(l, "artifacts/thing-") }) {
		t.Errorf("left: %v", left)
	}
}
