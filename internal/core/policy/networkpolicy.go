package policy

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// KindNetworkPolicy is the kind of Kubernetes' own policies.
const KindNetworkPolicy = "NetworkPolicy"

// FromNetworkPolicy converts a NetworkPolicy. What cannot be honoured is left out and listed, as
// is what is read otherwise than written; neither allows more. If its pods or its types cannot
// be read, the policy isolates what it could mean, every pod of the namespace or both
// directions, and has no rules there: they would open pods that other policies isolate.
//
// Source: the comments of k8s.io/api/networking/v1.
func FromNetworkPolicy(np *networkingv1.NetworkPolicy) (p Policy, problems []string) {
	c := converter{namespace: np.Namespace}
	if c.namespace == "" {
		c.namespace = metav1.NamespaceDefault
		c.problem("metadata.namespace: it is empty; the policy is read as of %q", c.namespace)
	}
	p = Policy{Ref: Ref{KindNetworkPolicy, c.namespace, np.Name}, Tier: Namespaced}
	isolates, open := c.directions(np.Spec)
	p.Isolates = isolates
	pods, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
	if err != nil {
		c.problem("spec.podSelector: %v; it isolates every pod of the namespace, and its rules are left out", err)
		pods, open = labels.Everything(), [2]bool{}
	}
	p.Subject = PodSet{Namespace: c.namespace, Pods: pods}
	for i, r := range np.Spec.Ingress {
		p.Rules[Ingress] = append(p.Rules[Ingress], c.rule(fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports))
	}
	for i, r := range np.Spec.Egress {
		p.Rules[Egress] = append(p.Rules[Egress], c.rule(fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports))
	}
	for d := range p.Rules {
		if !open[d] {
			p.Rules[d] = nil
		}
	}
	return p, c.problems
}

// converter converts the rules of one policy.
type converter struct {
	namespace string
	problems  []string
}

func (c *converter) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// directions are those in which a policy isolates, and those in which its rules count. Without
// types it isolates ingress, and egress if it has rules for it.
func (c *converter) directions(s networkingv1.NetworkPolicySpec) (isolates, open [2]bool) {
	if len(s.PolicyTypes) == 0 {
		open = [2]bool{Ingress: true, Egress: len(s.Egress) > 0}
		return open, open
	}
	unknown := false
	for i, t := range s.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			open[Ingress] = true
		case networkingv1.PolicyTypeEgress:
			open[Egress] = true
		default:
			unknown = true
			c.problem("spec.policyTypes[%d]: %q is not supported; the policy isolates in both directions, and its rules for directions without a type are left out", i, t)
		}
	}
	if unknown {
		return [2]bool{true, true}, open
	}
	return open, open
}

func (c *converter) rule(path, field string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) Rule {
	r := Rule{AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	for i, p := range peers {
		if peer, ok := c.peer(fmt.Sprintf("%s.%s[%d]", path, field, i), p); ok {
			r.Peers = append(r.Peers, peer)
		}
	}
	for i, p := range ports {
		if port, ok := c.port(fmt.Sprintf("%s.ports[%d]", path, i), p); ok {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

func (c *converter) peer(path string, p networkingv1.NetworkPolicyPeer) (Peer, bool) {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		c.problem("%s: it has ipBlock beside a selector; it matches nothing", path)
		return Peer{}, false
	case p.IPBlock != nil:
		return c.block(path+".ipBlock", *p.IPBlock)
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		c.problem("%s: it has neither ipBlock nor a selector; it matches nothing", path)
		return Peer{}, false
	}
	set, ok := PodSet{Pods: labels.Everything()}, true
	if p.PodSelector != nil {
		set.Pods, ok = c.selector(path+".podSelector", p.PodSelector)
	}
	if p.NamespaceSelector == nil {
		set.Namespace = c.namespace
	} else if ok {
		set.Namespaces, ok = c.selector(path+".namespaceSelector", p.NamespaceSelector)
	}
	return Peer{Pods: &set}, ok
}

func (c *converter) selector(path string, s *metav1.LabelSelector) (labels.Selector, bool) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.problem("%s: %v; it matches nothing", path, err)
		return nil, false
	}
	return selector, true
}

// block converts a range. An exception that cannot be read makes the peer match nothing: it
// could be any part of the range.
func (c *converter) block(path string, b networkingv1.IPBlock) (Peer, bool) {
	prefix, err := c.prefix(path+".cidr", b.CIDR)
	if err != nil {
		c.problem("%s.cidr: %v; it matches nothing", path, err)
		return Peer{}, false
	}
	block := Block{Prefix: prefix}
	for i, text := range b.Except {
		path := fmt.Sprintf("%s.except[%d]", path, i)
		except, err := c.prefix(path, text)
		switch {
		case err != nil:
			c.problem("%s: %v; the block matches nothing", path, err)
			return Peer{}, false
		case !prefix.Overlaps(except):
			c.problem("%s: %s is outside of %s, and has no effect", path, except, prefix)
		case except.Bits() <= prefix.Bits():
			c.problem("%s: %s covers %s; the block matches nothing", path, except, prefix)
			return Peer{}, false
		default:
			block.Except = append(block.Except, except)
		}
	}
	return Peer{Block: &block}, true
}

// prefix reads a range; bits behind its length are ignored, as in Kubernetes. An IPv4-mapped
// IPv6 range is that of IPv4.
func (c *converter) prefix(path, text string) (netip.Prefix, error) {
	written, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no address range", text)
	}
	p := written
	const mapped = 96
	if p.Addr().Is4In6() {
		if p.Bits() < mapped {
			return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6", text)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	p = p.Masked()
	if p != written {
		c.problem("%s: %q is read as %s", path, text, p)
	}
	return p, nil
}

// allPorts is the last port.
const allPorts = 1<<16 - 1

func (c *converter) port(path string, p networkingv1.NetworkPolicyPort) (Port, bool) {
	protocol, ok := protocolOf(p.Protocol)
	if !ok {
		c.problem("%s.protocol: %q is not supported; it matches nothing", path, *p.Protocol)
		return Port{}, false
	}
	port := Port{Protocol: protocol, Last: allPorts}
	switch {
	case p.Port == nil && p.EndPort != nil:
		c.problem("%s.endPort: it is set without port; it matches nothing", path)
		return Port{}, false
	case p.Port == nil:
		return port, true
	case p.Port.Type == intstr.String && p.EndPort != nil:
		c.problem("%s.endPort: it is set beside the named port %q; it matches nothing", path, p.Port.StrVal)
		return Port{}, false
	case p.Port.Type == intstr.String && p.Port.StrVal == "":
		c.problem("%s.port: the name is empty; it matches nothing", path)
		return Port{}, false
	case p.Port.Type == intstr.String:
		return Port{Protocol: port.Protocol, Name: p.Port.StrVal}, true
	}
	last := p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if p.Port.IntVal < 1 || last > allPorts || last < p.Port.IntVal {
		c.problem("%s: ports %d to %d are no range; it matches nothing", path, p.Port.IntVal, last)
		return Port{}, false
	}
	port.First, port.Last = uint16(p.Port.IntVal), uint16(last)
	return port, true
}

// protocolOf is the protocol of a port, TCP by default; false if no rule can name it.
func protocolOf(p *corev1.Protocol) (Protocol, bool) {
	if p == nil {
		return TCP, true
	}
	switch *p {
	case corev1.ProtocolTCP:
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	case corev1.ProtocolSCTP:
		return SCTP, true
	default:
		return 0, false
	}
}
