package connectivity

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Labels of the test's pods that policies select them by.
const (
	PodLabel  = "trunkline.dev/test-pod"  // the pod's name
	RoleLabel = "trunkline.dev/test-role" // its name without the number
)

// Policed are pods of the first node with policies of their own.
type Policed struct {
	closed      Peer // allows no ingress
	byLabels    Peer // ingress from clients at the HTTP port
	byName      Peer // ingress at the port named http
	byRange     Peer // ingress at the TCP ports from HTTP to TCP
	byBlock     Peer // ingress from the address of the first client
	byExcept    Peer // ingress from all addresses but that
	byNamespace Peer // ingress from clients of the run's namespace
	twice       Peer // two policies: HTTP from clients, TCP from servers
	silent      Peer // allows no egress
	toLabels    Peer // egress to the HTTP port of servers
	toBlock     Peer // egress to the address of the first server
	names       Peer // egress to port 53

	exposed map[string]exposed // by the pod's name
}

// peers are the pods by their names.
func (p *Policed) peers() map[string]*Peer {
	return map[string]*Peer{
		"closed": &p.closed, "by-labels": &p.byLabels, "by-name": &p.byName, "by-range": &p.byRange, "by-block": &p.byBlock,
		"by-except": &p.byExcept, "by-namespace": &p.byNamespace, "twice": &p.twice,
		"silent": &p.silent, "to-labels": &p.toLabels, "to-block": &p.toBlock, "names": &p.names,
	}
}

// preparePolicies creates the pods of the cases with policies, with their policies and services.
func (e *Env) preparePolicies(ctx context.Context) error {
	var s Setup
	names := []string{}
	for name := range e.Policed.peers() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s.Pods = append(s.Pods, PodSpec{Name: name, Node: e.Nodes[0].Name})
		s.Services = append(s.Services, ServiceSpec{Name: ServiceName(name), Pods: []string{name}})
	}
	s.Services = append(s.Services, exposingServices(e.Client[0].Addr.Is6())...)
	s.Policies = policies(e.Options.Namespace, e.Client[0].Addr, e.Server[0].Addr)
	addrs, err := e.namespace.create(ctx, s)
	if err != nil {
		return fmt.Errorf("create the pods with policies: %w", err)
	}
	for name, peer := range e.Policed.peers() {
		*peer = Peer{Pod: name, Addr: addrs[name], Node: e.Nodes[0], ports: podPorts()}
		if e.Services.To[name], err = e.namespace.service(ctx, ServiceName(name)); err != nil {
			return err
		}
	}
	e.Policed.exposed = map[string]exposed{}
	for _, pod := range exposedPods() {
		var x exposed
		for name, into := range map[string]*Service{exposedName(pod): &x.cluster, exposedLocalName(pod): &x.local, balancedName(pod): &x.balanced} {
			if *into, err = e.namespace.service(ctx, name); err != nil {
				return err
			}
		}
		e.Policed.exposed[pod] = x
	}
	return nil
}

// policies are those of Policed.
func policies(namespace string, client, server netip.Addr) []*networkingv1.NetworkPolicy {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	number := func(p *corev1.Protocol, n int) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: p, Port: new(intstr.FromInt32(int32(n)))}
	}
	http, tcpPort := number(&tcp, podPorts().HTTP), number(&tcp, podPorts().TCP)
	rangeOf := http
	rangeOf.EndPort = new(int32(podPorts().TCP))
	role := func(name string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{RoleLabel: name}}}
	}
	block := func(p netip.Prefix, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: p.String(), Except: except}}
	}
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if client.Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	inNamespace := role("client")
	inNamespace.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	type peers = []networkingv1.NetworkPolicyPeer
	type ports = []networkingv1.NetworkPolicyPort
	in := func(pod, name string, rules ...networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
		return of(pod, name, networkingv1.NetworkPolicySpec{Ingress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}})
	}
	out := func(pod string, rules ...networkingv1.NetworkPolicyEgressRule) *networkingv1.NetworkPolicy {
		return of(pod, pod, networkingv1.NetworkPolicySpec{Egress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}})
	}
	rule := func(from peers, at ports) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: from, Ports: at}
	}
	to := func(peers peers, at ports) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: peers, Ports: at}
	}
	return []*networkingv1.NetworkPolicy{
		in("closed", "closed"),
		in("by-labels", "by-labels", rule(peers{role("client")}, ports{http})),
		in("by-name", "by-name", rule(nil, ports{{Protocol: &tcp, Port: new(intstr.FromString("http"))}})),
		in("by-range", "by-range", rule(nil, ports{rangeOf})),
		in("by-block", "by-block", rule(peers{block(one(client))}, nil)),
		in("by-except", "by-except", rule(peers{block(all, one(client).String())}, nil)),
		in("by-namespace", "by-namespace", rule(peers{inNamespace}, nil)),
		in("twice", "twice-http", rule(peers{role("client")}, ports{http})),
		in("twice", "twice-tcp", rule(peers{role("server")}, ports{tcpPort})),
		out("silent"),
		out("to-labels", to(peers{role("server")}, ports{http})),
		out("to-block", to(peers{block(one(server))}, nil)),
		out("names", to(nil, ports{number(&udp, 53), number(&tcp, 53)})),
	}
}

// of is a policy of one pod.
func of(pod, name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{PodLabel: pod}}
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}
