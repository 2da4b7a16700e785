//go:build netns

package enforce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/testns"
)

// firstPackets is a node with a peer without policies and namespaces of pods that deny all. The
// peer sends to the addresses of the pods all the time, and the pods' namespaces to the peer.
type firstPackets struct {
	*Node
	flood     *flood
	sandboxes []*testns.NS
	counts    []*bothWays
}

// bothWays counts the packets of a kind that arrive at pods and at the peer.
type bothWays struct {
	kind
	toPods, toPeer atomic.Int64
}

func (b *bothWays) String() string {
	return fmt.Sprintf("%s: %d to pods, %d of pods", b.kind, b.toPods.Load(), b.toPeer.Load())
}

func newFirstPackets(t *testing.T) *firstPackets {
	t.Helper()
	n := New(t, 1, nil, nil)
	n.Policy(closing("closed"))
	n.Sync()
	peer := n.Add(Pod{PodRef: ref("peer"), Labels: app("peer"), Address: n.PodAddress(100)})
	const port = 9
	f := &firstPackets{Node: n, flood: &flood{}}
	for i := range wiringsAtOnce {
		f.sandboxes = append(f.sandboxes, testns.New(t, fmt.Sprintf("closed%d", i)))
	}
	for _, k := range kinds() {
		at, counts := k.open(t, peer.NS, port), &bothWays{kind: k}
		f.counts = append(f.counts, counts)
		countInto(&counts.toPeer, at)
		for i, ns := range f.sandboxes {
			pod, c := &Pod{Address: n.PodAddress(i), Address6: Address6(n.PodAddress(i))}, k.open(t, ns, port)
			countInto(&counts.toPods, c)
			f.flood.pairs = append(f.flood.pairs, pair{at, netip.AddrPortFrom(k.of(pod), port)}, pair{c, netip.AddrPortFrom(k.of(peer), port)})
		}
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

func (f *firstPackets) through() (n int64) {
	for _, c := range f.counts {
		n += c.toPods.Load() + c.toPeer.Load()
	}
	return n
}

func TestNoPacketOfAPodPassesBeforeItsPolicies(t *testing.T) {
	f := newFirstPackets(t)
	wired := 0
	for number := 0; wired < Sample(wiringsSampled, wiringsFull); number++ {
		f.round(number)
		wired += wiringsAtOnce
		if f.through() > 0 {
			t.Fatalf("after %d wirings packets passed: %v", wired, f.counts)
		}
	}
	sent := f.flood.sent.Load()
	// What was sent arrives if it is allowed.
	f.DeletePolicy("default", "of-closed")
	f.Sync()
	f.round(0)
	eventually(t, "packets in both directions without the policy", func() bool {
		return !slices.ContainsFunc(f.counts, func(c *bothWays) bool { return c.toPods.Load() == 0 || c.toPeer.Load() == 0 })
	})
	writeReport(t, "first packet", wired, "wirings", 0, fmt.Sprintf("%d packets sent by UDP, SCTP and ESP over IPv4 and IPv6 to and of closed pods, 0 through", sent))
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
	t.Logf("packets that passed: %v", f.counts)
}
