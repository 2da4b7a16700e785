//go:build netns

package enforce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// large is a server under policies that are compared with policy.Evaluate, which the kernel's
// programs answer for without a packet being sent.
type large struct {
	*Node
	server *Pod
	r      *rand.Rand
}

func newLarge(t *testing.T) *large {
	t.Helper()
	l := &large{Node: New(t, 1, nil, nil), r: rand.New(rand.NewPCG(Seed(t), 3))}
	l.Policy(isolating("server"))
	l.Sync()
	l.server = l.Add(Pod{PodRef: ref("server"), Labels: app("server"), Address: l.PodAddress(0)})
	return l
}

// allows is the verdict of the programs about a UDP packet to the server.
func (l *large) allows(from netip.Addr, port int) bool {
	l.T.Helper()
	frame := append(append(make([]byte, 12), be16(0x0800)...), udpPacket(from, l.server.Address, port, nil)...)
	j, err := l.Datapath().Judge(bpf.Question{Endpoint: l.server.ID(), Direction: bpf.Ingress, Packet: frame})
	must(l.T, err)
	return j.Allowed
}

// compare compares the verdicts with those of policy.Evaluate.
func (l *large) compare(policies []*networkingv1.NetworkPolicy, addresses []netip.Addr, ports []int, times int) {
	l.T.Helper()
	cluster := policy.Cluster{
		Namespaces: map[string]labels.Set{"default": {}},
		Pods:       []policy.Pod{{Namespace: "default", Name: "server", Labels: app("server"), Addresses: []netip.Addr{l.server.Address}}},
	}
	for _, p := range policies {
		converted, problems := policy.FromNetworkPolicy(p)
		if len(problems) > 0 {
			l.T.Fatal(problems)
		}
		cluster.Policies = append(cluster.Policies, converted)
	}
	counts := map[bool]int{}
	for range times {
		source, port := addresses[l.r.IntN(len(addresses))], ports[l.r.IntN(len(ports))]
		want := cluster.Evaluate(policy.Flow{Source: source, Destination: l.server.Address, Protocol: policy.UDP, Port: uint16(port)}).Allowed()
		if got := l.allows(source, port); got != want {
			l.T.Fatalf("%s to port %d: allowed %v, want %v", source, port, got, want)
		}
		counts[want]++
	}
	l.T.Logf("%d policies, %d verdicts: %d allowed, %d denied", len(policies), times, counts[true], counts[false])
	if counts[true] == 0 || counts[false] == 0 {
		l.T.Error("all verdicts are equal: the test proves nothing")
	}
}

// block is a peer of a prefix without others.
func block(of netip.Prefix, except ...netip.Prefix) networkingv1.NetworkPolicyPeer {
	b := &networkingv1.IPBlock{CIDR: of.String()}
	for _, e := range except {
		b.Except = append(b.Except, e.String())
	}
	return networkingv1.NetworkPolicyPeer{IPBlock: b}
}

func udpPort(port int) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolUDP), Port: new(intstr.FromInt(port))}
}

// prefix draws one of 10.0.0.0/8.
func (l *large) prefix(least, most int) netip.Prefix {
	b := [4]byte{10, byte(l.r.IntN(4)), byte(l.r.IntN(8)), byte(l.r.Uint32())}
	return netip.PrefixFrom(netip.AddrFrom4(b), least+l.r.IntN(most-least+1)).Masked()
}

// around are addresses at the edges of a prefix.
func around(p netip.Prefix) []netip.Addr {
	first := p.Masked().Addr()
	last := first.As4()
	for i := p.Bits(); i < 32; i++ {
		last[i/8] |= 1 << (7 - i%8)
	}
	end := netip.AddrFrom4(last)
	return []netip.Addr{first, first.Prev(), end, end.Next()}
}

func TestFiveHundredPortsOfOnePrefixAreAllAllowedAndNoOther(t *testing.T) {
	l := newLarge(t)
	p := isolating("server", networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{block(netip.MustParsePrefix("10.9.0.0/16"))}})
	want := map[int]bool{}
	for len(want) < 500 {
		if port := 1 + l.r.IntN(65535); !want[port] {
			want[port] = true
			p.Spec.Ingress[0].Ports = append(p.Spec.Ingress[0].Ports, udpPort(port))
		}
	}
	l.Policy(p)
	l.Sync()
	inside, outside := netip.MustParseAddr("10.9.200.1"), netip.MustParseAddr("10.10.0.1")
	for port := 1; port <= 65535; port++ {
		if got := l.allows(inside, port); got != want[port] {
			t.Fatalf("port %d: allowed %v, want %v", port, got, want[port])
		}
		if want[port] && l.allows(outside, port) {
			t.Fatalf("port %d is allowed to another prefix", port)
		}
	}
}

func TestAThousandOverlappingPrefixesWithExceptionsAreAsEvaluated(t *testing.T) {
	l := newLarge(t)
	const rules, blocks = 50, 20
	p := isolating("server")
	ports := []int{1, 65535}
	addresses := []netip.Addr{netip.MustParseAddr("10.255.0.1"), netip.MustParseAddr("192.0.2.1")}
	for n := range rules {
		rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{udpPort(1000 + n)}}
		ports = append(ports, 1000+n)
		for range blocks {
			of := l.prefix(10, 28)
			var except []netip.Prefix
			for range l.r.IntN(4) {
				if e := netip.PrefixFrom(around(of)[2*l.r.IntN(2)], min(32, of.Bits()+1+l.r.IntN(6))).Masked(); e.Bits() > of.Bits() {
					except = append(except, e)
				}
			}
			rule.From = append(rule.From, block(of, except...))
			for _, edge := range append(except, of) {
				addresses = append(addresses, around(edge)...)
			}
		}
		p.Spec.Ingress = append(p.Spec.Ingress, rule)
	}
	l.Policy(p)
	l.Sync()
	l.compare([]*networkingv1.NetworkPolicy{p}, addresses, ports, Sample(20_000, 200_000))
}

// One of ten selects the pod.
func TestThousandsOfPoliciesAreAsEvaluated(t *testing.T) {
	l := newLarge(t)
	policies := []*networkingv1.NetworkPolicy{isolating("server")}
	var addresses []netip.Addr
	var ports []int
	for n := range Sample(2_000, 10_000) {
		of, port := l.prefix(12, 30), 1+l.r.IntN(200)
		selects := "server"
		if n%10 > 0 {
			selects = "another"
		}
		p := isolating(selects, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{block(of)}, Ports: []networkingv1.NetworkPolicyPort{udpPort(port)}})
		p.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("number-%d", n)}
		l.Policy(p)
		policies, ports, addresses = append(policies, p), append(ports, port), append(addresses, around(of)...)
	}
	l.Sync()
	l.compare(policies, addresses, ports, 500)
	// Without them nothing is allowed.
	for _, p := range slices.Backward(policies[1:]) {
		l.DeletePolicy(p.Namespace, p.Name)
	}
	l.Sync()
	for range 1000 {
		source, port := addresses[l.r.IntN(len(addresses))], ports[l.r.IntN(len(ports))]
		if l.allows(source, port) {
			t.Fatalf("%s to port %d is allowed without the policies", source, port)
		}
	}
}
