package sweep

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/node/component"
)

func TestNamespacesBelongToTheLabInTheirName(t *testing.T) {
	for name, want := range map[string]bool{
		"tl-a-node1": true, "tl-a-vpc": true, "tl-a-cp": true,
		"tl-a-b-node1": false, // of lab "a-b"
		"tl-ab-node1":  false, "tl-a-": false, "tl-a": false, "node1": false, "cni-1234": false,
	} {
		if _, got := member(name, "a"); got != want {
			t.Errorf("%s belongs to lab a: %t, want %t", name, got, want)
		}
	}
	if m, ok := member("tl-a-b-node1", "a-b"); !ok || m != "node1" {
		t.Errorf("node1 of lab a-b: %q, %t", m, ok)
	}
}

func TestOnlyProcessesWithTheExactMarkBelongToTheLab(t *testing.T) {
	proc := t.TempDir()
	for pid, env := range map[int]string{
		10: component.Mark("lab") + "\x00PATH=/bin\x00",
		11: "PATH=/bin\x00" + component.Mark("lab"),
		12: component.Mark("lab2") + "\x00",              // another lab
		13: "X" + component.Mark("lab") + "\x00",         // another variable
		14: "TRUNKLINE_LAB_NAME=lab\x00",                 // a user's shell
		15: "A=" + component.Mark("lab") + " inside\x00", // text within a value
		16: "",                                           // kernel thread
	} {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "environ"), []byte(env), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(proc, "17"), 0o755); err != nil { // exited in the meantime
		t.Fatal(err)
	}
	got, err := marked(proc, "lab")
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{10, 11}) {
		t.Errorf("processes %v, %v; want 10 and 11", got, err)
	}
}

// A PID may be reused between the listing and the kill.
func TestAProcessWithoutTheMarkIsNotKilled(t *testing.T) {
	other := exec.CommandContext(t.Context(), "sleep", "600")
	other.Env = []string{component.Mark("other")}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = other.Wait() // ended by this test
	}()
	if killed, err := killOne(other.Process.Pid, "lab"); err != nil || killed {
		t.Errorf("killed %t, %v", killed, err)
	}
	if err := other.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("the process has exited: %v", err)
	}
	<-ended
	if status, ok := other.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("the process ended with %s, want the signal of this test", other.ProcessState)
	}
}

func TestMountsBelowADirectoryComeDeepestFirst(t *testing.T) {
	const table = `1 0 0:1 / / rw - ext4 /dev/vda rw
2 1 0:2 / /state/lab rw - tmpfs tmpfs rw
3 2 0:3 / /state/lab/nodes/a\040b rw - tmpfs tmpfs rw
4 1 0:4 / /state/lab2 rw - tmpfs tmpfs rw
5 3 0:5 / /state/lab/nodes/a\040b/proc rw - proc proc rw
`
	got, err := parseMountsBelow(strings.NewReader(table), "/state/lab")
	want := []string{"/state/lab/nodes/a b/proc", "/state/lab/nodes/a b", "/state/lab"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("mounts %q, %v; want %q", got, err, want)
	}
}

// settings is a directory of sysctl files with values.
func settings(t *testing.T, values map[string]string) machine {
	t.Helper()
	m := machine{dir: t.TempDir(), names: t.TempDir()}
	for path, v := range values {
		file := filepath.Join(m.dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(v+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestTheLastLabRestoresTheMachinesSettings(t *testing.T) {
	const low, high = "net/ipv4/neigh/default/gc_thresh3", "fs/inotify/max_user_watches"
	m := settings(t, map[string]string{low: "1024", high: "9999999"})
	root := filepath.Join(t.TempDir(), "labs")
	read := func(path string) string {
		v, err := m.read(path)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, lab := range []string{"a", "b"} {
		if err := os.MkdirAll(filepath.Join(root, lab), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := m.raise(root, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	if read(low) != "16384" || read(high) != "9999999" {
		t.Errorf("raised to %s and %s; want 16384 and the higher value unchanged", read(low), read(high))
	}
	for _, step := range []struct {
		lab, want string
		restored  int
	}{{"a", "16384", 0}, {"b", "1024", 1}} {
		if err := os.RemoveAll(filepath.Join(root, step.lab)); err != nil {
			t.Fatal(err)
		}
		restored, err := m.restoreWhenLast(root)
		if err != nil || len(restored) != step.restored || read(low) != step.want {
			t.Errorf("after lab %s: restored %v (%v), value %s; want %d and %s", step.lab, restored, err, read(low), step.restored, step.want)
		}
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the labs' root was not removed: %v", err)
	}
	if restored, err := m.restoreWhenLast(root); err != nil || len(restored) != 0 {
		t.Errorf("the second restore changed %v, %v", restored, err)
	}
}

func TestASettingRaisedFurtherByAnotherProgramIsNotRestored(t *testing.T) {
	const raised, lowered = "net/ipv4/neigh/default/gc_thresh3", "fs/inotify/max_user_instances"
	m := settings(t, map[string]string{raised: "1024", lowered: "128"})
	root := filepath.Join(t.TempDir(), "labs")
	mkdir(t, filepath.Join(root, "a"))
	if err := m.raise(root, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for path, value := range map[string]string{raised: "65536", lowered: "512"} {
		if err := m.write(path, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.restoreWhenLast(root); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{raised: "65536", lowered: "128"} {
		if got, err := m.read(path); err != nil || got != want {
			t.Errorf("%s is %s (%v), want %s", path, got, err, want)
		}
	}
}

func TestControllersEnabledByLabsAreDisabledAgain(t *testing.T) {
	m := settings(t, nil)
	m.cgroups = t.TempDir()
	at := filepath.Join(m.cgroups, controlFile)
	root := filepath.Join(t.TempDir(), "labs")
	write := func(text string) {
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cpu memory\n")
	for _, enabled := range []string{"cpu memory\n", "cpu memory io\n"} { // the second lab finds the change of the first
		write(enabled)
		mkdir(t, filepath.Join(root, "a"))
		if err := m.raise(root, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	restored, err := m.restoreWhenLast(root)
	if err != nil || !slices.Equal(restored, []string{at + " io"}) {
		t.Errorf("disabled %v, %v; want io", restored, err)
	}
	if written, err := os.ReadFile(at); err != nil || string(written) != "-io" {
		t.Errorf("wrote %q, %v; want -io", written, err)
	}
}

// A setting that cannot be written, as with a read-only /proc/sys, was never raised.
func TestASettingThatCannotBeRaisedIsNotRestored(t *testing.T) {
	m := settings(t, map[string]string{"net/ipv6/neigh/default/gc_thresh3": "1024"})
	readOnly := filepath.Join(m.dir, "net/ipv4/neigh/default/gc_thresh3")
	mkdir(t, filepath.Dir(readOnly))
	if err := os.Symlink("/proc/sys/kernel/cap_last_cap", readOnly); err != nil { // root cannot write it either
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "labs")
	if err := m.raise(root, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	restored, err := m.restoreWhenLast(root)
	if err != nil || !slices.Equal(restored, []string{"net/ipv6/neigh/default/gc_thresh3"}) {
		t.Errorf("restored %v, %v", restored, err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the labs' root was not removed: %v", err)
	}
}

// The last lab removes the lock file while the next lab waits for the lock.
func TestALabThatWaitsForARemovedLockTakesTheNewOne(t *testing.T) {
	m := settings(t, nil)
	root := filepath.Join(t.TempDir(), "labs")
	held, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	st, err := held.Stat()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.raise(root, slog.New(slog.DiscardHandler)) }()
	waiting := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d `, st.Sys().(*syscall.Stat_t).Ino))
	deadline := time.Now().Add(time.Minute)
	for seen := false; !seen; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("no process waits for the lock")
		}
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		seen = waiting.Match(locks)
	}
	if err := os.Remove(filepath.Join(root, lockFile)); err != nil {
		t.Fatal(err)
	}
	held.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, lockFile)); err != nil {
		t.Errorf("it continued with the lock of a removed file: %v", err)
	}
}

func TestTheLastLabRemovesTheNamespaceDirectoryThatLabsCreated(t *testing.T) {
	for _, c := range []struct {
		name         string
		before, used bool // the directory existed; another program's namespace is in it
		kept         bool
	}{
		{"created by the lab", false, false, false},
		{"existed before", true, false, true},
		{"created by the lab and used by another program", false, true, true},
	} {
		m := settings(t, nil)
		m.names = filepath.Join(t.TempDir(), "netns")
		root := filepath.Join(t.TempDir(), "labs")
		if c.before {
			mkdir(t, m.names)
		}
		mkdir(t, filepath.Join(root, "a"))
		if err := m.raise(root, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		mkdir(t, m.names)
		if c.used {
			mkdir(t, filepath.Join(m.names, "others"))
		}
		if err := os.Remove(filepath.Join(root, "a")); err != nil {
			t.Fatal(err)
		}
		if _, err := m.restoreWhenLast(root); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Stat(m.names); (err == nil) != c.kept {
			t.Errorf("%s: kept %v, want %v", c.name, err == nil, c.kept)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestADiffContainsAddedAndRemovedEntries(t *testing.T) {
	before := Snapshot{{"link", "", "lo"}: 1, {"link", "", "veth"}: 2, {"route", "", "a"}: 1}
	after := Snapshot{{"link", "", "lo"}: 1, {"link", "", "veth"}: 1, {"mount", "a", "/x"}: 1, {"route", "", "a"}: 1}
	if got, want := fmt.Sprint(before.Diff(after)), "[- link: veth + mount: /x]"; got != want {
		t.Errorf("diff %s, want %s", got, want)
	}
	if got := before.Diff(before); len(got) != 0 {
		t.Errorf("the diff of equal snapshots is %v", got)
	}
}

func TestAChangeIsALeftoverOfTheLabItBelongsTo(t *testing.T) {
	const yes, no, unknown = "left", "another lab's", "unknown"
	for _, tc := range []struct {
		change string // for the messages
		Entry
		alone, beside string // without and beside another lab
	}{
		{"a namespace of the lab", Entry{"namespace", "e2e-1", "/run/netns/tl-e2e-1-node1"}, yes, yes},
		{"a namespace of another lab", Entry{"namespace", "lab", "/run/netns/tl-lab-node1"}, no, no},
		{"a namespace of another program", Entry{"namespace", "", "/run/netns/cni-12"}, yes, unknown},
		{"a file with the lab's name", Entry{"file", "", "/tmp/tl-e2e-1"}, yes, yes},
		{"a file with a name that begins with the lab's", Entry{"file", "", "/tmp/tl-e2e-12"}, yes, unknown},
		{"a file with a name that ends with the lab's", Entry{"file", "", "/tmp/a-e2e-1"}, unknown, unknown},
		{"a file of a program of labs", Entry{"file", "", "/tmp/containerd-mount1"}, yes, unknown},
		{"a file of another checkout's mutants", Entry{"file", "", "/tmp/trunkline-mutants-1/tree/go.mod 0644, 1 bytes of 1.2"}, unknown, unknown},
		{"a file of another checkout's test", Entry{"file", "", "/tmp/TestAPod12/001/containerd.sock"}, unknown, unknown},
		{"a folder of another checkout's test", Entry{"file", "", "/tmp/tl-d1234/lab"}, unknown, unknown},
		{"a file with the lab's name in a folder of tests", Entry{"file", "", "/tmp/TestLab1/tl-e2e-1"}, yes, yes},
		{"a file of another program", Entry{"file", "", "/tmp/notes"}, unknown, unknown},
		{"a link of another program", Entry{"link", "", "docker0 bridge"}, unknown, unknown},
		{"a link of a pod", Entry{"link", "", "eni4f2ab veth"}, yes, unknown},
		{"a raised sysctl", Entry{"sysctl", "", "fs/inotify/max_user_instances = 1024"}, yes, unknown},
		{"another sysctl", Entry{"sysctl", "", "vm/swappiness = 1"}, unknown, unknown},
		{"enabled controllers", Entry{"cgroup", "", "/sys/fs/cgroup enables controllers cpu"}, yes, unknown},
	} {
		for beside, want := range map[bool]string{false: tc.alone, true: tc.beside} {
			before := Snapshot{}
			if beside {
				before[Entry{"state", "lab", "/var/lib/trunkline-lab/lab"}] = 1
			}
			after := maps.Clone(before)
			after[tc.Entry]++
			if !beside && tc.Lab != "" && tc.Lab != "e2e-1" {
				continue // then there is another lab
			}
			got := no
			if left, rest := before.Leftovers(after, "e2e-1"); len(left) > 0 {
				got = yes
			} else if len(rest) > 0 {
				got = unknown
			}
			if got != want {
				t.Errorf("%s, beside another lab %t: %s, want %s", tc.change, beside, got, want)
			}
			if left, _ := after.Leftovers(before, "e2e-1"); len(left) > 0 {
				t.Errorf("%s, which ended: left %v", tc.change, left)
			}
		}
	}
}

func TestThingsBelongToTheLabInTheirNameOrPath(t *testing.T) {
	v := View{StateRoot: "/var/lib/trunkline-lab"}
	for path, want := range map[string]string{
		"/run/netns/tl-a-node1": "a", "/run/netns/tl-a-b-cp": "a-b", "/run/netns/tl-a": "", "/run/netns/cni-1-2": "", "/run/netns/tl-": "",
		"/var/lib/trunkline-lab/a": "a", "/var/lib/trunkline-lab/a/nodes/node1/root": "a",
		"/var/lib/trunkline-lab": "", "/var/lib/trunkline-lab/machine.json": "", "/var/lib/trunkline-lab/machine.lock": "", "/tmp/a": "",
	} {
		if got := v.labOfPath(path); got != want {
			t.Errorf("%s belongs to lab %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]string{"/tl-a/node1/kubepods": "a", "/tl-a-b": "a-b", "/system.slice": "", "/": ""} {
		if got := labOfCgroup(path); got != want {
			t.Errorf("cgroup %s belongs to lab %q, want %q", path, got, want)
		}
	}
}
