//go:build netns

package testns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/test/isolate"
	"github.com/trunkline/trunkline/test/testns"
)

func TestStaleNamespacesAndCgroupsAreDeletedAndOthersKept(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		me, err := testns.Self()
		if err != nil {
			t.Fatal(err)
		}
		dead := exec.Command("true")
		if err := dead.Run(); err != nil {
			t.Fatal(err)
		}
		ended := testns.NewOwner(me, dead.Process.Pid, 1)
		for _, tc := range []struct {
			what  string
			name  string
			stays bool
		}{
			{"a process that has ended", "tl-" + ended.String() + "-1-dead", false},
			{"an ended process with the PID of this one", "tl-" + testns.NewOwner(me, os.Getpid(), -1).String() + "-1-namesake", false},
			{"the lab of a process that has ended", "tl-" + ended.String() + "-node1", false},
			{"this process", "tl-" + me.String() + "-1-alive", true},
			{"a process of another PID namespace", "tl-" + testns.Elsewhere(ended).String() + "-1-elsewhere", true},
			{"a lab", "tl-other-node1", true},
			{"a lab with the name of an instance type", "tl-t3-medium-node1", true},
			{"a lab with numbers in its name", "tl-t3-2-1-node1", true},
			{"a lab with the letter t and a number as its name", fmt.Sprintf("tl-t%d-node1", dead.Process.Pid), true},
		} {
			if err := netns.Make(tc.name); err != nil {
				t.Fatal(err)
			}
			cgroup := makeCgroup(t, tc.name)
			testns.RemoveStale()
			for _, path := range []string{netns.Path(tc.name), cgroup} {
				_, err := os.Stat(path)
				if stays := err == nil; stays != tc.stays {
					t.Errorf("%s of %s stays: %t, want %t", path, tc.what, stays, tc.stays)
				}
			}
		}
	})
}

// makeCgroup makes a cgroup in one of the trees.
func makeCgroup(t *testing.T, name string) string {
	t.Helper()
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		if _, err := os.Stat(filepath.Join(tree, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(tree, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	t.Fatal("no cgroup tree")
	return ""
}

func TestNamespaceEndsWithItsTestAndGoexitInsideIsReported(t *testing.T) {
	var name string
	t.Run("inner", func(t *testing.T) {
		ns := testns.New(t, "inner")
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
