package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/test/testns"
)

// Timeout is how long a test waits for what must happen.
const Timeout = 60 * time.Second

// Node is a node with pods, in a namespace of its own.
type Node struct {
	T      testing.TB
	Server *kubetest.Server // of the cluster; several nodes may share one
	NS     *testns.NS
	Spec   Spec
	*Agent
	// UpFirst is a deliberate error: links are set up before the policies of their pods are in
	// force.
	UpFirst bool

	barrier int64
}

// Pod is a pod of a node.
type Pod struct {
	policy.PodRef
	Labels  map[string]string
	Ports   []policy.NamedPort
	Address netip.Addr
	// Address6 is that of IPv6; Add gives it one if it has none.
	Address6 netip.Addr
	NS       *testns.NS

	endpoint endpoint.Endpoint
}

// New makes a node with the address 10.0.NUMBER.4, without pods, and starts its agent. A nil
// server is a new one. set changes the Spec.
func New(t testing.TB, number int, server *kubetest.Server, set func(*Spec)) *Node {
	t.Helper()
	if server == nil {
		server = kubetest.New(t)
	}
	n := &Node{T: t, Server: server, NS: testns.New(t, fmt.Sprintf("node%d", number))}
	n.Spec = Spec{
		Netns: n.NS.Path, BPFFS: t.TempDir(), Journal: t.TempDir(), API: server.REST().Host,
		Address: netip.AddrFrom4([4]byte{10, 0, byte(number), 4}), Connections: 1 << 12,
	}
	if set != nil {
		set(&n.Spec)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.Spec.BPFFS, unix.MNT_DETACH) })
	n.ip("-n", n.NS.Name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0p")
	n.ip("-n", n.NS.Name, "link", "set", "lo", "up")
	n.NS.Do(t, func() {
		if _, err := link.InitHost(hostnet.Sysctls("eth0", []vpc.Family{vpc.IPv4, vpc.IPv6})); err != nil {
			t.Fatal(err)
		}
	})
	n.Namespace("default", nil)
	n.Start()
	return n
}

// Start starts the node's agent.
func (n *Node) Start() {
	n.T.Helper()
	if n.Agent != nil {
		n.Spec.Pods = n.Pods()
	}
	a, err := Start(n.T.Context(), n.Spec)
	if err != nil {
		n.T.Fatal(err)
	}
	n.Agent = a
	n.T.Cleanup(func() { n.end(a) })
}

// Stop ends the node's agent.
func (n *Node) Stop() {
	n.T.Helper()
	n.end(n.Agent)
}

func (n *Node) end(a *Agent) {
	a.once.Do(func() {
		if err := a.Stop(); err != nil {
			n.T.Errorf("stop the agent: %v", err)
		}
	})
}

func (n *Node) ip(arguments ...string) {
	n.T.Helper()
	if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		n.T.Fatalf("ip %q: %v: %s", arguments, err, out)
	}
}

// Namespace puts a namespace of the cluster.
func (n *Node) Namespace(name string, labels map[string]string) {
	all := map[string]string{corev1.LabelMetadataName: name}
	for key, value := range labels {
		all[key] = value
	}
	n.Server.Put(namespaces, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all}})
}

// Policy puts a policy of the cluster.
func (n *Node) Policy(p *networkingv1.NetworkPolicy) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
	n.Server.Put(networkPolicies, p)
}

// DeletePolicy deletes a policy of the cluster.
func (n *Node) DeletePolicy(namespace, name string) {
	n.Server.Delete(networkPolicies, namespace+"/"+name)
}

// Sync waits until all that the server has is in force.
func (n *Node) Sync() {
	n.T.Helper()
	n.barrier++
	n.Raise(n.barrier)
	n.UntilBarrier(n.barrier)
}

// Raise puts a barrier. Its number must be greater than that of the last one.
func (n *Node) Raise(number int64) { raise(n.Server, number) }

// UntilBarrier waits until what the server had when the barrier was raised is in force.
func (n *Node) UntilBarrier(number int64) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), Timeout)
	defer cancel()
	if err := n.UntilTaken(ctx, number); err != nil {
		n.T.Fatal(err)
	}
	if !n.Enforcing() {
		n.T.Fatal("policies are not enforced")
	}
}

// Add wires a pod as an ADD does, and returns it. One without a namespace gets one.
func (n *Node) Add(p Pod) *Pod {
	n.T.Helper()
	if p.NS == nil {
		p.NS = testns.New(n.T, p.Name)
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if !p.Address6.IsValid() {
		p.Address6 = Address6(p.Address)
	}
	pod := kube.Pod{PodRef: kube.PodRef{Namespace: p.Namespace, Name: p.Name}, UID: "uid-" + p.Name, Labels: p.Labels, Ports: p.Ports}
	n.SetPods(append(slices.Clone(n.Pods()), pod))
	if err := n.wire(n.T.Context(), pod, &p); err != nil {
		n.T.Fatalf("add pod %s: %v", p.Name, err)
	}
	return &p
}

func (n *Node) wire(ctx context.Context, pod kube.Pod, p *Pod) error {
	if !n.Spec.Off {
		if err := n.Admit(ctx, pod); err != nil {
			return err
		}
	}
	netns := p.NS.Open(n.T)
	defer netns.Close()
	if err := n.attach(p); err != nil {
		return err
	}
	index, err := n.Host.Wire(ctx, netns, p.endpoint)
	if err == nil && n.UpFirst {
		err = n.Host.Up(ctx, p.endpoint, index)
	}
	if err == nil {
		err = n.Filter.Put(ctx, ruleset.PodOf(p.endpoint, false).Elements()...)
	}
	if err == nil && !n.Spec.Off {
		err = n.Ready(ctx, p.endpoint, index)
	}
	if err == nil {
		p.endpoint, err = n.advance(p.endpoint, endpoint.Endpoint.Complete)
	}
	if err == nil {
		err = n.Host.Up(ctx, p.endpoint, index)
	}
	return err
}

// attach enters a pod's endpoint in the table.
func (n *Node) attach(p *Pod) error {
	_, err := n.Store.Update(func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		key := endpoint.Key{ContainerID: fmt.Sprintf("%s-%s-%d", p.Namespace, p.Name, id), IfName: "eth0"}
		e := endpoint.New(id, key, endpoint.Pod{Namespace: p.Namespace, Name: p.Name}, "trunkline", time.Now(), time.Now())
		p.endpoint, err = e.Attach(endpoint.Wire{
			Addresses: endpoint.AddressesOf(p.Address, p.Address6), Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, p.Namespace, p.Name), MTU: 1500,
			Attachment: endpoint.Attachment{Kind: endpoint.Routed, Table: hostnet.TableMain},
		}, time.Now())
		if err != nil {
			return err
		}
		return tx.Put(p.endpoint)
	})
	return err
}

// advance moves an endpoint to another stage.
func (n *Node) advance(e endpoint.Endpoint, to func(endpoint.Endpoint, time.Time) (endpoint.Endpoint, error)) (after endpoint.Endpoint, err error) {
	_, err = n.Store.Update(func(tx *state.Tx) error {
		if after, err = to(e, time.Now()); err != nil {
			return err
		}
		return tx.Put(after)
	})
	return after, err
}

// Remove removes pods as DELs do: their links are deleted together. between is called for each
// after its row has changed and before its link is disconnected; nil does nothing.
func (n *Node) Remove(between func(), removed ...*Pod) {
	n.T.Helper()
	ctx := n.T.Context()
	for _, p := range removed {
		e, err := n.advance(p.endpoint, endpoint.Endpoint.Remove)
		if err == nil && between != nil {
			between()
		}
		if err == nil {
			err = n.Filter.Remove(ctx, ruleset.PodOf(e, false).Elements()...)
		}
		if err == nil {
			_, err = n.Host.Unwire(ctx, e)
		}
		if err != nil {
			n.T.Fatalf("remove pod %s: %v", p.Name, err)
		}
	}
	if err := n.Host.DeleteDiscarded(ctx, func() int { return len(removed) }, func(link.Wired) {}); err != nil {
		n.T.Fatal(err)
	}
	_, err := n.Store.Update(func(tx *state.Tx) error {
		for _, p := range removed {
			tx.Delete(p.endpoint.ID)
		}
		return nil
	})
	if err != nil {
		n.T.Fatal(err)
	}
	n.SetPods(slices.DeleteFunc(slices.Clone(n.Pods()), func(pod kube.Pod) bool {
		return slices.ContainsFunc(removed, func(p *Pod) bool { return p.Namespace == pod.Namespace && p.Name == pod.Name })
	}))
}

// ID is the number of the pod's endpoint.
func (p *Pod) ID() endpoint.ID { return p.endpoint.ID }

// Link is the name of the node's end of the pod's link.
func (p *Pod) Link() string { return p.endpoint.Link }
