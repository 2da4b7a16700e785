//go:build netns

package sweep

import (
	"fmt"
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
	"github.com/trunkline/trunkline/test/testns"
)

// leftover is one thing that a lab could leave behind.
type leftover struct {
	kind string
	want string // in the line that names it
	make func(t *testing.T) (remove func())
}

// labName is the lab of the things that these tests leave behind.
func labName() string { return fmt.Sprintf("t%d", os.Getpid()) }

func snapshot(t *testing.T) Snapshot {
	t.Helper()
	s, err := TakeSnapshot(View{Ignore: []string{"/root", "/usr/local"}}) // large
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The diff of two snapshots contains a leftover under its kind as long as it exists.
func TestTheDiffContainsEachKindOfLeftover(t *testing.T) {
	ns := testns.New(t, "left")
	for _, l := range leftovers(ns) {
		t.Run(l.kind, func(t *testing.T) {
			ns.Do(t, func() {
				before := snapshot(t)
				remove := l.make(t)
				if !named(before.Diff(snapshot(t)), l) {
					t.Errorf("no line of the diff contains it:\n%s", strings.Join(before.Diff(snapshot(t)), "\n"))
				}
				remove()
				if named(before.Diff(snapshot(t)), l) {
					t.Error("it was removed and is still in the diff")
				}
			})
		})
	}
}

func named(diff []string, l leftover) bool {
	return slices.ContainsFunc(diff, func(line string) bool {
		return strings.HasPrefix(line, "+ "+l.kind+": ") && strings.Contains(line, l.want)
	})
}

func leftovers(ns *testns.NS) []leftover {
	lab := labName()
	return []leftover{
		{"namespace", "tl-" + lab + "-other", func(t *testing.T) func() {
			// Not by `ip netns add`: on its first use after a boot it mounts /run/netns
			// over itself, and other tests cannot delete their namespaces then (EBUSY).
			must(t, netns.Make("tl-"+lab+"-other"))
			return func() { must(t, netns.Delete("tl-"+lab+"-other")) }
		}},
		{"link", "forgotten", func(t *testing.T) func() {
			l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "forgotten"}}
			must(t, netlink.LinkAdd(l))
			return func() { must(t, netlink.LinkDel(l)) }
		}},
		{"route", "192.0.2.0/24", func(t *testing.T) func() {
			lo, err := netlink.LinkByName("lo")
			must(t, err)
			must(t, netlink.LinkSetUp(lo))
			_, dst, err := net.ParseCIDR("192.0.2.0/24")
			must(t, err)
			r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: 77}
			must(t, netlink.RouteAdd(r))
			return func() { must(t, netlink.RouteDel(r)) }
		}},
		{"rule", "table 77", func(t *testing.T) func() {
			r := netlink.NewRule()
			r.Priority, r.Table = 770, 77
			must(t, netlink.RuleAdd(r))
			return func() { must(t, netlink.RuleDel(r)) }
		}},
		{"nft", "chain forgotten", func(t *testing.T) func() {
			must(t, exec.Command("nft", "add table inet t; add chain inet t forgotten").Run())
			return func() { must(t, exec.Command("nft", "delete table inet t").Run()) }
		}},
		{"mount", "forgotten", func(t *testing.T) func() {
			dir := filepath.Join(t.TempDir(), "forgotten")
			must(t, os.Mkdir(dir, 0o755))
			must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
			return func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }
		}},
		{"cgroup", node.CgroupDir(lab) + "/forgotten", func(t *testing.T) func() {
			trees, err := node.Hierarchies()
			must(t, err)
			top := filepath.Join(trees[0].Mount, node.CgroupDir(lab))
			must(t, os.MkdirAll(filepath.Join(top, "forgotten"), 0o755))
			return func() { must(t, node.RemoveCgroup(top)) }
		}},
		{"sysctl", "net/ipv4/ip_forward = 1", func(t *testing.T) func() {
			m := thisMachine()
			must(t, m.write("net/ipv4/ip_forward", "1"))
			return func() { must(t, m.write("net/ipv4/ip_forward", "0")) }
		}},
		{"state", lab, madeFile("/var/lib/trunkline-lab/" + lab)},
		{"file", "/opt/tl-" + lab, madeFile("/opt/tl-" + lab)},
		{"file", filepath.Join(os.TempDir(), "tl-"+lab), func(t *testing.T) func() { // an existing file that changes
			path := filepath.Join(os.TempDir(), "tl-"+lab)
			remove := madeFile(path)(t)
			before := snapshot(t)
			must(t, os.WriteFile(path, []byte("more"), 0o600))
			if !named(before.Diff(snapshot(t)), leftover{kind: "file", want: path}) {
				t.Errorf("%s was changed and is not in the diff", path)
			}
			return remove
		}},
		{"process", "sleep of lab " + lab, func(t *testing.T) func() { return held(t, lab) }},
		{"listener", fmt.Sprintf("tcp 0100007F:%04X", leftPort), func(t *testing.T) func() {
			lo, err := netlink.LinkByName("lo")
			must(t, err)
			must(t, netlink.LinkSetUp(lo))
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", leftPort))
			must(t, err)
			f, err := l.(*net.TCPListener).File()
			must(t, err)
			must(t, l.Close())
			return heldFile(t, lab, "listener", f)
		}},
		{"bpf", "Array forgotten", func(t *testing.T) func() {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "forgotten", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
			must(t, err)
			return heldFile(t, lab, "bpf", file(t, m.FD(), m.Close))
		}},
		{"bpf", "SkLookup forgotten", func(t *testing.T) func() {
			p := program(t)
			return heldFile(t, lab, "bpf", file(t, p.FD(), p.Close))
		}},
		{"bpf", "link ", func(t *testing.T) func() {
			p := program(t)
			l, err := link.AttachNetNs(int(ns.Open(t).Fd()), p)
			must(t, err)
			must(t, p.Close())
			return heldFile(t, lab, "bpf", file(t, l.FD(), l.Close))
		}},
	}
}

const leftPort = 40123

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func madeFile(path string) func(t *testing.T) func() {
	return func(t *testing.T) func() {
		t.Helper()
		_, err := os.Stat(filepath.Dir(path))
		created := os.IsNotExist(err)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		return func() {
			must(t, os.Remove(path))
			if created {
				must(t, os.Remove(filepath.Dir(path)))
			}
		}
	}
}

func program(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "forgotten", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	must(t, err)
	return p
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
func heldFile(t *testing.T, lab, kind string, f *os.File) func() {
	t.Helper()
	alone := snapshot(t)
	end := held(t, lab, f)
	if !named(alone.Diff(snapshot(t)), leftover{kind: kind}) {
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
