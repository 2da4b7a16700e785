package connectivity_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

// fault is one way in which the modelled network misbehaves.
type fault string

const (
	noFault       fault = ""
	unreachable   fault = "nothing answers"
	sourceChanged fault = "every receiver sees a translated source"
	otherPod      fault = "every receiver sees the address of another pod as the source"
	wrongServer   fault = "another pod answers"
	blackhole     fault = "large packets are dropped without an ICMP error"
	metadataOpen  fault = "pods reach instance metadata"
	spoofArrives  fault = "spoofed packets arrive"
	rawLost       fault = "raw packets with the pod's own address do not arrive"
	namesWrong    fault = "DNS answers another address"
	leaksPodIP    fault = "hosts outside see the pod's address"
	otherMTU      fault = "fragmentation-needed reports another MTU"
	notReady      fault = "a pod failed its probe"
	agentSick     fault = "an agent is not ready"
	dropping      fault = "a link dropped packets"
	logging       fault = "the agent logged an error"
	interrupted   fault = "a stream was interrupted"
	streamKilled  fault = "the pod of a stream was killed"
	apiCutOff     fault = "the API server does not answer"
	notEnforced   fault = "no policy is enforced"
	deniesAll     fault = "a pod with a policy is cut off"
	servicesOpen  fault = "what goes through a service is not judged"
	judgedLate    fault = "policies see the source that a proxy gave a packet"
	selfJudged    fault = "a pod is isolated from itself"
	groupsOpen    fault = "no security group of a pod is enforced"
)

func faults() []fault {
	return []fault{
		unreachable, sourceChanged, otherPod, wrongServer, blackhole, metadataOpen, spoofArrives, rawLost, namesWrong,
		leaksPodIP, otherMTU, notReady, agentSick, dropping, logging, interrupted, streamKilled, apiCutOff, notEnforced, deniesAll,
		servicesOpen, judgedLate, selfJudged, groupsOpen,
	}
}

// model is an in-memory cluster of two nodes with pods that answer as real ones would, with
// at most one fault.
type model struct {
	fault fault
	nodes []modelNode

	mu       sync.Mutex
	pods     map[string]modelPod
	services map[string]modelService
	policies []*networkingv1.NetworkPolicy
	removed  int
	catDev   int
	claimed  int
	// atExec is called before each command in a pod, atRemove before each removal,
	// atClaim when the namespace is claimed.
	atExec, atRemove, atClaim func()
	// busy is the error of Claim; an error sent to lost ends Hold.
	busy error
	lost chan error
	// cached holds DNS answers, like a resolver's cache.
	cached map[string][]netip.Addr
}

type modelNode struct {
	connectivity.Node
	perENI int // addresses per ENI
	others int // addresses that the pods of others have
}

type modelPod struct {
	connectivity.PodSpec
	addr netip.Addr
	eni  connectivity.ENI
}

type modelService struct {
	spec connectivity.ServiceSpec
	made connectivity.Service
}

func newModel(f fault) *model {
	addr := netip.MustParseAddr
	return &model{fault: f, pods: map[string]modelPod{}, services: map[string]modelService{}, cached: map[string][]netip.Addr{}, nodes: []modelNode{
		{Node: connectivity.Node{Name: "n1", Internal: []netip.Addr{addr("10.0.0.10")}, External: []netip.Addr{addr("198.18.0.1")}, FreePods: 50, FreeBranches: 18}, perENI: 4},
		{Node: connectivity.Node{Name: "n2", Internal: []netip.Addr{addr("10.0.1.10")}, FreePods: 50, FreeBranches: 18}, perENI: 4},
	}}
}

func (m *model) Nodes(context.Context) (out []connectivity.Node, err error) {
	for _, n := range m.nodes {
		out = append(out, n.Node)
	}
	return out, nil
}

// node returns the index of a node.
func (m *model) node(name string) int {
	return slices.IndexFunc(m.nodes, func(n modelNode) bool { return n.Name == name })
}

func (m *model) Create(ctx context.Context, _ string, s connectivity.Setup) (map[string]netip.Addr, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policies = append(m.policies, s.Policies...)
	out := map[string]netip.Addr{}
	for _, spec := range s.Pods {
		n := m.node(spec.Node)
		p := modelPod{PodSpec: spec, addr: m.nodes[n].Internal[0]}
		if !spec.Host {
			used := m.nodes[n].others
			for _, q := range m.pods {
				if q.Node == spec.Node && !q.Host {
					used++
				}
			}
			p.addr = netip.AddrFrom4([4]byte{10, 0, byte(n), byte(20 + used + 40*m.claimed)}) // other addresses in each run
			// Addresses of the primary interface are assigned first.
			p.eni = m.interfaceOf(n, used/m.nodes[n].perENI)
		}
		m.pods[spec.Name] = p
		out[spec.Name] = p.addr
	}
	for _, spec := range s.Services {
		svc := modelService{spec: spec}
		svc.made.Address = netip.AddrFrom4([4]byte{172, 20, 0, byte(20 + len(m.services))})
		if spec.NodePort {
			svc.made.NodePort = 30000 + len(m.services)
		}
		svc.made.LoadBalancer = spec.LoadBalancer
		m.services[spec.Name] = svc
	}
	return out, nil
}

func (m *model) Claim(ctx context.Context, namespace string, _ func(string)) (bool, error) {
	if m.atClaim != nil {
		m.atClaim()
	}
	if m.busy != nil || ctx.Err() != nil {
		return false, errors.Join(m.busy, ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claimed++
	return true, nil
}

func (m *model) Hold(ctx context.Context, _ string) error {
	select {
	case err := <-m.lost:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (m *model) Remove(ctx context.Context, _ string) error {
	if m.atRemove != nil {
		m.atRemove()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed++
	m.pods, m.services, m.policies = map[string]modelPod{}, map[string]modelService{}, nil
	return nil
}

func (m *model) Service(_ context.Context, _, name string) (connectivity.Service, error) {
	if name == "kubernetes" {
		return connectivity.Service{Address: netip.MustParseAddr("172.20.0.1")}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.services[name].made, nil
}

func (m *model) Logs(_ context.Context, _, _ string, _ int64) (string, error) {
	s := &connectivity.Stream{Sent: 100, Received: 100}
	if m.fault == interrupted {
		s.Received, s.Lost, s.Interrupted = 40, 60, true
	}
	return text(connectivity.Result{OK: m.fault != interrupted, Stream: s}), nil
}

func (m *model) Pods(context.Context, string) ([]corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.Pod
	for _, spec := range m.pods {
		p := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		p.Name = spec.Name
		switch {
		case spec.Stream == nil:
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			if m.fault == notReady {
				p.Status.Conditions[0].Status = corev1.ConditionFalse
			}
		case m.fault == streamKilled:
			p.Status.Phase = corev1.PodFailed
		}
		out = append(out, p)
	}
	return out, nil
}

// interfaceOf returns the ENI with a device index on node n, without addresses for pods.
func (m *model) interfaceOf(n, device int) connectivity.ENI {
	eni := connectivity.ENI{ID: fmt.Sprintf("eni-%d%d", n, device), Device: device, Primary: m.nodes[n].Internal[0]}
	if device > 0 {
		eni.Primary = netip.AddrFrom4([4]byte{10, 0, byte(100 + n), byte(device)})
	}
	return eni
}

func (m *model) Interfaces(_ context.Context, node string) ([]connectivity.ENI, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []connectivity.ENI
	for _, p := range m.pods {
		if p.Node != node || p.Host {
			continue
		}
		i := slices.IndexFunc(out, func(eni connectivity.ENI) bool { return eni.ID == p.eni.ID })
		if i < 0 {
			i, out = len(out), append(out, p.eni)
		}
		out[i].Pods = append(out[i].Pods, p.addr)
	}
	return out, nil
}

func (m *model) Health(context.Context) ([]string, error) {
	if m.fault == agentSick {
		return []string{"agent on n2 is not ready"}, nil
	}
	return nil, nil
}

func (m *model) ErrorLines(context.Context, time.Time) ([]string, error) {
	if m.fault == logging {
		return []string{`trunkline-agent-x: level=ERROR msg="lost an address"`}, nil
	}
	return nil, nil
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b) + "\n"
}

func (m *model) Exec(ctx context.Context, _, pod string, argv []string) (connectivity.Output, error) {
	if m.atExec != nil {
		m.atExec()
	}
	if err := ctx.Err(); err != nil {
		return connectivity.Output{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from, ok := m.pods[pod]
	if !ok {
		return connectivity.Output{}, fmt.Errorf("no pod %s", pod)
	}
	switch argv[0] {
	case "/bin/ls":
		return connectivity.Output{Stdout: "10-trunkline.conflist\nREADME\n"}, nil
	case "/bin/cat":
		return connectivity.Output{Stdout: m.file(argv[1])}, nil
	}
	r := m.dial(from, argv[2], argv[3:])
	out := connectivity.Output{Stdout: text(r)}
	if !r.OK {
		return out, connectivity.ErrExit
	}
	return out, nil
}

func (m *model) file(path string) string {
	switch {
	case strings.HasPrefix(path, connectivity.PluginConfigMount):
		return `{"plugins":[{"type":"trunkline-cni"},{"type":"portmap"}]}`
	case path == "/proc/net/dev":
		drops := 7
		if m.fault == dropping {
			m.catDev++
			drops += m.catDev
		}
		return fmt.Sprintf("Inter-|\n face |\n  eth0: 1 1 0 %d 0 0 0 0 1 1 0 0 0 0 0 0\n", drops)
	}
	return "entries drop early_drop\n00 00 0a\n01 00 0b\n"
}

func argument(args []string, name string) string {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return v
		}
	}
	return ""
}

func (m *model) dial(from modelPod, probe string, args []string) connectivity.Result {
	failed := connectivity.Result{Kind: "timeout", Error: "nothing came back"}
	if m.fault == unreachable {
		return failed
	}
	node := m.nodes[m.node(from.Node)]
	switch probe {
	case "imds":
		if from.Host || m.fault == metadataOpen {
			return connectivity.Result{OK: true, Status: 200, Instance: "i-1"}
		}
		return failed
	case "dns":
		if m.denies(from, modelPod{addr: netip.MustParseAddr("10.0.9.53")}, probe, path{source: from.addr}) {
			return failed
		}
		return connectivity.Result{OK: true, Addresses: m.resolve(args[0])}
	case "spoof":
		return m.spoof(from, args)
	}
	target := netip.MustParseAddrPort(args[0])
	if target.Addr() == outside {
		return m.beyond(from, node, probe, args)
	}
	if target.Addr() == netip.MustParseAddr("172.20.0.1") {
		if m.fault == apiCutOff {
			return failed
		}
		return connectivity.Result{Kind: "mismatch", Status: 400}
	}
	if m.fault == blackhole && slices.Contains(args, "--df") {
		return failed
	}
	to, translated := m.behind(target)
	source := from.addr
	if translated {
		source = m.masqueraded(from, target.Addr())
	}
	if to.Group == "sg-servers" && (from.Group != "sg-clients" || probe != "http") && m.fault != groupsOpen {
		return failed
	}
	if m.denies(from, to, probe, path{source: source, service: target.Addr() != to.addr}) {
		return failed
	}
	switch m.fault {
	case sourceChanged:
		source = netip.MustParseAddr("192.0.2.66")
	case otherPod:
		source = m.pods["stream-tcp-other-node"].addr
	case wrongServer:
		to.Name = "another-pod"
	default:
	}
	at := netip.AddrPortFrom(source, 40000)
	return connectivity.Result{OK: true, Source: at, Server: &connectivity.Answer{Pod: to.Name, Source: at}}
}

// masqueraded returns the source of a packet to the node port at an address, after the
// masquerade of that node: the primary address of the interface by which it leaves. A
// node forwards the packets of its own pods by the pod's ENI.
func (m *model) masqueraded(from modelPod, at netip.Addr) netip.Addr {
	if other := slices.IndexFunc(m.nodes, func(n modelNode) bool { return n.Internal[0] == at && n.Name != from.Node }); other >= 0 {
		return at
	}
	return from.eni.Primary
}

// behind finds the pod at an address, a Service, a node port or a host port.
func (m *model) behind(target netip.AddrPort) (modelPod, bool) {
	for _, s := range m.services {
		if s.made.LoadBalancer == target.Addr() {
			return m.pods[s.spec.Pods[0]], true
		}
		if s.made.Address == target.Addr() || s.made.NodePort != 0 && s.made.NodePort == int(target.Port()) {
			return m.pods[s.spec.Pods[0]], s.made.NodePort == int(target.Port()) && !s.spec.Local
		}
	}
	for _, p := range m.pods {
		if p.addr == target.Addr() && (!p.Host || target.Port() >= 28080 && target.Port() <= 28082) {
			return p, false
		}
		if p.HostPort != 0 && p.HostPort == int(target.Port()) {
			return p, false
		}
	}
	return modelPod{}, false
}

func (m *model) beyond(from modelPod, node modelNode, probe string, args []string) connectivity.Result {
	if size, _ := strconv.Atoi(argument(args, "size")); probe == "udp" && size+28 > 1500 {
		if m.fault == blackhole {
			return connectivity.Result{Kind: "timeout"}
		}
		if m.fault == otherMTU {
			return connectivity.Result{Kind: "too-big", MTU: 9001}
		}
		return connectivity.Result{Kind: "too-big", MTU: 1500}
	}
	source := node.Internal[0]
	if len(node.External) > 0 {
		source = node.External[0]
	}
	if m.fault == leaksPodIP {
		source = from.addr
	}
	return connectivity.Result{OK: true, Source: netip.AddrPortFrom(source, 1)}
}

func (m *model) resolve(name string) []netip.Addr {
	switch {
	case m.fault == namesWrong && name == "aws.example":
		return nil
	case m.fault == namesWrong:
		return []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	case strings.HasPrefix(name, "kubernetes."):
		return []netip.Addr{netip.MustParseAddr("172.20.0.1")}
	case strings.HasPrefix(name, "servers"):
		if _, known := m.cached[name]; !known {
			service, _, _ := strings.Cut(name, ".")
			for _, pod := range m.services[service].spec.Pods {
				m.cached[name] = append(m.cached[name], m.pods[pod].addr)
			}
		}
		return m.cached[name]
	}
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}
}

func (m *model) spoof(from modelPod, args []string) connectivity.Result {
	source, mac := argument(args, "source"), argument(args, "mac")
	if source == "" && mac == "" {
		return connectivity.Result{Kind: "usage"} // as the workload does
	}
	r := connectivity.Result{OK: true, Sent: 3, Seen: 3}
	pretends := mac != "" || source != from.addr.String()
	if m.fault == rawLost || pretends && m.fault != spoofArrives {
		r.Seen = 0
	}
	return r
}
