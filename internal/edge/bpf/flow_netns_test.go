//go:build netns

package bpf

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// flows reads all records that are there.
func flows(t testing.TB, f *Flows) (all []Flow) {
	t.Helper()
	for {
		flow, err := f.Next(time.Now())
		if errors.Is(err, ErrNoFlow) {
			return all
		}
		must(t, err)
		all = append(all, flow)
	}
}

func logWorld(t testing.TB) (w *world, log *Flows, a, b netip.Addr) {
	w = newWorld(t)
	a, b = addr("10.0.0.1"), addr("10.0.0.2")
	w.set(16, Ingress)
	must(t, w.Maps.Classes.Put(ClassKey{16, AddressOf(a)}, 7))
	must(t, w.Maps.Ports.Put(PortKey{Ports: 16, Protocol: protoTCP, Port: 80}, 70))
	w.row(16, Ingress, 7, 70)
	w.endpoint(5, 16, b)
	w.endpoint(6, SetOpen, a)
	log, err := w.Flows()
	must(t, err)
	t.Cleanup(func() { must(t, log.Close()) })
	return w, log, a, b
}

func TestDeniesAreLogged(t *testing.T) {
	w, log, a, b := logWorld(t)
	w.forward(ip(a, b, tcp(4000, 81, syn)))
	if got := flows(t, log); len(got) > 0 {
		t.Errorf("logged although the log is off: %+v", got)
	}
	w.State.LogFlows(1)
	out := addr("192.0.2.1")
	for _, packet := range [][]byte{
		ip(a, b, tcp(4000, 81, syn)), ip(a, b, tcp(4000, 80, syn)), ip(out, b, udp(53, 4000)),
		ip(a, b, causes(3, 3, ip(b, a, udp(1, 2)))), ip4(a, b, udp(1, 2), nil, 1), ip4(out, b, udp(1, 2), nil, 1), ip(out, addr("192.0.2.2"), udp(1, 2)),
	} {
		w.forward(packet)
	}
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	want := []Flow{
		{Source: at(a, 4000), Destination: at(b, 81), Packet: FlowPacket{Protocol: protoTCP, Length: 40}, Endpoint: 5, Direction: Ingress, Set: 16, Class: 7},
		{Source: at(out, 53), Destination: at(b, 4000), Packet: FlowPacket{Protocol: protoUDP, Length: 28}, Endpoint: 5, Direction: Ingress, Set: 16},
		{Source: at(a, 0), Destination: at(b, 0), Packet: FlowPacket{Protocol: protoICMP, Type: 3, Code: 3, Length: 56}, Endpoint: 5, Direction: Ingress, Reason: Unrelated, Set: 16},
		{Source: at(a, 0), Destination: at(b, 0), Packet: FlowPacket{Protocol: protoUDP, Length: 28}, Endpoint: 6, Direction: Egress, Reason: Fragment, Set: SetOpen},
		{Source: at(out, 0), Destination: at(b, 0), Packet: FlowPacket{Protocol: protoUDP, Length: 28}, Endpoint: 5, Direction: Ingress, Reason: Fragment, Set: 16},
		{Source: at(out, 1), Destination: at(addr("192.0.2.2"), 2), Packet: FlowPacket{Protocol: protoUDP, Length: 28}, Direction: Egress, Reason: NotReady},
	}
	now, err := Monotonic()
	must(t, err)
	got := flows(t, log)
	for i := range got {
		if age := now - got[i].Time; age < 0 || age > time.Minute {
			t.Errorf("record %d is %v old", i, age)
		}
		got[i].Time = 0
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFirstAcceptsAreSampled(t *testing.T) {
	w, log, a, b := logWorld(t)
	w.State.LogFlows(4)
	const connections = 400
	for port := range connections {
		for _, flags := range []byte{syn, ack, ack} {
			w.forward(ip(a, b, tcp(1000+port, 80, flags)))
		}
	}
	got := flows(t, log)
	if n := len(got); n < connections/8 || n > connections/2 {
		t.Errorf("%d records of %d connections, want one of four", n, connections)
	}
	for _, f := range got {
		if !f.Allowed || f.Class != 7 || f.PortClass != 70 || f.Direction != Ingress || f.Endpoint != 5 {
			t.Fatalf("%+v", f)
		}
	}
}

func TestRecordsBeyondTheRateAreCountedAsLost(t *testing.T) {
	w, log, a, b := logWorld(t)
	w.State.LogFlows(1)
	const packets = 10000
	for port := range packets {
		w.forward(ip(a, b, tcp(port, 81, syn)))
	}
	got := flows(t, log)
	if len(got) == 0 || len(got) >= packets {
		t.Fatalf("%d records of %d packets: the rate is not limited", len(got), packets)
	}
	// The next records have the count of those that were lost, on each processor.
	lost := 0
	for _, f := range got {
		lost += int(f.Lost)
	}
	for deadline := time.Now().Add(arrival); lost+len(got) < packets && time.Now().Before(deadline); {
		w.forward(ip(a, b, tcp(1, 81, syn)))
		next, err := log.Next(time.Now().Add(5 * time.Millisecond))
		if err == nil {
			lost += int(next.Lost)
		}
	}
	if lost+len(got) < packets {
		t.Errorf("%d records and %d lost of %d packets", len(got), lost, packets)
	}
}

func TestJudgementsAndDropsAreCounted(t *testing.T) {
	w, _, a, b := logWorld(t)
	for range 3 {
		w.forward(ip(a, b, tcp(4000, 80, syn))) // one connection
	}
	for range 2 {
		w.forward(ip(a, b, tcp(4000, 81, syn)))
	}
	w.forward(ip(a, b, tcp(4000, 81, 0)))
	counts, err := w.Counts()
	must(t, err)
	if diff := cmp.Diff(map[CountKey]uint64{
		{Set: 16, Class: 7, PortClass: 70, Verdict: 1}: 1, {Set: 16, Class: 7}: 2,
	}, counts, cmp.Comparer(func(a, b CountKey) bool { return a == b })); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	drops, err := w.Drops()
	must(t, err)
	if drops[ByPolicy] != 2 || drops[Malformed] != 1 {
		t.Errorf("drops %v", drops)
	}
	must(t, w.DeleteCounts([]CountKey{{Set: 16, Class: 7}, {Set: 99}}))
	if counts, err = w.Counts(); err != nil || len(counts) != 1 {
		t.Errorf("counts %v, %v", counts, err)
	}
}

func TestJudgeHasNoEffects(t *testing.T) {
	w, log, a, b := logWorld(t)
	w.State.LogFlows(2)
	ask := func(l layer, connections bool) Judgement {
		t.Helper()
		j, err := w.Judge(Question{Endpoint: 5, Direction: Ingress, Connections: connections, Packet: ether(ip(a, b, l))})
		must(t, err)
		return j
	}
	for range 50 {
		if got, want := ask(tcp(1, 80, syn), true), (Judgement{Allowed: true, Set: 16, Class: 7, PortClass: 70, New: true}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got, want := ask(tcp(1, 81, syn), true), (Judgement{Set: 16, Class: 7, New: true}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	counts, err := w.Counts()
	must(t, err)
	connections, err := w.Maps.Connections.All()
	must(t, err)
	if got := flows(t, log); len(counts)+len(connections)+len(got) > 0 {
		t.Errorf("counts %v, connections %v, records %v", counts, connections, got)
	}
	w.forward(ip(a, b, tcp(1, 80, syn)))
	must(t, w.Maps.Sets.Put(17, Set{Isolated: 1}))
	w.State.SetInForce(5, 17)
	if got := ask(tcp(1, 80, ack), true); got.Allowed || got.New {
		t.Errorf("a packet of a revoked connection: %+v", got)
	}
	w.State.SetInForce(5, 16)
	if got := ask(tcp(1, 80, ack), true); !got.Allowed || got.New {
		t.Errorf("a packet of a connection: %+v", got)
	}
	if got := ask(tcp(1, 80, ack), false); !got.Allowed || !got.New {
		t.Errorf("a packet judged as if it opened one: %+v", got)
	}
	if got, err := w.Judge(Question{Endpoint: 9, Packet: ether(ip(a, b, udp(1, 2)))}); err != nil || got.Allowed || got.Reason != NotReady {
		t.Errorf("an endpoint that does not exist: %+v, %v", got, err)
	}
	if _, err := w.Judge(Question{Endpoint: 5, Packet: []byte{1}}); err == nil {
		t.Error("a frame of one byte is judged")
	}
}
