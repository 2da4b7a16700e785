//go:build netns

package cyclonus

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/test/conformance/cases"
	"github.com/trunkline/trunkline/test/enforce"
	"github.com/trunkline/trunkline/test/suite"
)

// proxied is a cluster with kube-proxy on both nodes, and a Service of each pod.
type proxied struct {
	*cluster
	services map[netip.Addr]netip.Addr // ClusterIP by the pod's address
}

// newProxied starts kube-proxy, and waits until it has the Services of all pods that may be.
func newProxied(c *cluster, mode string) *proxied {
	c.t.Helper()
	p := &proxied{cluster: c, services: map[netip.Addr]netip.Addr{}}
	at := netip.MustParseAddr("172.20.0.10")
	for ref, address := range c.addresses {
		at = at.Next()
		p.services[address] = at
		p.serviceOf(ref, address, at)
	}
	program := kubeProxy(c.t)
	for _, n := range c.nodes {
		p.start(program, n, mode)
	}
	for _, n := range c.nodes {
		p.untilProxied(n, mode)
	}
	return p
}

// nameOf is a node's name at the API server. kube-proxy masquerades what a pod sends to itself only
// on the node that an EndpointSlice names.
func nameOf(n *enforce.Node) string { return "node-" + n.Spec.Address.String() }

// serviceOf puts a Service with one pod as its backend, and its EndpointSlice.
func (p *proxied) serviceOf(ref policy.PodRef, pod, at netip.Addr) {
	meta := metav1.ObjectMeta{Namespace: ref.Namespace, Name: "to-" + ref.Name}
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: at.String(), ClusterIPs: []string{at.String()}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.String()}, NodeName: new(nameOf(p.node(pod))), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	for _, port := range []int32{80, 81} {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			name := fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), port)
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: port})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
		}
	}
	server := p.nodes[0].Server
	server.Put("/api/v1/services", service)
	server.Put("/apis/discovery.k8s.io/v1/endpointslices", slice)
}

// kubeProxy is the lab's program. The first build of Kubernetes takes ten minutes.
func kubeProxy(t *testing.T) string {
	t.Helper()
	source, err := cache.FindSource("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cache.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	built, err := cache.Open(dir, source, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	set, err := built.Ensure(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return set.Kube
}

// kubeconfig has the URL of the API server, proxyConfig the mode, the node's name and the path of
// a kubeconfig. A namespace has no conntrack sysctls of its own to write.
const (
	kubeconfig = `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a}}]
clusters: [{name: a, cluster: {server: %q}}]
`
	proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
bindAddress: 0.0.0.0
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 0s, udpStreamTimeout: 0s}
`
)

// start runs kube-proxy in a node until the test ends.
func (p *proxied) start(program string, n *enforce.Node, mode string) {
	p.t.Helper()
	dir, name := p.t.TempDir(), nameOf(n)
	p.nodes[0].Server.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Spec.Address.String()}}},
	})
	files := map[string]string{
		"kubeconfig": fmt.Sprintf(kubeconfig, p.apiServer(n)),
		"config":     fmt.Sprintf(proxyConfig, mode, name, filepath.Join(dir, "kubeconfig")),
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(program, "kube-proxy", "--config="+filepath.Join(dir, "config"), "--v=2")
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.NS.Run(cmd.Start); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if p.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			p.t.Logf("kube-proxy of %s:\n%s", n, text[max(0, len(text)-3000):])
		}
		log.Close()
	})
}

// apiServer makes the API server answer at a loopback address of a node, and returns its URL.
func (p *proxied) apiServer(n *enforce.Node) string {
	p.t.Helper()
	to, err := url.Parse(p.nodes[0].Server.REST().Host)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	var l net.Listener
	if err := n.NS.Run(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		p.t.Fatal(err)
	}
	web := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l) // until Close
	}()
	p.t.Cleanup(func() {
		_ = web.Close() // ends its goroutine
		<-done
	})
	return "http://" + l.Addr().String()
}

// untilProxied waits until the node's rules have every Service.
func (p *proxied) untilProxied(n *enforce.Node, mode string) {
	p.t.Helper()
	list, after := []string{"nft", "list", "table", "ip", "kube-proxy"}, " "
	if mode == "iptables" {
		list, after = []string{"iptables-save", "-t", "nat"}, "/32 "
	}
	tick, timeout := time.NewTicker(100*time.Millisecond), time.After(enforce.Timeout)
	defer tick.Stop()
	for {
		rules, err := exec.Command("ip", append([]string{"netns", "exec", n.NS.Name}, list...)...).Output()
		var missing []netip.Addr
		for pod, service := range p.services {
			if !strings.Contains(string(rules), service.String()+after) || !strings.Contains(string(rules), pod.String()+":81") {
				missing = append(missing, service)
			}
		}
		if err == nil && len(missing) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			p.t.Fatalf("%s: no rules for %v (%v)", n, missing, err)
		}
	}
}

// through returns a step with its connections to Services in place of pods. The Services have no
// ports of SCTP.
func (p *proxied) through(step cases.Step) cases.Step {
	var probes []cases.Probe
	for _, probe := range step.Probes {
		if probe.Flow.Protocol != policy.SCTP {
			probe.Flow.Destination = p.services[probe.Flow.Destination]
			probes = append(probes, probe)
		}
	}
	step.Probes = probes
	return step
}

func TestPacketsThroughServicesOfKubeProxyHaveTheSameVerdicts(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { throughServices(t, mode) })
	}
}

// throughServices tries the cases through a proxy's Services, all of them in the whole suites.
func throughServices(t *testing.T, mode string) {
	c := newCluster(t)
	list, err := cases.All(c.address)
	if err != nil {
		t.Fatal(err)
	}
	p, seed := newProxied(c, mode), enforce.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	list = list[:enforce.Sample(casesSampled, len(list))]
	steps, tried, denied, failed := c.tryAll(list, p.through)
	body := fmt.Sprintf("%d steps, %d connections to ClusterIPs by TCP and UDP, %d of them to be denied; %d steps are wrong", steps, tried, denied, failed)
	t.Logf("%d cases, %s", len(list), body)
	if suite.IsFull() && !t.Failed() {
		if err := report().Write("services, "+mode, suite.Counted{Number: len(list), Of: "cases", Seed: seed}, body); err != nil {
			t.Error(err)
		}
	}
}

// The deliberate error: the policies of a step are not in force.
func TestConnectionsThroughServicesWithoutTheirPoliciesAreNoticed(t *testing.T) {
	c := newCluster(t)
	list, err := cases.All(c.address)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxied(c, "nftables")
	step := list[0].Steps[0]
	open := *step.Cluster
	open.Policies = nil
	c.become(&open)
	if tried, wrong := c.try(p.through(step)); len(wrong) == 0 {
		t.Errorf("none of %d connections is wrong without policies: the test notices nothing", tried)
	}
}
