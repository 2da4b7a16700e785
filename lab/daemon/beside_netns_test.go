//go:build netns

package daemon_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
	"github.com/trunkline/trunkline/test/isolate"
)

// standIn is what a running lab has on a machine, without its programs.
type standIn struct {
	name    string
	process *exec.Cmd
}

const raised = "/proc/sys/fs/inotify/max_user_instances"

// newStandIn brings a lab up. Its tests run on a machine of their own, so it may have any
// name.
func newStandIn(t *testing.T, name string) standIn {
	t.Helper()
	dir := daemon.StateDir(name)
	must(t, os.MkdirAll(filepath.Join(dir, "nodes", "node1", "root"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "lab.json"), []byte(`{"lab":{"name":"`+name+`"}}`), 0o600))
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "nodes", "node1", "root"), "tmpfs", 0, ""))
	for _, member := range []string{"vpc", "cp", "net", "node1", "node2"} {
		must(t, netns.Make(daemon.NetNS(name, member)))
	}
	trees, err := node.Hierarchies()
	must(t, err)
	for _, tree := range trees {
		must(t, os.MkdirAll(filepath.Join(tree.Mount, node.CgroupDir(name), "node1"), 0o755))
	}
	must(t, sweep.RaiseSysctls(daemon.StateRoot, slog.New(slog.DiscardHandler)))
	s := standIn{name, exec.Command("sleep", "3600")}
	s.process.Env = []string{component.Mark(name)}
	must(t, s.process.Start())
	for s.commandLine() == "" { // until execve(2) is complete
		runtime.Gosched()
	}
	return s
}

// facts returns everything of the lab: files with a hash of their content, mounts and
// namespaces with their identity, cgroups, its process and the raised setting.
func (s standIn) facts(t *testing.T) map[string]string {
	t.Helper()
	facts := map[string]string{"raised": read(raised)}
	facts["process"] = s.commandLine()
	_ = filepath.WalkDir(daemon.StateRoot, func(path string, d fs.DirEntry, err error) error {
		within := path == daemon.StateDir(s.name) || strings.HasPrefix(path, daemon.StateDir(s.name)+"/")
		if err != nil || !within && filepath.Base(path) != "machine.json" {
			return nil //nolint:nilerr // another lab's, or removed meanwhile
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		facts[path] = fmt.Sprintf("%o %d %x", st.Mode, st.Mtim.Nano(), sha256.Sum256([]byte(read(path))))
		if filepath.Base(path) == "machine.json" { // another lab may write it again, with the same content
			facts[path] = read(path)
		}
		return nil
	})
	for _, member := range []string{"vpc", "cp", "net", "node1", "node2"} {
		var st unix.Stat_t
		err := unix.Stat(netns.Path(daemon.NetNS(s.name, member)), &st)
		facts["namespace "+member] = fmt.Sprintf("%d:%d %v", st.Dev, st.Ino, err)
	}
	trees, err := node.Hierarchies()
	must(t, err)
	for _, tree := range trees {
		_, err := os.Stat(filepath.Join(tree.Mount, node.CgroupDir(s.name), "node1"))
		facts["cgroup "+tree.Mount] = fmt.Sprint(err)
	}
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, daemon.StateDir(s.name)+"/") {
			facts["mount "+at] = line
		}
	}
	return facts
}

func (s standIn) commandLine() string {
	return strings.ReplaceAll(read(fmt.Sprintf("/proc/%d/cmdline", s.process.Process.Pid)), "\x00", " ")
}

func read(path string) string {
	b, _ := os.ReadFile(path) // a missing file is empty
	return string(b)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changed returns what differs between two states of a lab.
func changed(before, after map[string]string) (out []string) {
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if before[name] != after[name] {
			out = append(out, fmt.Sprintf("%s: %q, was %q", name, after[name], before[name]))
		}
	}
	return out
}

// end removes the lab, in the ways in which another program could harm it.
func (s standIn) end(t *testing.T) {
	t.Helper()
	_, err := sweep.Sweep(context.Background(), sweep.Options{Lab: s.name, StateDir: daemon.StateDir(s.name)})
	_ = s.process.Wait() // killed by the sweep
	must(t, err)
}

// A lab is unharmed while others with similar names crash, start and stop, and while the
// tests of this project run as root.
func TestALabIsUnharmedByOtherLabsAndByTests(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		labs := []standIn{newStandIn(t, spec.DefaultName)}
		for _, name := range []string{"none", "unit", "test", "of-a-script", "e2e", "t3-medium"} {
			labs = append(labs, newStandIn(t, name))
		}
		before := map[string]map[string]string{}
		for _, l := range labs {
			before[l.name] = l.facts(t)
		}
		unharmed := func(t *testing.T) {
			t.Helper()
			for _, l := range labs {
				if diff := changed(before[l.name], l.facts(t)); len(diff) > 0 {
					t.Errorf("lab %s was changed:\n%s", l.name, strings.Join(diff, "\n"))
				}
			}
		}
		for _, name := range []string{"la", "lab-2", "lab2", "b", "another"} {
			t.Run("lab "+name+" is swept", func(t *testing.T) {
				l := newStandIn(t, name)
				must(t, sweep.Leftovers(t.Context(), sweep.Options{Lab: name, StateDir: daemon.StateDir(name)}))
				l.end(t)
				unharmed(t)
			})
		}
		t.Run("a daemon starts and stops", func(t *testing.T) {
			startAndStop(t, "another", func() {})
			unharmed(t)
		})
		t.Run("the unit tests of the lab run", func(t *testing.T) {
			runTests(t, "", "../cli", "../daemon", "../sweep", "../node", "../preflight", "../controlplane")
			unharmed(t)
		})
		t.Run("the netns tests run", func(t *testing.T) {
			runTests(t, "netns", "../sweep", "../node", "../preflight", "../../test/testns", "../../internal/kernel/netns")
			unharmed(t)
		})
		for _, l := range labs {
			l.end(t)
		}
		if _, err := os.Stat(daemon.StateRoot); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the last lab left %s: %v", daemon.StateRoot, err)
		}
	})
}

// The directory of named namespaces is as `ip netns add` would make it. It stays as it was
// before the first lab: with other names in it, or absent.
func TestALabSharesTheDirectoryOfNamespacesAndRemovesOnlyWhatLabsCreated(t *testing.T) {
	mounts := func() (n int, shared bool) {
		for line := range strings.Lines(read("/proc/self/mountinfo")) {
			if strings.Fields(line)[4] == netns.Dir {
				n, shared = n+1, strings.Contains(line, " shared:")
			}
		}
		return n, shared
	}
	isShared := func(t *testing.T) {
		t.Helper()
		if n, shared := mounts(); n != 1 || !shared {
			t.Errorf("%s is mounted %d times, shared %t; want once and shared", netns.Dir, n, shared)
		}
	}
	isolate.Run(t, func(t *testing.T) {
		startAndStop(t, "first", func() { isShared(t) })
		if _, err := os.Stat(netns.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("labs created %s, and it is left: %v", netns.Dir, err)
		}
		must(t, netns.Make("of-another-program"))
		for range 2 {
			startAndStop(t, "again", func() { isShared(t) })
			isShared(t)
		}
		must(t, netns.DoAt(netns.Path("of-another-program"), func() error { return nil }))
	})
}

// startAndStop runs a daemon without a world, and calls running meanwhile.
func startAndStop(t *testing.T, name string, running func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- daemon.Serve(ctx, daemon.Options{Name: name, StateDir: daemon.StateDir(name)}, slog.New(slog.DiscardHandler))
	}()
	client := daemon.NewClient(daemon.StateDir(name))
	for _, err := client.Status(ctx); err != nil; _, err = client.Status(ctx) {
		select {
		case err := <-done:
			t.Fatalf("the daemon ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	running()
	must(t, client.Stop(ctx))
	must(t, <-done)
	cancel()
	_, err := sweep.Sweep(t.Context(), sweep.Options{Lab: name, StateDir: daemon.StateDir(name)})
	must(t, err)
}

// runTests runs the tests of packages beside the labs.
func runTests(t *testing.T, tag string, packages ...string) {
	t.Helper()
	args := append([]string{"test", "-count=1", "-tags=" + tag}, packages...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Errorf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Each way to harm a lab is detected.
func TestHarmToALabIsDetected(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		trees, err := node.Hierarchies()
		must(t, err)
		for _, harm := range []struct {
			what string
			do   func(t *testing.T, l standIn)
		}{
			{"its process is killed", func(t *testing.T, l standIn) {
				must(t, l.process.Process.Kill())
				_ = l.process.Wait() // killed
			}},
			{"a namespace is deleted", func(t *testing.T, l standIn) { must(t, netns.Delete(daemon.NetNS(l.name, "node2"))) }},
			{"a namespace is replaced", func(t *testing.T, l standIn) {
				kept, err := os.Open(netns.Path(daemon.NetNS(l.name, "cp"))) // so that its inode is not used again
				must(t, err)
				t.Cleanup(func() { kept.Close() })
				must(t, netns.Delete(daemon.NetNS(l.name, "cp")))
				must(t, netns.Make(daemon.NetNS(l.name, "cp")))
			}},
			{"a cgroup is removed", func(t *testing.T, l standIn) {
				must(t, node.RemoveCgroup(filepath.Join(trees[0].Mount, node.CgroupDir(l.name))))
			}},
			{"a mount is removed", func(t *testing.T, l standIn) {
				must(t, unix.Unmount(filepath.Join(daemon.StateDir(l.name), "nodes", "node1", "root"), 0))
			}},
			{"a file is changed", func(t *testing.T, l standIn) {
				must(t, os.WriteFile(filepath.Join(daemon.StateDir(l.name), "lab.json"), nil, 0o600))
			}},
			{"the record is removed", func(t *testing.T, _ standIn) { must(t, os.Remove(filepath.Join(daemon.StateRoot, "machine.json"))) }},
			{"a setting is restored", func(t *testing.T, _ standIn) { must(t, os.WriteFile(raised, []byte("128"), 0o644)) }},
			{"it is swept", func(t *testing.T, l standIn) { l.end(t) }},
		} {
			t.Run(harm.what, func(t *testing.T) {
				l := newStandIn(t, spec.DefaultName)
				before := l.facts(t)
				if diff := changed(before, l.facts(t)); len(diff) > 0 {
					t.Fatalf("without harm: %v", diff)
				}
				harm.do(t, l)
				if len(changed(before, l.facts(t))) == 0 {
					t.Error("not detected")
				}
				l.end(t)
			})
		}
	})
}
