//go:build netns

package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here identifies the namespace of the calling thread.
func here() (string, error) { return os.Readlink(threadNS) }

func testName(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("tl-test-of-netns-%d-%d", os.Getpid(), time.Now().UnixNano()) // testns imports this package
	t.Cleanup(func() {
		if err := Delete(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func TestANamespaceIsMadeOnceEnteredAndDeletedOnce(t *testing.T) {
	name := testName(t)
	for range 2 {
		if err := Make(name); err != nil {
			t.Fatal(err)
		}
	}
	inside := func() (id string) {
		t.Helper()
		if err := DoAt(Path(name), func() (err error) { id, err = here(); return err }); err != nil {
			t.Fatal(err)
		}
		return id
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if first := inside(); err != nil || first == home || inside() != first {
		t.Errorf("inside is %s, then %s; home is %s (%v)", first, inside(), home, err)
	}
	for range 2 {
		if err := Delete(name); err != nil {
			t.Error(err)
		}
	}
	if err := DoAt(Path(name), func() error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("enter a deleted namespace: %v", err)
	}
}

// A thread that was inside carries other goroutines afterwards.
func TestThreadsReturnToTheirNamespace(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	for range 50 {
		if err := Do(ns, func() error { return failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		found := make(chan string)
		for range 2 * runtime.GOMAXPROCS(0) {
			go func() {
				id, err := here()
				if err != nil {
					id = err.Error()
				}
				found <- id
			}()
		}
		for range 2 * runtime.GOMAXPROCS(0) {
			if id := <-found; id != home {
				t.Fatalf("a goroutine outside is in %s, home is %s", id, home)
			}
		}
	}
}

func TestAFunctionThatEndsItsGoroutineIsReported(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = Do(ns, func() error { runtime.Goexit(); return nil })
	if !errors.Is(err, ErrExited) {
		t.Errorf("got %v", err)
	}
}

func TestASocketStaysInItsNamespace(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var names []string
	if err := Do(ns, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			names = append(names, l.Name)
		}
		return err
	}); err != nil || len(names) != 1 || names[0] != "lo" {
		t.Errorf("links of a new namespace: %v, %v", names, err)
	}
}

func TestANameWithoutAMountIsDeleted(t *testing.T) {
	name := testName(t)
	if err := os.WriteFile(Path(name), nil, 0o444); err != nil { // its maker was killed before the mount
		t.Fatal(err)
	}
	if err := Delete(name); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(Path(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the name is left: %v", err)
	}
}

func TestWhatIsNoNamespaceCannotBeEntered(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	entered := false
	if err := Do(file, func() error { entered = true; return nil }); !errors.Is(err, unix.EINVAL) || entered {
		t.Errorf("got %v, entered %t", err, entered)
	}
}

func TestEnterMovesTheCallingThread(t *testing.T) {
	name := testName(t)
	if err := Make(name); err != nil {
		t.Fatal(err)
	}
	var want string
	if err := DoAt(Path(name), func() (err error) { want, err = here(); return err }); err != nil {
		t.Fatal(err)
	}
	type place struct {
		id  string
		err error
	}
	got := make(chan place)
	go func() {
		runtime.LockOSThread() // permanently: the thread ends with the goroutine
		if err := Enter(Path(name)); err != nil {
			got <- place{err: err}
			return
		}
		id, err := here()
		got <- place{id, err}
	}()
	if p := <-got; p.err != nil || p.id != want {
		t.Errorf("in %s, %v; want %s", p.id, p.err, want)
	}
}
