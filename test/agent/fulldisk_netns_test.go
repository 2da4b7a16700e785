//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/test/isolate"
	"github.com/trunkline/trunkline/test/node"
)

func hasLink(name string) error {
	_, err := netlink.LinkByName(name)
	return err
}

// smallDisk puts the agent's state directory on a file system of its own, in the test's mount
// namespace.
func smallDisk(t *testing.T, n *node.Node) (dir string) {
	t.Helper()
	dir = filepath.Join(n.Dir, "state")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill writes a file until the disk is full, and returns its path.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "of-another-program")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

// A container fills the disk of the node. Pods still end: the kubelet keeps a pod in Terminating
// while the runtime cannot stop its sandbox, for which DEL must succeed.
func TestPodsEndOnAFullDisk(t *testing.T) {
	t.Parallel()
	isolate.Run(t, func(t *testing.T) {
		n := node.New(t, node.Config{})
		disk := smallDisk(t, n)
		n.StartAgent("cool-down=1h")
		n.UntilReady()
		var pods []*node.Pod
		for i := range 12 {
			p := n.NewPod(fmt.Sprint("p", i))
			if err := n.Add(p); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, p)
		}
		filled := fill(t, disk)

		ended, without, runs := pods[:8], pods[8:10], pods[10:]
		for _, p := range ended {
			if err := n.Del(p); err != nil {
				t.Errorf("DEL on a full disk: %v", err)
			}
		}
		if _, err := os.Stat(filepath.Join(disk, "journal", "reserve")); err == nil {
			t.Error("the journal did not need its reserve: the test shows nothing")
		}
		late := n.NewPod("late")
		if err := n.Add(late); err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("ADD on a full disk: %v", err)
		}

		// Neither an agent nor the disk takes the DEL.
		n.Kill()
		fill(t, disk)
		for _, p := range without {
			if err := n.Del(p); err != nil {
				t.Errorf("DEL on a full disk without an agent: %v", err)
			}
		}
		if got, err := cnirpc.ReadSpool(cnirpc.VolatileSpool(n.Socket())); err != nil || len(got) != len(without) {
			t.Errorf("%d in the volatile spool, %v", len(got), err)
		}
		if err := os.Remove(filled); err != nil {
			t.Fatal(err)
		}
		n.StartAgent("cool-down=1h")
		n.UntilReady()
		for _, p := range append(ended, without...) {
			n.Until("the address of a pod that ended cools down", func() error {
				if got := row(n, p.Addr); got.State != "cooling" {
					return fmt.Errorf("%s is %s", p.Addr, got.State)
				}
				return nil
			})
		}
		for _, p := range runs {
			if got := row(n, p.Addr); got.Container != p.RT.ContainerID {
				t.Errorf("%s of a pod that runs is %s", p.Addr, got.State)
			}
			if err := p.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
				t.Error(err)
			}
		}
		if err := n.Add(late); err != nil {
			t.Errorf("ADD once the disk has space: %v", err)
		}
	})
}

// The reserve is gone, as after an operator deleted it to have space: the disk takes no record at
// all. A DEL disconnects its pod at once, at an agent that runs and at one that starts; it stays in
// the volatile spool, so that it is not lost, until the journal has it. Two isolated tests of one
// process do not run in parallel: their cgroups have the same name.
func TestPodsEndOnAFullDiskWithoutAReserve(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		n := node.New(t, node.Config{})
		disk := smallDisk(t, n)
		n.StartAgent("cool-down=1h")
		n.UntilReady()
		var pods []*node.Pod
		for i := range 6 {
			p := n.NewPod(fmt.Sprint("p", i))
			if err := n.Add(p); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, p)
		}
		if err := os.Remove(filepath.Join(disk, "journal", "reserve")); err != nil {
			t.Fatal(err)
		}
		filled := fill(t, disk)
		late := n.NewPod("late")
		ends := func(p *node.Pod) {
			t.Helper()
			if err := n.Del(p); err != nil {
				t.Errorf("DEL on a full disk: %v", err)
			}
			n.Until("the pod is disconnected", func() error { return disconnected(n, p) })
		}
		ended, runs := pods[:4], pods[4:]
		ends(ended[0])
		ends(ended[1])
		if err := n.Add(late); err == nil {
			t.Error("a pod was added on a full disk")
		}
		n.Kill()
		n.StartAgent("cool-down=1h")
		n.UntilReady()
		ends(ended[2])
		ends(ended[3])
		if err := n.Add(late); err == nil {
			t.Error("a pod was added on a full disk, by the next agent")
		}

		if err := os.Remove(filled); err != nil {
			t.Fatal(err)
		}
		n.Until("the spool is empty", func() error {
			left, err := cnirpc.ReadSpool(cnirpc.VolatileSpool(n.Socket()))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d DELs are left", len(left))
			}
			return err
		})
		n.Kill() // what is recorded now outlives the agent
		n.StartAgent("cool-down=1h")
		n.UntilReady()
		for _, p := range ended {
			n.Until("the address of a pod that ended cools down", func() error {
				if got := row(n, p.Addr); got.State != "cooling" {
					return fmt.Errorf("%s is %s", p.Addr, got.State)
				}
				return nil
			})
		}
		for _, p := range runs {
			if got := row(n, p.Addr); got.Container != p.RT.ContainerID {
				t.Errorf("%s of a pod that runs is %s", p.Addr, got.State)
			}
			if err := p.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
				t.Error(err)
			}
		}
		n.Until("ADD once the disk has space", func() error { return n.Add(late) })
	})
}

// disconnected is an error while the node has a rule for the pod's address.
func disconnected(n *node.Node, p *node.Pod) (err error) {
	return n.NS.Run(func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Dst != nil && r.Dst.IP.String() == p.Addr.String() {
				return fmt.Errorf("the node has %s", r)
			}
		}
		return nil
	})
}
