// Package testns gives a test network namespaces of its own and takes them away
// again, also after a crash: every name carries the test process's pid, and the
// next run removes what a dead process left.
//
// Only tests and benchmarks import it. It needs root; tests that use it carry the
// build tag "netns".
package testns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	dir    = "/run/netns"
	prefix = "tl-t"
)

// NS is a named network namespace that lives as long as its test.
type NS struct {
	Name string // in /run/netns, such as "tl-t4242-0-node"
	Path string
}

// T is what a namespace needs of a test, or of a benchmark outside `go test`.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Cleanup(fn func())
}

type sequence struct {
	next  atomic.Uint64
	sweep sync.Once
}

var seq sequence // names must differ between the tests of one process

// New makes a namespace whose loopback is down, as the kernel makes it. It is
// deleted when the test ends.
func New(t T, label string) *NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run `make test-netns` as root")
	}
	seq.sweep.Do(removeStale)
	name := fmt.Sprintf("%s%d-%d-%s", prefix, os.Getpid(), seq.next.Add(1), label)
	if err := create(name); err != nil {
		t.Fatalf("create namespace %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := netns.DeleteNamed(name); err != nil {
			t.Errorf("delete namespace %s: %v", name, err)
		}
	})
	return &NS{Name: name, Path: filepath.Join(dir, name)}
}

// Do runs fn on a thread that is inside the namespace. fn must not start
// goroutines that are meant to be inside too.
func (n *NS) Do(t T, fn func()) {
	t.Helper()
	if err := n.Run(func() error { fn(); return nil }); err != nil {
		t.Fatalf("enter %s: %v", n.Name, err)
	}
}

// Run is Do with an error, for use outside a test's own goroutine.
func (n *NS) Run(fn func() error) error {
	target, err := netns.GetFromPath(n.Path)
	if err != nil {
		return err
	}
	defer target.Close()
	return inThread(func() error {
		if err := netns.Set(target); err != nil {
			return err
		}
		return fn()
	})
}

// Open returns a descriptor of the namespace; the test's end closes it.
func (n *NS) Open(t T) *os.File {
	t.Helper()
	f, err := os.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// errLeft is what a function that called t.Fatal leaves behind.
var errLeft = errors.New("the function did not return: it failed the test from inside")

// inThread runs fn on an OS thread whose namespace is put back afterwards. A
// thread that cannot be put back is never reused, nor is that of a function that
// ends its goroutine, as t.Fatal does: the caller gets errLeft instead of waiting
// for good.
func inThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errLeft
		defer func() { done <- err }()
		runtime.LockOSThread()
		origin, openErr := netns.Get()
		if openErr != nil {
			err = openErr
			return
		}
		defer origin.Close()
		result := fn()
		if back := netns.Set(origin); back == nil {
			runtime.UnlockOSThread()
		}
		err = result
	}()
	return <-done
}

func create(name string) error {
	return inThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return h.Close()
	})
}

// removeStale deletes the namespaces of test processes that no longer run. This
// process has made none yet: those of its number are a dead namesake's.
func removeStale() {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), prefix)
		pidText, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(pidText)
		if !ours || err != nil || pid != os.Getpid() && unix.Kill(pid, 0) == nil {
			continue
		}
		_ = netns.DeleteNamed(e.Name())
	}
}
