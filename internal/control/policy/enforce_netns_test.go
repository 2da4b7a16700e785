//go:build netns

package policy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/test/testns"
)

const (
	networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	namespaces      = "/api/v1/namespaces"
)

// rig is a node with pods, on a real kernel, with policies of an API server.
type rig struct {
	t      *testing.T
	server *kubetest.Server
	node   *testns.NS
	host   *link.Host
	filter *nft.Firewall
	store  *state.Store
	bpffs  string
	ns     map[string]*testns.NS
	pods   atomic.Pointer[[]kube.Pod]
	broken func() error // an error of judge, if it is set
	rules
	rigOptions
	events events
	passes atomic.Int64 // that failed
	*Controller
	stop func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newSizedRig(t, map[string]uint32{})
}

// newSizedRig has maps of other sizes; start reads them again.
func newSizedRig(t *testing.T, sizes map[string]uint32) *rig {
	t.Helper()
	sizes["tl_connections"] = 1 << 12
	r := &rig{t: t, events: events{t: t}, rigOptions: rigOptions{sizes: sizes}, server: kubetest.New(t), node: testns.New(t, "node"), bpffs: t.TempDir(), ns: map[string]*testns.NS{}}
	t.Cleanup(func() { _ = unix.Unmount(r.bpffs, unix.MNT_DETACH) })
	r.server.Put(namespaces, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "default", "labels": map[string]string{"kubernetes.io/metadata.name": "default"}}})
	var err error
	if r.host, err = link.Open(r.node.Open(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.host.Close() })
	r.host.PrepareFilters()
	if r.filter, err = nft.Open(r.node.Open(t), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.filter.Close() })
	if out, err := exec.Command("ip", "-n", r.node.Name, "link", "add", "eth0", "mtu", "9001", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "eth0p").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.node.Do(t, func() {
		if _, err := link.InitHost(hostnet.Sysctls("eth0", []vpc.Family{vpc.IPv4})); err != nil {
			t.Fatal(err)
		}
	})
	r.store = statetest.Open(t, t.TempDir())
	statetest.Update(t, r.store, func(tx *state.Tx) error {
		first := statetest.First()
		first.Addresses = append(first.Addresses, netip.MustParseAddr("10.0.0.9"))
		rows, _ := tx.Ledger().Observe([]ipam.Observed{first}, time.Now())
		tx.Record(rows...)
		return nil
	})
	if err := r.judge(t.Context(), ruleset.Programs{}); err != nil {
		t.Fatal(err)
	}
	r.start()
	return r
}

// Pods implements Pods.
func (r *rig) Pods() []kube.Pod {
	if pods := r.pods.Load(); pods != nil {
		return *pods
	}
	return nil
}

func (r *rig) setPods(pods ...kube.Pod) { r.pods.Store(&pods) }

// judge is control/network's Judge: it applies the rules of the node and of all endpoints.
func (r *rig) judge(ctx context.Context, by ruleset.Programs) error {
	if r.policy.Store(&by); r.unstarted {
		return nil
	}
	if r.broken != nil {
		if err := r.broken(); err != nil {
			return err
		}
	}
	return r.filter.Apply(ctx, func() ruleset.Ruleset {
		c := ruleset.Config{PrimaryLink: "eth0", PrimaryIPv4: netip.MustParseAddr("10.0.0.4"), VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Policy: by}
		for _, e := range r.store.Endpoints() {
			if e.Wired() {
				c.Pods = append(c.Pods, ruleset.PodOf(e, false))
			}
		}
		return ruleset.Compile(c)
	})
}

// start starts a controller, as an agent does; stop ends it as a killed one.
func (r *rig) start() {
	r.t.Helper()
	client, err := kube.FromREST(r.server.REST())
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	var c *Controller
	r.events.Events = kube.NewEvents(client.Core, "n1")
	objects := kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: r.copied, Log: log, Changed: func() { c.Loop.Mark() }})
	c = New(Deps{
		Log: log, State: r.store, Objects: objects, Pods: r, Events: &r.events, Links: r.host, Judge: r.judge, Report: func() {}, Drift: prometheus.NewCounter(prometheus.CounterOpts{Name: "drift"}), Registry: prometheus.NewRegistry(),
		InForce: func() (string, error) { return bpf.InForce(bpf.Options{BPFFS: r.bpffs, Dir: "tl-test"}) },
		Open: func() (*bpf.Datapath, error) {
			d, _, err := bpf.Open(bpf.Options{BPFFS: r.bpffs, Dir: "tl-test", Netns: r.node.Open(r.t), Log: log, Sizes: r.sizes})
			return d, err
		},
	})
	c.Loop.Report = func(err error, _ time.Duration) {
		r.passes.Add(1)
		r.t.Logf("pass: %v", err)
	}
	c.Loop.Backoff, c.Loop.MaxBackoff = 20*time.Millisecond, 100*time.Millisecond
	r.settle(c)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for _, run := range []func(context.Context) error{objects.Run, c.Loop.Run, c.Watch} {
		done.Go(func() { _ = run(ctx) })
	}
	done.Go(func() { r.events.Run(ctx) })
	r.Controller = c
	r.stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
}

// add wires a pod as an ADD does.
func (r *rig) add(name string) {
	r.t.Helper()
	ctx := r.t.Context()
	pod := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, UID: "uid-" + name, Labels: map[string]string{"app": name}}
	r.setPods(append(slices.Clone(r.Pods()), pod)...)
	if err := r.Admit(ctx, pod); err != nil {
		r.t.Fatal(err)
	}
	e := statetest.Wiring(r.t, r.store, name, "container-"+name)
	r.ns[name] = testns.New(r.t, name)
	index, err := r.host.Wire(ctx, r.ns[name].Open(r.t), e)
	if err == nil {
		err = r.filter.Put(ctx, ruleset.PodOf(e, false).Elements()...)
	}
	if err == nil {
		err = r.Ready(ctx, e, index)
	}
	if err == nil {
		statetest.Update(r.t, r.store, func(tx *state.Tx) error {
			if e, err = e.Complete(time.Now()); err != nil {
				return err
			}
			return tx.Put(e)
		})
		err = r.host.Up(ctx, e, index)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) address(name string) netip.Addr {
	for _, e := range r.store.Endpoints() {
		if e.Pod.Name == name {
			return e.Addresses.Primary()
		}
	}
	r.t.Fatalf("no endpoint of %s", name)
	return netip.Addr{}
}

// echo serves a port in a pod: it returns each line.
func (r *rig) echo(name string, port uint16) {
	r.t.Helper()
	r.ns[name].Do(r.t, func() {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					for lines := bufio.NewScanner(c); lines.Scan(); {
						fmt.Fprintln(c, lines.Text())
					}
				}()
			}
		}()
	})
}

// connection is one to an echo server.
type connection struct{ net.Conn }

// dial connects from one pod to another's port.
func (r *rig) dial(from, to string, port uint16) (c connection, err error) {
	target := netip.AddrPortFrom(r.address(to), port).String()
	err = r.ns[from].Run(func() error {
		c.Conn, err = (&net.Dialer{Timeout: 1500 * time.Millisecond}).Dial("tcp4", target)
		return err
	})
	if err == nil {
		r.t.Cleanup(func() { c.Close() })
		err = c.answers()
	}
	return c, err
}

// answers reports whether the server still answers.
func (c connection) answers() error {
	if err := c.SetDeadline(time.Now().Add(1500 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return err
	}
	_, err := bufio.NewReader(c).ReadString('\n')
	return err
}

func (r *rig) mustReach(from, to string, port uint16) connection {
	r.t.Helper()
	c, err := r.dial(from, to, port)
	if err != nil {
		r.t.Fatalf("%s to %s:%d: %v", from, to, port, err)
	}
	return c
}

func (r *rig) mustNotReach(from, to string, port uint16) {
	r.t.Helper()
	if _, err := r.dial(from, to, port); err == nil {
		r.t.Fatalf("%s reached %s:%d", from, to, port)
	}
}

// waitUntil waits for what the loop does.
func (r *rig) waitUntil(what string, done func() bool) {
	r.t.Helper()
	again, timeout := time.NewTicker(10*time.Millisecond), time.After(30*time.Second)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-timeout:
			r.t.Fatalf("not after 30 s: %s", what)
		}
	}
}

// allow is a policy that isolates the pods of an app and allows one other app to reach a port.
func allow(app, from string, port int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-" + app},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	if from != "" {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": from}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(int32(port)))}},
		}}
	}
	return p
}

func TestAPolicyOfTheAPIServerIsInForceForPackets(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	r.mustReach("a", "b", 80)
	live := r.mustReach("a", "b", 81)
	if r.Enforcing() || len(r.pinned()) > 0 {
		t.Fatalf("without policies: enforcing %v, pinned %q", r.Enforcing(), r.pinned())
	}

	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
	if err := live.answers(); err == nil {
		t.Error("a connection from before the policy goes on although the policy denies it")
	}

	// The agent is replaced: the programs enforce meanwhile, and are adopted.
	live = r.mustReach("a", "b", 80)
	r.stop()
	r.mustNotReach("a", "b", 81)
	if err := live.answers(); err != nil {
		t.Errorf("without an agent an allowed connection does not go on: %v", err)
	}
	r.start()
	r.waitUntil("policies enforced again", r.Enforcing)
	r.mustNotReach("a", "b", 81)
	if err := live.answers(); err != nil {
		t.Errorf("a restart ended an allowed connection: %v", err)
	}

	// A changed policy is in force for live connections too.
	r.server.Put(networkPolicies, allow("b", "a", 81))
	r.waitUntil("port 81 allowed", func() bool { _, err := r.dial("a", "b", 81); return err == nil })
	r.mustNotReach("a", "b", 80)
	if err := live.answers(); err == nil {
		t.Error("a connection goes on that the changed policy denies")
	}

	// Without policies nothing is left.
	r.server.Delete(networkPolicies, "default/of-b")
	r.waitUntil("policies off", func() bool { return !r.Enforcing() })
	r.mustReach("a", "b", 80)
	r.mustReach("a", "b", 81)
	if text := r.list(); strings.Contains(text, "bpf") || len(r.pinned()) > 0 {
		t.Errorf("left without policies: pinned %q, rules\n%s", r.pinned(), text)
	}
}

func TestAPodThatIsAddedUnderAPolicyIsIsolatedFromItsFirstPacket(t *testing.T) {
	r := newRig(t)
	r.server.Put(networkPolicies, allow("b", "", 0))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	r.add("b")
	if !r.Enforcing() {
		t.Fatal("a pod was wired while its policy is not enforced")
	}
	r.echo("b", 80)
	r.echo("a", 80)
	r.mustNotReach("a", "b", 80)
	r.mustReach("b", "a", 80) // it is isolated for ingress only, and gets replies
}

// Without the API server and without a copy of the objects, the next agent does not know
// whether the cluster has policies.
func TestAnAgentThatKnowsNoPoliciesLeavesThoseInForce(t *testing.T) {
	r := newRig(t)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	r.stop()
	r.server.SetDown(true)
	r.start()
	for range 3 { // passes
		r.Loop.MarkFull()
		r.mustReach("a", "b", 80)
		r.mustNotReach("a", "b", 81)
	}
	if err := r.Admit(t.Context(), kube.Pod{}); err == nil {
		t.Error("a pod is admitted although its policies are not known")
	}
	r.server.SetDown(false)
	r.waitUntil("policies enforced again", r.Enforcing)
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// What is in force goes on until all that it would be replaced by is known: a pod with an unknown
// namespace is closed, and a peer that is unknown is allowed nothing.
func TestAnAgentThatKnowsPoliciesWithoutPeersLeavesThoseInForce(t *testing.T) {
	for _, unknown := range []string{namespaces, "/api/v1/pods"} {
		t.Run(unknown, func(t *testing.T) {
			r := newRig(t)
			r.server.Put(networkPolicies, allow("b", "a", 80))
			r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
			r.add("a")
			r.add("b")
			r.echo("b", 80)
			r.stop()
			r.server.Refuse(unknown, http.StatusInternalServerError)
			asked := len(r.server.Requests())
			r.start()
			r.waitUntil("policies known", r.Objects.Any)
			r.waitUntil("the others requested", func() bool { return slices.Contains(r.server.Requests()[asked:], "GET "+unknown) })
			for range 30 { // some passes
				r.Loop.MarkFull()
				r.mustReach("a", "b", 80)
			}
			if r.Enforcing() {
				t.Error("the policies are replaced although not all is known")
			}
			r.server.Refuse(unknown, 0)
			r.waitUntil("policies enforced again", r.Enforcing)
			r.mustReach("a", "b", 80)
		})
	}
}

// The numbers of what was written are not given to other content: what stays of it would allow
// what the content denies.
func TestWhatAFailedAttemptHasWrittenIsNotInForce(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	failed := false
	r.broken = func() error {
		if sets, err := r.datapath.Maps.Sets.All(); err != nil || len(sets) == 0 || failed {
			return err
		}
		failed = true
		r.server.Put(networkPolicies, allow("b", "a", 81))
		return errors.New("the rules of nftables cannot be written")
	}
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	if !failed {
		t.Fatal("no attempt failed")
	}
	r.waitUntil("port 81 allowed", func() bool { _, err := r.dial("a", "b", 81); return err == nil })
	r.mustNotReach("a", "b", 80)
}

// pinned lists what is pinned.
func (r *rig) pinned() (names []string) {
	entries, err := os.ReadDir(r.bpffs + "/tl-test")
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (r *rig) list() string {
	out, err := exec.Command("ip", "netns", "exec", r.node.Name, "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
