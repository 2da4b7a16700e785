//go:build netns

package sweep

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/test/isolate"
	"github.com/trunkline/trunkline/test/testns"
)

// leftover is one thing that a lab could leave behind.
type leftover struct {
	kind string
	// make makes it for a lab and returns how to remove it, and what is in the line about it.
	make func(t *testing.T, lab string) (remove func(), want string)
}

// root is the directory of the labs in these tests, which have their own /var/lib.
const root = "/var/lib/trunkline-lab"

func snapshot(t *testing.T) Snapshot {
	t.Helper()
	s, err := TakeSnapshot(View{StateRoot: root, Ignore: []string{"/root", "/usr/local"}}) // large
	must(t, err)
	return s
}

// What a lab leaves behind is in its leftovers as long as it exists, and never in those of
// another lab, nor are the things of another lab in its own.
func TestLeftoversContainEachKindOfALabAndNothingOfAnother(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		mine, other := testns.Lab(), testns.Lab()+"b"
		for _, l := range leftovers() {
			t.Run(l.kind, func(t *testing.T) {
				before := snapshot(t)
				remove, want := l.make(t, mine)
				after := snapshot(t)
				if left, _ := before.Leftovers(after, mine); !named(left, l.kind, want) {
					t.Errorf("not in the leftovers of its lab:\n%v\nof all changes:\n%v", left, before.Diff(after))
				}
				remove()
				if left, _ := before.Leftovers(snapshot(t), mine); named(left, l.kind, want) {
					t.Errorf("it was removed and is still in the leftovers: %v", left)
				}
				endOther := anotherLab(t, other)
				defer endOther()
				before = snapshot(t)
				remove, want = l.make(t, other)
				left, _ := before.Leftovers(snapshot(t), mine)
				remove()
				if named(left, l.kind, want) {
					t.Errorf("of another lab, and in the leftovers: %v", left)
				}
			})
		}
	})
}

// A file that changes counts as new.
func TestAChangedFileOfALabIsALeftover(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		lab := testns.Lab()
		path := filepath.Join(t.TempDir(), "tl-"+lab)
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		before := snapshot(t)
		must(t, os.WriteFile(path, []byte("more"), 0o600))
		if left, _ := before.Leftovers(snapshot(t), lab); !named(left, "file", path) {
			t.Errorf("not in the leftovers: %v", left)
		}
	})
}

// A checkout may have the name of a program of labs. The one beside it is a plain directory.
func TestFilesInAnotherCheckoutAreNoLeftovers(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "files") //nolint:usetesting // t.TempDir's are those of tests, which are no leftovers
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
		for _, name := range []string{"checkout/trunkline/.git", "checkout/trunkline/cmd", "files/trunkline/cmd"} {
			must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		}
		before := snapshot(t)
		for _, name := range []string{"checkout/trunkline/.git/HEAD", "checkout/trunkline/cmd/main.go", "files/trunkline/cmd/main.go"} {
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		left, _ := before.Leftovers(snapshot(t), testns.Lab())
		if named(left, "file", filepath.Join(dir, "checkout")) {
			t.Errorf("files of a checkout are in the leftovers: %v", left)
		}
		if !named(left, "file", filepath.Join(dir, "files")) {
			t.Errorf("not in the leftovers, though no checkout has it: %v", left)
		}
	})
}

// anotherLab brings up the state directory of a lab that runs meanwhile.
func anotherLab(t *testing.T, lab string) (end func()) {
	t.Helper()
	dir := filepath.Join(root, lab, "log")
	must(t, os.MkdirAll(dir, 0o755))
	return func() { must(t, os.RemoveAll(root)) }
}

func named(changes []Change, kind, want string) bool {
	return slices.ContainsFunc(changes, func(c Change) bool {
		return !c.Removed && c.Kind == kind && strings.Contains(c.Text, want)
	})
}

func leftovers() []leftover {
	return slices.Concat(namedLeftovers(), networkLeftovers(), heldLeftovers())
}

// namedLeftovers have the lab's name.
func namedLeftovers() []leftover {
	return []leftover{
		{"namespace", func(t *testing.T, lab string) (func(), string) {
			name := "tl-" + lab + "-node1"
			must(t, netns.Make(name))
			return func() { must(t, netns.Delete(name)) }, name
		}},
		{"mount", func(t *testing.T, lab string) (func(), string) {
			name := "tl-" + lab + "-node2"
			must(t, netns.Make(name))
			return func() { must(t, netns.Delete(name)) }, name
		}},
		{"mount", func(t *testing.T, lab string) (func(), string) {
			dir := filepath.Join(root, lab, "root")
			must(t, os.MkdirAll(dir, 0o755))
			must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
			return func() {
				must(t, unix.Unmount(dir, unix.MNT_DETACH))
				must(t, os.RemoveAll(root))
			}, dir
		}},
		{"cgroup", func(t *testing.T, lab string) (func(), string) {
			trees, err := node.Hierarchies()
			must(t, err)
			top := filepath.Join(trees[0].Mount, node.CgroupDir(lab))
			must(t, os.MkdirAll(filepath.Join(top, "node1"), 0o755))
			return func() { must(t, node.RemoveCgroup(top)) }, node.CgroupDir(lab) + "/node1"
		}},
		{"state", func(t *testing.T, lab string) (func(), string) {
			dir := filepath.Join(root, lab)
			must(t, os.MkdirAll(dir, 0o755))
			return func() { must(t, os.RemoveAll(root)) }, dir
		}},
		{"file", func(t *testing.T, lab string) (func(), string) {
			path := filepath.Join(os.TempDir(), "tl-"+lab)
			must(t, os.WriteFile(path, []byte("x"), 0o600))
			return func() { must(t, os.Remove(path)) }, path
		}},
	}
}

// networkLeftovers are in the machine's own network namespace, and its settings. They have
// no lab's name, so they count while no other lab exists.
func networkLeftovers() []leftover {
	return []leftover{
		{"link", func(t *testing.T, _ string) (func(), string) {
			l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eni0123456789a"}}
			must(t, netlink.LinkAdd(l))
			return func() { must(t, netlink.LinkDel(l)) }, l.Name
		}},
		{"route", func(t *testing.T, _ string) (func(), string) {
			lo, err := netlink.LinkByName("lo")
			must(t, err)
			_, dst, err := net.ParseCIDR("192.0.2.0/24")
			must(t, err)
			r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: 77}
			must(t, netlink.RouteAdd(r))
			return func() { must(t, netlink.RouteDel(r)) }, "192.0.2.0/24"
		}},
		{"rule", func(t *testing.T, _ string) (func(), string) {
			r := netlink.NewRule()
			r.Priority, r.Table = 770, 77
			must(t, netlink.RuleAdd(r))
			return func() { must(t, netlink.RuleDel(r)) }, "table 77"
		}},
		{"nft", func(t *testing.T, _ string) (func(), string) {
			must(t, exec.Command("nft", "add table inet trunkline; add chain inet trunkline forgotten").Run())
			return func() { must(t, exec.Command("nft", "delete table inet trunkline").Run()) }, "chain forgotten"
		}},
		{"sysctl", func(t *testing.T, _ string) (func(), string) {
			const path = "fs/inotify/max_user_instances" // this machine's own
			m := thisMachine()
			old, err := m.read(path)
			must(t, err)
			must(t, m.write(path, "1024"))
			return func() { must(t, m.write(path, old)) }, path + " = 1024"
		}},
	}
}

// heldLeftovers are processes, and what they hold open.
func heldLeftovers() []leftover {
	return []leftover{
		{"process", func(t *testing.T, lab string) (func(), string) { return held(t, lab), "sleep of lab " + lab }},
		{"listener", func(t *testing.T, lab string) (func(), string) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			f, err := l.(*net.TCPListener).File()
			must(t, err)
			want := fmt.Sprintf("tcp 0100007F:%04X", l.Addr().(*net.TCPAddr).Port)
			must(t, l.Close())
			return heldFile(t, lab, "listener", want, f), want
		}},
		{"bpf", func(t *testing.T, lab string) (func(), string) {
			name := unique()
			m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
			must(t, err)
			return heldFile(t, lab, "bpf", "Array "+name, file(t, m.FD(), m.Close)), "Array " + name
		}},
		{"bpf", func(t *testing.T, lab string) (func(), string) {
			p, name := program(t)
			return heldFile(t, lab, "bpf", "SkLookup "+name, file(t, p.FD(), p.Close)), "SkLookup " + name
		}},
		{"bpf", func(t *testing.T, lab string) (func(), string) {
			p, _ := program(t)
			about, err := p.Info()
			must(t, err)
			id, _ := about.ID()
			ns, err := os.Open("/proc/thread-self/ns/net")
			must(t, err)
			defer ns.Close()
			l, err := link.AttachNetNs(int(ns.Fd()), p)
			must(t, err)
			must(t, p.Close())
			want := fmt.Sprintf("of prog %d", id)
			return heldFile(t, lab, "bpf", want, file(t, l.FD(), l.Close)), want
		}},
	}
}

// unique returns a name for a BPF object: these are visible on the whole machine.
func unique() string { return fmt.Sprintf("left%x", rand.Uint32()) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func program(t *testing.T) (*ebpf.Program, string) {
	t.Helper()
	name := unique()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	must(t, err)
	return p, name
}

// file duplicates fd and closes the original with closeFD.
func file(t *testing.T, fd int, closeFD func() error) *os.File {
	t.Helper()
	duplicate, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	must(t, closeFD())
	return os.NewFile(uintptr(duplicate), "held")
}

// heldFile passes a file to a process of the lab. It checks that the file is not listed
// while only the test, which does not belong to a lab, holds it.
func heldFile(t *testing.T, lab, kind, want string, f *os.File) func() {
	t.Helper()
	alone := snapshot(t)
	end := held(t, lab, f)
	if !named(alone.Diff(snapshot(t)), kind, want) {
		t.Error("it was in the diff while only the test, which belongs to no lab, held it")
	}
	must(t, f.Close())
	return end
}

// held starts a process of the lab that holds files open until the returned function ends
// it.
func held(t *testing.T, lab string, files ...*os.File) func() {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Env, cmd.ExtraFiles = []string{component.Mark(lab)}, files
	must(t, cmd.Start())
	return func() {
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	}
}
