package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func refOf(name string) policy.PodRef { return policy.PodRef{Namespace: "default", Name: name} }

// policies changes the port of one policy again and again, and returns the milliseconds that each
// change took.
func (c *changing) policies() (took []float64) {
	const name = "policy-0"
	for i := range changesMade {
		port := 2000 + i
		changed := policyOf(name, "app-0", []networkingv1.NetworkPolicyPeer{podsOf("client-0"), addressBlock(peerAddress(0))}, port)
		changed.Generation = int64(i + 1)
		took = append(took, c.until(func(changes kube.PolicyChanges) bool {
			for ref, object := range changes.Policies {
				if ref.Name == name && object != nil && object.Generation == changed.Generation {
					return true
				}
			}
			return false
		}, func() { c.node.Policy(changed) }))
		c.mustJudge(peerAddress(0), port, true)
		c.mustJudge(peerAddress(0), port-1, false)
	}
	return took
}

// peers adds pods of another node, each of which a policy of the node's pod allows.
func (c *changing) peers() (took []float64) {
	const port = 1007
	for i := range changesMade {
		name, at := fmt.Sprintf("new-%d", i), netip.AddrFrom4([4]byte{10, 0, 120, byte(i + 1)})
		c.mustJudge(at, port, false)
		took = append(took, c.until(func(changes kube.PolicyChanges) bool { return changes.Pods[refOf(name)] != nil },
			func() { c.node.Server.Put(podsPath, apiPod(name, "client-0", "another", at)) }))
		c.mustJudge(at, port, true)
	}
	return took
}

// until makes a change, and returns the milliseconds until the node has written it to the kernel:
// the pass of the controller that took it has ended.
func (c *changing) until(taken func(kube.PolicyChanges) bool, change func()) float64 {
	written := make(chan time.Time, 1)
	c.node.Observe(func(changes kube.PolicyChanges) {
		if taken(changes) {
			go func() {
				_ = c.node.Problem() // returns once the pass has ended
				written <- time.Now()
			}()
		}
	})
	began := time.Now()
	change()
	select {
	case at := <-written:
		c.node.Observe(nil)
		return float64(at.Sub(began).Microseconds()) / 1000
	case <-time.After(time.Minute):
		c.Fatal("a change was not taken in a minute")
	case <-c.ctx.Done():
		c.Fatal(c.ctx.Err())
	}
	return 0
}

// mustJudge has the programs in the kernel judge a connection to the pod.
func (c *changing) mustJudge(from netip.Addr, port int, want bool) {
	frame := append(append(make([]byte, 12), 8, 0), segment(from, c.pod.Address, 40000, uint16(port))...)
	j, err := c.node.Datapath().Judge(bpf.Question{Endpoint: c.pod.ID(), Direction: bpf.Ingress, Packet: frame})
	if err != nil {
		c.Fatal(err)
	}
	if j.Allowed != want {
		c.Fatalf("%s to port %d: allowed %v, want %v", from, port, j.Allowed, want)
	}
}

// segment is a SYN, with an IPv4 header. The programs do not check its sums.
func segment(from, to netip.Addr, source, destination uint16) []byte {
	b := []byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0}
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, source), destination)
	return append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0)
}
