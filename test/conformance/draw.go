package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// drawing draws one cluster. There are few labels, ports and addresses, so that policies select
// pods and rules match.
type drawing struct {
	*rand.Rand
	cluster *Cluster
}

// Draw draws the n-th cluster of a seed and some connections in it; each is of one family, and
// has a pod at one end at least.
func Draw(seed, n uint64, flows int) (*Cluster, []policy.Flow) {
	d := drawing{Rand: rand.New(rand.NewPCG(seed, n)), cluster: &Cluster{Namespaces: map[string]labels.Set{}}}
	for _, name := range []string{"a", "b", "c"} {
		d.cluster.Namespaces[name] = d.labels("team", "env")
		d.cluster.Namespaces[name][corev1.LabelMetadataName] = name
	}
	for i, name := range []string{"node1", "node2"} {
		d.cluster.Nodes = append(d.cluster.Nodes, policy.Node{Name: name, Addresses: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:9::%d", i+1)),
		}})
	}
	for i := range 3 + d.IntN(7) {
		d.cluster.Pods = append(d.cluster.Pods, d.pod(i+1))
	}
	for i := range 2 + d.IntN(8) {
		d.cluster.Policies = append(d.cluster.Policies, d.policy(fmt.Sprintf("p%d", i)))
	}
	list := make([]policy.Flow, 0, flows)
	for range flows * 10 { // some draws have no pod at either end
		if len(list) == flows {
			break
		}
		if f, ok := d.flow(); ok {
			list = append(list, f)
		}
	}
	return d.cluster, list
}

// of draws one of some values.
func of[T any](d drawing, values ...T) T { return values[d.IntN(len(values))] }

// chance is true in so many of a hundred draws.
func (d drawing) chance(percent int) bool { return d.IntN(100) < percent }

func (d drawing) labels(keys ...string) labels.Set {
	set := labels.Set{}
	for _, key := range keys {
		if d.chance(75) {
			set[key] = of(d, "x", "x", "y", "y", "")
		}
	}
	return set
}

func (d drawing) pod(i int) policy.Pod {
	node := d.cluster.Nodes[d.IntN(len(d.cluster.Nodes))]
	p := policy.Pod{
		Namespace: of(d, "a", "a", "a", "b", "b", "b", "c"), Name: fmt.Sprintf("pod%d", i), Labels: d.labels("app", "tier"), Node: node.Name,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(d.IntN(2)), byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", d.IntN(2), i))},
	}
	switch {
	case d.chance(8):
		p.Addresses = nil
	case d.chance(8):
		p.HostNetwork, p.Addresses = true, node.Addresses
	case d.chance(30):
		one := d.IntN(2)
		p.Addresses = p.Addresses[one : one+1]
	}
	for range d.IntN(5) {
		p.Ports = append(p.Ports, policy.NamedPort{Name: d.portName(), Protocol: d.protocol(), Port: d.port()})
	}
	return p
}

func (d drawing) portName() string { return of(d, "http", "dns", "metrics") }
func (d drawing) port() uint16     { return of[uint16](d, 80, 80, 81, 53, 8080, 1, 65535) }
func (d drawing) protocol() policy.Protocol {
	return of(d, policy.TCP, policy.TCP, policy.UDP, policy.SCTP)
}

func (d drawing) policy(name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: of(d, "a", "a", "a", "b", "b", "b", "c"), Name: name}}
	if d.chance(60) {
		np.Spec.PodSelector = *d.selector("app", "tier")
	}
	const in, out = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	np.Spec.PolicyTypes = of(d, nil, nil, []networkingv1.PolicyType{}, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out},
		[]networkingv1.PolicyType{in, out}, []networkingv1.PolicyType{out, in})
	for range of(d, 0, 1, 1, 2, 3) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: d.peers(), Ports: d.ports()})
	}
	for range of(d, 0, 1, 1, 2, 3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: d.peers(), Ports: d.ports()})
	}
	return np
}

// selector is empty, has labels or has expressions, or both.
func (d drawing) selector(keys ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if d.chance(25) {
		return s
	}
	if d.chance(60) {
		s.MatchLabels = map[string]string{of(d, keys...): of(d, "x", "x", "y", "y", "")}
	}
	if len(s.MatchLabels) > 0 && d.chance(70) {
		return s
	}
	for range 1 + d.IntN(2) {
		r := metav1.LabelSelectorRequirement{Key: of(d, keys...), Operator: of(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = of(d, []string{"x"}, []string{"y"}, []string{"x", "y"}, []string{"", "x"}, []string{"z"})
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (d drawing) peers() (list []networkingv1.NetworkPolicyPeer) {
	if d.chance(20) {
		return of(d, nil, []networkingv1.NetworkPolicyPeer{})
	}
	for range 1 + d.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch d.IntN(5) {
		case 0:
			p.PodSelector = d.selector("app", "tier")
		case 1:
			p.NamespaceSelector = d.namespaces()
		case 2:
			p.PodSelector, p.NamespaceSelector = d.selector("app", "tier"), d.namespaces()
		default:
			p.IPBlock = d.block()
		}
		list = append(list, p)
	}
	return list
}

func (d drawing) namespaces() *metav1.LabelSelector {
	if d.chance(20) {
		return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: of(d, "a", "b", "c")}}
	}
	return d.selector("team", "env")
}

// block draws a range with exceptions within it, which may be within one another.
func (d drawing) block() *networkingv1.IPBlock {
	text := of(d, "0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/29", "10.0.0.5/30", "10.9.0.0/16", "198.51.100.0/24",
		"198.51.100.7/32", "::/0", "fd00::/16", "fd00::/112", "fd00::1:0/112", "fd00:9::/64", "2001:db8::/32", "2001:db8::7/128", "::ffff:10.0.0.0/104", "::ffff:10.0.1.0/120")
	if d.chance(15) {
		a := d.address()
		text = netip.PrefixFrom(a, a.BitLen()).String()
	}
	block := &networkingv1.IPBlock{CIDR: text}
	prefix := netip.MustParsePrefix(text).Masked()
	if prefix.Addr().Is4In6() {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	for range 20 {
		if len(block.Except) == 3 || d.chance(12) {
			break
		}
		if a := d.address(); prefix.Contains(a) && prefix.Bits() < a.BitLen() {
			longer := prefix.Bits() + 1 + d.IntN(a.BitLen()-prefix.Bits())
			block.Except = append(block.Except, netip.PrefixFrom(a, longer).Masked().String())
		}
	}
	return block
}

func (d drawing) ports() (list []networkingv1.NetworkPolicyPort) {
	if d.chance(30) {
		return of(d, nil, []networkingv1.NetworkPolicyPort{})
	}
	for range 1 + d.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if d.chance(65) {
			protocol := corev1.Protocol(d.protocol().String())
			p.Protocol = &protocol
		}
		switch d.IntN(6) {
		case 0:
		case 1, 2:
			name := intstr.FromString(of(d, d.portName(), d.portName(), d.portName(), "absent"))
			p.Port = &name
		case 3:
			first, last := int32(d.port()), int32(d.port())
			start := intstr.FromInt32(min(first, last))
			p.Port, p.EndPort = &start, new(max(first, last))
		default:
			number := intstr.FromInt32(int32(d.port()))
			p.Port = &number
		}
		list = append(list, p)
	}
	return list
}

// address draws one of a pod, a node or of outside.
func (d drawing) address() netip.Addr {
	if d.chance(75) {
		if a := d.cluster.Pods[d.IntN(len(d.cluster.Pods))].Addresses; len(a) > 0 {
			return a[d.IntN(len(a))]
		}
	}
	if d.chance(30) {
		return of(d, d.cluster.Nodes[d.IntN(len(d.cluster.Nodes))].Addresses...)
	}
	return netip.MustParseAddr(of(d, "198.51.100.7", "198.51.100.8", "203.0.113.1", "10.0.0.7", "10.0.0.8", "10.255.255.255", "2001:db8::7", "2001:db8::8", "fd00::ffff", "2001:db9::"))
}

func (d drawing) flow() (f policy.Flow, ok bool) {
	f = policy.Flow{Source: d.address(), Destination: d.address(), Protocol: d.protocol()}
	for range 5 { // few connections of a pod to itself, and of two families
		if f.Source != f.Destination && f.Source.Is4() == f.Destination.Is4() || d.chance(3) {
			break
		}
		f.Destination = d.address()
	}
	source, destination := d.cluster.at(f.Source), d.cluster.at(f.Destination)
	if f.Source.Is4() != f.Destination.Is4() || source == nil && destination == nil {
		return f, false
	}
	f.Port = of[uint16](d, 80, 80, 81, 53, 8080, 1, 65535, 0, 79, 82, 8081, 65534)
	switch {
	case d.chance(8):
		f.Protocol, f.Port = 1, 0 // ICMP
		if f.Source.Is6() {
			f.Protocol = 58
		}
	case destination != nil && len(destination.Ports) > 0 && d.chance(40):
		p := of(d, destination.Ports...)
		f.Port = p.Port
		if d.chance(80) {
			f.Protocol = p.Protocol
		}
	}
	return f, true
}
