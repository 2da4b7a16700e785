//go:build netns

package enforce

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/testns"
)

// wirings is how often a pod is wired in a sample, and in `make suites`.
const (
	wiringsSampled = 104
	wiringsFull    = 10_000
	wiringsAtOnce  = 8
)

// firstPackets is a node with a peer without policies and namespaces of pods that deny all. The
// peer sends to the addresses of the pods all the time, and the pods' namespaces to the peer.
type firstPackets struct {
	*Node
	flood          *flood
	sandboxes      []*testns.NS
	toPods, toPeer *atomic.Int64
}

func newFirstPackets(t *testing.T) *firstPackets {
	t.Helper()
	n := New(t, 1, nil, nil)
	n.Policy(closing("closed"))
	n.Sync()
	peer := n.Add(Pod{PodRef: ref("peer"), Labels: app("peer"), Address: n.PodAddress(100)})
	const port = 9
	at := socket(t, peer.NS, port)
	f := &firstPackets{Node: n, flood: &flood{}, toPods: new(atomic.Int64), toPeer: count(at)}
	for i := range wiringsAtOnce {
		ns := testns.New(t, fmt.Sprintf("closed%d", i))
		c := socket(t, ns, port)
		f.sandboxes = append(f.sandboxes, ns)
		countInto(f.toPods, c)
		f.flood.pairs = append(f.flood.pairs,
			pair{at, netip.AddrPortFrom(n.PodAddress(i), port)}, pair{c, netip.AddrPortFrom(peer.Address, port)})
	}
	f.flood.run(t)
	return f
}

// round wires pods in every sandbox and removes them.
func (f *firstPackets) round(number int) {
	var pods []*Pod
	for i, ns := range f.sandboxes {
		pods = append(pods, f.Add(Pod{PodRef: ref(fmt.Sprintf("closed-%d-%d", number, i)), Labels: app("closed"), Address: f.PodAddress(i), NS: ns}))
	}
	var between func()
	if number%2 == 1 { // the controller forgets the pod while its link is still up
		between = f.Sync
	}
	f.Remove(between, pods...)
}

func ref(name string) policy.PodRef { return policy.PodRef{Namespace: "default", Name: name} }

func (f *firstPackets) through() int64 { return f.toPods.Load() + f.toPeer.Load() }

func TestNoPacketOfAPodPassesBeforeItsPolicies(t *testing.T) {
	f := newFirstPackets(t)
	wired := 0
	for number := 0; wired < Sample(wiringsSampled, wiringsFull); number++ {
		f.round(number)
		wired += wiringsAtOnce
		if f.through() > 0 {
			t.Fatalf("after %d wirings: %d packets to pods and %d of pods passed", wired, f.toPods.Load(), f.toPeer.Load())
		}
	}
	t.Logf("%d wirings, %d packets sent, %d through", wired, f.flood.sent.Load(), f.through())
	// What was sent arrives if it is allowed.
	f.DeletePolicy("default", "of-closed")
	f.Sync()
	f.round(0)
	eventually(t, "packets in both directions without the policy", func() bool { return f.toPods.Load() > 0 && f.toPeer.Load() > 0 })
}

// The deliberate error of plugins that answer before the policies are in force.
func TestALinkThatIsUpBeforeItsPoliciesIsNoticed(t *testing.T) {
	f := newFirstPackets(t)
	f.UpFirst = true
	const rounds = 5
	for number := 0; number < rounds && f.through() == 0; number++ {
		f.round(number)
	}
	if f.through() == 0 {
		t.Errorf("no packet passed in %d wirings although the links were up first: the test notices nothing", rounds*wiringsAtOnce)
	}
	t.Logf("%d packets to pods and %d of pods passed", f.toPods.Load(), f.toPeer.Load())
}
