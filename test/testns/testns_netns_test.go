//go:build netns

package testns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

func TestStaleNamespacesAreDeletedAndOthersKept(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		owner string
		name  string
		stays bool
	}{
		{"a process that has ended", fmt.Sprintf("%s%d-0-dead", prefix, dead.Process.Pid), false},
		{"a dead process with the pid of this one", fmt.Sprintf("%s%d-0-namesake", prefix, os.Getpid()), false},
		{"a process that runs", prefix + "1-0-alive", true},
		{"another program", "tl-other-node1", true},
	} {
		if err := netns.Make(tc.name); err != nil {
			t.Fatal(err)
		}
		removeStale()
		_, err := os.Stat(netns.Path(tc.name))
		if stays := err == nil; stays != tc.stays {
			t.Errorf("the namespace of %s stays: %t, want %t", tc.owner, stays, tc.stays)
		}
		if err == nil {
			if err := netns.Delete(tc.name); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNamespaceEndsWithItsTestAndGoexitInsideIsReported(t *testing.T) {
	var name string
	t.Run("inner", func(t *testing.T) {
		ns := New(t, "inner")
		name = ns.Path
		var here, home string
		ns.Do(t, func() { here, _ = os.Readlink("/proc/thread-self/ns/net") })
		home, _ = os.Readlink("/proc/self/ns/net")
		if here == "" || here == home {
			t.Errorf("inside is %q, outside %q", here, home)
		}
		if err := ns.Run(func() error { runtime.Goexit(); return nil }); !errors.Is(err, netns.ErrExited) {
			t.Errorf("a function that ended its goroutine: %v", err)
		}
	})
	if _, err := os.Stat(name); err == nil {
		t.Errorf("%s still exists", name)
	}
}
