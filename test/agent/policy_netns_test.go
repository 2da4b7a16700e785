//go:build netns

package agent

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/test/node"
)

const policyChain = "chain policy_in"

const networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"

// policed is a node with pods under the policies of an API server.
type policed struct {
	*node.Node
	t      *testing.T
	server *server
}

func newPoliced(t *testing.T) *policed {
	t.Helper()
	n := node.New(t, node.Config{})
	p := &policed{n, t, apiServer(t, n)}
	p.namespace("default")
	return p
}

// namespace creates a namespace.
func (p *policed) namespace(name string) {
	p.server.Put("/api/v1/namespaces", &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}},
	})
}

// start starts an agent with settings.
func (p *policed) start(flags ...string) {
	p.t.Helper()
	p.StartAgent(append(flags, node.APIServerFlag+"="+p.server.url)...)
	p.UntilReady()
}

// add wires a pod with the label app, which serves the ports 80 and 81: it returns each line.
func (p *policed) add(name, app string) *node.Pod {
	p.t.Helper()
	p.put(name, app)
	pod := p.NewPod(name)
	if err := p.Add(pod); err != nil {
		p.t.Fatal(err)
	}
	serve(p.t, pod)
	return pod
}

// put creates the object of a pod.
func (p *policed) put(name, app string) {
	p.server.Put(podPath, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}, CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
}

// serve has a pod serve its ports.
func serve(t *testing.T, pod *node.Pod) {
	t.Helper()
	pod.Do(t, func() {
		for _, port := range []int{80, 81} {
			l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			go echo(l)
		}
	})
}

func echo(l net.Listener) {
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
}

// connect opens a connection from one pod to a port of another, and has a line returned.
func connect(t *testing.T, from, to *node.Pod, port uint16, within time.Duration) (c net.Conn, err error) {
	err = from.Run(func() error {
		c, err = (&net.Dialer{Timeout: within}).Dial("tcp4", netip.AddrPortFrom(to.Addr, port).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return c, answers(c, within)
}

func answers(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return err
	}
	_, err := bufio.NewReader(c).ReadString('\n')
	return err
}

const (
	soon = 5 * time.Second // a packet that is lost once is sent again in that time
	deny = time.Second     // after which a connection counts as denied
)

func (p *policed) reaches(what string, from, to *node.Pod, port uint16) net.Conn {
	p.t.Helper()
	c, err := connect(p.t, from, to, port, soon)
	if err != nil {
		p.t.Fatalf("%s: %s does not reach port %d: %v", what, from.RT.ContainerID, port, err)
	}
	return c
}

func (p *policed) isDenied(what string, from, to *node.Pod, port uint16) {
	p.t.Helper()
	if _, err := connect(p.t, from, to, port, deny); err == nil {
		p.t.Fatalf("%s: %s reaches port %d", what, from.RT.ContainerID, port)
	}
}

// nothingIsLeft compares the kernel with one of a node on which no policy was ever enforced.
func (p *policed) nothingIsLeft(what string) {
	p.t.Helper()
	found, err := bpf.FindLeftover(bpf.Options{BPFFS: node.BPFRoot(p.Node), Dir: "trunkline", Netns: p.NS.Open(p.t)})
	if err != nil || found.Any() {
		p.t.Errorf("%s: %s, %v", what, found, err)
	}
	if rules := p.rules(); strings.Contains(rules, policyChain) {
		p.t.Errorf("%s: rules of policies are there:\n%s", what, rules)
	}
}

func (p *policed) rules() string {
	p.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", p.NS.Name, "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// reported waits until the agent's report has the condition PoliciesEnforced with a reason.
func (p *policed) reported(reason string) {
	p.t.Helper()
	p.Until("a report that has the reason "+reason, func() error {
		var report trunkline.NodeNetwork
		p.server.Get("/apis/trunkline.dev/v1alpha1/nodenetworks", "node1", &report)
		for _, c := range report.Status.Conditions {
			if c.Type == trunkline.ConditionPoliciesEnforced && c.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", report.Status.Conditions)
	})
}

// onlyFromA isolates the pods with the label app=b, and allows those with app=a to reach their port 80.
func onlyFromA() *networkingv1.NetworkPolicy {
	labelled := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	from, port := labelled("a"), intstr.FromInt32(80)
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "only-from-a"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: labelled("b"), Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &from}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
		}}},
	}
}

// untilEnforced waits until a connection is denied that the policy does not allow.
func (p *policed) untilEnforced(from, to *node.Pod) {
	p.t.Helper()
	p.Until("the policy denies", func() error {
		if _, err := connect(p.t, from, to, 80, deny); err == nil {
			return fmt.Errorf("%s reaches port 80", from.RT.ContainerID)
		}
		return nil
	})
}

// A policy denies and allows packets, also while no agent runs and through the start of the next,
// and nothing is left of it without policies, when they are turned off, and when the agent leaves.
func TestAPolicyIsEnforcedThroughAKillAndRemovedWhenPoliciesAreOff(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	p.start()
	a, b, c := p.add("a", "a"), p.add("b", "b"), p.add("c", "c")
	p.reaches("without a policy", a, b, 80)
	p.reaches("without a policy", c, b, 80)
	p.reaches("without a policy", a, b, 81)
	p.nothingIsLeft("without a policy")
	p.reported("NoPolicies")

	p.server.Put(networkPolicies, onlyFromA())
	p.untilEnforced(c, b)
	p.reported("Enforced")
	live := p.reaches("allowed by its label", a, b, 80)
	p.isDenied("another port", a, b, 81)
	p.reaches("a pod without a policy", b, c, 80)
	if rules := p.rules(); !strings.Contains(rules, policyChain) {
		t.Errorf("no rule calls the programs:\n%s", rules)
	}

	p.Kill()
	p.isDenied("without an agent", c, b, 80)
	p.reaches("without an agent", a, b, 80)
	if err := answers(live, soon); err != nil {
		t.Errorf("without an agent, a connection that is allowed: %v", err)
	}
	before := len(agentLog(t, p.Node))
	gap := make(chan error, 1)
	started := make(chan struct{})
	go func() { gap <- neverReaches(t, c, b, started) }()
	p.start()
	p.reported("Enforced")
	close(started)
	if err := <-gap; err != nil {
		t.Error(err)
	}
	if err := answers(live, soon); err != nil {
		t.Errorf("after a restart, a connection that is allowed: %v", err)
	}
	p.isDenied("after a restart", c, b, 80)
	if log := agentLog(t, p.Node)[before:]; !strings.Contains(log, "programs=adopted") || strings.Contains(log, "nftables changed") {
		t.Errorf("the agent that started did not adopt the programs, or removed their rule meanwhile:\n%s", log)
	}
	if got := reports(t, p.Node); len(got) > 0 {
		t.Errorf("only agents changed the kernel, and they report\n%s", strings.Join(got, "\n"))
	}
	d := p.add("d", "b") // is under the policy from its first packet
	p.isDenied("a pod that was added under the policy", c, d, 80)
	p.reaches("a pod that was added under the policy", a, d, 80)

	p.Stop()
	p.isDenied("after an ordered stop", c, b, 80)
	p.start("network-policy=off")
	p.reaches("off", c, b, 80)
	p.nothingIsLeft("off")
	p.reported("PolicyOff")
	if log := agentLog(t, p.Node); !strings.Contains(log, "removed what enforced network policies") {
		t.Error("the log does not say that policies were removed")
	}
	p.Stop()
	p.start()
	p.untilEnforced(c, b)
	p.Stop()
	p.start("removed")
	p.untilEnforced(c, b)
	p.Stop()
	p.nothingIsLeft("after the agent left the node")
	p.reaches("after the agent left the node", c, b, 80)
}

// neverReaches tries connections until done is closed, and returns an error if one succeeds.
func neverReaches(t *testing.T, from, to *node.Pod, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		if _, err := connect(t, from, to, 80, 50*time.Millisecond); err == nil {
			return fmt.Errorf("%s reached port 80 while the agent started", from.RT.ContainerID)
		}
	}
}

// With the last policy all that enforced it goes. A killed agent's remains are removed by
// `trunkline uninstall`.
func TestNothingOfPoliciesIsLeftAfterTheLastOneAndAfterAnUninstall(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	p.server.Put(networkPolicies, onlyFromA())
	p.start()
	b, c := p.add("b", "b"), p.add("c", "c")
	p.isDenied("a policy that was there first", c, b, 80)
	p.server.Delete(networkPolicies, "default/only-from-a")
	p.Until("the port is reached without the policy", func() error { _, err := connect(t, c, b, 80, deny); return err })
	p.reported("NoPolicies")
	p.nothingIsLeft("without the policy")

	p.server.Put(networkPolicies, onlyFromA())
	p.untilEnforced(c, b)
	p.Kill()
	uninstall := p.Command("uninstall")
	var output strings.Builder
	uninstall.Stdout, uninstall.Stderr = &output, &output
	if err := p.NS.Run(uninstall.Start); err != nil {
		t.Fatal(err)
	}
	if err := uninstall.Wait(); err != nil || !strings.Contains(output.String(), "removed what enforced network policies") {
		t.Errorf("uninstall: %v\n%s", err, output.String())
	}
	p.nothingIsLeft("after an uninstall")
	p.reaches("after an uninstall", c, b, 80)
}

// A node that cannot enforce policies says so and refuses pods, rather than run them without; an
// operator can decide otherwise.
func TestANodeThatCannotEnforcePoliciesRefusesPodsUntilTheyAreOff(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	const noBPFFS = "bpf-root=/proc/none/bpf" // no directory can be made there
	p.start(noBPFFS)
	b, c := p.add("b", "b"), p.add("c", "c")
	p.reaches("without a policy", c, b, 80)
	p.server.Put(networkPolicies, onlyFromA())
	p.reported("CannotEnforce")
	late := p.NewPod("late")
	p.server.bind("late")
	if err := p.Add(late); err == nil || !strings.Contains(err.Error(), "/proc/none") {
		t.Errorf("ADD: %v, want a refusal that says why", err)
	}
	p.reaches("a pod that ran before", c, b, 80)
	p.nothingIsLeft("nothing was enforced")
	p.Stop()
	p.start(noBPFFS, "network-policy=off")
	p.reported("PolicyOff")
	if err := p.Add(late); err != nil {
		t.Errorf("ADD with policies off: %v", err)
	}
}

// The first policy has the rules of nftables changed while ADDs hold parts of them.
func TestPodsAreAddedWhilePoliciesComeAndGo(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	p.start()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		pause := time.NewTicker(100 * time.Millisecond)
		defer pause.Stop()
		for {
			p.server.Put(networkPolicies, onlyFromA())
			select {
			case <-stop: // with the policy
				return
			case <-pause.C:
			}
			p.server.Delete(networkPolicies, "default/only-from-a")
			<-pause.C
		}
	}()
	pods := make([]*node.Pod, 9)
	added := make(chan error, len(pods))
	for i := range pods {
		name := fmt.Sprint("b", i)
		p.put(name, "b")
		pods[i] = p.NewPod(name)
		go func() { added <- p.Add(pods[i]) }()
	}
	for range pods {
		if err := <-added; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
	a, c := p.add("a", "a"), p.add("c", "c")
	for _, b := range pods {
		serve(t, b)
		p.untilEnforced(c, b)
		p.reaches("allowed by its label", a, b, 80)
	}
	if got := reports(t, p.Node); len(got) > 0 {
		t.Errorf("only agents changed the kernel, and they report\n%s", strings.Join(got, "\n"))
	}
}
