// Package podgroups has nodes on a real kernel, with pods that have security groups and no interface
// of their own, and proves by connections between two nodes that the groups are enforced: from the
// first packet, while members, rules and policies change, and without the controller.
//
// A Node runs control/policy with control/groups, edge/bpf, edge/link and edge/nft as an agent does.
// It touches only what it creates.
package podgroups

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/control/groups"
	control "github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/test/testns"
)

// Node is a node with pods.
type Node struct {
	T       testing.TB
	Address netip.Addr
	NS      *testns.NS
	*control.Controller
	// Component is what the agent gives control/cni.
	Component groups.Component

	kernel
	objects
	server *kubetest.Server
	bpffs  string
	saved  string // directory of the snapshots
	stop   func()

	mu     sync.Mutex
	vpc    vpc.ID
	pods   []kube.Pod
	called ruleset.Programs // by the rules of nftables
}

// kernel is what of the node the agent writes.
type kernel struct {
	store  *state.Store
	host   *link.Host
	filter *nft.Firewall
}

// objects are what the agent reads of the API server.
type objects struct {
	judged   *groups.Objects
	policies *kube.PolicyObjects
	groups   *kube.GroupObjects
}

// Pod is a pod of a node.
type Pod struct {
	kube.Pod
	Address netip.Addr
	NS      *testns.NS
}

// New makes a node with the address 10.0.NUMBER.4 in a VPC and starts its agent.
func New(t testing.TB, number int, server *kubetest.Server, id vpc.ID) *Node {
	t.Helper()
	n := &Node{T: t, server: server, vpc: id, bpffs: t.TempDir(), saved: t.TempDir(), NS: testns.New(t, fmt.Sprintf("sgnode%d", number)), Address: netip.AddrFrom4([4]byte{10, 0, byte(number), 4})}
	n.ip("-n", n.NS.Name, "link", "set", "lo", "up")
	n.ip("-n", n.NS.Name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0p")
	n.NS.Do(t, func() {
		if _, err := link.InitHost(hostnet.Sysctls("eth0", []vpc.Family{vpc.IPv4, vpc.IPv6})); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = unix.Unmount(n.bpffs, unix.MNT_DETACH) })
	n.open()
	n.Start()
	t.Cleanup(func() { n.Stop() })
	return n
}

func (n *Node) must(err error) {
	n.T.Helper()
	if err != nil {
		n.T.Fatal(err)
	}
}

func (n *Node) ip(arguments ...string) {
	n.T.Helper()
	if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		n.T.Fatalf("ip %q: %v: %s", arguments, err, out)
	}
}

// open opens what the agent works with.
func (n *Node) open() {
	n.T.Helper()
	netns := n.NS.Open(n.T)
	defer netns.Close()
	log := slog.New(slog.DiscardHandler)
	var err error
	n.host, err = link.Open(netns)
	n.must(err)
	n.T.Cleanup(func() { _ = n.host.Close() })
	n.host.PrepareFilters()
	n.filter, err = nft.Open(netns, log)
	n.must(err)
	n.T.Cleanup(func() { _ = n.filter.Close() })
	n.store, err = state.Open(n.T.Context(), state.Options{
		Dir: n.T.TempDir(), BootID: "this one", Settings: ipam.DefaultConfig().Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: log,
	})
	n.must(err)
	n.T.Cleanup(func() { _ = n.store.Close() })
}

// Start starts the agent's controllers, which adopt what earlier ones left in the kernel.
func (n *Node) Start() {
	n.T.Helper()
	log := slog.New(slog.DiscardHandler)
	client, err := kube.FromREST(n.server.REST())
	n.must(err)
	mark := func() { n.Loop.Mark() }
	n.policies = kube.NewPolicyObjects(kube.PolicyOptions{Client: client, Log: log, Changed: mark, KeepPods: true, SnapshotPath: filepath.Join(n.saved, "policies.json")})
	n.groups = kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, Groups: true, Log: log, Changed: mark, SnapshotPath: n.GroupSnapshot()})
	n.judged = groups.New(groups.Deps{Policies: n.policies, Groups: n.groups, VPC: n.inVPC})
	netns := n.NS.Open(n.T)
	n.Controller = control.New(control.Deps{
		Log: log, State: n.store, Objects: n.judged, Pods: groups.Pods{Objects: n.judged, Of: n}, Events: n, Links: n.host,
		Judge: n.judge, Report: func() {}, Registry: prometheus.NewRegistry(),
		Open: func() (*bpf.Datapath, error) {
			d, _, err := bpf.Open(bpf.Options{BPFFS: n.bpffs, Dir: pins, Netns: netns, Log: log, Sizes: map[string]uint32{"tl_connections": 1 << 12}})
			return d, err
		},
	})
	n.Component = groups.Component{Objects: n.judged, Events: n, Next: n.Controller}
	if _, err := os.Stat(filepath.Join(n.bpffs, pins)); err == nil {
		n.must(n.Adopt(n.T.Context()))
	}
	n.must(n.restore(n.T.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for _, run := range []func(context.Context) error{n.policies.Run, n.groups.Run, n.Loop.Run, n.Watch} {
		done.Go(func() { _ = run(ctx) })
	}
	n.stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		if err := n.Close(); err != nil {
			n.T.Error(err)
		}
	})
}

// pins is the directory of the pins below the bpffs.
const pins = "tl-groups"

// Stop ends the agent. What it put into the kernel stays.
func (n *Node) Stop() { n.stop() }

// Saved waits until the snapshots of the node's agent have the groups and these pods of the cluster.
func (n *Node) Saved(pods ...string) {
	n.T.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Timeout); ; <-tick.C {
		text := n.peers()
		_, err := os.Stat(n.GroupSnapshot())
		if err == nil && !slices.ContainsFunc(pods, func(name string) bool { return !strings.Contains(text, strconv.Quote(name)) }) {
			return
		}
		if time.Now().After(end) {
			n.T.Fatalf("the snapshot has not all of %q: %s; groups: %v", pods, text, err)
		}
	}
}

// peers is the snapshot of the cluster's pods; empty without one.
func (n *Node) peers() string {
	f, err := os.Open(filepath.Join(n.saved, "policies.json.peers"))
	if err != nil {
		return ""
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	n.must(err)
	text, err := io.ReadAll(zip)
	n.must(err)
	return string(text)
}

// GroupSnapshot is the file with the groups of the node's agent.
func (n *Node) GroupSnapshot() string { return filepath.Join(n.saved, "groups.json") }

// judge is control/network's Judge.
func (n *Node) judge(ctx context.Context, by ruleset.Programs) error {
	n.mu.Lock()
	n.called = by
	n.mu.Unlock()
	return n.restore(ctx)
}

func (n *Node) restore(ctx context.Context) error {
	n.mu.Lock()
	by := n.called
	n.mu.Unlock()
	return n.filter.Apply(ctx, func() ruleset.Ruleset {
		c := ruleset.Config{PrimaryLink: "eth0", PrimaryIPv4: n.Address, VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Policy: by}
		for _, e := range n.store.Endpoints() {
			if e.Wired() {
				c.Pods = append(c.Pods, ruleset.PodOf(e, false))
			}
		}
		return ruleset.Compile(c)
	})
}

// Synced implements the pods of control/groups: all that the node has are listed.
func (*Node) Synced() bool { return true }

// Pods implements control/policy.Pods.
func (n *Node) Pods() []kube.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

// SetVPC is the agent's VPC from now on; empty while instance metadata does not answer.
func (n *Node) SetVPC(id vpc.ID) {
	n.mu.Lock()
	n.vpc = id
	n.mu.Unlock()
	n.Loop.Mark()
}

func (n *Node) inVPC() vpc.ID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.vpc
}

// SetPod adds or replaces a pod of the node, as its own watch shows it.
func (n *Node) SetPod(p kube.Pod) {
	n.mu.Lock()
	n.pods = append(slices.DeleteFunc(n.pods, func(o kube.Pod) bool { return o.PodRef == p.PodRef }), p)
	n.mu.Unlock()
	n.Loop.Mark()
}

// NodeWarning implements control/policy.Events.
func (n *Node) NodeWarning(reason, message string) { n.T.Logf("event %s: %s", reason, message) }

// PodWarning implements control/policy.Events.
func (n *Node) PodWarning(ref kube.PodRef, _, reason, message string) {
	n.NodeWarning(reason, ref.String()+": "+message)
}

// PolicyWarning implements control/policy.Events.
func (n *Node) PolicyWarning(ref policy.Ref, _, reason, message string) {
	n.NodeWarning(reason, ref.String()+": "+message)
}

// Add wires a pod as an ADD does.
func (n *Node) Add(p *Pod) error {
	n.T.Helper()
	if p.NS == nil {
		p.NS = testns.New(n.T, p.Name)
	}
	ctx := n.T.Context()
	n.SetPod(p.Pod)
	if err := n.Component.Admit(ctx, p.Pod); err != nil {
		return err
	}
	netns := p.NS.Open(n.T)
	defer netns.Close()
	e, err := n.attach(p)
	if err != nil {
		return err
	}
	index, err := n.host.Wire(ctx, netns, e)
	if err == nil {
		err = n.filter.Put(ctx, ruleset.PodOf(e, false).Elements()...)
	}
	if err == nil {
		err = n.Component.Ready(ctx, e, index)
	}
	if err == nil {
		_, err = n.store.Update(func(tx *state.Tx) error {
			done, err := e.Complete(time.Now())
			return errors.Join(err, tx.Put(done))
		})
	}
	if err == nil {
		err = n.host.Up(ctx, e, index)
	}
	return err
}

// Timeout bounds how long a test waits for what must happen.
const Timeout = 30 * time.Second

// Retry wires a pod as a kubelet does: it tries again while the pod is refused.
func (n *Node) Retry(p *Pod) (err error) {
	n.T.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Timeout); time.Now().Before(end); <-tick.C {
		if err = n.Component.Admit(n.T.Context(), p.Pod); err == nil {
			return n.Add(p)
		}
	}
	return err
}

// attach enters a pod's endpoint in the table.
func (n *Node) attach(p *Pod) (e endpoint.Endpoint, err error) {
	_, err = n.store.Update(func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		key := endpoint.Key{ContainerID: fmt.Sprintf("%s-%s-%d", p.Namespace, p.Name, id), IfName: "eth0"}
		e, err = endpoint.New(id, key, endpoint.Pod{Namespace: p.Namespace, Name: p.Name}, "trunkline", time.Now(), time.Now()).Attach(endpoint.Wire{
			Addresses: endpoint.AddressesOf(p.Address, netip.Addr{}), Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, p.Namespace, p.Name), MTU: 1500,
			Attachment: endpoint.Attachment{Kind: endpoint.Routed, Table: hostnet.TableMain},
		}, time.Now())
		return errors.Join(err, tx.Put(e))
	})
	return e, err
}

// Connect connects two nodes and routes the pods of each, which have the addresses 10.0.NUMBER.0/24,
// to the other.
func Connect(a, b *Node) {
	a.T.Helper()
	a.ip("-n", a.NS.Name, "link", "del", "eth0")
	b.ip("-n", b.NS.Name, "link", "del", "eth0")
	a.ip("-n", a.NS.Name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.NS.Name)
	for node, other := range map[*Node]*Node{a: b, b: a} {
		node.ip("-n", node.NS.Name, "addr", "add", node.Address.String()+"/32", "dev", "eth0")
		node.ip("-n", node.NS.Name, "link", "set", "eth0", "up")
		node.ip("-n", node.NS.Name, "route", "add", other.Address.String(), "dev", "eth0")
		node.ip("-n", node.NS.Name, "route", "add", netip.PrefixFrom(other.Address, 24).Masked().String(), "via", other.Address.String())
	}
}
