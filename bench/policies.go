package bench

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/test/enforce"
)

// Paths of the API server.
const (
	policiesPath   = "/apis/networking.k8s.io/v1/networkpolicies"
	podsPath       = "/api/v1/pods"
	namespacesPath = "/api/v1/namespaces"
	nodesPath      = "/api/v1/nodes"
)

func app(name string) map[string]string { return map[string]string{"app": name} }

// apiPod is a pod as the API server has it; without an address it has none yet.
func apiPod(name, app, node string, at netip.Addr) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}, CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if at.IsValid() {
		p.Status.PodIP = at.String()
	}
	return p
}

// policyOf is a policy that selects the pods of an app, and allows ingress from peers at ports of
// TCP.
func policyOf(name, subject string, peers []networkingv1.NetworkPolicyPeer, ports ...int) *networkingv1.NetworkPolicy {
	rule := networkingv1.NetworkPolicyIngressRule{From: peers}
	for _, port := range ports {
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt(port))})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: app(subject)}, Ingress: []networkingv1.NetworkPolicyIngressRule{rule},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
}

func podsOf(name string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: app(name)}}
}

func addressBlock(a netip.Addr) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a, a.BitLen()).String()}}
}

// peerAddress is one of 16 million addresses that no pod has.
func peerAddress(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(n >> 16), byte(n >> 8), byte(n)})
}

// Sizes of the cluster of policyChanges.
const (
	localApps   = 20  // of one pod each on the node
	remotePods  = 500 // of other nodes
	clientApps  = 7
	changesMade = 200 // of which p99 is the second highest
	perApp      = 10  // policies that select the pods of an app
)

// policyChanges measures the time from a change at the API server until the node enforces it, of a
// policy in clusters with several numbers of policies, and of a new pod of another node.
func policyChanges(r *run, _ Options) (results []Result) {
	for i, count := range []int{10, 1_000, 10_000} {
		c := newChanging(r, i+1, count)
		took := c.policies()
		b := budget{}
		if count == 1_000 {
			b.limit = 100
		}
		results = append(results, slowest(fmt.Sprintf("policy.update_p99_ms.%d", count), took, b, fmt.Sprintf("%d policies", count)))
		if count == 1_000 {
			results = append(results, slowest("policy.peer_lag_p99_ms", c.peers(), budget{}, "from the pod's status at the API server"))
		}
		c.node.Stop()
	}
	return results
}

// slowest is the 99th percentile of milliseconds.
func slowest(name string, took []float64, b budget, note string) Result {
	result := single(name, "ms", quantile(took, 0.99), b, fmt.Sprintf("p50 %.3g, highest of %d %.3g; %s", quantile(took, 0.5), len(took), slices.Max(took), note))
	return result
}

// changing is a node with pods in a cluster that changes.
type changing struct {
	*run
	node *enforce.Node
	pod  *enforce.Pod // which the first policy selects
}

func newChanging(r *run, number, policies int) *changing {
	r.Logf("a node in a cluster with %d policies", policies)
	n := enforce.New(asTB(r), number, nil, nil)
	for i := range remotePods {
		n.Server.Put(podsPath, apiPod(fmt.Sprintf("remote-%d", i), fmt.Sprintf("client-%d", i%clientApps), "another", netip.AddrFrom4([4]byte{10, 0, 100 + byte(i>>8), byte(i)})))
	}
	for i := range policies {
		n.Policy(policyOf(fmt.Sprintf("policy-%d", i), fmt.Sprintf("app-%d", i/perApp),
			[]networkingv1.NetworkPolicyPeer{podsOf(fmt.Sprintf("client-%d", i%clientApps)), addressBlock(peerAddress(i))}, 1000+i%perApp))
	}
	n.Sync()
	c := &changing{run: r, node: n}
	for i := range localApps {
		name := fmt.Sprintf("app-%d", i)
		p := n.Add(enforce.Pod{PodRef: refOf(name), Labels: app(name), Address: n.PodAddress(i)})
		if i == 0 {
			c.pod = p
		}
	}
	n.Sync()
	return c
}
