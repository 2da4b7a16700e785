// Package testns creates network namespaces for a test and deletes them, also after a
// crash: every name contains the identity of the test process, and the next run deletes
// those of processes that have ended. Lab names a test's lab in the same way, so that what
// a killed test leaves of its lab is deleted too.
//
// Only tests and benchmarks import it. It needs root; tests that use it carry the
// build tag "netns".
package testns

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// NS is a named network namespace with the lifetime of its test.
type NS struct {
	Name string // in /run/netns, such as "tl-t1z141z0-39u-4qf1-1-node"
	Path string
}

// T is the part of testing.TB that New needs; a benchmark outside `go test` can
// implement it.
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

var seq sequence // makes names unique within the process

// New makes a namespace in the kernel's initial state (loopback down). It is deleted
// when the test ends.
func New(t T, label string) *NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run `make test-netns` as root")
	}
	seq.sweep.Do(removeStale)
	name := fmt.Sprintf("tl-%s-%d-%s", Lab(), seq.next.Add(1), label)
	if err := netns.Make(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Errorf("%v", err)
		}
	})
	return &NS{Name: name, Path: netns.Path(name)}
}

// Do runs fn on a thread inside the namespace. Goroutines that fn starts are outside
// of it.
func (n *NS) Do(t T, fn func()) {
	t.Helper()
	if err := n.Run(func() error { fn(); return nil }); err != nil {
		t.Fatalf("enter %s: %v", n.Name, err)
	}
}

// Run is Do with an error, for use outside a test's own goroutine.
func (n *NS) Run(fn func() error) error {
	return netns.DoAt(n.Path, fn)
}

// Open returns a file descriptor of the namespace, which is closed when the test
// ends.
func (n *NS) Open(t T) *os.File {
	t.Helper()
	f, err := os.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// removeStale deletes the namespaces and cgroups of test processes that have ended.
func removeStale() {
	removeStaleCgroups()
	entries, err := os.ReadDir(netns.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if o, ok := ownerOf(e.Name()); ok && o.ended() {
			_ = netns.Delete(e.Name())
		}
	}
}
