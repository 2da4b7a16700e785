//go:build netns

package bpf

import (
	"net/netip"
	"testing"
	"time"
)

// Sets of the tests of connections: all are isolated in both directions; a server may be reached at
// ports 80 and 53 by the peer, a client may reach the peer there, and both with ICMP.
const (
	closedSet uint32 = 20
	server    uint32 = 21
	client    uint32 = 22
	ingress   uint32 = 23 // isolated in this direction only, and closed in it
	egress    uint32 = 24
)

type step struct {
	do    func(*world) // before the packet
	in    bool         // to the pod
	l     layer
	reply bool // as conntrack says
	want  bool
}

func connectionWorld(t testing.TB) (w *world, pod, peer netip.Addr) {
	w = newWorld(t)
	pod, peer = addr("10.0.0.2"), addr("10.0.0.9")
	for number := closedSet; number <= client; number++ {
		w.set(number, Ingress, Egress)
		for _, p := range []uint8{protoTCP, protoUDP, protoSCTP} {
			for _, port := range []uint16{80, 53} {
				must(t, w.Maps.Ports.Put(PortKey{Ports: number, Protocol: p, Port: port}, 1))
			}
			must(t, w.Maps.PortRanges.Put(PortRangeKeyOf(number, p, 0, 0), 2)) // all others
		}
		must(t, w.Maps.Classes.Put(ClassKey{number, AddressOf(peer)}, 1))
	}
	w.row(server, Ingress, 1, 0, 1)
	w.row(client, Egress, 1, 0, 1)
	w.set(ingress, Ingress)
	w.set(egress, Egress)
	w.endpoint(1, SetNone, pod)
	return w, pod, peer
}

// become switches the endpoint to a set.
func become(set uint32) func(*world) { return func(w *world) { w.State.SetInForce(1, set) } }

// class changes what the peer may do in a set, and has connections judged again.
func class(set, class uint32) func(*world) {
	return func(w *world) {
		gain(set, class)(w)
		w.State.NextEpoch()
	}
}

// gain gives the peer another class, as the engine does if the class denies nothing that the one
// before allowed.
func gain(set, class uint32) func(*world) {
	return func(w *world) { must(w.t, w.Maps.Classes.Put(ClassKey{set, AddressOf(addr("10.0.0.9"))}, class)) }
}

// later has no packets seen for some time.
func later(d time.Duration) func(*world) {
	return func(w *world) {
		all, err := w.Maps.Connections.All()
		must(w.t, err)
		for key, c := range all {
			c.Seen -= TicksOf(d)
			must(w.t, w.Maps.Connections.Put(key, c))
		}
	}
}

func evict(w *world) { w.forget() }

func TestConnections(t *testing.T) {
	w, pod, peer := connectionWorld(t)
	const short, out, in, reply = time.Second, false, true, true
	to80, from80 := func(flags byte) layer { return tcp(4000, 80, flags) }, func(flags byte) layer { return tcp(80, 4000, flags) }
	serve, use := become(server), become(client)
	unreachable := func(cause layer, from, to netip.Addr) layer { return causes(3, 3, ip(from, to, cause)) }
	for _, tc := range []struct {
		what  string
		steps []step
	}{
		{"replies of an allowed connection pass in the direction that is closed", []step{
			{serve, in, to80(syn), !reply, true}, {nil, out, from80(syn | ack), reply, true}, {nil, in, to80(ack), !reply, true}, {nil, out, from80(ack), reply, true},
		}},
		{"the other ends of the connection stay closed", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, tcp(80, 4001, ack), !reply, false},
			{nil, out, tcp(81, 4000, ack), !reply, false},
			{nil, out, udp(80, 4000), !reply, false},
			{nil, in, tcp(4001, 81, ack), !reply, false},
		}},
		{"a connection that is denied leaves nothing", []step{
			{serve, in, tcp(4000, 81, syn), !reply, false}, {nil, out, tcp(81, 4000, syn|ack), !reply, false}, {nil, in, tcp(4000, 81, ack), !reply, false},
		}},
		{"a SYN of the closed direction is judged as new although the connection exists", []step{
			{serve, in, to80(syn), !reply, true}, {nil, out, from80(syn | ack), reply, true}, {nil, out, from80(syn), !reply, false}, {nil, in, to80(ack), !reply, true},
		}},
		{"a SYN is sent again", []step{
			{serve, in, to80(syn), !reply, true}, {nil, in, to80(syn), !reply, true}, {class(server, 0), in, to80(syn), !reply, false},
		}},
		{"a port is used again after a reset", []step{
			{serve, in, to80(syn), !reply, true}, {nil, out, from80(rst | ack), reply, true}, {nil, in, to80(syn), !reply, true}, {nil, out, from80(syn | ack), reply, true},
		}},
		{"an opening connection expires after 60 s", []step{
			{serve, in, to80(syn), !reply, true},
			{later(59 * short), out, from80(syn | ack), reply, true},
			{evict, in, to80(syn), !reply, true},
			{later(61 * short), out, from80(syn | ack), !reply, false},
		}},
		{"an established connection lives for 2 h without packets", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{later(2*time.Hour - 2*short), out, from80(ack), !reply, true},
			{later(2*time.Hour + short), out, from80(ack), !reply, false},
		}},
		{"a connection that both ends have closed expires after 30 s", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{nil, in, to80(fin | ack), !reply, true},
			{later(31 * short), out, from80(ack), !reply, true}, // half closed
			{nil, out, from80(fin | ack), reply, true},
			{later(29 * short), out, from80(ack), reply, true},
			{later(31 * short), out, from80(ack), !reply, false},
		}},
		{"a connection that was reset expires after 30 s", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{nil, in, to80(rst), !reply, true},
			{later(31 * short), out, from80(ack), !reply, false},
		}},
		{"a revoked connection ends in both directions", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{become(closedSet), out, from80(ack), reply, false},
			{nil, in, to80(ack), !reply, false},
			{nil, out, from80(ack), reply, false},
		}},
		{"a revoked connection ends although the other direction is open", []step{
			{use, out, to80(syn), !reply, true},
			{nil, in, from80(syn | ack), reply, true},
			{become(egress), in, from80(ack), reply, false},
			{nil, in, from80(ack), !reply, false},
			{nil, out, to80(ack), !reply, false},
		}},
		{"a revoked connection resumes when it is allowed again", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{become(closedSet), out, from80(ack), reply, false},
			{serve, out, from80(ack), reply, true},
			{nil, in, to80(ack), !reply, true},
		}},
		{"a new set that allows it keeps a connection", []step{
			{use, out, to80(syn), !reply, true}, {class(client, 1), in, from80(syn | ack), reply, true}, {nil, out, to80(ack), !reply, true},
		}},
		{"a peer that changes its class loses its connection", []step{
			{serve, in, to80(syn), !reply, true}, {nil, out, from80(syn | ack), reply, true}, {class(server, 5), out, from80(ack), reply, false}, {class(server, 1), in, to80(ack), !reply, true},
		}},
		{"a revoked connection resumes when its peer has its class again", []step{
			{serve, in, to80(syn), !reply, true},
			{nil, out, from80(syn | ack), reply, true},
			{class(server, 5), out, from80(ack), reply, false},
			{nil, in, to80(ack), !reply, false},
			{gain(server, 1), in, to80(ack), !reply, true},
			{nil, out, from80(ack), reply, true},
		}},
		{"a connection without an entry continues, as conntrack says who opened it", []step{
			{serve, in, to80(syn), !reply, true},
			{evict, out, from80(ack), reply, true},
			{evict, in, to80(ack), !reply, true},
			{nil, out, from80(ack), reply, true},
			{evict, out, from80(syn | ack), reply, true},
		}},
		{"packets inside no connection are judged as if they opened it", []step{
			{serve, out, from80(ack), !reply, false}, {nil, in, tcp(4000, 81, ack), !reply, false}, {nil, out, from80(rst), !reply, false}, {nil, in, to80(ack), !reply, true},
		}},
		{"a denied connection does not continue as a reply of the open direction", []step{
			{become(ingress), out, from80(ack), reply, false}, {nil, in, to80(ack), !reply, false}, {nil, out, from80(ack), reply, false}, {nil, in, to80(ack), !reply, false},
		}},

		{"UDP is answered", []step{
			{serve, in, udp(4000, 53), !reply, true}, {nil, out, udp(53, 4000), reply, true}, {nil, out, udp(53, 4001), !reply, false},
		}},
		{"UDP without an entry is no reply", []step{{serve, out, udp(53, 4000), !reply, false}, {nil, in, udp(53, 4000), !reply, false}}},
		{"UDP without an entry that conntrack knows is a reply", []step{{serve, out, udp(53, 4000), reply, true}, {nil, in, udp(4000, 53), !reply, true}}},
		{"UDP that is not answered expires after 30 s", []step{{serve, in, udp(4000, 53), !reply, true}, {later(31 * short), out, udp(53, 4000), !reply, false}}},
		{"UDP that is answered expires after 180 s", []step{
			{serve, in, udp(4000, 53), !reply, true}, {nil, out, udp(53, 4000), reply, true}, {later(179 * short), out, udp(53, 4000), !reply, true}, {later(181 * short), out, udp(53, 4000), !reply, false},
		}},
		{"revoked UDP ends in both directions", []step{
			{serve, in, udp(4000, 53), !reply, true}, {become(closedSet), out, udp(53, 4000), reply, false}, {nil, in, udp(4000, 53), !reply, false}, {nil, out, udp(53, 4000), reply, false},
		}},
		{"revoked UDP does not resume with the open direction", []step{
			{serve, in, udp(4000, 53), !reply, true},
			{nil, out, udp(53, 4000), reply, true},
			{become(ingress), in, udp(4000, 53), !reply, false},
			{nil, out, udp(53, 4000), reply, false},
			{nil, in, udp(4000, 53), !reply, false},
		}},
		{"nor in the other one", []step{
			{use, out, udp(4000, 53), !reply, true},
			{nil, in, udp(53, 4000), reply, true},
			{become(egress), in, udp(53, 4000), reply, false},
			{nil, in, udp(53, 4000), reply, false},
			{nil, out, udp(4000, 53), !reply, false},
		}},
		{"denied UDP does not continue as a reply of the open direction", []step{{become(ingress), out, udp(53, 4000), reply, false}, {nil, in, udp(4000, 53), !reply, false}}},
		{"nor a protocol without ports", []step{{become(ingress), out, layer{47, make([]byte, 8)}, reply, false}, {nil, in, layer{47, make([]byte, 8)}, !reply, false}}},
		{"what the open direction begins is answered", []step{
			{become(ingress), out, udp(4000, 53), !reply, true}, {nil, in, udp(53, 4000), reply, true}, {nil, out, layer{47, make([]byte, 8)}, !reply, true}, {nil, in, layer{47, make([]byte, 8)}, reply, true},
		}},
		{"UDP that one end may open is not revoked with what the other end opened", []step{
			{use, out, udp(53, 53), !reply, true}, {serve, in, udp(53, 53), reply, false}, {nil, in, udp(53, 53), reply, true}, {nil, out, udp(53, 53), !reply, true},
		}},

		{"an echo request is answered, a reply alone is not allowed", []step{
			{serve, in, icmp(8, 0, 9), !reply, true}, {nil, out, icmp(0, 0, 9), reply, true}, {nil, out, icmp(0, 0, 8), !reply, false}, {nil, out, icmp(8, 0, 9), !reply, false},
		}},
		{"an echo request is answered within 30 s", []step{{serve, in, icmp(8, 0, 9), !reply, true}, {later(31 * short), out, icmp(0, 0, 9), !reply, false}}},
		{"ICMP of other types has no replies", []step{{serve, in, icmp(100, 0, 0), !reply, true}, {nil, out, icmp(100, 0, 0), !reply, false}, {nil, out, icmp(101, 0, 0), reply, true}}},

		{"an error about a live connection passes both ways", []step{
			{serve, in, udp(4000, 53), !reply, true}, {nil, out, unreachable(udp(4000, 53), peer, pod), !reply, true}, {nil, in, unreachable(udp(53, 4000), pod, peer), !reply, true},
		}},
		{"an error of a router passes", []step{{use, out, to80(syn), !reply, true}, {nil, in, causes(11, 0, ip(pod, peer, to80(syn))), !reply, true}}},
		{"an error about an echo request passes", []step{{use, out, icmp(8, 0, 9), !reply, true}, {nil, in, unreachable(icmp(8, 0, 9), pod, peer), !reply, true}}},
		{"an error about another connection is dropped", []step{
			{use, out, to80(syn), !reply, true},
			{nil, in, unreachable(tcp(4001, 80, syn), pod, peer), !reply, false},
			{nil, in, unreachable(udp(4000, 80), pod, peer), !reply, false},
			{nil, in, unreachable(to80(syn), pod, addr("10.0.0.8")), !reply, false},
		}},
		{"an error about a packet of another address is dropped", []step{{use, out, to80(syn), !reply, true}, {nil, in, unreachable(to80(syn), addr("10.0.0.7"), peer), !reply, false}}},
		{"an error about a later fragment, which has no ports, is dropped", []step{
			{use, out, udp(4000, 53), !reply, true},
			{nil, in, causes(3, 3, ip4(pod, peer, udp(4000, 53), nil, 1)), !reply, false},
			{nil, in, causes(3, 3, ip4(pod, peer, udp(4000, 53), nil, 0x2000)), !reply, true}, // the first one has them
		}},
		{"an error does not keep a connection alive", []step{
			{use, out, udp(4000, 53), !reply, true}, {later(20 * short), in, unreachable(udp(4000, 53), pod, peer), !reply, true}, {later(20 * short), in, udp(53, 4000), !reply, false},
		}},
		{"an error in the direction of its cause is dropped", []step{{use, out, to80(syn), !reply, true}, {nil, out, unreachable(to80(syn), pod, peer), !reply, false}}},
		{"an error about an expired connection is dropped", []step{{use, out, to80(syn), !reply, true}, {later(61 * short), in, unreachable(to80(syn), pod, peer), !reply, false}}},
		{"an error about a revoked connection is dropped", []step{
			{use, out, to80(syn), !reply, true}, {become(closedSet), in, unreachable(to80(syn), pod, peer), !reply, false}, {nil, in, unreachable(to80(syn), pod, peer), !reply, false},
		}},
		{"an error in a direction without policies passes", []step{{become(egress), in, unreachable(to80(syn), pod, peer), !reply, true}}},

		{"SCTP is opened by INIT and continues", []step{
			{serve, in, sctp(4000, 80, 1), !reply, true},
			{nil, out, sctp(80, 4000, 2), reply, true},
			{nil, out, sctp(80, 4000, 1), !reply, false},
			{nil, in, sctp(4000, 80, 0), !reply, true},
			{nil, in, sctp(4000, 80, 6), !reply, true},
			{later(31 * short), out, sctp(80, 4000, 0), !reply, false},
		}},
		{"other protocols are answered for 10 min", []step{
			{serve, in, other(47), !reply, true}, {nil, out, other(47), reply, true}, {later(599 * short), out, other(47), !reply, true}, {later(601 * short), out, other(47), !reply, false},
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			w := worldOf(w.Datapath, t)
			w.forget()
			class(server, 1)(w)
			class(client, 1)(w)
			for i, s := range tc.steps {
				if s.do != nil {
					s.do(w)
				}
				from, to := pod, peer
				if s.in {
					from, to = peer, pod
				}
				if got := w.forward(ip(from, to, s.l), s.reply); got != s.want {
					t.Errorf("step %d: allowed %v, want %v", i+1, got, s.want)
				}
			}
		})
	}
}

// One side that denies a packet leaves no entry of the other.
func TestAConnectionIsStoredWhenBothSidesAllowIt(t *testing.T) {
	w, pod, peer := connectionWorld(t)
	w.endpoint(1, client, pod)
	w.endpoint(2, closedSet, peer)
	w.forward(ip(pod, peer, tcp(4000, 80, syn)))
	all, err := w.Maps.Connections.All()
	if err != nil || len(all) != 0 {
		t.Errorf("%d connections after a deny, %v", len(all), err)
	}
	w.endpoint(2, egress, peer)
	w.forward(ip(pod, peer, tcp(4000, 80, syn)))
	if all, err = w.Maps.Connections.All(); err != nil || len(all) != 2 {
		t.Errorf("%d connections, %v; want one for each endpoint", len(all), err)
	}
}

func TestExpiredConnectionsAreCollected(t *testing.T) {
	w, pod, peer := connectionWorld(t)
	w.endpoint(1, client, pod)
	w.forward(ip(pod, peer, tcp(4000, 80, syn)))
	later(61 * time.Second)(w)
	w.forward(ip(pod, peer, udp(4000, 53)))
	for _, want := range []Occupancy{{Valid: 1, Deleted: 1, Size: 1 << 16}, {Valid: 1, Size: 1 << 16}} {
		if got, err := CollectConnections(w.Maps.Connections); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

// A full table loses the oldest connections, and accepts new ones.
func TestAFullTableAcceptsNewConnections(t *testing.T) {
	o := options(bpffs(t))
	o.Sizes["tl_connections"] = 512
	d, _, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	w := worldOf(d, t)
	pod, peer := addr("10.0.0.2"), addr("10.0.0.9")
	w.set(16, Ingress, Egress)
	w.row(16, Egress, 0, 0)
	w.endpoint(1, 16, pod)
	for port := range 5000 {
		if !w.forward(ip(pod, peer, tcp(port, 80, syn))) || !w.forward(ip(peer, pod, tcp(80, port, syn|ack)), true) {
			t.Fatalf("connection %d is denied", port)
		}
	}
	got, err := CollectConnections(w.Maps.Connections)
	if err != nil || got.Valid > 512 || got.Valid < 100 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnEntryIsNotWrittenForEachPacket(t *testing.T) {
	w, pod, peer := connectionWorld(t)
	w.endpoint(1, client, pod)
	u := &universe{world: w, m: newModel()}
	u.tick()
	w.forward(ip(pod, peer, udp(4000, 53)))
	key := ConnectionKey{Pod: AddressOf(pod), Peer: AddressOf(peer), PodPort: 4000, PeerPort: 53, Protocol: protoUDP}
	c, ok, err := w.Maps.Connections.Get(key)
	if !ok || err != nil || c.State != Opening || c.Opened != Egress || c.Set != client || c.Seen < u.m.now {
		t.Errorf("%+v, %v, %v", c, ok, err)
	}
	// An entry from the future, which only a write would change.
	c.Flags = 0x80
	must(t, w.Maps.Connections.Put(key, c))
	w.forward(ip(pod, peer, udp(4000, 53)))
	if now, _, err := w.Maps.Connections.Get(key); err != nil || now.Flags != 0x80 {
		t.Errorf("%+v, %v", now, err)
	}
	later(10 * time.Second)(w)
	w.forward(ip(peer, pod, udp(53, 4000)), true)
	if now, _, err := w.Maps.Connections.Get(key); err != nil || now.State != Established || now.Seen < c.Seen {
		t.Errorf("%+v, %v", now, err)
	}
}
