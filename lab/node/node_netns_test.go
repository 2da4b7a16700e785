//go:build netns

package node_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/sim/ca"
	"github.com/trunkline/trunkline/test/testns"
)

// timeout bounds waits, also on a busy machine.
const timeout = 2 * time.Minute

// idleConfig returns a node with idle programs: they are this test binary under their
// names.
func idleConfig(t *testing.T) (node.Config, *testns.NS) {
	t.Helper()
	ns := testns.New(t, "node")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	cni := t.TempDir()
	if err := os.WriteFile(filepath.Join(cni, "loopback"), []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := node.Config{
		Lab: testns.Lab(), Name: "node1", StateDir: t.TempDir(), NetNS: ns.Path, Cgroup: node.CgroupV1,
		Instance: node.Instance{
			ID: "i-0123456789abcdef0", Type: "m5.xlarge", Zone: "us-west-2a", Region: "us-west-2",
			MAC: vpc.MAC{2, 0, 0, 0, 1, 2}, Address: netip.MustParseAddr("10.0.0.11"), Subnet: netip.MustParsePrefix("10.0.0.0/19"),
			Resolver: netip.MustParseAddr("10.0.0.2"), MaxPods: 58,
		},
		Parts: node.Parts{Kube: self, Lab: self, Containerd: bin, Runc: filepath.Join(bin, "runc"), CNI: cni, PauseImage: "pause"},
	}
	c.Kubernetes.Server, c.Kubernetes.ClusterDNS = "https://10.0.0.10:443", netip.MustParseAddr("172.20.0.10")
	return c, ns
}

// plugIdle adds the instance's interface to the namespace: a veth with an unused peer.
func plugIdle(t *testing.T, ns *testns.NS, c node.Config) {
	t.Helper()
	ns.Do(t, func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: c.Instance.MAC.HardwareAddr(), MTU: 1500}, PeerName: "far",
		}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		far, err := netlink.LinkByName("far")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(far); err != nil {
			t.Fatal(err)
		}
	})
}

func bootIdle(t *testing.T, c node.Config) *node.Node {
	t.Helper()
	n, err := node.Start(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("init.log:\n%s", n.LastLog())
			for _, program := range []string{"systemd-networkd", "hotplug"} { // images without them have no such log
				if out, err := inside(n, "tail", "-n", "15", "/lab/log/"+program+".log"); err == nil {
					t.Logf("%s.log:\n%s", program, out)
				}
			}
		}
		if err := n.PowerOff(); err != nil {
			t.Error(err)
		}
	})
	// Before it has its own root, a node sees the machine's processes, also kube-proxies
	// of other labs.
	eventually(t, "kube-proxy starts", func() bool {
		if _, err := inside(n, "test", "-e", "/lab/conf/node.json"); err != nil { // not every image has a shell
			return false
		}
		out, err := inside(n, "pgrep", "-x", "kube-proxy")
		return err == nil && out != ""
	})
	return n
}

// inside runs a command in the node.
func inside(n *node.Node, argv ...string) (string, error) {
	argv = append(node.EnterArgs(n.PID()), argv...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// trees returns the machine's cgroup trees, and whether it has only version 2.
func trees(t *testing.T) (all []node.Hierarchy, onlyV2 bool) {
	t.Helper()
	all, err := node.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	return all, !slices.ContainsFunc(all, func(h node.Hierarchy) bool { return !h.V2 })
}

// leftCgroups returns the cgroups of the lab that still exist.
func leftCgroups(t *testing.T, lab string) (left []string) {
	t.Helper()
	all, _ := trees(t)
	for _, h := range all {
		dir := filepath.Join(h.Mount, node.CgroupDir(lab))
		if _, err := os.Stat(dir); err == nil {
			left = append(left, dir)
		}
	}
	return left
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: did not happen within %s", what, timeout)
		case <-tick.C:
		}
	}
}

func TestANodeIsIsolatedLikeAMachine(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	cgroup, root := "cut -d: -f3 /proc/1/cgroup | sort -u", "/"
	if _, onlyV2 := trees(t); onlyV2 {
		cgroup, root = "grep ^0: /proc/1/cgroup", "0::/init" // a root with enabled controllers has no processes
	}
	for _, tc := range []struct{ name, command, want string }{
		{"its host name is the private DNS name", "hostname", "ip-10-0-0-11.us-west-2.compute.internal"},
		{"its resolver is the VPC's", "grep nameserver /etc/resolv.conf", "nameserver 10.0.0.2"},
		{"it resolves itself", "getent ahostsv4 ip-10-0-0-11 | head -1 | awk '{print $1}'", "10.0.0.11"},
		{"its boot ID is its own", "cat /proc/sys/kernel/random/boot_id", n.BootID()},
		{"sysctls have the values that the kubelet wants", "cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic", "1\n10"},
		{"its PID 1 is the lab's", "tr '\\0' ' ' < /proc/1/cmdline", "/lab/bin/trunkline-lab node-init boot"},
		{"it is at the root of its cgroups", cgroup, root},
		{"programs are read-only", "touch /usr/x 2>&1 | grep -o 'Read-only file system'", "Read-only file system"},
		{"the machine's files are not visible", "ls -d /home /boot /srv /mnt 2>/dev/null | wc -l", "0"},
		{"the BPF file system is its own", "stat -f -c %T /sys/fs/bpf", "bpf_fs"},
		{"sysfs has the links of its namespace", "ls /sys/class/net | tr '\\n' ' '", "eth0 far lo"},
		{"its primary interface is configured as by DHCP", "ip -4 -o addr show eth0 | awk '{print $4}'; cat /sys/class/net/eth0/mtu", "10.0.0.11/19\n9001"},
		{"its default route is through the subnet's router", "ip route show default", "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.11"},
		{"mounts are shared inside", "findmnt -n -o PROPAGATION /", "shared"},
		{"its limits can be set", `cd "$(dirname "$(ls /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/cpu*/cgroup.procs 2>/dev/null | head -1)")" && mkdir x && rmdir x && echo ok`, "ok"},
		{"its files are readable by all users, also under a strict umask", "stat -c %a / /run /var /opt/cni/bin /var/lib/kubelet /etc/resolv.conf", "755\n755\n755\n755\n755\n644"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, _ := inside(n, "sh", "-c", tc.command); got != tc.want {
				t.Errorf("%s\n printed %q\n want    %q", tc.command, got, tc.want)
			}
		})
	}
}

// The lists of authorities in a node are those of its image and its own at the end, also
// for pods, which mount the directory. The machine's lists do not change.
func TestANodeTrustsItsOwnAuthoritiesAndTheMachineDoesNot(t *testing.T) {
	const list = "/etc/ssl/certs/ca-certificates.crt"
	image, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	c, ns := idleConfig(t)
	authority, err := ca.New("Test", []string{"amazonaws.com"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.Authorities = authority.Certificate()
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	want := strings.TrimSpace(string(image) + string(c.Authorities))
	for name, command := range map[string]string{
		"a program of the node": "cat " + list,
		"a pod":                 "pod=$(mktemp -d) && mount --rbind -o ro /etc/ssl/certs $pod && cat $pod/ca-certificates.crt",
	} {
		if got, err := inside(n, "sh", "-c", command); err != nil || got != want {
			t.Errorf("%s sees %d bytes (%v), want %d", name, len(got), err, len(want))
		}
	}
	if got, err := inside(n, "sh", "-c", "stat -c %a "+list+"; echo >> "+list); err == nil || !strings.HasPrefix(got, "644\n") || !strings.Contains(got, "Read-only file system") {
		t.Errorf("the list can be written, or only root can read it: %v: %s", err, got)
	}
	if now, err := os.ReadFile(list); err != nil || !bytes.Equal(now, image) {
		t.Errorf("the machine's list changed (%v)", err)
	}
}

func TestAMountInANodeDoesNotPropagateToTheMachine(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	name := "tl-pod-of-" + c.Lab // unique, because other programs change the machine's mounts
	if out, err := inside(n, "sh", "-c", "mkdir -p /var/m /run/netns && mount -t tmpfs "+name+" /var/m && ip netns add "+name); err != nil {
		t.Fatalf("mount in node: %v: %s", err, out)
	}
	if out, err := inside(n, "grep", "-q", name+" /var/m", "/proc/self/mounts"); err != nil {
		t.Fatalf("the mount does not exist in the node: %v: %s", err, out)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) || strings.Contains(line, c.StateDir) {
			t.Errorf("a mount of the node is visible on the machine: %s", line)
		}
	}
	if _, err := os.Stat("/run/netns/" + name); err == nil {
		t.Error("a pod's network namespace is visible on the machine")
	}
}

func TestARebootKeepsOnlyTheDisk(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	first := bootIdle(t, c)
	if out, err := inside(first, "sh", "-c", "echo kept > /var/lib/kept; echo kept > /opt/cni/bin/plugin; echo kept > /etc/cni/net.d/x; echo gone > /run/gone"); err != nil {
		t.Fatalf("write: %v: %s", err, out)
	}
	if err := first.PowerOff(); err != nil {
		t.Fatal(err)
	}
	second := bootIdle(t, c)
	if first.BootID() == second.BootID() {
		t.Error("the boot ID is the same after a reboot")
	}
	if out, err := inside(second, "cat", "/var/lib/kept", "/opt/cni/bin/plugin", "/etc/cni/net.d/x"); err != nil {
		t.Errorf("files on the disk are lost: %v: %s", err, out)
	}
	if _, err := inside(second, "test", "-e", "/run/gone"); err == nil {
		t.Error("/run survived a reboot")
	}
}

func TestAPowerCutRemovesAllProcessesAndCgroupsOfTheNode(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	long := fmt.Sprintf("sleep 1000.%d", os.Getpid()) // a unique command line
	if out, err := inside(n, "sh", "-c", "setsid "+long+" >/dev/null 2>&1 & mkdir -p /sys/fs/cgroup/memory/kubepods/pod1"); err != nil {
		t.Fatalf("start: %v: %s", err, out)
	}
	eventually(t, "a process in its own session runs", func() bool {
		return exec.Command("pgrep", "-f", "^"+long+"$").Run() == nil
	})
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if got := n.PID(); got != 0 {
		t.Errorf("PID 1 is %d after the power was cut", got)
	}
	if left := leftCgroups(t, c.Lab); len(left) > 0 {
		t.Errorf("cgroups of the lab are left: %v", left)
	}
	if out, err := exec.Command("pgrep", "-f", "^"+long+"$").Output(); err == nil {
		t.Errorf("a process outlived its node: %s", out)
	}
}

func TestANodeThatCannotBootLeavesNoCgroup(t *testing.T) {
	for name, damage := range map[string]func(*node.Config){
		"no PID 1":              func(c *node.Config) { c.Parts.Lab += ".absent" },
		"no network namespace":  func(c *node.Config) { c.NetNS += "-absent" },
		"no runtime":            func(c *node.Config) { c.Parts.Containerd += ".absent" },
		"no plugins to install": func(c *node.Config) { c.Parts.CNI += ".absent" },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := idleConfig(t)
			damage(&c)
			if n, err := node.Start(c, slog.New(slog.DiscardHandler)); err == nil {
				_ = n.PowerOff()
				t.Fatal("it booted")
			}
			if left := leftCgroups(t, c.Lab); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestStopShutsTheNodeDownInOrder(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if n.PID() != 0 || !strings.Contains(n.LastLog(), "node stopping") {
		t.Errorf("PID 1 is %d, its last log lines are:\n%s", n.PID(), n.LastLog())
	}
}

func TestPID1ReapsOrphansAndRestartsItsPrograms(t *testing.T) {
	c, ns := idleConfig(t)
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	if _, err := inside(n, "sh", "-c", "for i in 1 2 3 4 5; do (setsid sh -c 'echo $$ >> /tmp/orphans; exit 3' &) ; done"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "five orphans have ended and none is a zombie", func() bool {
		out, err := inside(n, "sh", "-c", "for p in $(cat /tmp/orphans); do test -e /proc/$p || echo $p; done | wc -l")
		return err == nil && out == "5"
	})
	old, err := inside(n, "pgrep", "-x", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inside(n, "kill", "-9", old); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kubelet runs again", func() bool {
		now, err := inside(n, "pgrep", "-x", "kubelet")
		return err == nil && now != "" && now != old
	})
	if !strings.Contains(n.LastLog(), "component=kubelet") {
		t.Errorf("the log does not name the program that ended:\n%s", n.LastLog())
	}
}

func TestANodeWithoutItsPrimaryInterfaceLogsItsMAC(t *testing.T) {
	c, _ := idleConfig(t)
	c.PlugTimeout = 200 * time.Millisecond
	n, err := node.Start(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer n.PowerOff()
	select {
	case <-n.Done():
	case <-time.After(timeout):
		t.Fatal("it still waits for the missing interface")
	}
	if !strings.Contains(n.LastLog(), "02:00:00:00:01:02") {
		t.Errorf("the last log lines %q do not have the MAC", n.LastLog())
	}
}

func TestANodeWithCgroupVersion2HasLimitsOnlyIfTheMachineHasNoVersion1(t *testing.T) {
	c, ns := idleConfig(t)
	c.Cgroup = node.CgroupV2
	plugIdle(t, ns, c)
	n := bootIdle(t, c)
	if got, _ := inside(n, "stat", "-f", "-c", "%T", "/sys/fs/cgroup"); got != "cgroup2fs" {
		t.Errorf("/sys/fs/cgroup is %s, want cgroup2fs", got)
	}
	_, onlyV2 := trees(t) // then it has controllers
	want := fmt.Sprintf("cgroupsPerQOS: %t", onlyV2)
	if got, _ := inside(n, "grep", "cgroupsPerQOS", "/lab/conf/kubelet.yaml"); got != want {
		t.Errorf("the kubelet's configuration has %q, want %q", got, want)
	}
}
