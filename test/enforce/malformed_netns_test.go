//go:build netns

package enforce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// pair of pods: a server that only client one may reach, at UDP port 1003.
type served struct {
	*Node
	server, one, two *Pod
}

func newServed(t *testing.T, set func(*Spec)) *served {
	t.Helper()
	s := &served{Node: New(t, 1, nil, set)}
	s.Policy(isolating("server", from("one"), from("two")))
	s.Sync()
	s.server = s.Add(Pod{PodRef: ref("server"), Labels: app("server"), Address: s.PodAddress(0)})
	s.one = s.Add(Pod{PodRef: ref("one"), Labels: app("one"), Address: s.PodAddress(1)})
	s.two = s.Add(Pod{PodRef: ref("two"), Labels: app("two"), Address: s.PodAddress(2)})
	s.Sync()
	s.untilReached(s.one, s.two)
	s.Policy(isolating("server", from("one", portAlways)))
	s.Sync()
	return s
}

// untilReached waits until packets of pods reach the server: the kernel drops what is sent to a link
// before it has noticed that both ends are up.
func (s *served) untilReached(by ...*Pod) {
	s.T.Helper()
	const port = 9
	at := socket(s.T, s.server.NS, port)
	arrived := count(at)
	for _, p := range by {
		c, before := socket(s.T, p.NS, 0), arrived.Load()
		eventually(s.T, "a packet of "+p.Name, func() bool {
			_, _ = c.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(s.server.Address, port)) // one that is not sent does not arrive
			return arrived.Load() > before
		})
		must(s.T, c.Close())
	}
	must(s.T, at.Close())
}

// gateway is the link-layer address of the node's end of a pod's link.
func (p *Pod) gateway() []byte { return p.endpoint.HostMAC[:] }

// fuzzed draws a frame from one address to another: a valid packet, of which bytes are changed,
// and the end is cut, now and then.
func fuzzed(r *rand.Rand, from, to netip.Addr) (kind int, p []byte) {
	payload := datagram(4000, portAlways, "fuzzed")
	switch r.IntN(7) {
	case 0, 1:
		p = packet(from, to, unix.IPPROTO_UDP, nil, part{id: r.IntN(1 << 16)}, payload)
	case 2:
		options := make([]byte, 4*(1+r.IntN(10)))
		for i := range options {
			options[i] = byte(r.Uint32())
		}
		p = packet(from, to, unix.IPPROTO_UDP, options, part{id: 1}, payload)
	case 3:
		p = packet(from, to, unix.IPPROTO_UDP, nil, part{id: r.IntN(8), offset: 8 * r.IntN(3), more: r.IntN(2) == 0}, payload)
	case 4:
		p = packet(from, to, byte(r.Uint32()), nil, part{id: 1}, payload)
	case 5:
		syn := make([]byte, 20)
		copy(syn, append(be16(4000), be16(portAlways)...))
		syn[12], syn[13] = 0x50, byte(r.Uint32())
		p = packet(from, to, unix.IPPROTO_TCP, nil, part{id: 1}, syn)
	case 6:
		p = packet(from, to, unix.IPPROTO_SCTP, nil, part{id: 1}, sctpInit(sourcePort, portAlways, 0))
	}
	kind, p = unix.ETH_P_IP, damaged(r, p)
	if r.IntN(20) == 0 {
		kind = []int{unix.ETH_P_IPV6, unix.ETH_P_8021Q, r.IntN(1 << 16)}[r.IntN(3)]
	}
	return kind, p
}

func TestNoMalformedPacketOfADeniedPodArrives(t *testing.T) {
	s, seed := newServed(t, nil), Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	arrived := openWire(t, s.server.NS).countPackets(t)
	w := openWire(t, s.two.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	flood := func(frames int) {
		for range frames / 2 {
			kind, p := fuzzed(r, s.two.Address, s.server.Address)
			w.send(s.two.gateway(), kind, p)
			kind, p = fuzzed6(r, s.two.Address6, s.server.Address6)
			w.send(s.two.gateway(), kind, p)
		}
	}
	frames := Sample(framesSampled, framesFull)
	flood(frames)
	last := openWire(t, s.one.NS) // its packet is allowed, and arrives after the others
	t.Cleanup(func() { unix.Close(last.fd) })
	last.send(s.one.gateway(), unix.ETH_P_IP, udpPacket(s.one.Address, s.server.Address, portAlways, nil))
	eventually(t, "the last packet", func() bool { return arrived.Load() > 0 })
	if got := arrived.Load() - 1; got > 0 {
		t.Errorf("%d of %d frames of a pod that is denied all arrived", got, frames)
	}
	drops, err := s.Datapath().Drops()
	must(t, err)
	if judged := drops[bpf.ByPolicy] + drops[bpf.Malformed]; judged < uint64(frames/5) {
		t.Errorf("%d of %d frames reached the programs: the test proves little", judged, frames)
	}
	s.Policy(isolating("server", from("two")))
	s.Sync()
	flood(1000)
	eventually(t, "frames of the pod once it is allowed", func() bool { return arrived.Load() > 0 })
	writeReport(t, "malformed", frames, "frames", seed, fmt.Sprintf("none arrived, dropped by reason: %v; of 1000 once allowed, %d arrived", drops, arrived.Load()-1))
}

// The kernel answers an unknown hop-by-hop option with an ICMPv6 error before netfilter sees the
// packet. The error goes to the packet's source: a pod must not choose that.
func TestNoErrorAboutAPacketGoesToASourceThatThePodForged(t *testing.T) {
	s := newServed(t, nil)
	arrived := openWire(t, s.server.NS).countPackets(t)
	w := openWire(t, s.two.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	unknown := append([]byte{unix.IPPROTO_UDP, 0, 0x80, 4, 0, 0, 0, 0}, datagram(4000, portAlways, "x")...)
	for range 100 {
		w.send(s.two.gateway(), unix.ETH_P_IPV6, packet6(s.server.Address6, s.two.Address6, unix.IPPROTO_HOPOPTS, unknown))
		w.send(s.two.gateway(), unix.ETH_P_IPV6, packet6(s.server.Address6, s.one.Address6, unix.IPPROTO_HOPOPTS, unknown))
	}
	last := openWire(t, s.one.NS) // its packet is allowed, and arrives after the others
	t.Cleanup(func() { unix.Close(last.fd) })
	last.send(s.one.gateway(), unix.ETH_P_IP, udpPacket(s.one.Address, s.server.Address, portAlways, nil))
	eventually(t, "the last packet", func() bool { return arrived.Load() > 0 })
	if got := arrived.Load() - 1; got > 0 {
		t.Errorf("%d errors about packets of a denied pod arrived at the address that it forged", got)
	}
	own := openWire(t, s.two.NS).countPackets(t)
	w.send(s.two.gateway(), unix.ETH_P_IPV6, packet6(s.two.Address6, s.server.Address6, unix.IPPROTO_HOPOPTS, unknown))
	eventually(t, "the error about a packet with the pod's own source", func() bool { return own.Load() > 0 })
}

// Connection tracking reports a datagram of which fragments are missing to the source of the first.
func TestNoErrorAboutAFragmentGoesToASourceThatThePodForged(t *testing.T) {
	s := newServed(t, nil)
	s.ip("-n", s.NS.Name, "address", "add", s.Spec.Address.String()+"/32", "dev", "lo")
	s.NS.Do(t, func() {
		for _, file := range []string{"/proc/sys/net/ipv4/ipfrag_time", "/proc/sys/net/netfilter/nf_conntrack_frag6_timeout"} {
			must(t, os.WriteFile(file, []byte("1"), 0))
		}
	})
	arrived, own := openWire(t, s.server.NS).countPackets(t), openWire(t, s.two.NS).countPackets(t)
	w := openWire(t, s.two.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	first := datagram(4000, portAlways, "12345678")
	send := func(source *Pod) {
		w.send(s.two.gateway(), unix.ETH_P_IP, packet(source.Address, s.Spec.Address, unix.IPPROTO_UDP, nil, part{id: 7, more: true}, first))
		w.send(s.two.gateway(), unix.ETH_P_IPV6, packet6(source.Address6, s.one.Address6, unix.IPPROTO_FRAGMENT, fragment6(unix.IPPROTO_UDP, part{id: 7, more: true}, first)))
	}
	send(s.server)
	send(s.two)
	eventually(t, "the errors about the pod's own fragments", func() bool { return own.Load() >= 2 })
	if got := arrived.Load(); got > 0 {
		t.Errorf("%d errors about fragments of a denied pod arrived at the address that it forged", got)
	}
}

// Fragments of IPv6, and a datagram behind extension headers.
func TestFragmentsAndExtensionHeadersOfIPv6AreJudgedByTheirPort(t *testing.T) {
	s := newServed(t, nil)
	arrived := map[int]*atomic.Int64{portAlways: count(socketOf(t, s.server.NS, "udp6", portAlways)), portA: count(socketOf(t, s.server.NS, "udp6", portA))}
	w := openWire(t, s.one.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	from, to := s.one.Address6, s.server.Address6
	send := func(next byte, payload []byte) {
		w.send(s.one.gateway(), unix.ETH_P_IPV6, packet6(from, to, next, payload))
	}
	want, id := int64(0), 0
	for _, port := range []int{portA, portAlways} { // the allowed port is the last one
		whole := datagram6(from, to, port, fmt.Sprintf("%056d", 0))
		parts := []part{{offset: 0, more: true}, {offset: 24, more: true}, {offset: 48}}
		ends := []int{24, 48, len(whole)}
		for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			id++
			for _, i := range order {
				p := parts[i]
				p.id = id
				send(unix.IPPROTO_FRAGMENT, fragment6(unix.IPPROTO_UDP, p, whole[p.offset:ends[i]]))
			}
		}
		send(unix.IPPROTO_DSTOPTS, extension(unix.IPPROTO_UDP, whole))
		send(unix.IPPROTO_HOPOPTS, extension(unix.IPPROTO_DSTOPTS, extension(unix.IPPROTO_UDP, whole)))
		if port == portAlways {
			want = 8
		}
	}
	eventually(t, "all datagrams to the allowed port", func() bool { return arrived[portAlways].Load() >= want })
	if n := arrived[portA].Load(); n != 0 {
		t.Errorf("%d datagrams to the denied port", n)
	}
}

// A rule with ports allows those of its protocols, and one without allows every protocol.
func TestAProtocolIsAllowedByARuleOfItsPortsOrByOneWithoutPorts(t *testing.T) {
	s := newServed(t, nil)
	type ends struct{ at, one, two conn }
	conns := map[kind]ends{}
	for _, k := range kinds() {
		conns[k] = ends{k.open(t, s.server.NS, portA), k.open(t, s.one.NS, 0), k.open(t, s.two.NS, 0)}
	}
	for _, rule := range []struct {
		what  string
		ports []networkingv1.NetworkPolicyPort
		want  map[int]bool
	}{
		{"UDP", []networkingv1.NetworkPolicyPort{udpPort(portA)}, map[int]bool{unix.IPPROTO_UDP: true}},
		{"SCTP", []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolSCTP), Port: new(intstr.FromInt(portA))}}, map[int]bool{unix.IPPROTO_SCTP: true}},
		{"all ports of SCTP", []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolSCTP)}}, map[int]bool{unix.IPPROTO_SCTP: true}},
		{"no ports", nil, map[int]bool{unix.IPPROTO_UDP: true, unix.IPPROTO_SCTP: true, unix.IPPROTO_ESP: true}},
	} {
		p := isolating("server", from("one"), from("two"))
		p.Spec.Ingress[0].Ports = rule.ports // of one; two may all, and is last
		s.Policy(p)
		s.Sync()
		for k, c := range conns {
			to := netip.AddrPortFrom(k.of(s.server), portA)
			must(t, c.one.send(to, 1))
			must(t, c.two.send(to, 2))
			got := map[uint64]bool{}
			for !got[2] || rule.want[k.protocol] && !got[1] { // it times out if what is allowed is lost
				number, ok, err := c.at.receive()
				must(t, err)
				if ok {
					got[number] = true
				}
			}
			if got[1] != rule.want[k.protocol] {
				t.Errorf("a rule of %s: %s passed: %v, want %v", rule.what, k, got[1], rule.want[k.protocol])
			}
		}
	}
}

func TestFragmentsInAnyOrderAndOptionsAreJudgedByTheirPort(t *testing.T) {
	s := newServed(t, nil)
	allowed, denied := count(socket(t, s.server.NS, portAlways)), count(socket(t, s.server.NS, portA))
	w := openWire(t, s.one.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	send := func(p []byte) { w.send(s.one.gateway(), unix.ETH_P_IP, p) }
	want, id := int64(0), 0
	for _, port := range []int{portAlways, portA} {
		whole := datagram(4000, port, fmt.Sprintf("%056d", 0))
		parts := []part{{offset: 0, more: true}, {offset: 24, more: true}, {offset: 48}}
		ends := []int{24, 48, len(whole)}
		for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			id++
			for _, i := range order {
				p := parts[i]
				p.id = id
				send(packet(s.one.Address, s.server.Address, unix.IPPROTO_UDP, nil, p, whole[p.offset:ends[i]]))
			}
			if port == portAlways {
				want++
			}
		}
		// What a parser without options takes for ports is the allowed one.
		send(udpPacket(s.one.Address, s.server.Address, port, append([]byte{1, 1}, append(be16(portAlways), 1, 1, 1, 1)...)))
		if port == portAlways {
			want++
		}
	}
	// A fragment that would replace the allowed port.
	id++
	for _, port := range []int{portAlways, portA} {
		send(packet(s.one.Address, s.server.Address, unix.IPPROTO_UDP, nil, part{id: id, more: true}, datagram(4000, port, "1234567812345678")[:16]))
	}
	send(packet(s.one.Address, s.server.Address, unix.IPPROTO_UDP, nil, part{id: id, offset: 16}, datagram(4000, portA, "1234567812345678")[16:]))
	send(udpPacket(s.one.Address, s.server.Address, portAlways, nil)) // the last one
	want++
	eventually(t, "all datagrams to the allowed port", func() bool { return allowed.Load() >= want })
	if denied.Load() != 0 {
		t.Errorf("%d datagrams to the denied port", denied.Load())
	}
}

// The table of connections is full: what is allowed is still allowed, and nothing else.
func TestAFullTableOfConnectionsIsNeverOpenAndEndsNothing(t *testing.T) {
	const size, connections = 256, 3000
	s := newServed(t, func(spec *Spec) { spec.Connections = size })
	l := &life{change: &change{Node: s.Node, server: s.server, client: s.one}}
	live := l.connect(t)
	live.mustAnswer(t, "connected")
	allowed, denied := count(socket(t, s.server.NS, portAlways)), count(socket(t, s.server.NS, portA))
	w := openWire(t, s.one.NS)
	t.Cleanup(func() { unix.Close(w.fd) })
	for n := range connections {
		for _, port := range []int{portA, portAlways} {
			w.send(s.one.gateway(), unix.ETH_P_IP, packet(s.one.Address, s.server.Address, unix.IPPROTO_UDP, nil, part{id: 1}, datagram(1024+n, port, "full")))
		}
		if n%500 == 0 {
			live.mustAnswer(t, "at the limit")
		}
	}
	eventually(t, "the datagrams of all connections", func() bool { return allowed.Load() == connections })
	live.mustAnswer(t, "after the limit")
	o, err := bpf.CollectConnections(s.Datapath().Maps.Connections)
	must(t, err)
	t.Logf("%d connections: %d entries of %d, %d denied datagrams arrived", connections, o.Valid, o.Size, denied.Load())
	if denied.Load() > 0 || o.Valid > o.Size || o.Valid < size/2 {
		t.Errorf("%d denied datagrams arrived, %d entries of %d", denied.Load(), o.Valid, o.Size)
	}
}
