package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// manyOfOne is an engine in which n policies select one pod, and the pods that are their peers.
type manyOfOne struct {
	peer func(n int) Peer
	port func(n int) Port
}

func manyKinds() map[string]manyOfOne {
	app := func(n int) Peer {
		return Peer{Pods: &PodSet{Namespace: "n", Pods: labels.SelectorFromSet(labels.Set{"app": fmt.Sprint("app", n)})}}
	}
	block := func(n int) Peer {
		return Peer{Block: &Block{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(n >> 8), byte(n)}), 32)}}
	}
	one := func(int) Port { return Port{Protocol: TCP, First: 80, Last: 80} }
	own := func(n int) Port { return Port{Protocol: TCP, First: uint16(1000 + 2*n), Last: uint16(1000 + 2*n)} }
	return map[string]manyOfOne{
		"apps, one port": {app, one}, "apps, own ports": {app, own}, "blocks, one port": {block, one}, "blocks, own ports": {block, own},
		"every pod, nested ports": {
			func(int) Peer { return Peer{Pods: &PodSet{Namespace: "n"}} },
			func(n int) Port { return Port{Protocol: TCP, First: uint16(1000 + n), Last: uint16(60000 - n)} },
		},
	}
}

func manyAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}) }

func (m manyOfOne) build(n int) *Engine {
	e := NewEngine(DefaultLimits())
	e.SetNamespace("n", nil)
	e.SetPod(Pod{Namespace: "n", Name: "pod", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	for i := range n {
		e.SetPolicy(m.policy(i))
		e.SetPod(Pod{Namespace: "n", Name: fmt.Sprint("peer", i), Labels: labels.Set{"app": fmt.Sprint("app", i)}, Addresses: []netip.Addr{manyAddress(i)}})
	}
	e.SetEndpoint(1, PodRef{"n", "pod"})
	return e
}

func (m manyOfOne) policy(n int) Policy {
	return Policy{
		Ref: Ref{KindNetworkPolicy, "n", fmt.Sprint("p", n)}, Tier: Namespaced, Subject: PodSet{Namespace: "n"}, Isolates: [2]bool{Ingress: true},
		Rules: [2][]Rule{Ingress: {{Peers: []Peer{m.peer(n)}, Ports: []Port{m.port(n)}}}},
	}
}

// The entries, and with them the work, grow with the policies that select a pod, and not with the
// product of these and of their peers or ports: 10,000 policies once did not end within minutes.
func TestManyPoliciesOfOnePodAreCompiledInLinearTime(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 2000
	}
	for name, kind := range manyKinds() {
		t.Run(name, func(t *testing.T) {
			e := kind.build(n)
			change := e.Commit()
			tables := NewTables()
			tables.Apply(change.All()...)
			// A set, and at most three entries and two pages of 64 ports of each policy.
			if most := 5*n + 10; change.Len() > most {
				t.Errorf("%d operations, want at most %d", change.Len(), most)
			}
			for i := 0; i < n; i += n / 50 {
				peer, port := manyAddress(i), kind.port(i)
				if block := kind.peer(i).Block; block != nil {
					peer = block.Prefix.Addr()
				}
				other := peer.Next().Next()
				allowedToOther := kind.peer(i).Pods != nil && kind.peer(i).Pods.Pods == nil || port.First == 80
				for what, c := range map[string]struct {
					peer netip.Addr
					port uint16
					want bool
				}{
					"its own":        {peer, port.First, true},
					"a port of none": {peer, 999, false},
					"another peer":   {other, port.First, allowedToOther && i+2 < n},
				} {
					if got, _, _ := tables.Judge(1, Ingress, c.peer, TCP, c.port); got != c.want {
						t.Fatalf("policy %d, %s (%s port %d): %v", i, what, c.peer, c.port, got)
					}
				}
			}
			// A change replaces the set of the pod: what it deletes is what it had written.
			changed := kind.policy(n / 2)
			changed.Rules[Ingress][0].Ports = []Port{{Protocol: UDP, First: 53, Last: 53}}
			e.SetPolicy(changed)
			tables.Apply(e.Commit().All()...)
			e.DeleteEndpoint(1)
			tables.Apply(e.Commit().All()...)
			if tables.Len() != 0 {
				t.Errorf("%d entries are left without an endpoint", tables.Len())
			}
		})
	}
}

func BenchmarkManyPoliciesOfOnePod(b *testing.B) {
	for name, kind := range manyKinds() {
		b.Run(name, func(b *testing.B) {
			measured(b, func() int { return kind.build(10000).Commit().Len() })
		})
	}
}
