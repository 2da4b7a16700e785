//go:build netns

package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/test/isolate"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// id identifies the namespace of a name; empty if it cannot be entered.
func id(name string) (id string) {
	_ = netns.DoAt(netns.Path(name), func() (err error) { // then the ID is empty
		id, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	return id
}

// mountsOf returns the lines of mountinfo about a name.
func mountsOf(t *testing.T, mountinfo, name string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(mountinfo)
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " "+netns.Path(name)+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// onItself mounts Dir on itself, with the mounts below it.
func onItself(t *testing.T) {
	t.Helper()
	must(t, unix.Mount(netns.Dir, netns.Dir, "", unix.MS_BIND|unix.MS_REC, ""))
}

func propagation(t *testing.T, flag uintptr) {
	t.Helper()
	must(t, unix.Mount("", netns.Dir, "", flag|unix.MS_REC, ""))
}

// `ip netns add` mounts /run/netns on itself when it is first used after a boot, over the
// namespaces that exist by then; other programs do it again.
func TestANamespaceBelowStackedMountsIsDeletedAndOthersStay(t *testing.T) {
	stacks := []struct {
		name  string
		stack func(t *testing.T)
	}{
		{"none", func(*testing.T) {}},
		{"private", func(t *testing.T) { onItself(t) }},
		{"private three times", func(t *testing.T) { onItself(t); onItself(t); onItself(t) }},
		{"shared, as by ip netns add", func(t *testing.T) { onItself(t); propagation(t, unix.MS_SHARED) }},
		{"shared three times", func(t *testing.T) {
			for range 3 {
				onItself(t)
				propagation(t, unix.MS_SHARED)
			}
		}},
		{"shared below private", func(t *testing.T) {
			onItself(t)
			propagation(t, unix.MS_SHARED)
			onItself(t)
			propagation(t, unix.MS_PRIVATE)
		}},
		{"without the mounts below", func(t *testing.T) { must(t, unix.Mount(netns.Dir, netns.Dir, "", unix.MS_BIND, "")) }},
		{"ip netns add", func(t *testing.T) {
			if out, err := exec.Command("ip", "netns", "add", "by-ip").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}},
		{"/run on itself", func(t *testing.T) { must(t, unix.Mount("/run", "/run", "", unix.MS_BIND|unix.MS_REC, "")) }},
		{"/run at another place", func(t *testing.T) {
			must(t, os.Mkdir("/var/lib/alias", 0o755))
			must(t, unix.Mount("/run", "/var/lib/alias", "", unix.MS_BIND|unix.MS_REC, ""))
		}},
	}
	isolate.Run(t, func(t *testing.T) {
		for i, s := range stacks {
			t.Run(s.name, func(t *testing.T) {
				early, kept, late := fmt.Sprint("early", i), fmt.Sprint("kept", i), fmt.Sprint("late", i)
				must(t, netns.Make(early))
				must(t, netns.Make(kept))
				t.Cleanup(func() { // the case's own stack
					for unix.Unmount(netns.Dir, unix.MNT_DETACH) == nil {
					}
				})
				s.stack(t)
				must(t, netns.Make(late))
				before := id(kept)
				mounts := mountsOf(t, "/proc/self/mountinfo", kept)
				for _, name := range []string{early, late} {
					if err := netns.Delete(name); err != nil {
						t.Error(err)
					}
					if left := mountsOf(t, "/proc/self/mountinfo", name); len(left) > 0 {
						t.Errorf("mounts of %s are left, and with them the namespace:\n%s", name, strings.Join(left, ""))
					}
					if _, err := os.Stat(netns.Path(name)); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s is left: %v", name, err)
					}
				}
				if now := id(kept); now != before {
					t.Errorf("another namespace was %s and is %s", before, now)
				}
				if now := mountsOf(t, "/proc/self/mountinfo", kept); strings.Join(now, "") != strings.Join(mounts, "") {
					t.Errorf("the mounts of another namespace were\n%sand are\n%s", strings.Join(mounts, ""), strings.Join(now, ""))
				}
			})
		}
	})
}

// A container that has /run of the machine keeps the mounts that existed when it started.
func TestANamespaceThatIsMountedInAnotherMountNamespaceIsDeletedThereToo(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		for _, flag := range []struct {
			name string
			flag uintptr
		}{{"private", unix.MS_PRIVATE}, {"slave", unix.MS_SLAVE}, {"shared", unix.MS_SHARED}} {
			t.Run(flag.name, func(t *testing.T) {
				name := "seen-by-a-" + flag.name
				must(t, netns.Share())
				must(t, netns.Make(name))
				other := exec.Command("unshare", "--mount", "--propagation="+flag.name, "sh", "-c", "echo ready; exec sleep 300")
				out, err := other.StdoutPipe()
				must(t, err)
				must(t, other.Start())
				t.Cleanup(func() {
					must(t, other.Process.Kill())
					_ = other.Wait() // killed
				})
				_, err = out.Read(make([]byte, 1))
				must(t, err)
				mountinfo := fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid)
				if len(mountsOf(t, mountinfo, name)) == 0 {
					t.Fatal("the other mount namespace has no mount of it")
				}
				must(t, netns.Delete(name))
				if left := mountsOf(t, mountinfo, name); len(left) > 0 {
					t.Errorf("it is still mounted there: %s", left)
				}
			})
		}
	})
}

func TestADirectoryOnAnotherFileSystemHidesNamesThatAreThenAbsent(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		must(t, netns.Make("hidden"))
		must(t, unix.Mount("tmpfs", netns.Dir, "tmpfs", 0, ""))
		must(t, netns.Delete("hidden"))
		must(t, unix.Unmount(netns.Dir, 0))
		if id("hidden") == "" {
			t.Error("a namespace of a hidden directory was deleted")
		}
	})
}

func TestShareDoesWhatIPNetnsAddDoesAndOnlyOnce(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		dirMounts := func() []string { return mountsOf(t, "/proc/self/mountinfo", "") }
		must(t, netns.Make("early"))
		must(t, netns.Share())
		first := dirMounts()
		if len(first) != 1 || !strings.Contains(first[0], " shared:") {
			t.Fatalf("mounts of %s:\n%s\nwant a shared one", netns.Dir, strings.Join(first, ""))
		}
		done := make(chan error)
		for range 8 {
			go func() { done <- netns.Share() }()
		}
		for range 8 {
			must(t, <-done)
		}
		if out, err := exec.Command("ip", "netns", "add", "by-ip").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if now := dirMounts(); strings.Join(now, "") != strings.Join(first, "") {
			t.Errorf("mounts of %s were\n%sand are\n%s", netns.Dir, strings.Join(first, ""), strings.Join(now, ""))
		}
		must(t, netns.Delete("early"))
		must(t, netns.Delete("by-ip"))
	})
}

func TestConcurrentCallsOfShareMakeOneMount(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		done := make(chan error)
		for range 8 {
			go func() { done <- netns.Share() }()
		}
		for range 8 {
			must(t, <-done)
		}
		if now := mountsOf(t, "/proc/self/mountinfo", ""); len(now) != 1 {
			t.Errorf("mounts of %s:\n%s", netns.Dir, strings.Join(now, ""))
		}
	})
}
