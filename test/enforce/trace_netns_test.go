//go:build netns

package enforce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/app/cli/trace"
	control "github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// traced is a node with pods in two namespaces, in a cluster with pods of another node.
type traced struct {
	*Node
	r         *rand.Rand
	seed      uint64
	client    *kube.Client
	pods      []policy.Pod
	addresses []netip.Addr
	number    int // of policies
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	n := New(t, 1, nil, nil)
	seed := Seed(t)
	x := &traced{Node: n, r: rand.New(rand.NewPCG(seed, 5)), seed: seed}
	client, err := kube.FromREST(n.Server.REST())
	must(t, err)
	x.client = client
	x.Namespace("other", map[string]string{"team": "x"})
	x.Server.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Spec.Address.String()}}},
	})
	x.Policy(isolating("nothing"))
	x.Sync()
	for i := range 12 {
		p := policy.Pod{
			Namespace: []string{"default", "other"}[i%2], Name: fmt.Sprint("pod", i), Labels: app([]string{"one", "two", "three"}[i%3]),
			Addresses: []netip.Addr{n.PodAddress(i)}, Node: "node1",
			Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: uint16(80 + i%2)}, {Name: "dns", Protocol: policy.UDP, Port: 53}},
		}
		if i >= 6 { // of another node
			p.Node, p.Addresses[0] = "node2", netip.AddrFrom4([4]byte{10, 0, 2, byte(i)})
		} else {
			n.Add(Pod{PodRef: p.Ref(), Labels: p.Labels, Ports: p.Ports, Address: p.Addresses[0]})
		}
		n.Server.Put(pods, APIPod(p))
		x.pods, x.addresses = append(x.pods, p), append(x.addresses, p.Addresses[0])
	}
	for _, a := range []string{"192.0.2.1", "10.0.2.200", "10.9.0.1", n.Spec.Address.String()} {
		x.addresses = append(x.addresses, netip.MustParseAddr(a))
	}
	return x
}

func draw[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (x *traced) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: draw(x.r, nil, app("one"), app("two"), app("three"))}
}

func (x *traced) ports() (list []networkingv1.NetworkPolicyPort) {
	for range x.r.IntN(3) {
		p := networkingv1.NetworkPolicyPort{Protocol: new(draw(x.r, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP))}
		switch x.r.IntN(4) {
		case 0:
			p.Port = new(intstr.FromString(draw(x.r, "http", "dns")))
		case 1:
			p.Port, p.EndPort = new(intstr.FromInt32(53)), new(draw[int32](x.r, 53, 80, 65535))
		case 2:
			p.Port = new(intstr.FromInt(draw(x.r, 53, 80, 81)))
		}
		list = append(list, p)
	}
	return list
}

func (x *traced) peers() (list []networkingv1.NetworkPolicyPeer) {
	for range x.r.IntN(3) {
		switch x.r.IntN(3) {
		case 0:
			list = append(list, networkingv1.NetworkPolicyPeer{PodSelector: x.selector()})
		case 1:
			list = append(list, networkingv1.NetworkPolicyPeer{PodSelector: x.selector(), NamespaceSelector: &metav1.LabelSelector{MatchLabels: draw(x.r, nil, map[string]string{"team": "x"})}})
		default:
			list = append(list, block(netip.MustParsePrefix(draw(x.r, "10.0.0.0/8", "10.0.1.0/24", "0.0.0.0/0")), netip.MustParsePrefix(draw(x.r, "10.0.1.16/28", "10.0.1.24/32"))))
		}
	}
	return list
}

// change replaces the policies of the cluster by others.
func (x *traced) change() {
	x.T.Helper()
	before := x.number
	for range 2 + x.r.IntN(5) {
		x.number++
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: draw(x.r, "default", "other"), Name: fmt.Sprint("number-", x.number)}}
		p.Spec.PodSelector = *x.selector()
		p.Spec.PolicyTypes = draw(x.r, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress})
		for range x.r.IntN(3) {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: x.peers(), Ports: x.ports()})
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: x.peers(), Ports: x.ports()})
		}
		if len(p.Spec.PolicyTypes) == 1 {
			p.Spec.Egress = nil
		}
		x.Policy(p)
	}
	for n := max(1, before-10); n <= before; n++ {
		for _, namespace := range []string{"default", "other"} {
			x.DeletePolicy(namespace, fmt.Sprint("number-", n))
		}
	}
	x.Sync()
}

// trace traces a random connection as `trunkline policy trace` does, and asks the kernel.
func (x *traced) trace(w *trace.World) trace.Result {
	x.T.Helper()
	q := trace.Query{
		Source: draw(x.r, x.addresses...).String(), Destination: draw(x.r, x.addresses...).String(),
		Port: fmt.Sprintf("%d/%s", draw(x.r, 1, 53, 54, 80, 81, 65535), draw(x.r, policy.TCP, policy.UDP, policy.SCTP)),
	}
	r, err := w.Trace(q)
	must(x.T, err)
	r.Answered(control.NewViews(x.Controller).Verdicts(r.Flow))
	if len(r.Notes) > 0 {
		x.T.Fatalf("%s to %s: %q", q.Source, q.Destination, r.Notes)
	}
	return r
}

func TestATraceHasTheVerdictOfTheKernel(t *testing.T) {
	x := newTraced(t)
	connections, answers, allowed, rounds := Sample(tracedSampled, tracedFull), 0, 0, 0
	var w *trace.World
	for n := range connections {
		if n%tracedAtOnce == 0 {
			x.change()
			rounds++
			var err error
			w, err = trace.FromCluster(t.Context(), x.client)
			must(t, err)
		}
		r := x.trace(w)
		if r.Differs {
			t.Fatalf("connection %d, %s: %+v", n, r.Flow, r)
		}
		answers += len(r.Kernel)
		if r.Allowed {
			allowed++
		}
	}
	if answers < connections/3 || allowed < connections/10 || allowed > connections*9/10 {
		t.Errorf("%d answers and %d allowed of %d: the test proves little", answers, allowed, connections)
	}
	writeReport(t, "trace", connections, "connections", x.seed, fmt.Sprintf("%d sets of policies: %d allowed, %d answers of the kernel, all equal", rounds, allowed, answers))
}

// The deliberate error: what is traced lacks a policy.
func TestATraceOfOtherPoliciesDiffers(t *testing.T) {
	x := newTraced(t)
	for range 10 {
		x.change()
		w, err := trace.FromCluster(t.Context(), x.client)
		must(t, err)
		w.Policies = w.Policies[:1]
		for range tracedAtOnce {
			if x.trace(w).Differs {
				return
			}
		}
	}
	t.Error("no difference although policies are missing: the test notices nothing")
}
