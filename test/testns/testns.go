// Package testns gives a test network namespaces of its own and takes them away
// again, also after a crash: every name carries the test process's pid, and the
// next run removes what a dead process left.
//
// Only tests and benchmarks import it. It needs root; tests that use it carry the
// build tag "netns".
package testns

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// prefix begins the names of tests' namespaces.
const prefix = "tl-t"

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
	return netns.DoAt(n.Path, fn)
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

// removeStale deletes the namespaces of test processes that no longer run. This
// process has made none yet: those of its number are a dead namesake's.
func removeStale() {
	entries, err := os.ReadDir(netns.Dir)
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
		_ = netns.Delete(e.Name())
	}
}
