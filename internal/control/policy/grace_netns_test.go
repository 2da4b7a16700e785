//go:build netns

package policy_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/test/testrun"
)

// A set is replaced so often while a program judges by it, or for so long: a replacement takes a grace
// period of RCU. Without waiting for it, one in some thousand replacements denied a packet.
const (
	replacements = 6000
	replacing    = 15 * time.Second
)

// A program that has read the number of a set may look up its entries when the next set is in force
// already. Every version of the policy allows the packet.
func TestAPacketThatIsBeingJudgedWhileItsSetIsReplacedIsNotDropped(t *testing.T) {
	k := testrun.New(t, policy.DefaultLimits())
	pod := policy.Pod{Namespace: "default", Name: "a", Labels: labels.Set{"app": "a"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.20")}}
	put := func(version int) {
		port := func(first, last int32) networkingv1.NetworkPolicyPort {
			return networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolUDP), Port: new(intstr.FromInt32(first)), EndPort: &last}
		}
		p, problems := policy.FromNetworkPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From:  []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.9.0.0/16"}}},
					Ports: []networkingv1.NetworkPolicyPort{port(1000, 2000), port(int32(3000+version%2), 4000)},
				}},
			},
		})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if err := k.Set(&policy.Cluster{Namespaces: map[string]labels.Set{"default": {}}, Pods: []policy.Pod{pod}, Policies: []policy.Policy{p}}); err != nil {
			t.Fatal(err)
		}
	}
	put(0)
	question := bpf.Question{Endpoint: k.ID(pod.Ref()), Direction: bpf.Ingress, Packet: bpf.OpeningPacket(netip.MustParseAddrPort("10.9.0.1:4000"), netip.AddrPortFrom(pod.Addresses[0], 1500), unix.IPPROTO_UDP)}
	var judged, denied atomic.Int64
	var done sync.WaitGroup
	end := make(chan struct{})
	done.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			j, err := k.Datapath.Judge(question)
			if err != nil {
				t.Error(err)
				return
			}
			judged.Add(1)
			if !j.Allowed {
				denied.Add(1)
			}
		}
	})
	replaced := 0
	for began := time.Now(); replaced < replacements && time.Since(began) < replacing; replaced++ {
		put(replaced + 1)
	}
	close(end)
	done.Wait()
	t.Logf("%d packets were judged while the set was replaced %d times", judged.Load(), replaced)
	if n := denied.Load(); n > 0 || judged.Load() < int64(replaced) {
		t.Errorf("%d of %d packets were denied, which every version allows", n, judged.Load())
	}
}
