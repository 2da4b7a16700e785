// Package node is an instance of an embedded VPC that runs the product without Kubernetes:
// the agent as a process of its own in the instance's namespace, the plugin's real binary
// run by libcni, pods that are network namespaces.
//
// The tests below test/ and the benchmarks share it; each calls ServeAgent at the start of
// its main. It needs root, and removes everything it creates.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/testns"
)

// timeout bounds every wait. It is long, for machines under load.
const timeout = 2 * time.Minute

// T is the part of testing.TB that a node needs; benchmarks outside `go test` have their
// own.
type T interface {
	testns.T
	Context() context.Context
	Failed() bool
	Logf(format string, args ...any)
	TempDir() string
}

// Config is the configuration of a node. The zero value is a t3.medium.
type Config struct {
	Type   string // instance type, such as "m5.xlarge"
	Plugin string // path of a plugin built before, see PluginPath; empty: New builds one
	// Reference: New builds the reference plugins of the product's image, and init
	// installs them.
	Reference bool
	// PodCIDR, if valid, is the Node's spec.podCIDR, and the node has no cloud: neither EC2
	// nor instance metadata answers, and the embedded VPC only carries packets.
	PodCIDR netip.Prefix
	// UnboundPrimary leaves the primary interface without the instance's tag, as
	// RunInstances does; see world.Config.BindPrimaries.
	UnboundPrimary bool
	// Policy is that of the instance's role; nil: the one in deploy/iam.
	Policy []byte
	// DetachTime is how long EC2 takes to detach an interface; zero is as on AWS.
	DetachTime time.Duration
	// IPv6: the VPC has IPv6, and its subnet assigns an address to each interface.
	IPv6 bool
	// Instances are others of the VPC, and Groups more security groups. Each instance of them has
	// a namespace, which Boot configures.
	Instances []cloud.InstanceSpec
	Groups    []cloud.GroupSpec
	// TrunkCalls allows the account to associate branches with trunks.
	TrunkCalls bool
	// Init are more flags of the agent's init.
	Init []string
	// Seed of the VPC's ids; zero is 1. Nodes with different ones are different instances.
	Seed uint64
}

// Node is an instance of an embedded VPC with an agent on it.
type Node struct {
	*world.World
	NS *testns.NS
	// Internet is the host outside of the VPC, world.OutsideAddress.
	Internet *testns.NS
	Dir      string    // state, run, bin, net.d, cache; and agent.log
	Agent    *exec.Cmd // nil before StartAgent
	Env      []string  // added to the environment of agents

	t      T
	source string // root of the checkout
	boots  int    // how often Reboot was called

	podCIDR netip.Prefix
}

func spec(namespace, kind string, seed uint64) cloud.Spec {
	prefix := netip.MustParsePrefix
	return cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: seed,
		VPC:         cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}, InternetGateway: true},
		RouteTables: []cloud.RouteTableSpec{{Name: "public", Routes: []cloud.RouteSpec{{Destination: prefix("0.0.0.0/0"), Gateway: "igw"}}}},
		Subnets:     []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: prefix("10.0.0.0/19"), Public: true}},
		Groups: []cloud.GroupSpec{{
			Name: "node", Ingress: []cloud.RuleSpec{{Protocol: "-1", Groups: []string{"node"}}},
		}},
		Instances: []cloud.InstanceSpec{{
			Name: "node1", Type: kind, Subnet: "a", Groups: []string{"node"}, Role: "node",
			Metadata: cloud.DefaultMetadata(), Namespace: namespace,
		}},
	}
}

// New creates the VPC, configures the instance's network and installs the plugin as the
// DaemonSet's init container does. It does not start the agent.
func New(t T, cfg Config) *Node {
	t.Helper()
	if _, ok := os.LookupEnv(agentEnv); ok {
		t.Fatal("this process was started to be a node's agent, and has not called node.ServeAgent first: it would start itself without end")
	}
	source, err := cache.FindSource(".")
	if err != nil {
		t.Fatal(err)
	}
	policy := cfg.Policy
	if policy == nil {
		if policy, err = os.ReadFile(filepath.Join(source, "deploy/iam/node-policy.json")); err != nil {
			t.Fatal(err)
		}
	}
	n := &Node{t: t, NS: testns.New(t, "node"), Dir: t.TempDir(), source: source, podCIDR: cfg.PodCIDR}
	seq := testns.New(t, "seq") // for a number unique on this machine
	n.Internet = &testns.NS{Name: seq.Name + "-net", Path: netns.Path(seq.Name + "-net")}
	built := spec(n.NS.Name, cmp.Or(cfg.Type, "t3.medium"), cmp.Or(cfg.Seed, 1))
	if cfg.IPv6 {
		built.VPC.CIDR6 = netip.MustParsePrefix("2600:1f14:abc:de00::/56")
		built.Subnets[0].CIDR6, built.Subnets[0].AssignIPv6 = netip.MustParsePrefix("2600:1f14:abc:de01::/64"), true
	}
	built.Instances, built.Groups = append(built.Instances, cfg.Instances...), append(built.Groups, cfg.Groups...)
	built.Quotas.TrunkCalls = cfg.TrunkCalls
	n.World, err = world.Start(t.Context(), world.Config{
		Spec:      built,
		Namespace: seq.Name + "-vpc", Internet: n.Internet.Name, NoPlatform: cfg.PodCIDR.IsValid(),
		BindPrimaries: !cfg.UnboundPrimary, DetachTime: cfg.DetachTime,
		Roles: []iam.Role{{Name: "node", Instances: true, Policies: map[string][]byte{"node-policy": policy}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	n.bootNetwork()
	t.Cleanup(func() { _ = unix.Unmount(BPFRoot(n), unix.MNT_DETACH) }) // it is mounted while there are policies
	for _, sub := range []string{"bin", "net.d", "cache"} {
		if err := os.Mkdir(filepath.Join(n.Dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.installPlugin(cfg)
	return n
}

// PluginPath is the path of the plugin that New built, if Config named none.
func (n *Node) PluginPath() string { return filepath.Join(n.Dir, "trunkline-cni") }

func (n *Node) installPlugin(cfg Config) {
	n.t.Helper()
	plugin := cfg.Plugin
	if plugin == "" {
		plugin = n.PluginPath()
		n.Build("", "./cmd/trunkline-cni", plugin)
	}
	flags := append([]string{"init=" + plugin}, cfg.Init...)
	if cfg.Reference {
		dir := filepath.Join(n.Dir, "reference")
		for _, pkg := range []string{"main/loopback", "meta/portmap"} {
			n.Build("deploy/plugins", "github.com/containernetworking/plugins/plugins/"+pkg, filepath.Join(dir, filepath.Base(pkg)))
		}
		flags = append(flags, referenceFlag+"="+dir)
	}
	if n.podCIDR.IsValid() { // with auto, init waits for instance metadata
		flags = append(flags, "backend="+config.BackendPodCIDR)
	}
	initial := n.Command(flags...)
	var output strings.Builder
	initial.Stdout, initial.Stderr = &output, &output
	if err := n.NS.Run(initial.Start); err != nil {
		n.t.Fatal(err)
	}
	if err := initial.Wait(); err != nil {
		n.t.Fatalf("init: %v\n%s", err, output.String())
	}
}

// Build compiles a main package of the module in a folder of the checkout, with the flags
// of a release.
func (n *Node) Build(folder, pkg, out string) {
	n.t.Helper()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	build.Dir, build.Env = filepath.Join(n.source, folder), append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		n.t.Fatalf("build %s: %v\n%s", pkg, err, output)
	}
}

// Command is the agent as a process, with flags in addition to the test's own. It ends
// when this process ends, even if that is killed.
func (n *Node) Command(flags ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	if n.podCIDR.IsValid() {
		flags = append([]string{podCIDRFlag + "=" + n.podCIDR.String()}, flags...)
	}
	if n.boots > 0 {
		flags = append([]string{bootFlag + "=" + n.bootID()}, flags...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	cmd.Env = append(os.Environ(), agentEnv+"="+strings.Join(append([]string{
		fmt.Sprint(parentFlag, "=", os.Getpid()), "node-name=node1", "cluster-name=test", "state-dir=" + n.Dir + "/state", "socket=" + n.Socket(),
		"cni-bin-dir=" + n.Dir + "/bin", "cni-conf-dir=" + n.Dir + "/net.d", "cool-down=1s", "add-wait=60s", "cni-version=1.1.0",
		"aws-node-checkpoint=" + n.Checkpoint(), "bpf-root=" + BPFRoot(n),
		"metrics-address=127.0.0.1:61678", brakeFlag + "=" + n.brake(), podsFlag + "=" + n.bound(),
	}, flags...), "\n"))
	if n.podCIDR.IsValid() {
		return cmd
	}
	cmd.Env = append(cmd.Env, n.Env...)
	cmd.Env = append(cmd.Env, "AWS_REGION=us-west-2", "AWS_ENDPOINT_URL_EC2="+n.InsideEndpoint(), "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://169.254.169.254")
	return cmd
}

// Checkpoint is the path of the file from which AWS's daemon learns which addresses are in use.
func (n *Node) Checkpoint() string { return filepath.Join(n.Dir, "aws-node", "ipam.json") }

// BPFRoot is the directory at which the agent mounts a bpffs of its own.
func BPFRoot(n *Node) string { return filepath.Join(n.Dir, "bpf") }

// Socket is the path of the agent's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "run", "agent.sock") }

// StartAgent runs the agent as a process inside the instance's namespace.
func (n *Node) StartAgent(flags ...string) {
	n.t.Helper()
	cmd := n.Command(flags...)
	log, err := os.OpenFile(filepath.Join(n.Dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.NS.Run(cmd.Start); err != nil {
		n.t.Fatalf("start agent: %v", err)
	}
	n.Agent = cmd
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
		if n.t.Failed() {
			raw, _ := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
			n.t.Logf("agent's log:\n%s", raw[max(0, len(raw)-12000):])
		}
	})
}

// Kill ends the agent with SIGKILL, like a crash.
func (n *Node) Kill() {
	n.t.Helper()
	if err := n.Agent.Process.Signal(syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	_ = n.Agent.Wait()
}

// Until waits until ok returns nil. what names the condition in the failure message.
func (n *Node) Until(what string, ok func() error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// Get reads a path of the agent's introspection from inside the node.
func (n *Node) Get(path string, into any) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = n.NS.Run(func() (err error) { conn, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
			return conn, err
		},
	}}
	resp, err := client.Get("http://127.0.0.1:61679" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, raw)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(raw, into)
	}
	return err
}

// UntilReady waits until the agent reports itself ready.
func (n *Node) UntilReady() {
	n.t.Helper()
	n.Until("ready agent", func() error { return n.Get("/readyz", nil) })
}

// Ledger is the agent's record of its addresses.
func (n *Node) Ledger() introspection.Ledger {
	n.t.Helper()
	var b introspection.Ledger
	if err := n.Get(introspection.LedgerPath, &b); err != nil {
		n.t.Fatal(err)
	}
	return b
}

// Count returns how many addresses of the ledger are in a state.
func Count(b introspection.Ledger, state string) (sum int) {
	count := func(addresses []introspection.Address) {
		for _, a := range addresses {
			if a.State == state {
				sum++
			}
		}
	}
	for _, e := range b.ENIs {
		count(e.Addresses)
	}
	if b.PodCIDR != nil {
		count(b.PodCIDR.Addresses)
	}
	return sum
}

// CNI reads the conflist the agent wrote.
func (n *Node) CNI() (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	n.t.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(n.Dir, "net.d", "10-trunkline.conflist"))
	if err != nil {
		n.t.Fatal(err)
	}
	return libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(n.Dir, "bin")}, filepath.Join(n.Dir, "cache"), nil), list
}

// Pod is a network namespace with the parameters of its CNI calls.
type Pod struct {
	*testns.NS
	RT   *libcni.RuntimeConf
	Addr netip.Addr // from the answer of the last ADD
}

// NewPod creates a pod without an interface. Its container ID derives from its name.
func (n *Node) NewPod(name string) *Pod {
	ns := testns.New(n.t, "pod")
	ns.Do(n.t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	})
	return &Pod{NS: ns, RT: &libcni.RuntimeConf{
		ContainerID: "sandbox-" + name, NetNS: ns.Path, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", "uid-" + name}},
	}}
}

// Add runs ADD and sets p.Addr.
func (n *Node) Add(p *Pod) error {
	cni, list := n.CNI()
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	result, err := cni.AddNetworkList(ctx, list, p.RT)
	if err != nil {
		return err
	}
	got, err := current.NewResultFromResult(result)
	if err != nil {
		return err
	}
	p.Addr = netip.MustParseAddr(got.IPs[0].Address.IP.String())
	return nil
}

// Del runs DEL.
func (n *Node) Del(p *Pod) error {
	cni, list := n.CNI()
	return cni.DelNetworkList(n.t.Context(), list, p.RT)
}

// Ping sends ICMP echoes from the pod until one is answered, for two seconds.
func (p *Pod) Ping(to netip.Addr) error {
	var conn net.PacketConn
	if err := p.Run(func() (err error) { conn, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); return err }); err != nil {
		return err
	}
	defer conn.Close()
	echo := []byte{8, 0, 0, 0, 0x7a, 0x51, 0, 1} // type, code, checksum, id, sequence
	var sum uint32
	for i := 0; i < len(echo); i += 2 {
		sum += uint32(echo[i])<<8 | uint32(echo[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	echo[2], echo[3] = byte(sum>>8), byte(sum)
	answer := make([]byte, 1500)
	for range 4 {
		if _, err := conn.WriteTo(echo, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return fmt.Errorf("ping %s from %s: %w", to, p.Addr, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			return err
		}
		for {
			n, from, err := conn.ReadFrom(answer)
			if err != nil {
				break // timeout: send again
			}
			if n >= 8 && answer[0] == 0 && from.String() == to.String() {
				return nil
			}
		}
	}
	return fmt.Errorf("ping %s from %s: no answer", to, p.Addr)
}

// InVPC reports whether the address is a secondary address of an interface in EC2.
func (n *Node) InVPC(a netip.Addr) bool {
	for _, i := range n.State().Interfaces {
		for _, have := range i.IPv4.Addresses[1:] {
			if have == a {
				return true
			}
		}
	}
	return false
}

// Stop ends the agent with SIGTERM, as the kubelet does.
func (n *Node) Stop() {
	n.t.Helper()
	if err := n.Agent.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Agent.Wait(); err != nil {
		n.t.Errorf("agent ended with %v", err)
	}
}
