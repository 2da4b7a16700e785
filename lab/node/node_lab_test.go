//go:build lab

package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/controlplane"
	labimage "github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/testparts"
	"github.com/trunkline/trunkline/test/testns"
)

var flags = testparts.Register()

const pauseImage = "trunkline.dev/test-pause:1"

var (
	subnet    = netip.MustParsePrefix("10.0.0.0/24")
	cpAddress = netip.MustParseAddr("10.0.0.10")
)

// plug adds an interface of the subnet to a namespace: a veth with its other end in the
// router's namespace.
func plug(t *testing.T, router, guest *testns.NS, index int, mac vpc.MAC) {
	t.Helper()
	name := fmt.Sprintf("port%d", index)
	router.Do(t, func() {
		f := guest.Open(t)
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: vpc.MTU},
			PeerName:  "eth0", PeerHardwareAddr: mac.HardwareAddr(), PeerNamespace: netlink.NsFd(f.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		host := netip.PrefixFrom(subnet.Addr().Next(), 32)
		_ = netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet(host)})
		for _, f := range []string{"proxy_arp", "forwarding"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/"+f, []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.WriteFile("/proc/sys/net/ipv4/neigh/"+name+"/proxy_delay", []byte("0"), 0o644)
	})
}

func routeTo(t *testing.T, router *testns.NS, index int, to netip.Addr) {
	t.Helper()
	router.Do(t, func() {
		link, err := netlink.LinkByName(fmt.Sprintf("port%d", index))
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipnet(netip.PrefixFrom(to, 32)), Scope: netlink.SCOPE_LINK}); err != nil {
			t.Fatal(err)
		}
	})
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// image builds an image archive with the test's own program.
func image(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-o", bin, "./testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out := filepath.Join(dir, "pause.tar")
	recipe := labimage.Recipe{Files: map[string]string{"/pause": bin}, Entrypoint: []string{"/pause"}}
	if err := recipe.Write(out, pauseImage); err != nil {
		t.Fatal(err)
	}
	return out
}

// cluster is a control plane and one node, connected by a router.
type cluster struct {
	cp     *controlplane.ControlPlane
	config node.Config
	client *kubernetes.Clientset
	log    *slog.Logger
	router *testns.NS
	guest  *testns.NS
}

func startControlPlane(t *testing.T) *cluster {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	router, guest, cpNS := testns.New(t, "vpc"), testns.New(t, "node1"), testns.New(t, "cp")
	router.Do(t, func() {
		for _, f := range []string{"ip_forward"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+f, []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	cpMAC := vpc.MAC{2, 0, 0, 0, 1, 1}
	plug(t, router, cpNS, 0, cpMAC)
	cpNS.Do(t, func() {
		if err := node.ConfigurePrimary(t.Context(), node.Primary{MAC: cpMAC, Address: cpAddress, Subnet: subnet}); err != nil {
			t.Fatal(err)
		}
	})
	routeTo(t, router, 0, cpAddress)
	cp, err := controlplane.Start(t.Context(), controlplane.Config{
		Lab: testns.Lab(), StateDir: t.TempDir(), Kube: flags.Find(t).Kube, NetNS: cpNS.Path, Address: cpAddress,
		ServiceCIDR: netip.MustParsePrefix("172.20.0.0/16"), Issuer: "https://oidc.eks.us-west-2.amazonaws.com/id/TEST",
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	c := &cluster{cp: cp, client: cp.Client(), log: log, router: router, guest: guest}
	c.config = nodeConfig(t, cp, guest.Path)
	plug(t, router, guest, 1, c.config.Instance.MAC)
	routeTo(t, router, 1, c.config.Instance.Address)
	return c
}

func nodeConfig(t *testing.T, cp *controlplane.ControlPlane, netns string) node.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := flags.Find(t)
	c := node.Config{
		Lab: testns.Lab(), Name: "node1", StateDir: t.TempDir(), NetNS: netns, Cgroup: node.CgroupV1,
		Instance: node.Instance{
			ID: "i-0123456789abcdef0", Type: "m5.xlarge", Zone: "us-west-2a", Region: "us-west-2",
			MAC: vpc.MAC{2, 0, 0, 0, 1, 2}, Address: netip.MustParseAddr("10.0.0.11"), Subnet: subnet,
			Resolver: netip.MustParseAddr("10.0.0.2"), MaxPods: 58,
		},
		Parts: node.Parts{Kube: p.Kube, Lab: self, Containerd: p.Containerd, Runc: p.Runc, CNI: p.CNI, PauseImage: pauseImage},
	}
	c.Kubernetes.Server, c.Kubernetes.ClusterDNS = cp.Server(), netip.MustParseAddr("172.20.0.10")
	keys, err := cp.NodeKeys(c.Instance.Hostname(), c.Instance.Address)
	if err != nil {
		t.Fatal(err)
	}
	c.Kubernetes.Keys = node.Keys(keys)
	return c
}

// boot starts the node. After the test it stops the node, and prints its logs if the test
// failed.
func (c *cluster) boot(t *testing.T) *node.Node {
	t.Helper()
	n, err := node.Start(c.config, c.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.PowerOff(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, l := range []string{"init", "containerd", "kubelet", "kube-proxy"} {
				b, _ := os.ReadFile(filepath.Join(c.config.StateDir, "log", l+".log"))
				t.Logf("%s:\n%s", l, tail(string(b), 40))
			}
		}
	})
	if err := n.AwaitRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// await polls cond until it returns true.
func await(t *testing.T, what string, cond func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, cond); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// network configures the reference ptp plugin, as the installer of a network does.
func (c *cluster) network(t *testing.T) {
	t.Helper()
	conf := filepath.Join(c.config.StateDir, "disk/etc/cni/net.d")
	list := `{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"ptp","mtu":8951,"ipam":{"type":"host-local",
		"ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
	if err := os.WriteFile(filepath.Join(conf, "10-test.conflist"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) ready(ctx context.Context) bool {
	n, err := c.client.CoreV1().Nodes().Get(ctx, c.config.Instance.Hostname(), metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hostPod(nodeName string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "host", Namespace: "default"},
		Spec: corev1.PodSpec{
			HostNetwork: true, NodeName: nodeName,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: pauseImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"hello", "from", "the", "node"},
			}},
		},
	}
}

func TestANodeRegistersAsAnInstanceAndRunsAHostNetworkPod(t *testing.T) {
	c := startControlPlane(t)
	n := c.boot(t)
	if err := n.Import(t.Context(), image(t, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	host := c.config.Instance.Hostname()
	await(t, "node registers", func(ctx context.Context) (bool, error) {
		got, err := c.client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		if got.Spec.ProviderID != "aws:///us-west-2a/i-0123456789abcdef0" || got.Labels["node.kubernetes.io/instance-type"] != "m5.xlarge" {
			return false, fmt.Errorf("registered as %s, %v", got.Spec.ProviderID, got.Labels)
		}
		return true, nil
	})
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), hostPod(host), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "pod runs", func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(ctx, "host", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning && p.Status.PodIP == "10.0.0.11", err
	})
	await(t, "a container has the node's boot ID", func(context.Context) (bool, error) {
		out, err := exec.Command(node.EnterArgs(n.PID())[0], append(node.EnterArgs(n.PID())[1:],
			"sh", "-c", "cd /proc/$(pgrep -nx pause)/root && cat proc/sys/kernel/random/boot_id")...).CombinedOutput()
		if err != nil {
			return false, fmt.Errorf("read the boot ID in the container: %w: %s", err, out)
		}
		if got := strings.TrimSpace(string(out)); got != n.BootID() {
			return false, fmt.Errorf("the container has boot ID %q, want %q", got, n.BootID())
		}
		return true, nil
	})
	await(t, "its log contains hello", func(ctx context.Context) (bool, error) {
		b, err := c.client.CoreV1().Pods("default").GetLogs("host", &corev1.PodLogOptions{}).DoRaw(ctx)
		return err == nil && strings.Contains(string(b), "hello from the node"), nil
	})
}

func TestANodeIsReadyAfterANetworkIsInstalledAndAfterAReboot(t *testing.T) {
	c := startControlPlane(t)
	n := c.boot(t)
	if err := n.Import(t.Context(), image(t, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	host := c.config.Instance.Hostname()
	await(t, "node registers", func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		return err == nil, nil
	})
	if c.ready(t.Context()) {
		t.Error("node is Ready without a network")
	}
	c.network(t)
	await(t, "node becomes Ready", func(ctx context.Context) (bool, error) { return c.ready(ctx), nil })
	pod := hostPod(host)
	pod.Spec.HostNetwork, pod.Spec.Tolerations = false, nil
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running := func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(ctx, "host", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning && strings.HasPrefix(p.Status.PodIP, "10.1.0."), nil
	}
	await(t, "pod runs in its own network", running)

	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	n = c.boot(t)
	await(t, "the node reports the new boot ID", func(ctx context.Context) (bool, error) {
		got, err := c.client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		return err == nil && got.Status.NodeInfo.BootID == n.BootID(), nil
	})
	await(t, "pod runs again", func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(ctx, "host", metav1.GetOptions{})
		ok := err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
		if !ok {
			return false, nil
		}
		return running(ctx)
	})
}

func TestANodeWithCgroupVersion2RunsAPod(t *testing.T) {
	c := startControlPlane(t)
	c.config.Cgroup = node.CgroupV2
	n := c.boot(t)
	if err := n.Import(t.Context(), image(t, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), hostPod(c.config.Instance.Hostname()), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "pod runs", func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(ctx, "host", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, err
	})
}
