//go:build netns

package node_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/osimage"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/imds"
	"github.com/trunkline/trunkline/test/testns"
)

// instance is an instance with metadata. A test attaches interfaces to it.
type instance struct {
	config node.Config
	ns     *testns.NS

	mu         sync.Mutex
	interfaces []imds.Interface // guarded by mu
}

// ByAddress implements imds.Source.
func (i *instance) ByAddress(netip.Addr) (imds.Instance, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return imds.Instance{ID: i.config.Instance.ID, Type: i.config.Instance.Type, Interfaces: i.interfaces}, true
}

// Credentials implements imds.Source.
func (i *instance) Credentials(vpc.InstanceID) (imds.Credentials, bool) {
	return imds.Credentials{}, false
}

// bootImage boots a node with an image. Its metadata is served on its loopback, which
// every link of a namespace reaches.
func bootImage(t *testing.T, image osimage.Name, atBoot ...int) (*instance, *node.Node) {
	t.Helper()
	i := &instance{}
	i.config, i.ns = idleConfig(t)
	i.config.Name, i.config.Image = string(image), image
	i.describe(0, i.config.Instance.Address, netip.MustParseAddr("10.0.0.12"))
	plugIdle(t, i.ns, i.config)
	for _, device := range atBoot {
		i.attach(t, device)
	}
	i.serve(t)
	return i, bootIdle(t, i.config)
}

func (i *instance) serve(t *testing.T) {
	t.Helper()
	var l net.Listener
	i.ns.Do(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(169, 254, 169, 254), Mask: net.CIDRMask(32, 32)}})
		}
		if err == nil {
			l, err = net.Listen("tcp4", "169.254.169.254:80")
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- imds.New(i, imds.Config{}).Serve(ctx, l) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// describe adds an interface to the metadata.
func (i *instance) describe(device int, addresses ...netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	mac := i.config.Instance.MAC
	mac[5] += byte(device)
	i.interfaces = append(i.interfaces, imds.Interface{
		ID: vpc.ENIID(fmt.Sprintf("eni-%017x", device+1)), MAC: mac, DeviceNumber: device, IPv4: addresses,
		Subnet: imds.Subnet{ID: "subnet-0123456789abcdef0", CIDRs: []netip.Prefix{i.config.Instance.Subnet}},
		VPC:    imds.VPC{ID: "vpc-0123456789abcdef0", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
	})
}

// attach attaches ethN with the addresses 10.0.0.N1 and 10.0.0.N2.
func (i *instance) attach(t *testing.T, device int) {
	t.Helper()
	i.describe(device, netip.AddrFrom4([4]byte{10, 0, 0, byte(10*(device+1) + 1)}), netip.AddrFrom4([4]byte{10, 0, 0, byte(10*(device+1) + 2)}))
	mac := i.config.Instance.MAC
	mac[5] += byte(device)
	i.ns.Do(t, func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("eth", device), HardwareAddr: mac.HardwareAddr()}, PeerName: fmt.Sprint("far", device),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		far, err := netlink.LinkByName(veth.PeerName)
		if err == nil {
			err = netlink.LinkSetUp(far)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// run runs a shell command in the node's network namespace with the machine's programs,
// because not every image has a shell.
func (i *instance) run(t *testing.T, command string) string {
	t.Helper()
	out, err := inNamespace(i.ns, command)
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

// foreign adds rules, routes and an address, as a network plugin does.
func (i *instance) foreign(t *testing.T, link string) {
	t.Helper()
	i.run(t, "ip rule add priority 512 to 10.0.0.50 lookup main && ip rule add priority 1536 from 10.0.0.51 lookup 2 && ip link set "+link+
		" up && ip route add 10.0.0.1 dev "+link+" scope link table 2 && ip route add default via 10.0.0.1 dev "+link+" table 2")
}

const ourRules = "ip rule | grep -cE '^(512|1536):'; ip route show table 2 | wc -l"

// inNamespace runs a shell command in a network namespace, with the machine's files.
func inNamespace(ns *testns.NS, command string) (string, error) {
	out, err := exec.Command("nsenter", "--net="+ns.Path, "sh", "-c", command).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// untilSysctl is a command that waits until udev's rules have run for a link of AL2023.
func untilSysctl(link string) string {
	return "for n in $(seq 40); do test $(cat /proc/sys/net/ipv4/conf/" + link + "/promote_secondaries) = 1 && break; sleep 0.25; done"
}

func TestAnImageHasItsFilesSettingsAndPaths(t *testing.T) {
	booted := map[osimage.Name]*node.Node{}
	for _, name := range []osimage.Name{osimage.AL2023, osimage.Ubuntu} {
		_, booted[name] = bootImage(t, name)
	}
	for _, tc := range []struct {
		image               osimage.Name
		name, command, want string
	}{
		{osimage.AL2023, "its release file", "grep ^ID= /etc/os-release", `ID="amzn"`},
		{osimage.AL2023, "its routes have a metric", "ip route show default", "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.11 metric 512"},
		{osimage.AL2023, "its primary interface", "ip -4 -o addr show eth0 | awk '{print $4}'; cat /sys/class/net/eth0/mtu", "10.0.0.11/19\n9001"},
		{osimage.AL2023, "forwarding is off until a plugin needs it", "cat /proc/sys/net/ipv4/ip_forward", "0"},
		{osimage.AL2023, "rp_filter", "cd /proc/sys/net/ipv4/conf && cat all/rp_filter default/rp_filter eth0/rp_filter", "0\n2\n2"},
		{osimage.AL2023, "rp_filter of a pod's link", "ip link add pod type veth peer name far9; " + untilSysctl("pod") + "; cat /proc/sys/net/ipv4/conf/pod/rp_filter", "2"},
		{osimage.AL2023, "a MAC that the kernel chose stays", "ip link add any type veth peer name far8; " + untilSysctl("any") + "; cat /sys/class/net/any/addr_assign_type", "1"},
		{osimage.AL2023, "the kubelet checks kernel settings and does not write them", "grep protectKernelDefaults /lab/conf/kubelet.yaml", "protectKernelDefaults: true"},

		{osimage.Ubuntu, "its release file", "grep ^ID= /etc/os-release", "ID=ubuntu"},
		{osimage.Ubuntu, "its routes have a metric", "for n in $(seq 40); do ip route show default | grep . && break; sleep 0.25; done", "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.11 metric 100"},
		{osimage.Ubuntu, "rp_filter", "cd /proc/sys/net/ipv4/conf && cat all/rp_filter default/rp_filter", "2\n2"},
		{osimage.Ubuntu, "a MAC that the kernel chose is replaced", "ip link add any type veth peer name far8; for n in $(seq 40); do test $(cat /sys/class/net/any/addr_assign_type) = 3 && break; sleep 0.25; done; cat /sys/class/net/any/addr_assign_type", "3"},
		{osimage.Ubuntu, "a MAC that a program chose stays", "ip link add set address 02:00:00:00:00:99 type veth peer name far7; sleep 1; cat /sys/class/net/set/address", "02:00:00:00:00:99"},
	} {
		t.Run(string(tc.image)+"/"+tc.name, func(t *testing.T) {
			if got, _ := inside(booted[tc.image], "sh", "-c", tc.command); got != tc.want {
				t.Errorf("%s\n printed %q\n want    %q", tc.command, got, tc.want)
			}
		})
	}
}

func TestBottlerocketHasAReadOnlyRootAndNoShell(t *testing.T) {
	i, n := bootImage(t, osimage.Bottlerocket)
	for _, tc := range []struct {
		name string
		argv []string
		want string
	}{
		{"its root", []string{"touch", "/x"}, "touch: cannot touch '/x': Read-only file system"},
		{"plugins can be installed", []string{"touch", "/opt/cni/bin/trunkline-cni"}, ""},
		{"it has plugins", []string{"ls", "/opt/cni/bin/loopback"}, "/opt/cni/bin/loopback"},
		{"configurations can be installed", []string{"touch", "/etc/cni/net.d/10-x.conflist"}, ""},
		{"they are not on the disk", []string{"stat", "-f", "-c", "%T", "/etc/cni"}, "tmpfs"},
		{"its settings", []string{"cat", "/proc/sys/net/ipv4/ip_default_ttl", "/proc/sys/net/ipv4/conf/eth0/rp_filter", "/proc/sys/net/ipv4/conf/default/rp_filter"}, "255\n2\n0"},
		{"its routes have networkd's metric", []string{"ip", "route", "show", "default"}, "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.11 metric 1024"},
	} {
		if got, _ := inside(n, tc.argv...); got != tc.want {
			t.Errorf("%s: %q\n printed %q\n want    %q", tc.name, tc.argv, got, tc.want)
		}
	}
	if out, err := inside(n, "sh", "-c", "echo ran"); err == nil {
		t.Errorf("it has a shell: %s", out)
	}
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	again := bootIdle(t, i.config)
	if out, err := inside(again, "ls", "/opt/cni/bin/trunkline-cni", "/etc/cni/net.d"); err != nil || strings.Contains(out, "conflist") {
		t.Errorf("after a reboot: %v: %s; want the plugin and no configuration", err, out)
	}
}

// EKS's image leaves an interface that is attached after the boot, and the rules and routes
// of a network plugin, alone.
func TestAL2023LeavesTheNetworkPluginsInterfacesAlone(t *testing.T) {
	i, n := bootImage(t, osimage.AL2023, 1)
	eventually(t, "the interface of the boot is configured", func() bool {
		out, _ := inNamespace(i.ns, "ip rule; ip route show table 10001; ip -4 -o addr show eth1")
		return strings.Contains(out, "32765:	from 10.0.0.21 lookup 10001") && strings.Contains(out, "default via 10.0.0.1 dev eth1") &&
			strings.Contains(out, "10.0.0.21/19")
	})
	i.attach(t, 2)
	i.foreign(t, "eth2")
	decided := func() string {
		out, _ := inside(n, "cat", "/etc/eks/nodeadm/udev-net-manager/"+string(i.config.Instance.ID)+"/eth2")
		return out
	}
	eventually(t, "the later interface is the network plugin's", func() bool { return strings.HasSuffix(decided(), " cni") })
	if out, err := inside(n, "networkctl", "reload"); err != nil {
		t.Fatalf("networkctl reload: %v: %s", err, out)
	}
	if got := i.run(t, ourRules); got != "2\n2" {
		t.Errorf("of the plugin's rules and routes %q are left", got)
	}
	if got := i.run(t, "ip -4 -o addr show eth2"); got != "" {
		t.Errorf("the plugin's interface has %s", got)
	}
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	again := bootIdle(t, i.config)
	eventually(t, "the second boot is over", func() bool {
		out, _ := inside(again, "grep", "-c", "the interfaces of the boot are configured", "/lab/log/hotplug.log")
		return out == "2" // the log is on the disk
	})
	if got, _ := inside(again, "ls", "/run/systemd/network"); got != "70-eks-eth0.network\n70-eks-eth1.network" {
		t.Errorf("after a reboot systemd-networkd has the configurations %q", got)
	}
}

// Ubuntu's cloud-init puts all addresses of all interfaces on their links when one is
// attached, and its systemd-networkd deletes the rules and routes of a network plugin.
func TestUbuntuConfiguresTheNetworkPluginsInterfaces(t *testing.T) {
	i, _ := bootImage(t, osimage.Ubuntu)
	i.run(t, "ip rule add priority 512 to 10.0.0.50 lookup main")
	i.attach(t, 1)
	eventually(t, "cloud-init configures every address", func() bool {
		out, _ := inNamespace(i.ns, "ip -4 -o addr; ip rule; ip route show table 101; ip route")
		for _, want := range []string{
			"10.0.0.12/19", "10.0.0.21/19", "10.0.0.22/19", "from 10.0.0.21 lookup 101", "from 10.0.0.22 lookup 101",
			"default via 10.0.0.1 dev eth1 proto static", "default via 10.0.0.1 dev eth1 proto dhcp src 10.0.0.21 metric 200",
		} {
			if !strings.Contains(out, want) {
				return false
			}
		}
		return true
	})
	if got, _ := inNamespace(i.ns, "ip rule | grep -c ^512:"); got != "0" {
		t.Errorf("%s of the plugin's rules are left; systemd-networkd manages foreign rules", got)
	}
}

// What docs/compat.md says to do on Ubuntu before the node joins.
func TestUbuntuWithTheDocumentedSettingsLeavesTheNetworkPluginsInterfacesAlone(t *testing.T) {
	i, n := bootImage(t, osimage.Ubuntu)
	logged := func(n *node.Node, text string, times int) {
		eventually(t, fmt.Sprintf("%q is in the log", text), func() bool {
			out, _ := inside(n, "grep", "-c", text, "/lab/log/hotplug.log")
			return out == fmt.Sprint(times)
		})
	}
	logged(n, "the interfaces of the boot are configured", 1)
	if out, err := inside(n, "sh", "-ec", documented(t, "cloud.cfg.d")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, want := range exampleFiles(t, "ubuntu") {
		if got, err := inside(n, "cat", path); err != nil || got != strings.TrimSpace(want) {
			t.Errorf("the commands wrote %q to %s (%v); examples/images.yaml has %q", got, path, err, want)
		}
	}
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	n = bootIdle(t, i.config)
	logged(n, "the interfaces of the boot are configured", 2) // the log is on the disk
	i.attach(t, 1)
	i.foreign(t, "eth1")
	logged(n, "hot-plug is off", 1)
	if out, err := inside(n, "sh", "-c", "networkctl reload && networkctl reconfigure eth0"); err != nil {
		t.Fatalf("networkctl: %v: %s", err, out)
	}
	eventually(t, "the primary interface is configured again", func() bool {
		out, _ := inNamespace(i.ns, "ip route show default")
		return strings.Contains(out, "default via 10.0.0.1 dev eth0")
	})
	if got := i.run(t, ourRules); got != "2\n2" {
		t.Errorf("of the plugin's rules and routes %q are left", got)
	}
	if got := i.run(t, "ip -4 -o addr show eth1"); got != "" {
		t.Errorf("the plugin's interface has %s", got)
	}
}

// documented is the block of commands of docs/compat.md that contains a text.
func documented(t *testing.T, containing string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/compat.md")
	if err != nil {
		t.Fatal(err)
	}
	for n, block := range strings.Split(string(text), "```\n") {
		if n%2 == 1 && strings.Contains(block, containing) {
			return block
		}
	}
	t.Fatalf("docs/compat.md has no commands with %q", containing)
	return ""
}

// exampleFiles are the files of a node of examples/images.yaml.
func exampleFiles(t *testing.T, name string) map[string]string {
	t.Helper()
	s, err := spec.Load("../../examples/images.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.Name == name && len(n.Files) > 0 {
			return n.Files
		}
	}
	t.Fatalf("examples/images.yaml has no node %s with files", name)
	return nil
}
